"""The bounds of the grid in exact arithmetic, on values chosen to break them."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dpserve.mechanisms import grid

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite, finite, st.floats(grid.SMALLEST_STEP, 1e200))
def test_rounding_moves_neighbours_apart_by_no_more_than_stated(z, z_, step):
    k, k_ = grid.on_grid(np.array([z, z_]), np.full(2, step)).tolist()
    assert abs(k - k_) <= abs(Fraction(z) - Fraction(z_)) / Fraction(step) + grid.ROUNDING


@given(st.integers(0, 2**51), st.integers(-3, 3), st.floats(0.5, 2.0), st.integers(-30, 30))
def test_rounding_holds_next_to_half_steps(halves, ulps, step, exponent):
    """Just on either side of where the quotient rounds one way or the other."""
    step = math.ldexp(step, exponent)
    z = halves * step / 2
    moved = z
    for _ in range(abs(ulps)):
        moved = math.nextafter(moved, math.copysign(math.inf, ulps))
    k, k_ = grid.on_grid(np.array([z, moved]), np.full(2, step)).tolist()
    assert abs(k - k_) <= abs(Fraction(z) - Fraction(moved)) / Fraction(step) + grid.ROUNDING


def test_logits_up_to_1024_are_never_clipped():
    assert grid.LARGEST_INTEGER * grid.SMALLEST_STEP >= 1024


@given(
    st.floats(0, grid.LARGEST_SENSITIVITY),
    st.sampled_from([2**8, 2**16, 2**24]),
    st.floats(1e-4, 8.0),
    st.integers(1, 1024),
)
def test_a_step_keeps_neighbours_within_what_the_strength_allows(sensitivity, scale, strength, classes):
    movement, rounding = grid.square_root(classes), grid.ROUNDING * classes
    assume(scale * Fraction(strength) >= 2 * rounding)
    per_sensitivity = grid.step_per_sensitivity(scale, strength, movement, rounding)
    (step,) = grid.steps_of(np.array([sensitivity]), per_sensitivity).tolist()
    assert math.isfinite(step)
    assert step >= grid.SMALLEST_STEP
    assert movement * Fraction(sensitivity) / Fraction(step) + rounding <= scale * Fraction(strength)


def test_a_strength_that_rounding_would_eat_is_refused_with_the_least_that_works():
    with pytest.raises(ValueError, match=r"at least 0\.07038, not 0\.07"):
        grid.step_per_sensitivity(2**8, 0.07, Fraction(1), Fraction(9))
    assert grid.step_per_sensitivity(2**8, 18 / 256, Fraction(1), Fraction(9)) == grid.round_up(Fraction(1, 9))


@given(st.floats(1e-4, 4.0), st.integers(2, 1024))
def test_the_gaussian_scale_is_the_first_that_spares_99_percent(mu, classes):
    rounding = grid.ROUNDING * grid.square_root(classes)
    scale = grid.gaussian_scale(mu, rounding)
    assert 2**8 <= scale <= 2**16
    assert scale == 2**16 or 100 * rounding <= scale * Fraction(mu)
    assert scale == 2**8 or 100 * rounding > scale // 2 * Fraction(mu)


@given(st.fractions(min_value=Fraction(1, 10**30), max_value=10**30))
def test_rounding_to_a_float_is_tight_and_on_the_side_it_names(number):
    up, down = grid.round_up(number), grid.round_down(number)
    assert Fraction(math.nextafter(up, -math.inf)) < number <= Fraction(up)
    assert Fraction(down) <= number < Fraction(math.nextafter(down, math.inf))


@given(st.integers(1, 10**9))
def test_square_roots_are_rounded_up(number):
    root = grid.square_root(number)
    assert root**2 > number
    assert (root - Fraction(1, 2**60)) ** 2 <= number


@given(st.lists(st.integers(-(2**50), 2**50), min_size=2, max_size=6), st.floats(grid.SMALLEST_STEP, 1e200))
def test_softmax_is_finite_whatever_the_integers(integers, step):
    (row,) = grid.softmax(np.array([integers]), np.array([step]))
    assert row.min() >= 0
    assert row.sum() == pytest.approx(1)
    assert row[np.argmax(integers)] == row.max()


def test_softmax_is_the_softmax():
    integers = np.array([[0, 4, -4]])
    expected = np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum()
    np.testing.assert_allclose(grid.softmax(integers, np.array([0.25]))[0], expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("logits", "sensitivity", "complaint"),
    [
        (np.zeros(3), np.ones(1), r"shape \(n, C\)"),
        (np.zeros((2, 1)), np.ones(2), "between 2 and 1024 classes, not 1"),
        (np.zeros((1, 1025)), np.ones(1), "between 2 and 1024 classes, not 1025"),
        (np.zeros((2, 3)), np.ones(3), r"sensitivity must have shape \(2,\), not \(3,\)"),
        (np.zeros((2, 3)), np.ones((2, 1)), r"not \(2, 1\)"),
        (np.zeros((1, 3)), -np.ones(1), "every sensitivity"),
        (np.zeros((1, 3)), np.array([np.nan]), "every sensitivity"),
        (np.zeros((1, 3)), np.array([1e201]), "every sensitivity"),
        (np.full((1, 3), np.nan), np.ones(1), "every logit must be finite"),
        (np.full((1, 3), -np.inf), np.ones(1), "every logit must be finite"),
    ],
)
def test_invalid_arguments_are_refused(logits, sensitivity, complaint):
    with pytest.raises(ValueError, match=complaint):
        grid.validate(logits, sensitivity)


def test_no_rows_are_no_error():
    logits, sensitivity = grid.validate(np.zeros((0, 3)), np.zeros(0))
    assert grid.softmax(grid.on_grid(logits, sensitivity), sensitivity).shape == (0, 3)
