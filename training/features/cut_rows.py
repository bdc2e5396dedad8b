"""Rows on cuts by what each of them holds: which cuts its numbers have reached, not a coordinate for each cut.

A number's coordinates in phi are h where it has reached the cut and -h where it has not, with one h for all of a row's
numbers with as many cuts. So a product with a matrix looks up, for each number, one of K + 1 signed sums of the
matrix's K rows; and a sum over records counts, for each number, what records with each of its K + 1 codes add. The
numbers are those of the dense rows, and products are exact as theirs are.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Integers, Mask, Singles
from dpserve.training.features.whole_steps import STEP

Codes = NDArray[np.uint8]
"""Numbers of cuts that were reached: at most 31."""


@dataclass(frozen=True, eq=False)
class CutLayout:
    """Which coordinates a number's cuts have. counts: of each number's cuts, (numbers,); others: coordinates behind."""

    counts: tuple[int, ...]
    others: int

    @functools.cached_property
    def distinct(self) -> tuple[int, ...]:
        """The different numbers of cuts, rising."""
        return tuple(sorted(set(self.counts)))

    @functools.cached_property
    def which(self) -> Integers:
        """For each number the place of its number of cuts in `distinct`."""
        return np.searchsorted(self.distinct, self.counts)

    @functools.cached_property
    def steps(self) -> int:
        """Number of cuts."""
        return sum(self.counts)

    @functools.cached_property
    def width(self) -> int:
        """Places that each number has among codes: as many as the number with the most cuts has codes."""
        return max(self.counts) + 1

    @functools.cached_property
    def starts(self) -> NDArray[np.int32]:
        """For each number the place of its first code among all."""
        return np.arange(len(self.counts), dtype=np.int32) * np.int32(self.width)

    @functools.cached_property
    def reached(self) -> Integers:
        """For each cut the place of the first code of its number that has reached it."""
        return np.concatenate(
            [np.arange(1, count + 1) + at for at, count in zip(self.starts, self.counts, strict=True)]
        )

    def by_code(self, by_cut: Floats) -> Floats:
        """Return for each code the sum of its number's values (cuts, k) at cuts it has reached less those at others.

        (places, k). Sums and differences of neighbours' sums: exact where values are whole.
        """
        sums = np.zeros((len(self.counts) * self.width, by_cut.shape[1]))
        sums[self.reached] = by_cut
        sums = np.cumsum(sums.reshape(len(self.counts), self.width, -1), axis=1)
        signed: Floats = (2 * sums - sums[:, -1:]).reshape(-1, by_cut.shape[1])
        return signed

    def by_cut(self, by_code: Floats) -> Floats:
        """Return for each cut the sum of its number's values (places, k) at codes that have reached it less the others.

        (cuts, k). Each is the difference of two sums of at most `width` values.
        """
        values = by_code.reshape(len(self.counts), self.width, -1)
        below, above = np.cumsum(values, axis=1), np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
        above[:, 1:] -= below[:, :-1]
        signed: Floats = above.reshape(-1, values.shape[2])[self.reached]
        return signed


@dataclass(frozen=True, eq=False)
class CutRows:
    """phi(x) of rows, (n, D), as `dpserve.training.features.cut_numbers.Quantiles` defines it.

    codes: (n, numbers), how many cuts each number has reached. heights: (n, distinct), the coordinate at a reached cut
    of a number with so many cuts; beside: (n, others), the coordinates behind the cuts. Both in STEP: whole numbers of
    at most 2^24, which 32 bits hold exactly.
    """

    layout: CutLayout
    codes: Codes
    heights: Singles
    beside: Singles

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.codes)

    def __getitem__(self, some: slice | Mask | Integers) -> "CutRows":
        """Return some of the rows."""
        return replace(self, codes=self.codes[some], heights=self.heights[some], beside=self.beside[some])

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""
        return len(self), self.layout.steps + self.layout.others

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        return self.codes.nbytes + self.heights.nbytes + self.beside.nbytes

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return rows one behind the other, of one layout."""
        return replace(
            parts[0],
            codes=np.concatenate([part.codes for part in parts]),
            heights=np.concatenate([part.heights for part in parts]),
            beside=np.concatenate([part.beside for part in parts]),
        )

    @functools.cached_property
    def _by_number(self) -> Floats:
        """The height of each number, (n, numbers)."""
        heights: Floats = (self.heights.astype(np.float64) * STEP)[:, self.layout.which]
        return heights

    @functools.cached_property
    def _beside(self) -> Floats:
        return self.beside.astype(np.float64) * STEP

    @functools.cached_property
    def _placed(self) -> Any:
        """A sparse matrix (n, codes) with each number's height at its code."""
        import scipy.sparse

        numbers = len(self.layout.counts)
        places = (self.codes + self.layout.starts).ravel()
        ends = np.arange(len(self) + 1, dtype=np.int32) * numbers
        return scipy.sparse.csr_array(
            (self._by_number.ravel(), places, ends), shape=(len(self), numbers * self.layout.width)
        )

    def squared_lengths(self) -> Floats:
        """Return ||phi||^2, exactly, (n,): whole multiples of 2^-48, below 2^48 of them."""
        squares: Floats = np.square(self._by_number) @ np.array(self.layout.counts, dtype=np.float64)
        squares += np.vecdot(self._beside, self._beside)
        return squares

    def __matmul__(self, matrix: Floats) -> Floats:
        """Return the rows times a matrix (D, k), (n, k), exactly where the dense product is exact.

        A signed sum of a number's rows of the matrix is whole in the matrix's step, and its absolute value times a
        height is at most the sum of the absolute values of the dense products: so is every partial sum.
        """
        steps = self.layout.steps
        products: Floats = self._placed @ self.layout.by_code(matrix[:steps])
        products += self._beside @ matrix[steps:]
        return products

    @property
    def T(self) -> "_Transposed":  # noqa: N802 - as of any array
        """Its transpose, to be multiplied by."""
        return _Transposed(self)

    def summed(self, factors: Floats) -> Floats:
        """Return the sum over the rows of phi d^T, (D, k), for factors d (n, k).

        A row adds h d to the code of each number, each product rounded once, as of a dense row; the sums by code are
        then added and subtracted for each cut: at most 32 terms more than rows, whose absolute values add up to no
        more.
        """
        steps, total = self.layout.steps, np.empty((self.shape[1], factors.shape[1]))
        total[:steps] = self.layout.by_cut(self._placed.T @ factors)
        total[steps:] = self._beside.T @ factors
        return total

    def packed(self) -> tuple[Floats, Floats]:
        """Return the numbers that each row holds, (n, m), and in how many coordinates each is, up to signs, (m,)."""
        often = np.bincount(self.layout.which, self.layout.counts)
        values = np.hstack([self.heights, self.beside]).astype(np.float64)
        return values * STEP, np.concatenate([often, np.ones(self.layout.others)])

    def scattered(self, terms: Floats) -> Floats:
        """Return the sum over the rows of whole numbers (n, m) at the coordinates of `packed`, exactly: (D,)."""
        heights, beside = np.hsplit(terms, [len(self.layout.distinct)])
        places = (self.codes + self.layout.starts).ravel()
        codes = len(self.layout.counts) * self.layout.width
        by_code = np.bincount(places, heights[:, self.layout.which].ravel(), codes).astype(np.float64)
        return np.concatenate([self.layout.by_cut(by_code[:, None])[:, 0], beside.sum(axis=0)])

    def dense(self) -> Floats:
        """Return the rows, (n, D)."""
        number_of = np.repeat(np.arange(len(self.layout.counts)), self.layout.counts)
        cut_of = np.concatenate([np.arange(count) for count in self.layout.counts])
        reached = self.codes[:, number_of] > cut_of
        heights = self._by_number[:, number_of]
        return np.hstack([np.where(reached, heights, -heights), self._beside])


@dataclass(frozen=True, eq=False)
class _Transposed:
    rows: CutRows

    def __matmul__(self, factors: Floats) -> Floats:
        return self.rows.summed(factors)
