"""Exponential, logarithm and sums that give the same bits everywhere.

NumPy's own exponential and sum differ in the last bits between processors and between batch sizes. Here everything is
made of additions, subtractions, multiplications and divisions, each of which IEEE 754 rounds in one way, one array
operation at a time, so that no compiler joins two of them. What is computed of the same numbers is then the same on
every machine, and an answer that is computed again is the same to the bit.
"""

import functools
import math

import numpy as np

from dpserve.accounting.arrays import Floats

SMALLEST_EXPONENT = -700.0
"""`exp` takes what is below for this, so that no result is so small that it is slow or flushed to zero."""

_LOG2_E = 1 / math.log(2)
_LN_2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # 32 bits, so that its product with an exponent is exact
_LN_2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_COTH = (2 / 12, -2 / 720, 2 / 30240, -2 / 1209600, 2 / 47900160, -2 * 691 / 1307674368000)
_ATANH = tuple(2.0 / (2 * n + 1) for n in range(12))
_SQUARE_ROOT_OF_HALF = math.sqrt(0.5)
_LONG = 4
"""Where columns are this many times as long as the rows, NumPy takes less time for one column after the other."""


def exp(x: Floats) -> Floats:
    """Return e^x for x <= 0, within 2^-50 of itself; any shape.

    With x = k ln 2 + r, |r| <= ln(2)/2, e^r = (q + r)/(q - r) = 1 + 2 r/(q - r) for q = r coth(r/2), whose series is
    2 (1 + r^2/12 - r^4/720 + r^6/30240 - ...) (Abramowitz and Stegun 4.5.67): what is left out is below 2^-56.
    """
    x = np.maximum(x, SMALLEST_EXPONENT)
    k = np.rint(x * _LOG2_E)
    r = (x - k * _LN_2_HIGH) - k * _LN_2_LOW
    squared = r * r
    q = squared * _COTH[-1]
    for coefficient in _COTH[-2::-1]:
        q += coefficient
        q *= squared
    q += 2.0
    q -= r
    r += r
    r /= q
    r += 1.0
    powers: Floats = np.ldexp(r, k.astype(np.int32))
    return powers


def log(x: Floats) -> Floats:
    """Return ln x for 2^-1000 <= x <= 2^1000, within 2^-48 of itself; any shape.

    With x = 2^k m, m between sqrt(1/2) and sqrt(2), ln m = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...) for
    s = (m - 1)/(m + 1), |s| < 0.172: what is left out is below 2^-62 of it.
    """
    m, k = np.frexp(x)
    low = m < _SQUARE_ROOT_OF_HALF
    m = np.where(low, 2 * m, m)
    k = k - low
    s = (m - 1) / (m + 1)
    squared = s * s
    total = squared * _ATANH[-1]
    for coefficient in _ATANH[-2:0:-1]:
        total += coefficient
        total *= squared
    logarithms: Floats = (k * _LN_2_LOW + s * (total + _ATANH[0])) + k * _LN_2_HIGH
    return logarithms


def tanh(x: Floats) -> Floats:
    """Return the hyperbolic tangent, within 2^-49; any shape."""
    small = exp(-2.0 * np.abs(x))
    return np.asarray(np.copysign((1 - small) / (1 + small), x))


def softmax(logits: Floats) -> Floats:
    """Return the softmax (n, C) of finite logits; no probability is 0."""
    weights = exp(logits - row_maxima(logits)[:, None])
    shares: Floats = weights / row_sums(weights)[:, None]
    return shares


def row_sums(values: Floats) -> Floats:
    """Return the sum of each row, (n,), of values (n, k), added from left to right."""
    if len(values) >= _LONG * values.shape[1]:
        return functools.reduce(np.add, values.T[1:], values[:, 0].copy())
    sums: Floats = np.add.accumulate(values, axis=1)[:, -1].copy()  # or all partial sums would be kept
    return sums


def row_maxima(values: Floats) -> Floats:
    """Return the largest number of each row, (n,), of values (n, k); not a number where one is none."""
    if len(values) >= _LONG * values.shape[1]:
        return functools.reduce(np.maximum, values.T[1:], values[:, 0].copy())
    maxima: Floats = values.max(axis=1)
    return maxima
