import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting import identifiability
from dpserve.accounting.conversions import gaussian_epsilon
from dpserve.accounting.identifiability import gaussian_advantage
from dpserve.training.fitting.network import Network
from research.bernau2021.beliefs import (
    Games,
    belief,
    gaussian_log_ratio,
    identifiability_of,
    published_epsilon,
    published_gaussian_advantage,
    published_gaussian_epsilon,
    published_mu,
)
from research.bernau2021.games import Pair, Play, farthest_pair, play, together

BERNAU_TABLE = [
    # rho_beta, delta, epsilon, rho_alpha as printed (Bernau et al. 2021, experiment parameters)
    (0.52, 0.01, 0.08, 0.01),
    (0.75, 0.01, 1.1, 0.14),
    (0.9, 0.01, 2.2, 0.28),
    (0.99, 0.01, 4.6, 0.54),
    (0.53, 0.001, 0.12, 0.01),
    (0.75, 0.001, 1.1, 0.12),
    (0.9, 0.001, 2.2, 0.23),
    (0.99, 0.001, 4.6, 0.46),
]
NETWORK = Network((6, 4, 3), "relu")


def records(n=12, seed=5):
    draw = np.random.default_rng(seed)
    return draw.random((n, 6)), draw.integers(3, size=n)


def pair(bounded):
    inputs, labels = records()
    other = (inputs[11:], labels[11:]) if bounded else (inputs[:0], labels[:0])
    return Pair(inputs[:10], labels[:10], (inputs[10:11], labels[10:11]), other)


def test_the_log_ratio_is_that_of_the_densities():
    draw = np.random.default_rng(0)
    released, first, second = draw.normal(size=(3, 7))
    expected = sum(
        scipy.stats.norm.logpdf(released, mean, 0.7).sum() * sign for mean, sign in ((first, 1), (second, -1))
    )
    assert gaussian_log_ratio(released, first, second, 0.7) == pytest.approx(expected)


def test_the_paper_s_noise_gives_the_paper_s_epsilon():
    """Table 2's delta: rho_alpha is 0.28 and 0.23 by Theorem 2, and the tighter noise of RDP stays below both."""
    for delta, bound in ((0.01, 0.28), (0.001, 0.23)):
        mu = published_mu(2.2, delta)
        assert published_epsilon(mu, delta) == pytest.approx(2.2)
        assert gaussian_advantage(mu) < bound
        assert gaussian_epsilon(mu, delta) < 2.2


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("sensitivity", ["local", "global"])
def test_beliefs_are_those_of_two_normal_laws(bounded, sensitivity):
    """The belief of a run is a Gaussian mechanism's at the run's own mu, which the accounting knows.

    With noise scaled to the local sensitivity mu is what was asked for, at every run; with the global one no more.
    Given mu, the log-odds of the truth are N(mu^2/2, mu^2): Kolmogorov and Smirnov at 1e-7 for each of four.
    """
    choices = Play(1.5, steps=4, clip_norm=0.5, sensitivity=sensitivity, learning_rate=0.1)
    found = together([play(NETWORK, pair(bounded), choices, seed) for seed in range(150)])
    if sensitivity == "local":
        assert found.mu == pytest.approx(1.5)
    assert np.all(found.mu <= 1.5 + 1e-9)
    in_truth = np.where(found.first, found.log_odds, -found.log_odds)
    assert scipy.stats.kstest((in_truth - found.mu**2 / 2) / found.mu, "norm").pvalue > 1e-7


def test_a_game_repeats_from_its_seed():
    one, again = (play(NETWORK, pair(True), Play(1.0, steps=3), 7) for _ in range(2))
    assert one.log_odds == again.log_odds
    assert np.array_equal(one.sensitivities, again.sensitivities)
    assert np.all(one.sensitivities <= 2 * 3.0 * (1 + 1e-9))


def test_what_the_games_say():
    """Exact quantiles of the game at mu = 1: the figures are the mechanism's own, without luck."""
    quantiles = (np.arange(500) + 0.5) / 500
    in_truth = scipy.stats.norm.ppf(quantiles) + 0.5
    first = np.arange(1000) % 2 == 0
    log_odds = np.empty(1000)
    log_odds[first], log_odds[~first] = in_truth, -in_truth
    found = identifiability_of(Games(log_odds, first, np.ones(1000)), 1e-3, 0.9)
    assert found.advantage == pytest.approx(gaussian_advantage(1.0), abs=0.003)
    low, high = found.advantage_interval
    assert low < found.advantage < high
    assert found.excess == pytest.approx(scipy.stats.norm.sf(np.log(9) - 0.5), abs=0.002)
    assert found.largest_belief == belief(in_truth).max()
    assert found.epsilon_of_belief == pytest.approx(in_truth.max())
    assert found.exact_epsilon_of_sensitivity == gaussian_epsilon(1.0, 1e-3)
    assert found.exact_epsilon_of_advantage == pytest.approx(gaussian_epsilon(1.0, 1e-3), rel=0.02)
    assert 0 < found.epsilon_bound < gaussian_epsilon(1.0, 1e-3)


def test_games_need_both_data_sets():
    with pytest.raises(ValueError, match="each of the two"):
        identifiability_of(Games(np.ones(3), np.ones(3, dtype=bool), np.ones(3)), 1e-3, 0.9)


def test_farthest_pairs_are_neighbours():
    inputs, labels = records(8)
    inputs[5] = 40.0
    holdout = np.full((3, 6), 0.5), np.array([0, 1, 2])
    holdout[0][1] = -40.0
    unbounded = farthest_pair("euclidean", "unbounded", (inputs, labels), holdout)
    bounded = farthest_pair("euclidean", "bounded", (inputs, labels), holdout)
    for found in (unbounded, bounded):
        assert len(found.labels) == 7
        assert np.all(found.own[0] == 40.0)
        assert not (found.inputs == 40.0).any()
    assert (unbounded.neighbours, bounded.neighbours) == ("unbounded", "bounded")
    assert np.all(bounded.other[0] == -40.0)
    assert list(bounded.other[1]) == [1]


@pytest.mark.parametrize(("belief", "delta", "epsilon", "advantage"), BERNAU_TABLE)
def test_bernaus_parameter_table(belief: float, delta: float, epsilon: float, advantage: float) -> None:
    """Printed to two digits; the advantages follow from the printed, rounded epsilons."""
    digits = 2 if epsilon < 1 else 1
    assert round(identifiability.epsilon_of_posterior_belief(belief), digits) == epsilon
    assert round(identifiability.posterior_belief(epsilon), 2) == belief
    computed = published_gaussian_advantage(epsilon, delta)
    assert computed == pytest.approx(advantage, abs=0.0051)


@given(epsilon=st.floats(1e-3, 5), delta=st.floats(1e-9, 0.1))
def test_the_published_inverse_needs_the_factor_two_it_is_printed_without(epsilon: float, delta: float) -> None:
    advantage = published_gaussian_advantage(epsilon, delta)

    assert published_gaussian_epsilon(advantage, delta) == pytest.approx(epsilon, rel=1e-6)
