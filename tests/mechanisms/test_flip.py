"""Permute-and-flip on its grid: its law, exactly on small cases, and neighbours chosen to break its bounds."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats

from dpserve.accounting.losses import BoundedRangeLoss, PureLoss
from dpserve.mechanisms import selection
from dpserve.mechanisms.grid import on_grid
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.noise import LAPLACE_SCALE, floored_exponential
from dpserve.mechanisms.selection import SMALLEST_EPSILON, flip, flip_steps, probabilities

SCALE = 2 * LAPLACE_SCALE


def exact_law(row, ratio):
    """P(the first of the largest k_v + G_v is v) for P(G >= t) = ratio^t, in fractions: summed to where all are above.

    From a g on at which every factor 1 - ratio^t is of t > 0 the sum is a polynomial's, geometric term by term.
    """
    total = []
    for v, own in enumerate(row):
        reach = max(row) - own + 1
        found = Fraction(0)
        for g in range(reach):
            mass = ratio**g * (1 - ratio)
            for j, other in enumerate(row):
                if j != v:
                    mass *= 1 - ratio ** max(g + own - other + (j > v), 0)
            found += mass
        # sum over g >= reach of (1-r) r^g prod (1 - r^(g + c_j)), the product multiplied out over subsets
        shifts = [own - other + (j > v) for j, other in enumerate(row) if j != v]
        for size in range(len(shifts) + 1):
            for some in itertools.combinations(shifts, size):
                power = 1 + size
                found += (-1) ** size * (1 - ratio) * ratio ** sum(some) * ratio ** (power * reach) / (1 - ratio**power)
        total.append(found)
    assert sum(total) == 1
    return total


rows = st.lists(st.integers(-6, 6), min_size=2, max_size=4)


@given(rows, st.lists(st.integers(-4, 4), min_size=4, max_size=4), st.fractions(Fraction(1, 10), Fraction(9, 10)))
@example([0, 0], [3, 0, 0, 0], Fraction(1, 2))
@example([0, 0, 0], [0, 3, 0, 0], Fraction(1, 2))
@example([1, 0, 0, 0], [-2, 2, 2, 2], Fraction(9, 10))
def test_no_neighbour_is_told_by_more_than_the_spread(row, movement, ratio):
    """Exactly, ties included: e^(s/S) bounds every ratio of probabilities, both ways round."""
    neighbour = [k + d for k, d in zip(row, movement, strict=False)]
    moved = movement[: len(row)]
    bound = (1 / ratio) ** (max(moved) - min(moved))
    for p, q in zip(exact_law(row, ratio), exact_law(neighbour, ratio), strict=True):
        assert p <= bound * q
        assert q <= bound * p


def test_the_bound_is_reached_and_a_smaller_one_is_broken():
    ratio = Fraction(1, 2)
    p, q = exact_law([9, 0], ratio)[1], exact_law([12, 0], ratio)[1]
    assert p == q * (1 / ratio) ** 3


logits = st.floats(-50, 50)


@given(st.data(), st.integers(2, 6), st.floats(SMALLEST_EPSILON, 8.0), st.integers(-60, 4))
def test_neighbours_on_the_grid_spread_by_no_more_than_is_paid_for(data, classes, epsilon, magnitude):
    row = data.draw(st.lists(logits, min_size=classes, max_size=classes))
    movement = data.draw(st.lists(st.floats(-1, 1), min_size=classes, max_size=classes))
    neighbour = [z + math.ldexp(d, magnitude) for z, d in zip(row, movement, strict=True)]
    assert_within(row, neighbour, epsilon)


@given(st.integers(0, 3), st.integers(0, 3), st.floats(SMALLEST_EPSILON, 8.0), st.floats(1e-12, 5.0))
def test_the_worst_direction_spreads_by_no_more_than_is_paid_for(up, down, epsilon, size):
    row = [0.5, 0.25, -0.125, 1e6]
    neighbour = list(row)
    neighbour[up] += size / math.sqrt(2)
    neighbour[down] -= size / math.sqrt(2)
    assert_within(row, neighbour, epsilon)


def assert_within(row, neighbour, epsilon):
    square = sum((Fraction(z) - Fraction(z_)) ** 2 for z, z_ in zip(row, neighbour, strict=True))
    with mp.workdps(60):
        sensitivity = float(mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator)) * (1 + 2.0**-50)
    steps = flip_steps(np.array([sensitivity]), epsilon)
    moved = (on_grid(np.array([neighbour]), steps) - on_grid(np.array([row]), steps))[0].tolist()
    assert max(*moved) - min(*moved) <= SCALE * Fraction(epsilon)


def renyi(p, q, order):
    if order == 1:
        return float(np.sum(p * np.log(p / q)))
    return float(np.log(np.sum(p**order * q ** (1 - order))) / (order - 1))


def law(row):
    """Without a grid, at noise of mean 1."""
    epsilon = math.sqrt(2)  # with a sensitivity of 1
    return probabilities("permute-and-flip", np.array([row]), np.ones(1), epsilon)[0]


@given(
    st.lists(st.floats(-4, 4), min_size=2, max_size=5),
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
    st.floats(0.05, 3),
    st.sampled_from([1, 1.5, 2, 4, 16]),
)
def test_renyi_divergences_stay_within_the_rho_that_is_charged(row, movement, epsilon, order):
    neighbour = [z + epsilon * d for z, d in zip(row, movement, strict=False)]
    assert renyi(law(row), law(neighbour), order) <= order * epsilon**2 / 2 + 1e-9


def test_the_exponential_mechanisms_rho_would_be_too_small():
    """And half of epsilon^2 is no more than it takes, as epsilon tends to 0."""
    epsilon = 2.0**-6
    divergence = renyi(law([0.0, 0.0]), law([epsilon, 0.0]), 1)
    assert divergence > 3.9 * float(BoundedRangeLoss(epsilon).rho)
    assert 0.98 * float(PureLoss(epsilon).rho) < divergence <= float(PureLoss(epsilon).rho)


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=5))
def test_the_law_without_a_grid_is_that_of_permute_and_flip(row):
    """McKenna and Sheldon 2020, Algorithm 1: take the classes in random order; keep one with e^-(what it lacks)."""
    flips = [math.exp(z - max(row)) for z in row]
    expected = np.zeros(len(row))
    for order in itertools.permutations(range(len(row))):
        left = 1.0
        for v in order:
            expected[v] += left * flips[v]
            left *= 1 - flips[v]
    np.testing.assert_allclose(law(row), expected / math.factorial(len(row)), rtol=1e-6)


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=30))
def test_what_it_selects_is_as_high_on_average_as_by_the_exponential_mechanism(row):
    other = probabilities("exponential", np.array([row]), np.ones(1), math.sqrt(2))[0]
    assert law(row) @ np.array(row) >= other @ np.array(row) - 1e-9


def test_of_equal_sums_the_first_is_selected(monkeypatch):
    class Still:
        words_per_draw = 6

        def draw(self, words):
            return np.zeros(words.shape[:-1], dtype=np.int64)

    monkeypatch.setattr(selection, "floored_exponential", lambda _: Still())
    rows = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    assert flip(rows, np.ones(3), 1.0, np.zeros((3, 3, 6), dtype=np.uint64)).tolist() == [0, 1, 2]


def test_the_noise_is_the_floor_of_an_exponential(seeded):
    """Kolmogorov-Smirnov at a scale at which floors cannot be seen, false alarm 1e-6; a scale 5 % larger fails."""
    noise = floored_exponential(SCALE).draw(seeded(3).words(6 * 50_000).reshape(-1, 6))
    assert noise.min() >= 0
    assert stats.kstest(noise, stats.expon(scale=SCALE).cdf).pvalue > 1e-6
    assert stats.kstest(noise, stats.expon(scale=1.05 * SCALE).cdf).pvalue < 1e-9
    with pytest.raises(ValueError, match="even"):
        floored_exponential(3)


def test_a_label_by_permute_and_flip_is_priced_in_pure_epsilon():
    label = Label(0.5, "permute-and-flip")
    assert label.cost.losses == (PureLoss(0.5),)
    assert label.cost.rho == 1 / 8
    assert label.cost.picoepsilon == 5 * 10**11
