"""The table's methods: credible bounds against a simulated posterior, and every method below the truth."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpserve.audit import estimators
from dpserve.audit.estimators import Errors
from dpserve.audit.families import GAUSSIAN
from research.nasr2023.methods import (
    METHODS,
    credible_epsilon_delta,
    credible_gdp,
    credible_of_errors,
    designed_threshold,
    katz,
    step_bound,
)
from research.white_box.bounds import ClaimedRun, run_epsilon


def test_credible_bounds_agree_with_a_simulated_posterior():
    errors = Errors(120, 1000, 300, 1000)
    rng = np.random.default_rng(0)
    alpha, beta = rng.beta(120.5, 880.5, 400_000), rng.beta(300.5, 700.5, 400_000)
    expected = np.quantile(scipy.special.ndtri(1 - alpha) - scipy.special.ndtri(beta), 0.025)
    # The quantile of 400,000 draws scatters by 2.5e-4 of its width, 0.1: 0.002 is 20 deviations.
    assert credible_of_errors(errors, 0.95, GAUSSIAN) == pytest.approx(expected, abs=2e-3)
    assert credible_of_errors(errors, 0.95, GAUSSIAN) > estimators.gdp_of_errors(errors, 0.95)


def test_every_method_bounds_the_step_it_is_shown_from_below():
    """At the expected counts of exact scores: no luck."""
    claim = ClaimedRun(0.7, 0.05, 40, 1e-5)
    quantiles = (np.arange(4000) + 0.5) / 4000
    outside = scipy.stats.norm.ppf(quantiles) * 0.7
    mixed = np.random.default_rng(0).permutation(4000)
    inside, outside = (outside + 1)[mixed], outside[np.random.default_rng(1).permutation(4000)]
    found = {method: step_bound(inside, outside, method, 0.95, claim) for method in METHODS}
    epsilons = {method: run_epsilon(bound, claim) for method, bound in found.items()}
    assert 1.3 < found["f-DP (CP)"].value < found["f-DP (ZB)"].value < 1 / 0.7
    assert 0 < epsilons["(eps, delta)-DP (CP)"] < epsilons["f-DP (CP)"] < epsilons["f-DP (ZB)"] < claim.epsilon


def test_the_designed_threshold_is_in_the_middle_for_the_gaussian_family_and_far_out_for_epsilon_delta():
    claim = ClaimedRun(1.0, 0.05, 40, 1e-5)
    assert abs(designed_threshold("f-DP (CP)", 0.95, claim, 10**6) - 0.5) < 0.2
    assert designed_threshold("(eps, delta)-DP (CP)", 0.95, claim, 10**6) > 2


def test_without_leakage_few_audits_find_some():
    """200 audits of nothing, in which about 2.3 % find some: P(Binomial(200, 0.023) > 20) < 1e-6."""
    found = dict.fromkeys(("credible_epsilon_delta", "credible_gdp", "katz"), 0)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        scores = rng.normal(0, 1, 200), rng.normal(0, 1, 200)
        found["credible_epsilon_delta"] += credible_epsilon_delta(*scores, 0.95, delta=1e-5).value > 0
        found["credible_gdp"] += credible_gdp(*scores, 0.95).value > 0
        found["katz"] += katz(*scores, 0.95).value > 0
    assert max(found.values()) <= 20, found
