"""The estimators: worked figures, calibration without leakage, closeness to the truth, and what they refuse.

Every simulation has a fixed seed; each says how seldom a right implementation would fail it for other seeds.
"""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpserve.accounting import conversions
from dpserve.accounting.losses import Composition, GaussianLoss, SubsampledGaussianLoss
from dpserve.audit import estimators
from dpserve.audit.estimators import Errors, LowerBound
from dpserve.audit.families import BOUNDED_RANGE, GAUSSIAN, LAPLACE, composition_family
from dpserve.audit.families import epsilon_delta as epsilon_delta_family

DELTA = 1e-5


def gaussians(seed, mu, n):
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1, n), rng.normal(0, 1, n)


def test_the_limit_of_a_rate_agrees_with_scipy_and_is_exact():
    for successes, trials in [(0, 10), (3, 10), (9, 10), (10, 10), (137, 5000)]:
        for confidence in (0.5, 0.95, 1 - 1e-9):
            limit = estimators.upper_limit(successes, trials, 1 - confidence)
            two_sided = 2 * confidence - 1
            if two_sided > 0:
                expected = scipy.stats.binomtest(successes, trials).proportion_ci(two_sided, "exact").high
                assert limit == pytest.approx(expected, rel=1e-6)
            if successes < trials:
                assert scipy.stats.binom.cdf(successes, trials, limit) <= (1 - confidence) * (1 + 1e-6)


@pytest.mark.parametrize("doubt", [1e-12, 1e-21, 1e-60, 1e-200])
def test_limits_of_doubts_that_no_confidence_can_say_are_exact_too(doubt):
    for successes, trials in [(0, 10), (3, 10), (137, 5000), (310_000, 1_000_000)]:
        limit = estimators.upper_limit(successes, trials, doubt)
        assert scipy.stats.binom.cdf(successes, trials, limit) <= doubt
        assert scipy.stats.binom.cdf(successes, trials, limit * (1 - 1e-6)) >= doubt


def test_the_published_equations_by_hand():
    errors = Errors(false_positives=0, negatives=1000, false_negatives=400, positives=1000)
    a = 1 - 0.025 ** (1 / 1000)  # Clopper and Pearson's limit without a success
    b = estimators.upper_limit(400, 1000, 0.025)
    assert estimators.epsilon_delta_of_errors(errors, 0.95, DELTA) == pytest.approx(math.log((1 - b - DELTA) / a))
    mu = scipy.special.ndtri(1 - a) - scipy.special.ndtri(b)
    assert estimators.gdp_of_errors(errors, 0.95) == pytest.approx(mu)
    assert LowerBound("mu", mu, 0.95, "exact").epsilon(DELTA) == pytest.approx(conversions.gaussian_epsilon(mu, DELTA))


def test_equation_12_is_the_trade_off_estimate_of_gaussians():
    for seed in range(10):
        errors = estimators.errors_at(*gaussians(seed, 0.3 * seed, 500), 0.1 * seed)
        assert estimators.tradeoff_of_errors(errors, 0.95, GAUSSIAN) == pytest.approx(
            estimators.gdp_of_errors(errors, 0.95), abs=1e-8
        )


def test_equation_9_is_the_trade_off_estimate_of_epsilon_delta():
    for seed in range(10):
        errors = estimators.errors_at(*gaussians(seed, 0.5 * seed, 500), 1.5)
        assert estimators.tradeoff_of_errors(errors, 0.95, epsilon_delta_family(DELTA)) == pytest.approx(
            estimators.epsilon_delta_of_errors(errors, 0.95, DELTA), abs=1e-8
        )


@pytest.mark.parametrize("family", [GAUSSIAN, LAPLACE, BOUNDED_RANGE, epsilon_delta_family(1e-3)])
def test_families_fall_in_alpha_and_in_the_parameter(family):
    alpha = np.linspace(0, 1, 101)
    previous = 1 - alpha + 1e-15
    for parameter in (0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0):
        beta = family.tradeoff(parameter, alpha)
        assert np.all(beta <= previous)
        assert np.all(np.diff(beta) <= 1e-15)
        # A trade-off function and its mirror image are the same: adding and removing a record are told apart alike.
        assert np.all(family.tradeoff(parameter, beta) <= alpha + 1e-9)
        previous = beta


def test_the_laplace_trade_off_is_the_optimal_test_of_laplace_variables():
    epsilon = 1.3
    thresholds = np.linspace(-3, 4, 50)
    alpha, beta = scipy.stats.laplace.sf(thresholds), scipy.stats.laplace.cdf(thresholds, loc=epsilon)
    np.testing.assert_allclose(LAPLACE.tradeoff(epsilon, alpha), beta, rtol=1e-9)


def test_a_composition_is_the_family_of_its_numerical_curve():
    """One Gaussian step at sampling rate 1 is mu-GDP, so both families give the same answer, but for the grid."""
    errors = estimators.errors_at(*gaussians(0, 1.0, 20_000), 0.5)
    family = composition_family("mu", lambda mu: Composition({GaussianLoss(mu): 1}), 1e-6, largest=4.0, tolerance=1e-3)
    found = estimators.tradeoff_of_errors(errors, 0.95, family)
    exact = estimators.gdp_of_errors(errors, 0.95)
    assert exact * 0.97 <= found <= exact * (1 + 1e-3)


def test_a_sampled_composition_is_bounded_below_through_its_trade_off():
    """100 sampled steps: the inverse of the noise multiplier is refuted up to near the truth, and never beyond it."""
    steps, rate, inverse = 100, 0.1, 1.0
    family = composition_family(
        "1/noise multiplier",
        lambda t: Composition({SubsampledGaussianLoss(1 / t, rate): steps}),
        1e-5,
        largest=2.0,
        tolerance=1e-2,
    )
    alpha = np.array([0.05])
    beta = float(family.tradeoff(inverse, alpha)[0])
    assert 0.9 * inverse < estimators.largest_refuted(family, 0.05, beta * 1.0001) <= inverse


def estimates(scores_in, scores_out, confidence=0.95):
    scores = scores_in, scores_out, confidence
    return {
        "epsilon_delta": estimators.epsilon_delta(*scores, delta=DELTA),
        "gdp": estimators.gdp(*scores),
        "pooled_gdp": estimators.pooled_gdp(*scores),
        "tradeoff": estimators.tradeoff(*scores, LAPLACE),
    }


@pytest.mark.parametrize(("audits", "most"), [(200, 29), pytest.param(1000, 88, marks=pytest.mark.slow)])
def test_without_leakage_at_most_one_audit_in_twenty_finds_some(audits, most):
    """The exact estimators' discrete rates are below 0.5 %, so that a twentieth is far beyond 1e-6.

    Pooled errors' rate is 5 %, at most: P(Binomial(1000, 0.05) > 88) < 1e-6 and P(Binomial(200, 0.05) > 29) < 1e-6.
    """
    found = dict.fromkeys(estimates(*gaussians(0, 0, 200)), 0)
    for seed in range(audits):
        for name, bound in estimates(*gaussians(seed, 0, 200)).items():
            found[name] += bound.value > 0
    assert found.pop("pooled_gdp") <= most
    assert max(found.values()) <= 0.05 * audits, found


@pytest.mark.parametrize("confidence", [0.76, 0.9999])
@pytest.mark.parametrize(("negatives", "positives"), [(7, 7), (30, 55)])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_pooled_errors_never_overstate_mu_more_often_than_they_say(negatives, positives, mu, confidence):
    """Exactly, by summing both binomial laws, for attacks all along the trade-off curve of mu: no luck."""
    bounds = np.array(
        [
            estimators.gdp_of_pooled_errors(
                Errors(min(k, negatives), negatives, max(0, k - negatives), positives), confidence
            )
            for k in range(negatives + positives + 1)
        ]
    )
    assert np.all(np.diff(bounds) <= 0)
    too_few = bounds > mu
    for alpha in np.linspace(0, 1, 41):
        beta = scipy.special.ndtr(-scipy.special.ndtri(alpha) - mu)
        law = np.convolve(
            scipy.stats.binom.pmf(np.arange(negatives + 1), negatives, alpha),
            scipy.stats.binom.pmf(np.arange(positives + 1), positives, beta),
        )
        assert law[too_few].sum() <= (1 - confidence) * (1 + 1e-9)


def test_pooled_errors_come_closer_than_two_limits():
    for seed in range(5):
        scores = gaussians(seed, 1.0, 2000)
        pooled, apart = (bound(*scores, 0.95, threshold=0.5).value for bound in (estimators.pooled_gdp, estimators.gdp))
        assert apart < pooled < 1.1
    errors = Errors(30, 100, 20, 100)
    limit = estimators.upper_limit(50, 200, 0.05)
    assert estimators.gdp_of_pooled_errors(errors, 0.95) == pytest.approx(-2 * scipy.special.ndtri(limit), rel=1e-9)
    with pytest.raises(ValueError, match=r"above 0\.75"):
        estimators.gdp_of_pooled_errors(errors, 0.7)


def shares_found(epsilon, audits, bound_of):
    """Return the bounds (audits,) over the truth, of 10,000 log-ratios with the record and as many without."""
    mu = conversions.gaussian_mu(epsilon, DELTA)
    found = (bound_of(*(mu * s - mu**2 / 2 for s in gaussians(seed, mu, 10_000))) for seed in range(audits))
    return np.array([bound.epsilon(DELTA) for bound in found]) / epsilon


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [(1, 0.882), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, 0.935), (4, 0.962), (8, 0.975)))],
)
def test_the_exact_bound_of_a_gaussian_of_known_epsilon_is_close_and_seldom_above(epsilon, expected):
    """1,000 audits by pooled errors, at the threshold 0, which log-ratios have ahead of them.

    One audit scatters by (1 - expected)/1.645 or less, its median of 1,000 by 1.2533/sqrt(1000) of that: the lines lie
    5 of these on either side. The median of the first 20 scatters by 7 times as much; its line, too, is 5 lower. At
    epsilon = 1 the exact bound's median is below 0.9, and at 2, 4 and 8 above it, which the lines of the 1,000 decide.
    Above the truth are at most 5 %: P(Binomial(1000, 0.05) > 88) < 1e-6.
    """
    shares = shares_found(epsilon, 1000, lambda *scores: estimators.pooled_gdp(*scores, 0.95, threshold=0.0))
    scatter = 1.2533 * (1 - expected) / 1.645
    assert abs(np.median(shares) - expected) <= 5 * scatter / math.sqrt(1000)
    assert (np.median(shares) > 0.9) == (epsilon > 1)
    assert np.median(shares[:20]) >= expected - 5 * scatter / math.sqrt(20)
    assert np.sum(shares > 1) <= 88


def test_exact_bounds_stay_below_the_truth():
    """200 audits of mu = 1 at confidence 1 - 1e-9 each: all hold, but for a probability of 200 * 1e-9."""
    for seed in range(200):
        scores = gaussians(seed, 1.0, 300)
        assert estimators.gdp(*scores, 1 - 1e-9).value <= 1
        assert estimators.epsilon_delta(*scores, 1 - 1e-9, delta=DELTA).value <= conversions.gaussian_epsilon(1, DELTA)


def test_a_perfect_attack_is_bounded_by_the_number_of_observations():
    inside, outside = np.full(1000, np.inf), np.full(1000, -np.inf)
    bound = estimators.epsilon_delta(inside, outside, 0.95, delta=0)
    assert bound.errors == Errors(0, 750, 0, 750)
    limit = 1 - 0.025 ** (1 / 750)
    assert bound.value == pytest.approx(math.log((1 - limit) / limit), rel=1e-6)


def test_what_makes_no_sense_is_refused():
    good = np.arange(10.0)
    with pytest.raises(ValueError, match="NaN"):
        estimators.gdp([math.nan], good, 0.95, threshold=0)
    with pytest.raises(ValueError, match="at least one"):
        estimators.gdp([], good, 0.95)
    with pytest.raises(ValueError, match="too few"):
        estimators.gdp([1.0], good, 0.95)
    with pytest.raises(ValueError, match="confidence"):
        estimators.gdp(good, good, 1.0)
    with pytest.raises(ValueError, match="delta"):
        estimators.epsilon_delta(good, good, 0.95, delta=1.0)
    with pytest.raises(ValueError, match="family"):
        LowerBound("sigma", 1.0, 0.95, "exact").epsilon(DELTA)
