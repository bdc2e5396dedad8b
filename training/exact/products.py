"""Products of matrices that round nothing, so that a row's result cannot depend on the rows beside it.

A product of matrices adds up in an order that depends on how many rows there are, where a row stands among them and
how many threads share the work. Where nothing is rounded the order does not matter.
"""

import math

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.elementary import row_maxima, row_sums
from dpserve.training import devices
from dpserve.training.devices import Matrix

MOST_CLASSES = 2048
"""Largest number of classes whose probabilities have exact sums."""

_ROW_BITS = 26
"""A row is at most 2^26 steps of its grid long."""
_LARGEST = 2.0**200
_SMALLEST_EXPONENT = -200
_PROBABILITY_MAGIC = 1.5 * 2.0**10
"""Added to a number of at most 1, it leaves multiples of 2^-42."""


def on_grid(rows: Floats) -> Floats:
    """Return rows (n, k) rounded to multiples of a grid's step g of the row's own, with |row| <= 2^26 g.

    g is a power of two, a function of the row's largest absolute value, 2^-26 sqrt(k) of that or up to 4 times as
    much, and at least 2^-226. A row with a value beyond 2^200, or one that is not finite, is zero.

    Proof. Let the largest absolute value be at most 2^e, h = ceil(log2(k)/2), g = 2^(e + h - 26). Rounding to
    multiples of g leaves values of at most 2^e, if 2^e is one of them, or 0 or 1 step: |row| <= sqrt(k) 2^e <= 2^26 g
    for k <= 2^48. The rounding: x + 1.5 2^52 g lies in [2^52 g, 2^53 g], where doubles are g apart, and the
    subtraction is exact. A largest value is the same in any order of looking.
    """
    largest = row_maxima(np.abs(rows))
    beyond = ~(largest <= _LARGEST)
    if beyond.any():
        rows = np.where(beyond[:, None], 0.0, rows)
        largest = np.where(beyond, 0.0, largest)
    exponents = np.maximum(np.frexp(largest)[1], _SMALLEST_EXPONENT)
    magic = np.ldexp(1.5, exponents + (_half_bits(rows.shape[1]) + 52 - _ROW_BITS))[:, None]
    rounded: Floats = rows + magic
    rounded -= magic
    return rounded


def matrix_on_grid(matrix: Floats) -> Floats:
    """Return a matrix (k, m) rounded to multiples of one step g, with rows and columns of at most 2^27 g.

    Before rounding they are at most 2^26 g (1 + 2^-20) long, and rounding adds at most sqrt(max(k, m)) g/2 to that.
    A matrix with a value beyond 2^200, or one that is not finite, is zero.
    """
    if not np.abs(matrix).max() <= _LARGEST:
        return np.zeros_like(matrix)
    squares = np.square(matrix)
    longest = math.sqrt(max(squares.sum(axis=0).max(), squares.sum(axis=1).max()))
    exponent = max(math.frexp(longest)[1], _SMALLEST_EXPONENT)
    magic = math.ldexp(1.5, exponent + 52 - _ROW_BITS)
    rounded: Floats = (matrix + magic) - magic
    return rounded


def product(rows: Floats, matrix: Matrix) -> Floats:
    """Return rows (n, k), as `on_grid` leaves them, times a matrix (k, m) or its transpose, as `matrix_on_grid` does.

    Exactly, whatever the order of products and sums: every partial sum of a row with a column is a multiple of the
    product of their steps, and by Cauchy and Schwarz at most 2^26 2^27 = 2^53 of them. That product is at least
    2^-452, so that nothing underflows.
    """
    return devices.product(rows, matrix)


def squared_lengths(rows: Floats) -> Floats:
    """Return the squared lengths (n,) of rows as `on_grid` leaves them: multiples of g^2, at most 2^52, exactly."""
    squares: Floats = np.einsum("ij,ij->i", rows, rows)
    return squares


def probabilities(logits: Floats) -> Floats:
    """Return softmax of logits (n, C), C <= MOST_CLASSES: of exponentials in steps of 2^-42, whose sums are exact."""
    weights: Floats = np.exp(logits - row_maxima(logits)[:, None])
    weights += _PROBABILITY_MAGIC
    weights -= _PROBABILITY_MAGIC
    weights /= row_sums(weights)[:, None]
    return weights


def _half_bits(count: int) -> int:
    """Return the least h with sqrt(count) <= 2^h."""
    return ((count - 1).bit_length() + 1) // 2
