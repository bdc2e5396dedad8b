import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from accounting import analyses, attack_bounds, sampling_error
from accounting.attack_bounds import AttackPower, attack_power, composition_and_rho, reading_of_attack
from accounting.explanation import parse_release

DELTA = 1e-6


def powers(releases, delta=DELTA, rates=attack_bounds.FALSE_POSITIVE_RATES):
    composition, rho = composition_and_rho({parse_release(text): times for text, times in releases.items()})
    epsilon = min(a.epsilon for a in (f(composition, delta) for f in analyses.ALL.values()) if a.epsilon is not None)
    found = attack_power(composition, rho, epsilon, delta, delta, rates)
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
    assert powers({}) == pytest.approx(attack_bounds.FALSE_POSITIVE_RATES)


def test_the_sampler_adds_its_share_of_delta_to_any_power():
    composition, rho = composition_and_rho({parse_release("gaussian:20"): 200})
    delta = 1e-3

    (ideal,) = attack_power(composition, rho, 3.0, delta, delta, (0.05,))
    (drawn,) = attack_power(composition, rho, 3.0, delta, sampling_error.ideal_delta(delta), (0.05,))

    assert drawn.true_positive_rate_bound - ideal.true_positive_rate_bound == pytest.approx(delta / 1024, rel=1e-3)


def test_an_attack_better_than_the_releases_allow_is_called_impossible():
    power = AttackPower(false_positive_rate=0.05, true_positive_rate_bound=0.1)

    assert reading_of_attack(0.09, 0.05, 1e-5, power).possible
    found = reading_of_attack(0.2, 0.05, 1e-5, power)
    assert not found.possible
    assert found.least_epsilon == pytest.approx(math.log((1 - 1e-5) / (1 - 0.15)))


@pytest.mark.parametrize(("rates", "said"), [((1.1, 0), "true positive"), ((1, 0), "always right"), ((1, 2), "false")])
def test_impossible_rates_are_refused(rates, said):
    with pytest.raises(ValueError, match=said):
        reading_of_attack(*rates, 1e-5, AttackPower(false_positive_rate=0.05, true_positive_rate_bound=0.1))
