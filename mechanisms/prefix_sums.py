"""Noisy prefix sums of histograms: how many records lie in a cell or before it, for all cells, in one release.

With noise on each cell alone, the sum of b cells has a standard deviation of sqrt(b) times that of one. With noise on
M h instead, M being the square root of the matrix A of ones on and below the diagonal, every prefix sum
A h = M (M h) has about (1 + ln(cells)/pi) times it (Henzinger and Upadhyay 2022; Fichtenberger, Henzinger and Upadhyay
2023): for 42 cells 2.2 times, where single cells have 6 times.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.losses import Cost
from dpserve.mechanisms import grid
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.mechanisms.randomness import Randomness

WHOLE = 2**14
"""A record that counts once counts so many steps; a part of it, a whole number of them."""

MOST_COUNTED = 2**24
"""Largest number of records, or units, for which the sums are exact."""

_SLACK = 2.0**-10


@dataclass(frozen=True)
class PrefixSums:
    """Gaussian noise on `groups` histograms of `cells` cells each; a record, or a unit, is in them once.

    M is the lower triangular Toeplitz matrix of f_k = binomial(2k, k)/4^k, rounded down to whole steps of 2^-14: the
    power series sum f_k x^k is 1/sqrt(1 - x), so that M M would be A without the rounding. Released is M h for each
    group's histogram h, together.

    Sensitivity. Let neighbouring data sets differ by one record, which is in cell j of group g: M h_g changes by column
    j of M, and no other group changes. Its entries are f_0, f_1, ..., at least 0, as far as there are rows below: the
    L2 norm is at most that of the first column, sqrt(f_0^2 + f_1^2 + ...). Let them differ by all records of one unit,
    which adds parts of at least 0, of 1 in all, to cells of any groups: M h changes by a convex combination of such
    columns, each in its own group's place, whose norm is at most the largest of theirs.

    Rounding. The entries of M and of h are whole numbers of steps of 2^-14, and each f_k is at most 1. With at most
    MOST_COUNTED records each entry of M h is at most 2^24 in steps of 2^-28: exact as doubles, in any order.

    Raises ValueError for what no `GaussianVector` can be.
    """

    mu: float
    groups: int
    cells: int

    def __post_init__(self) -> None:
        """Refuse what no release may be."""
        if self.groups < 1 or self.cells < 2:
            raise ValueError(f"there are histograms of two cells at least, not {self.groups} of {self.cells}")
        _ = self.vector.step

    @functools.cached_property
    def vector(self) -> GaussianVector:
        """The mechanism, of a sensitivity as the class proves it; 2^-40 covers the square root."""
        squares = sum(coefficient * coefficient for coefficient in coefficients(self.cells))
        sensitivity = grid.square_root(squares) / WHOLE
        return GaussianVector(self.mu, self.groups * self.cells, float(sensitivity) * (1 + 2.0**-40))

    @property
    def cost(self) -> Cost:
        """mu-GDP, once, for all that is computed from the release."""
        return self.vector.cost

    def release(self, counts: Integers, randomness: Randomness) -> Floats:
        """Return the noisy M h, (groups, cells). counts: (groups, cells), whole steps of 2^-14 of a record.

        Do it once: every call is a release of its own. Raises ValueError for other counts.
        """
        if counts.shape != (self.groups, self.cells) or counts.dtype.kind != "i" or counts.min() < 0:
            raise ValueError(f"counts are whole numbers of at least 0, {self.groups} x {self.cells}")
        if counts.sum() > MOST_COUNTED * WHOLE:
            raise ValueError(f"at most {MOST_COUNTED:,} records are counted exactly")
        column = np.array(coefficients(self.cells), dtype=np.int64)
        sums = np.array([np.convolve(group, column)[: self.cells] for group in counts.astype(np.int64)])
        return self.vector.release(sums / float(WHOLE) ** 2, randomness)

    def excess(self, noisy: Floats, cell: int, share: float) -> float:
        """Return an estimate of F(cell) - share F(last), F being the prefix sums of these groups' records together.

        noisy: (k, cells), rows of a release.
        """
        return float((noisy @ self._weights(cell, share)).sum())

    def deviation(self, cell: int, share: float, groups: int) -> float:
        """Return the standard deviation of the noise in `excess`, or slightly more. groups: how many rows it takes."""
        norm = math.sqrt(groups) * float(np.linalg.norm(self._weights(cell, share)))
        return self.vector.standard_deviation * norm * (1 + 2.0**-40)

    def bound(self, cell: int, share: float, groups: int, quantile: float) -> float:
        """Return how far above the true value `excess` may be, except with the probability of one normal tail.

        groups: how many rows it takes. quantile: that of the standard normal law. It is `quantile` times the deviation,
        and what does not come from noise.

        Proof. excess = sum over groups and cells of w_j y_j, w being the `cell`-th row of A M^-1 less `share` times the
        last. y is M h, moved by rounding to the grid by at most 9/16 of a step (`grid.on_grid`), plus Gaussian noise of
        deviation sigma that is rounded by at most half a step. So excess - truth is N(0, sigma^2 groups ||w||^2), plus
        at most 17/16 of a step times groups ||w||_1, plus what A M^-1, computed in floating point, is off, times at
        most 2^24 records: below 2^-10 (a test computes it in fractions).
        """
        rounding = 17 / 16 * self.vector.step * groups * float(np.abs(self._weights(cell, share)).sum())
        return quantile * self.deviation(cell, share, groups) + rounding * (1 + 2.0**-40) + _SLACK

    def _weights(self, cell: int, share: float) -> Floats:
        inverse = inverse_coefficients(self.cells)
        weights = -share * inverse[::-1]
        weights[: cell + 1] += inverse[cell::-1]
        return weights


@functools.cache
def coefficients(cells: int) -> tuple[int, ...]:
    """Return f_0, f_1, ..., the first column of M (`PrefixSums`), in whole steps of 1/WHOLE, rounded down."""
    exact, column = Fraction(1), []
    for k in range(cells):
        column.append(math.floor(exact * WHOLE))
        exact *= Fraction(2 * k + 1, 2 * k + 2)
    return tuple(column)


@functools.cache
def inverse_coefficients(cells: int) -> Floats:
    """Return the first column of A M^-1, (cells,): it is lower triangular and Toeplitz, as A and M are."""
    column = np.array(coefficients(cells)) / WHOLE
    inverse = np.ones(cells)
    for k in range(1, cells):
        inverse[k] -= column[1 : k + 1] @ inverse[k - 1 :: -1][:k]
    return inverse
