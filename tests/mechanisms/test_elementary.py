"""Exponentials and logarithms against arithmetic of many digits, and the same bits in every shape."""

import itertools

import mpmath
import numpy as np
import pytest

from dpserve.mechanisms import elementary


def worst(found, exact):
    with mpmath.workdps(50):
        return max(abs(mpmath.mpf(a) / exact(mpmath.mpf(b)) - 1) for a, b in found)


@pytest.mark.parametrize("largest", [1e-9, 1e-3, 1.0, 20.0, 700.0])
def test_exponentials_are_as_near_as_is_said(largest):
    x = -np.random.default_rng(0).uniform(0, largest, 2000)
    assert worst(zip(elementary.exp(x).tolist(), x.tolist(), strict=True), mpmath.exp) < 2.0**-50
    assert elementary.exp(np.zeros(1)) == 1.0


def test_exponentials_of_very_little_are_no_subnormal_numbers():
    assert (elementary.exp(np.array([-701.0, -1e300, -np.inf])) == elementary.exp(np.array([-700.0]))).all()


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0 + 1e-9), (1.0, 1024.0), (2.0**-1000, 1.0), (0.7, 0.72), (1.4, 1.43)]
)
def test_logarithms_are_as_near_as_is_said(low, high):
    x = np.exp2(np.random.default_rng(0).uniform(np.log2(low), np.log2(high), 2000))
    x = x[x != 1]
    assert worst(zip(elementary.log(x).tolist(), x.tolist(), strict=True), mpmath.log) < 2.0**-48
    assert elementary.log(np.ones(1)) == 0.0


def test_each_number_is_computed_alone():
    x = -np.random.default_rng(1).exponential(5, (64, 37))
    together, sums = elementary.exp(x), elementary.row_sums(x)
    for index, row in enumerate(x):
        np.testing.assert_array_equal(elementary.exp(row[None, :])[0], together[index])
        np.testing.assert_array_equal(elementary.exp(row[::3]), together[index, ::3])
        assert elementary.row_sums(row[None, :])[0] == sums[index]
        assert sums[index] == list(itertools.accumulate(row.tolist()))[-1]


@pytest.mark.parametrize("shape", [(3, 50), (50, 3)])
def test_no_sum_keeps_the_numbers_that_were_added(shape):
    assert elementary.row_sums(np.ones(shape)).base is None


def test_tangents_are_as_near_as_is_said():
    x = np.concatenate([np.linspace(-3, 3, 301), [-800.0, -20.0, 1e-9, 0.0, 40.0]])
    near = [float(mpmath.tanh(mpmath.mpf(float(each)))) for each in x]
    np.testing.assert_allclose(elementary.tanh(x), near, rtol=0, atol=2.0**-49)
