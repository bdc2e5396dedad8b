import numpy as np
import pytest
import scipy.stats

from audit.white_box.bounds import (
    METHODS,
    ClaimedRun,
    claimed_run,
    composed_epsilon,
    designed_threshold,
    many_thresholds_bound,
    run_epsilon,
    step_bound,
)

LEVELS = np.linspace(0.001, 0.999, 97)


def test_a_claim_uses_its_epsilon_up_and_no_more():
    claim = claimed_run(4.0, 0.02, 50, 1e-5)
    assert 3.99 < claim.epsilon <= 4.0
    with pytest.raises(ValueError, match="no noise multiplier"):
        claimed_run(1e-9, 1.0, 10**6, 1e-9)


@pytest.mark.parametrize("noise", [0.6, 1.0, 2.0])
def test_a_run_composed_from_below_is_below_and_close(noise):
    above = ClaimedRun(noise, 0.05, 40, 1e-5).epsilon
    below = composed_epsilon(noise, 0.05, 40, 1e-5)
    assert above * 0.96 < below <= above


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


def test_many_thresholds_come_closest():
    claim = ClaimedRun(0.7, 0.05, 40, 1e-5)
    outside = scipy.stats.norm.ppf((np.arange(4000) + 0.5) / 4000) * 0.7
    closest = many_thresholds_bound(outside + 1, outside, 0.95, claim).value
    assert step_bound(outside + 1, outside, "f-DP (CP)", 0.95, claim).value < closest < 1 / 0.7


def test_the_designed_threshold_is_in_the_middle_for_the_gaussian_family_and_far_out_for_epsilon_delta():
    claim = ClaimedRun(1.0, 0.05, 40, 1e-5)
    assert abs(designed_threshold("f-DP (CP)", 0.95, claim, 10**6) - 0.5) < 0.2
    assert designed_threshold("(eps, delta)-DP (CP)", 0.95, claim, 10**6) > 2


def test_nothing_refuted_is_an_epsilon_of_nothing():
    claim = ClaimedRun(0.7, 0.05, 40, 1e-5)
    scores = np.linspace(0, 1, 400)
    assert run_epsilon(step_bound(scores, scores, "f-DP (CP)", 0.95, claim), claim) == 0
