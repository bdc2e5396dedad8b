"""Guesses which of a pair is the member: the bound holds where decisions depend on each other, and finds leaks."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpserve.audit.membership.verdict import bound_of_pairs, epsilon_of_guesses

EPSILON = 1.0


def right_guesses(n, probability, generator):
    """Scores of pairs of which each is guessed right with this probability."""
    right = generator.random(n) < probability
    return np.where(right, 1.0, 0.0), np.where(right, 0.0, 1.0)


def test_randomised_response_at_epsilon_is_not_found_to_be_more():
    """Each of 200 bounds at 0.9999 exceeds epsilon with probability 1e-4 at most: four or more with 7e-9."""
    generator, truth = np.random.default_rng(0), math.exp(EPSILON) / (1 + math.exp(EPSILON))
    found = [
        bound_of_pairs(*right_guesses(200, truth, generator), 0.9999, delta=0.0, seed=run).epsilon for run in range(200)
    ]
    assert sum(epsilon > EPSILON for epsilon in found) <= 3
    assert max(found) > EPSILON / 4


def test_guesses_that_all_hang_on_one_answer_are_not_found_to_tell_more_than_it():
    """The only answer is the coins' majority, right with odds e^0.2: 0.2-private, and it decides all guesses at once,
    so that they are right together more often than independent ones. As above: 200 bounds at 0.9999.
    """
    generator, epsilon = np.random.default_rng(1), 0.2
    exceeded = 0
    for run in range(200):
        coins = generator.random(301) < 0.5
        told = generator.random() < math.exp(epsilon) / (1 + math.exp(epsilon))
        right = coins == ((coins.sum() > 150) == told)
        scores = np.where(right, 1.0, 0.0), np.where(right, 0.0, 1.0)
        exceeded += bound_of_pairs(*scores, 0.9999, delta=0.0, seed=run).epsilon > epsilon
    assert exceeded <= 3


def test_ties_are_guessed_by_a_coin():
    """200 bounds at 0.9999 of scores that are all equal: four or more are above 0 with probability 7e-9."""
    ones = np.ones(200)
    assert sum(bound_of_pairs(ones, ones, 0.9999, delta=0.0, seed=seed).epsilon > 0 for seed in range(200)) <= 3


def test_only_the_surest_are_guessed_where_most_are_noise():
    generator = np.random.default_rng(3)
    members, others = generator.standard_normal((2, 2000)) * 0.01
    members[::8] += 1.0
    found = bound_of_pairs(members, others, 0.95, delta=1e-6, seed=0)
    assert found.pairs == 1500
    assert found.guesses in (75, 150)
    assert found.right == found.guesses
    assert found.epsilon > 3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_few_pairs_show_nothing_and_break_nothing(n):
    found = bound_of_pairs(np.full(n, np.inf), np.full(n + 2, -np.inf), 0.95, delta=1e-6, seed=0)
    assert found.pairs <= n
    assert found.epsilon == 0


def test_right_guesses_of_one_run_bound_epsilon_by_a_binomial_law():
    """100 canaries, all guessed, 80 right, pure epsilon: P(Binomial(100, q) >= 80) = 0.05."""
    epsilon = epsilon_of_guesses(100, 100, 80, 0.95, 0.0)
    assert scipy.stats.binom.sf(79, 100, scipy.special.expit(epsilon)) == pytest.approx(0.05, rel=1e-6)
    assert epsilon_of_guesses(100, 100, 80, 0.95, 1e-5) < epsilon
    assert epsilon_of_guesses(100, 100, 55, 0.95, 0.0) == 0
    with pytest.raises(ValueError, match="cannot be"):
        epsilon_of_guesses(10, 11, 5, 0.95, 0.0)
