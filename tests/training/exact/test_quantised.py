"""That logits are exact, whatever computes them: against whole numbers of any size."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpserve.training.exact.quantised import (
    LARGEST_WEIGHT_NORM,
    is_quantised,
    norms,
    products,
    quantised,
    question_bytes,
    summands,
    weight_step,
)
from dpserve.training.features.whole_steps import STEP


def hardest(generator, classes, dimension, shape):
    """Weights and a question as large as the bounds allow: parallel, of one large entry, or random."""
    direction = {
        "even": np.ones(dimension),
        "one": np.eye(dimension)[0],
        "random": generator.standard_normal(dimension),
    }[shape]
    direction = direction / np.linalg.norm(direction) * (1 - 2.0**-28)
    phi = np.trunc(direction / STEP) * STEP
    weights = np.tile(direction, (classes, 1)) / math.sqrt(classes)
    # Off the coarse grid by about half a step in every entry, with the signs of phi: the largest fine part.
    weights = weights * LARGEST_WEIGHT_NORM * (1 - 2.0**-20) + np.sign(phi) * 2.0**-13
    return quantised(weights / max(1.0, np.linalg.norm(weights) / (LARGEST_WEIGHT_NORM * (1 - 2.0**-30)))), phi


@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(1, 4),
    dimension=st.sampled_from([1, 2, 3, 17, 64, 65, 500]),
    shape=st.sampled_from(["even", "one", "random"]),
)
@example(seed=0, classes=2, dimension=4096, shape="even")
@example(seed=0, classes=2, dimension=4097, shape="random")
def test_no_sum_is_rounded_but_the_last(seed, classes, dimension, shape):
    weights, phi = hardest(np.random.default_rng(seed), classes, dimension, shape)
    assert is_quantised(weights)
    parts = summands(weights)
    steps = np.repeat([2.0**-12, weight_step(dimension)], classes)
    whole_phi = [int(value / STEP) for value in phi.tolist()]
    exact = []
    for row, step in zip(parts, steps, strict=True):
        whole = [Fraction(value) / Fraction(step) for value in row.tolist()]
        assert all(value.denominator == 1 for value in whole)
        terms = [int(w) * p for w, p in zip(whole, whole_phi, strict=True)]
        # Every partial sum of some of the terms is at most this, in units of the two steps.
        assert sum(map(abs, terms)) <= 2**53
        exact.append(sum(terms) * Fraction(step) * Fraction(STEP))
    for c, row in enumerate(weights.tolist()):
        assert [Fraction(a) + Fraction(b) for a, b in zip(parts[c], parts[classes + c], strict=True)] == [
            Fraction(value) for value in row
        ]
    found = products(phi[None], parts)[0]
    assert found.tolist() == [float(exact[c] + exact[classes + c]) for c in range(classes)]


def test_order_of_columns_and_rows_and_the_size_of_a_batch_change_no_bit():
    generator = np.random.default_rng(1)
    weights = quantised(generator.standard_normal((5, 301)) * 3000)
    phi = generator.standard_normal((512, 301))
    phi = np.trunc(phi / np.linalg.norm(phi, axis=1, keepdims=True) * (1 - 2.0**-30) / STEP) * STEP
    together = products(phi, summands(weights))
    assert (together != phi @ weights.T).any(), "in floats the last bits differ: else this shows nothing"
    for size in (1, 2, 3, 5, 16, 100, 512):
        apart = [products(phi[start : start + size], summands(weights)) for start in range(0, 512, size)]
        np.testing.assert_array_equal(np.concatenate(apart), together)
    for _ in range(5):
        columns, rows = generator.permutation(301), generator.permutation(512)
        mixed = products(phi[np.ix_(rows, columns)], summands(weights[:, columns]))
        np.testing.assert_array_equal(mixed, together[rows])
        np.testing.assert_array_equal(norms(phi[np.ix_(rows, columns)]), norms(phi)[rows])


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e4])
def test_rounding_moves_the_weights_by_no_more_than_certified(scale):
    weights = np.random.default_rng(2).standard_normal((7, 33)) * scale
    moved = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(quantised(weights).flat, weights.flat, strict=True))
    assert moved <= Fraction(7 * 33) * (Fraction(weight_step(33)) / 2) ** 2


@given(st.lists(st.integers(-(2**24), 2**24), min_size=1, max_size=8))
def test_norms_are_never_too_short(whole):
    squares = sum(value * value for value in whole)
    if squares > 2**48:
        whole = [value // 8 for value in whole]
        squares = sum(value * value for value in whole)
    found = Fraction(float(norms(np.array([whole]) * STEP)[0]))
    assert found**2 >= Fraction(squares) * Fraction(STEP) ** 2
    assert found**2 <= Fraction(squares) * Fraction(STEP) ** 2 * (1 + Fraction(2) ** -48)


def test_a_step_more_is_another_question_and_a_signed_zero_is_not():
    phi = np.array([[0.5, 0.0, STEP], [0.5, -0.0, STEP], [0.5, STEP, STEP], [0.5, 0.0, -STEP]])
    first, same, *others = question_bytes(phi, np.ones(4))
    assert first == same
    assert len({first, *others}) == 3
    assert question_bytes(phi[:1], np.array([np.nextafter(1.0, 2.0)])) != [first]
