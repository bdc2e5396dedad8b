import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpserve.accounting import analyses, attack_bounds, identifiability
from dpserve.accounting.attack_bounds import (
    AttackPower,
    attack_power,
    attack_power_at_limit,
    composition_and_rho,
    reading_of_attack,
)
from dpserve.accounting.budgets import Budget
from dpserve.accounting.explanation import parse_release
from tests.accounting.curves import gaussian_delta

DELTA = 1e-6


def powers(releases, delta=DELTA, rates=attack_bounds.FALSE_POSITIVE_RATES):
    composition, rho = composition_and_rho({parse_release(text): times for text, times in releases.items()})
    epsilon = min(a.epsilon for a in (f(composition, delta) for f in analyses.ALL.values()) if a.epsilon is not None)
    found = attack_power(composition, rho, epsilon, delta, rates)
    return np.array([power.true_positive_rate_bound for power in found])


def test_gaussian_power_is_that_of_the_likelihood_ratio_test():
    rates = np.array(attack_bounds.FALSE_POSITIVE_RATES)

    found = powers({"gaussian:20": 200})

    assert found == pytest.approx(norm.cdf(norm.ppf(rates) + math.sqrt(200) / 20), rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(0.3, 30), times=st.integers(1, 20), rate=st.floats(0.001, 0.5), seed=st.integers(0, 99))
def test_no_threshold_attack_on_laplace_noise_is_stronger(scale, times, rate, seed):
    """The sum of log-likelihood ratios of `times` draws, thresholded: 20,000 draws of each side.

    By Dvoretzky, Kiefer and Wolfowitz either empirical law is off by 0.024 with probability below 2e-10: all 25
    examples together stay below 1e-6.
    """
    rng = np.random.default_rng(seed)
    draws = 20_000
    noise = rng.laplace(scale=scale, size=(2, draws, times))
    ratio = ((np.abs(noise[0]) - np.abs(noise[0] - 1)) / scale).sum(axis=1)
    shifted = ((np.abs(noise[1] + 1) - np.abs(noise[1])) / scale).sum(axis=1)
    (bound,) = powers({f"laplace:{scale}": times}, rates=(min(1.0, rate + 0.024),))

    threshold = np.quantile(ratio, 1 - rate, method="higher")

    assert np.mean(shifted > threshold) <= bound + 0.024


@pytest.mark.parametrize("text", ["laplace:5", "exponential:0.3", "sgm:1.1:0.02", "exponential:0.2,gaussian:10"])
def test_power_grows_with_the_rate_and_with_the_releases(text):
    rates = (0.0, 0.001, 0.01, 0.1, 0.5, 1.0)
    few, many = (powers({text: times}, rates=rates) for times in (3, 30))

    assert np.all(np.diff(few) >= 0)
    assert np.all(few <= many + 1e-12)
    assert np.all(few >= rates)
    assert few[-1] == 1


def test_nothing_released_leaves_guessing():
    composition, rho = composition_and_rho({})
    found = attack_bounds.identifiability_of(composition, rho, 0.0, 1e-3)

    assert powers({}) == pytest.approx(attack_bounds.FALSE_POSITIVE_RATES)
    assert found.posterior_belief_bound == pytest.approx(0.5)
    assert found.membership_advantage_bound == 0


@pytest.mark.parametrize("mu", [0.1, 0.7, 3.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-3])
def test_log_odds_of_the_gaussian_curve_are_the_exact_ones(mu, delta):
    """The least over all epsilons is the closed form; over a grid it lies above, and closely."""
    curve = np.vectorize(lambda epsilon: gaussian_delta(mu, float(epsilon)))
    exact = identifiability.gaussian_log_odds(mu, delta)

    found = attack_bounds.curve_log_odds(curve, np.linspace(0, 2 * exact, 2001), delta)

    assert exact * (1 - 1e-9) <= found <= exact * 1.001


def test_log_odds_where_the_curve_says_nothing_are_infinite():
    assert attack_bounds.curve_log_odds(np.ones_like, np.linspace(0, 1, 5), 1e-6) == math.inf


@pytest.mark.parametrize(("text", "times"), [("laplace:5", 3), ("sgm:1.1:0.02", 50), ("exponential:0.2,laplace:9", 9)])
def test_no_attack_on_the_worst_pair_beats_the_bounds(text, times):
    """The advantage bound is what the power bounds allow at their best, and beliefs are bounded by pure epsilon."""
    composition, rho = composition_and_rho({parse_release(text): times})
    rates = tuple(np.linspace(0, 1, 101))
    epsilon = analyses.side_by_side({parse_release(text): times}, DELTA).epsilon
    found = attack_bounds.identifiability_of(composition, rho, epsilon, DELTA)

    best = float(np.max(powers({text: times}, rates=rates) - np.array(rates)))
    assert best <= found.membership_advantage_bound * (1 + 1e-9)
    assert best == pytest.approx(found.membership_advantage_bound, rel=0.1)
    pure = sum(loss.pure_epsilon * count for loss, count in composition.items())
    assert found.posterior_belief_bound <= 1 / (1 + math.exp(-pure)) + 1e-12


def test_the_sampler_adds_its_share_of_delta_to_any_power():
    delta = 1e-3
    budget = Budget.from_mu(0.7, delta)

    ideal = float(norm.cdf(norm.ppf(0.05) + 0.7))
    (drawn,) = attack_power_at_limit(budget, (0.05,))

    assert drawn.true_positive_rate_bound - ideal == pytest.approx(delta / 1024, rel=1e-3)


def test_an_attack_better_than_the_releases_allow_is_called_impossible():
    power = AttackPower(false_positive_rate=0.05, true_positive_rate_bound=0.1)
    other = AttackPower(false_positive_rate=0.95, true_positive_rate_bound=0.99)

    assert reading_of_attack(0.09, 0.05, 1e-5, power, other).possible
    found = reading_of_attack(0.2, 0.05, 1e-5, power, other)
    assert not found.possible
    assert found.least_epsilon == pytest.approx(math.log((1 - 1e-5) / (1 - 0.15)))


def test_an_attack_that_is_wrong_too_often_is_one_turned_round():
    power, other = (
        AttackPower(false_positive_rate=rate, true_positive_rate_bound=float(bound))
        for rate, bound in zip((0.9, 0.1), powers({"gaussian:20": 1}, rates=(0.9, 0.1)), strict=True)
    )
    found = reading_of_attack(0.5, 0.9, DELTA, power, other)
    assert not found.possible
    assert found.least_epsilon == pytest.approx(math.log((1 - DELTA) / (1 - 0.4)))


@pytest.mark.parametrize(("rates", "said"), [((1.1, 0), "true positive"), ((1, 0), "always right"), ((1, 2), "false")])
def test_impossible_rates_are_refused(rates, said):
    power = AttackPower(false_positive_rate=0.05, true_positive_rate_bound=0.1)
    with pytest.raises(ValueError, match=said):
        reading_of_attack(*rates, 1e-5, power, power)


def test_coins_raise_every_bound_by_at_least_their_probability() -> None:
    delta, times = 1e-9, 500
    coins = times * 2.0**-40
    found = {}
    for text in (f"approximate-gaussian:20:{2.0**-40!r}", "gaussian:20"):
        composition, rho = composition_and_rho({parse_release(text): times})
        meaning = attack_bounds.identifiability_of(composition, rho, 10.0, delta)
        powers = attack_power(composition, rho, 10.0, delta)
        found[text[:5]] = meaning, powers
    (with_coins, powers), (without, ideal) = found["appro"], found["gauss"]

    assert with_coins.posterior_belief_bound > without.posterior_belief_bound
    assert with_coins.membership_advantage_bound >= without.membership_advantage_bound + 0.99 * coins
    for power, other in zip(powers, ideal, strict=True):
        assert power.true_positive_rate_bound >= other.true_positive_rate_bound + 0.99 * coins

    composition, rho = composition_and_rho({parse_release(f"approximate-gaussian:20:{2.0**-40!r}"): 5000})
    with pytest.raises(ValueError, match="noise is too extreme to be bounded"):
        attack_power(composition, rho, 10.0, delta)
