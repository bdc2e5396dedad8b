"""Products that round nothing: against rational arithmetic, at the ends of their range, and in any order."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.training.exact import products as exact

EXPONENTS = st.sampled_from([-1074, -560, -205, -199, -30, 0, 30, 199, 600])


def made(seed: int, shape: tuple[int, int], exponent: int, spread: int):
    """Values of very different sizes, some of them equal, some powers of two."""
    generator = np.random.default_rng(seed)
    values = generator.choice([generator.normal(size=shape), np.ones(shape), generator.integers(-9, 9, shape)])
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, exponent + generator.integers(-spread, spread + 1, shape))


def fractions(values):
    return [[Fraction(value) for value in row] for row in values.tolist()]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 40),
    exponent=EXPONENTS,
    other=EXPONENTS,
    spread=st.sampled_from([0, 2, 60]),
)
def test_products_and_squares_of_what_is_on_grids_are_exact(seed, width, exponent, other, spread):
    rows = exact.on_grid(made(seed, (3, width), exponent, spread))
    matrix = exact.matrix_on_grid(made(seed + 1, (width, 2), other, spread))
    exact_rows, exact_matrix = fractions(rows), fractions(matrix)
    with np.errstate(all="raise"):
        found, squares = exact.product(rows, matrix), exact.squared_lengths(rows)
        back = exact.product(exact.on_grid(found), matrix.T)
    for index, row in enumerate(exact_rows):
        assert Fraction(squares[index]) == sum(value * value for value in row)
        for column in range(2):
            assert Fraction(found[index, column]) == sum(
                value * weights[column] for value, weights in zip(row, exact_matrix, strict=True)
            )
    snapped = fractions(exact.on_grid(found))
    for index in range(3):
        for column in range(width):
            assert Fraction(back[index, column]) == sum(
                value * weight for value, weight in zip(snapped[index], exact_matrix[column], strict=True)
            )


@given(seed=st.integers(0, 10**6), width=st.integers(1, 2000), exponent=st.integers(-190, 190))
def test_the_grid_is_as_fine_as_it_says(seed, width, exponent):
    rows = np.random.default_rng(seed).normal(size=(2, width)) * 2.0**exponent
    largest = np.abs(rows).max(axis=1, keepdims=True)
    assert (np.abs(exact.on_grid(rows) - rows) <= largest * np.sqrt(width) * 2.0**-25).all()
    assert np.array_equal(exact.on_grid(exact.on_grid(rows)), exact.on_grid(rows))
    longest = np.linalg.norm(rows, axis=1).max()
    assert (np.abs(exact.matrix_on_grid(rows) - rows) <= max(longest, np.abs(rows).sum(axis=0).max()) * 2.0**-26).all()


def test_rows_without_a_size_are_zero_and_leave_the_others_alone():
    rows = np.array([[1.0, 2.0], [np.nan, 1.0], [np.inf, 1.0], [2.0**201, 1.0], [3.0, -4.0]])
    assert np.array_equal(exact.on_grid(rows), [[1.0, 2.0], [0, 0], [0, 0], [0, 0], [3.0, -4.0]])
    assert not exact.matrix_on_grid(rows).any()
    assert exact.on_grid(np.empty((0, 3))).shape == (0, 3)


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 1024), spread=st.sampled_from([0.1, 5.0, 1e5]))
def test_probabilities_are_those_of_softmax_and_their_sum_is_the_same_in_any_order(seed, classes, spread):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(3, classes)) * spread
    found = exact.probabilities(logits)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert np.allclose(found, weights / weights.sum(axis=1, keepdims=True), atol=classes * 2.0**-42)
    order = generator.permutation(classes)
    assert np.array_equal(exact.probabilities(logits[:, order]), found[:, order])
