"""Bounds from one run: exact tails, sound mechanisms that are seldom refuted, and ones that must be.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

import itertools

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpserve.accounting.conversions import gaussian_mu
from dpserve.accounting.one_run import (
    LARGEST_MU,
    cannot_be,
    mu_of_guesses,
    mu_of_means,
    noncentral_t_tail,
    p_value_of_means,
)

AUDITS = 2000


def exact_tail(seen, freedom, noncentrality):
    """The same integral, to 30 digits, over V itself."""
    with mpmath.workdps(30):

        def density(v):
            return v ** (mpmath.mpf(freedom) / 2 - 1) * mpmath.exp(-v / 2)

        def beyond(v):
            return density(v) * mpmath.ncdf(noncentrality - seen * mpmath.sqrt(v / freedom))

        ends = [0, freedom / 4, freedom / 2, freedom, 2 * freedom, 8 * freedom + 100]
        return float(mpmath.quad(beyond, ends) / (2 ** (mpmath.mpf(freedom) / 2) * mpmath.gamma(freedom / 2)))


@pytest.mark.parametrize(
    ("seen", "freedom", "noncentrality"), [(2.0, 40, 1.0), (9.0, 40, 1.0), (4.0, 3, 0.5), (-1.0, 10, 2.0), (30.0, 6, 2)]
)
def test_the_tail_of_a_noncentral_t_is_exact_and_not_too_small(seen, freedom, noncentrality):
    found, exact = noncentral_t_tail(seen, freedom, noncentrality), exact_tail(seen, freedom, noncentrality)
    assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-7)


def test_a_bound_is_the_largest_mu_that_is_refuted():
    rng = np.random.default_rng(0)
    included, left_out = rng.normal(2.0, size=60), rng.normal(size=70)
    bound = mu_of_means(included, left_out, 0.05)
    assert 0 < bound < 2.5
    assert p_value_of_means(included, left_out, bound) <= 0.05 < p_value_of_means(included, left_out, bound + 1e-6)
    # A coarser grid, or more confidence, only lowers it; units do not matter.
    assert mu_of_means(included, left_out, 0.05, step=0.1) < bound
    assert mu_of_means(included, left_out, 1e-9) < bound
    assert mu_of_means(3 * included - 7, 3 * left_out - 7, 0.05) == pytest.approx(bound, rel=1e-9)


def test_what_cannot_be_bounded_is_not():
    same = np.zeros(10)
    assert mu_of_means(same, same, 0.05) == 0
    assert mu_of_means(same + 1, same, 0.05) > 1000 or mu_of_means(same + 1, same, 0.05) == LARGEST_MU
    with pytest.raises(ValueError, match="3 left out"):
        mu_of_means(same, same[:2], 0.05)
    with pytest.raises(ValueError, match="doubt"):
        mu_of_means(same, same, 1.0)


def scores_of(kind, mu, rng, n):
    """Scores of canaries in a mu-GDP run, and those left out."""
    inside = rng.random(n) < 0.5
    noise = rng.normal(size=n)
    match kind:
        case "normal":
            moved = mu
        case "sampled":  # joins half of the time, and so is less private than nothing, and more than mu
            moved = mu * (rng.random(n) < 0.5)
        case "clipped":  # what is added differs between canaries
            moved = mu * rng.random(n)
    return noise[inside] + np.broadcast_to(moved, n)[inside], noise[~inside]


@pytest.mark.parametrize("kind", ["normal", "sampled", "clipped"])
def test_sound_runs_are_refuted_no_more_often_than_stated(kind):
    """P(Binomial(2000, 0.05) > 150) < 1e-6; and of a tight claim about one in twenty is, as it should."""
    mu, rng = gaussian_mu(8, 1e-5), np.random.default_rng(8)
    refuted = sum(p_value_of_means(*scores_of(kind, mu, rng, 200), mu) <= 0.05 for _ in range(AUDITS))
    assert stats.binom.sf(150, AUDITS, 0.05) < 1e-6
    assert refuted <= 150
    if kind == "normal":
        assert refuted >= 55  # P(Binomial(2000, 0.05) < 55) < 1e-6


def test_one_canary_is_guessed_no_better_than_the_curve_allows():
    """With one canary P(right) <= Phi(mu/2): the theorem is tight there."""
    for mu in (0.3, 1.0, 2.5):
        most = stats.norm.cdf(mu / 2)
        assert cannot_be(1, 1, 1, np.array([mu]), most + 1e-6)
        assert not cannot_be(1, 1, 1, np.array([mu]), most - 1e-6)


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_no_mu_gdp_release_of_few_canaries_beats_the_bound(mu):
    """Independent canaries, and ones that share one draw of noise, guessed in the best way: exact probabilities."""
    canaries = 6
    each = stats.norm.cdf(mu / 2)
    for right in range(1, canaries + 1):
        assert not cannot_be(canaries, canaries, right, np.array([mu]), stats.binom.sf(right - 1, canaries, each))
    # All coins enter one number: sum of +-1/2 of the coins times mu + N(0, 1); every coin is guessed by its sign.
    grid = np.linspace(-12, 12, 20001)
    likely = np.zeros(canaries + 1)
    for coins in itertools.product((0, 1), repeat=canaries):
        density = stats.norm.pdf(grid - mu * (sum(coins) - canaries / 2)) / 2**canaries
        guessed_in = density[grid >= 0].sum() * (grid[1] - grid[0])
        likely[sum(coins)] += guessed_in
        likely[canaries - sum(coins)] += 2.0**-canaries - guessed_in
    for right in range(1, canaries + 1):
        assert not cannot_be(canaries, canaries, right, np.array([mu]), likely[right:].sum() - 1e-6)


def test_guesses_refute_what_is_too_private_and_not_what_is_true():
    mu = 1.0
    right = int(stats.binom.ppf(0.5, 400, stats.norm.cdf(mu / 2)))
    bound = mu_of_guesses(400, 400, right, 0.05)
    assert 0 < bound < mu
    assert mu_of_guesses(400, 400, 400, 0.05) > 2
    assert mu_of_guesses(400, 400, 200, 0.05) == 0
    assert mu_of_guesses(400, 100, 90, 0.05) > mu_of_guesses(800, 100, 90, 0.05)
    with pytest.raises(ValueError, match="cannot be"):
        mu_of_guesses(10, 5, 6, 0.05)
