"""The exact law of a selection, word by word, on neighbours chosen to break its bound."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp

from dpserve.mechanisms import selection
from dpserve.mechanisms.grid import LARGEST_SENSITIVITY, round_up
from dpserve.mechanisms.selection import SMALLEST_EPSILON, cumulative_weights, select


def exact_law(logits, sensitivity, epsilon):
    """Return the numbers of the 2^64 words that select each class."""
    cumulative = cumulative_weights(np.array([logits]), np.array([sensitivity]), epsilon)[0].tolist()
    firsts = [-(-boundary * 2**64 // cumulative[-1]) for boundary in [0, *cumulative]]
    return [after - before for before, after in itertools.pairwise(firsts)]


def norm_up(vector):
    """The L2 norm of a difference of floats, rounded up."""
    square = sum(entry**2 for entry in vector)
    bits = 400
    return round_up(Fraction(math.isqrt(math.ceil(square * 4**bits)) + 1, 2**bits))


def assert_bounded_range(row, neighbour, sensitivity, epsilon):
    before, after = exact_law(row, sensitivity, epsilon), exact_law(neighbour, sensitivity, epsilon)
    assert sum(before) == sum(after) == 2**64
    ratios = [Fraction(p, q) for p, q in zip(before, after, strict=True)]
    spread = max(ratios) / min(ratios)
    with mp.workdps(50):
        assert mpmath.mpf(spread.numerator) / spread.denominator <= mpmath.exp(mpmath.mpf(epsilon))
    assert min(ratios) <= 1 <= max(ratios)
    return spread


logits = st.floats(-50, 50)
epsilons = st.floats(SMALLEST_EPSILON, 8.0)


@given(st.data(), st.integers(2, 6), epsilons, st.integers(-60, 4))
def test_the_loss_of_neighbours_has_range_epsilon(data, classes, epsilon, magnitude):
    row = data.draw(st.lists(logits, min_size=classes, max_size=classes))
    movement = data.draw(st.lists(st.floats(-1, 1), min_size=classes, max_size=classes))
    neighbour = [z + math.ldexp(d, magnitude) for z, d in zip(row, movement, strict=True)]
    sensitivity = norm_up([Fraction(z) - Fraction(z_) for z, z_ in zip(row, neighbour, strict=True)])
    assert_bounded_range(row, neighbour, sensitivity, epsilon)


@given(
    st.lists(logits, min_size=2, max_size=5),
    epsilons,
    st.floats(1e-12, 5.0),
    st.integers(0, 4),
    st.integers(0, 4),
    st.floats(-0.5, 0.5),
)
@example([0.0, 0.0], 1.0, 1.0, 0, 1, 0.5)
@example([0.0, 0.0, -50.0], 4.0, 1e-3, 0, 2, 0.0)
def test_the_worst_direction_has_range_epsilon(row, epsilon, size, up, down, offset):
    """One logit up and one down by size/sqrt(2), from near half-steps of the grid."""
    up, down = up % len(row), down % len(row)
    step = max(size / 2**20, 2.0**-40)
    row = [(round(z / step) + offset) * step for z in row]
    neighbour = list(row)
    neighbour[up] += size / math.sqrt(2)
    neighbour[down] -= size / math.sqrt(2)
    sensitivity = norm_up([Fraction(z) - Fraction(z_) for z, z_ in zip(row, neighbour, strict=True)])
    assert_bounded_range(row, neighbour, sensitivity, epsilon)


def test_the_bound_is_reached():
    """Nothing is given away: the worst direction uses 99.99 % of epsilon."""
    row, size = [0.0, 0.0], 0.01
    neighbour = [size / math.sqrt(2), -size / math.sqrt(2)]
    sensitivity = norm_up([Fraction(z) for z in neighbour])
    spread = assert_bounded_range(row, neighbour, sensitivity, 1.0)
    assert math.log(spread) >= 0.9999


@pytest.mark.parametrize("sensitivity", [0.0, 5e-324, 1e-300, 1e-12, 1.0, 1e100, LARGEST_SENSITIVITY])
def test_extreme_magnitudes_keep_every_class_possible(sensitivity):
    rows = [[1.7e308, -1.7e308, 0.0], [1e-300, 0.0, -1e-300], [1e150, 1.0, 0.0]]
    for row in rows:
        law = exact_law(row, sensitivity, 1.0)
        assert sum(law) == 2**64
        assert min(law) >= 2**64 // (3 * 2**25)


def test_without_sensitivity_the_largest_logit_is_selected():
    law = exact_law([0.0, 1e-6, -1.0], 0.0, 1.0)
    assert law[1] >= 2**64 * (1 - 2.0**-22)


def test_1024_equal_classes_are_equally_likely():
    cumulative = cumulative_weights(np.zeros((1, 1024)), np.ones(1), 1.0)
    assert cumulative[0, -1] == 2**63
    assert set(exact_law([0.0] * 1024, 1.0, 1.0)) == {2**54}


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=8), epsilons, st.floats(1e-3, 10))
def test_weights_are_as_close_to_the_ideal_law_as_stated(row, epsilon, sensitivity):
    cumulative = cumulative_weights(np.array([row]), np.array([sensitivity]), epsilon)[0].tolist()
    weights = np.diff([0, *cumulative], axis=0)
    step = max(sensitivity / 2**20, 2.0**-40)
    integers = [int(np.rint(z / step)) for z in row]
    with mp.workdps(40):
        spread = mpmath.sqrt(2) * sensitivity / step + 2.25
        eta = (mpmath.mpf(epsilon) - mpmath.mpf(2) ** -25) / spread
        for weight, k in zip(weights, integers, strict=True):
            ideal = max(mpmath.exp(-eta * (max(integers) - k)), mpmath.mpf(2) ** -24) * 2**53
            assert abs(int(weight) / ideal - 1) <= mpmath.mpf(2) ** -30 + mpmath.mpf(2) ** -44


def test_numpys_exp_errs_by_less_than_is_assumed():
    """The proof takes 2^-45; between 0 and -17, where the floor does not apply, 2^-52 is seen."""
    points = -np.random.default_rng(5).uniform(0, 17, 3000)
    with mp.workdps(40):
        errors = [
            abs(mpmath.mpf(y) / mpmath.exp(mpmath.mpf(x)) - 1) for x, y in zip(points, np.exp(points), strict=True)
        ]
    assert max(errors) <= mpmath.mpf(2) ** -50


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63))
def test_the_high_half_of_a_product_is_exact(a, b):
    product = selection.high_product(np.array([a], dtype=np.uint64), np.array([b], dtype=np.uint64))
    assert int(product[0]) == a * b >> 64


def test_inversion_changes_class_exactly_at_the_boundary_words():
    row, law = [0.3, -1.0, 2.0, 2.0], exact_law([0.3, -1.0, 2.0, 2.0], 1.5, 0.7)
    firsts = np.cumsum([0, *law[:-1]], dtype=object)
    words = [word for first in firsts for word in (first - 1, first) if word >= 0]
    found = select(np.array([row] * len(words)), np.full(len(words), 1.5), 0.7, np.array(words, dtype=np.uint64))
    assert found.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert select(np.array([row]), np.array([1.5]), 0.7, np.array([2**64 - 1], dtype=np.uint64)).tolist() == [3]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 2.0**-17, math.inf, math.nan])
def test_an_epsilon_out_of_range_is_refused(epsilon):
    with pytest.raises(ValueError, match="at least"):
        select(np.zeros((1, 2)), np.ones(1), epsilon, np.zeros(1, dtype=np.uint64))
