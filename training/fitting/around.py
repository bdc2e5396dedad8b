"""Sparse rows around a public mean: what is computed of v = (u - m)/max(||u - m||, CLOSEST) without a dense row.

u is a row of a feature map whose numbers are mostly 0, and m is dense, so v is dense. But a product with v is a product
with u less one with m, and a sum of v's is a sum of u's less a multiple of m: both cost what the numbers of u cost that
are not 0. Dense rows are drawn around a mean in `dpserve.training.kinds`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from dpserve.accounting.arrays import Floats, Mask
from dpserve.training.features.cut_rows import CutRows
from dpserve.training.features.whole_steps import STEP
from dpserve.training.inputs.sums import Rows, View

CLOSEST = 0.25
"""A row that is closer to the mean is divided by this: see `SparseCentred.summed`."""

SUM_PARTS = 8
"""Sums of the absolute values of what `SparseCentred.summed` adds, in units of the longest contribution, at most."""


def on_steps(mean: Floats) -> Floats:
    """Return a public mean (D,), at most 1 long, in steps of feature maps, rounded towards zero: no longer."""
    rounded: Floats = np.trunc(mean / STEP) * STEP
    return rounded


@dataclass(frozen=True, eq=False)
class Centred(ABC):
    """Rows around a mean, as terms see them. mean: (D,), from `on_steps`. scales: by which each is multiplied, (n,)."""

    rows: Any
    scales: Floats
    mean: Floats
    length: float = 1.0

    @classmethod
    def at(cls, rows: Any, mean: Floats, length: float = 1.0) -> Self:
        """Return the rows around the mean."""
        return cls(rows, cls.scales_of(rows, mean, length), mean, length)

    @staticmethod
    @abstractmethod
    def scales_of(rows: Any, mean: Floats, length: float) -> Floats:
        """Return the scales of rows, each a function of its row alone: (n,)."""

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.rows.shape[0])

    def __getitem__(self, some: slice | Mask) -> Self:
        """Return some of the rows."""
        return replace(self, rows=self.rows[some], scales=self.scales[some])

    @property
    @abstractmethod
    def squared_lengths(self) -> Floats:
        """At least the squared length of each row, but for 2^-50 of it: (n,)."""

    @abstractmethod
    def product(self, matrix: Floats) -> Floats:
        """Return the rows times a matrix (D, k), as `exact.products.matrix_on_grid` leaves it: (n, k)."""

    @abstractmethod
    def summed(self, factors: Floats) -> Floats:
        """Return the sum over the rows of v d^T, (D, k), for factors d (n, k)."""


@dataclass(frozen=True, eq=False)
class SparseCentred(Centred):
    """Rows v (n, D) times `length`. rows: u, (n, D), as `FeatureMap.compact` gives phi(x); mean: (D,), from `on_steps`.

    Everything of a row is a function of that row, of the mean and of a public matrix alone, bit for bit. u and m are
    whole multiples of 2^-24, and at most 1 long. So ||u||^2, <m, u> and ||m||^2 are whole multiples of 2^-48, of which
    a sum has at most 2^48 in absolute value (Cauchy and Schwarz), and ||u - m||^2, at most 4, is exact, too. Its root
    and the quotient are rounded in one way.
    """

    @staticmethod
    def scales_of(rows: Any, mean: Floats, length: float) -> Floats:
        """Return length / max(||u - m||, CLOSEST), (n,): the squared distance is exact."""
        if isinstance(rows, CutRows):
            squares, along = rows.squared_lengths(), (rows @ mean[:, None])[:, 0]
        else:
            of_rows = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
            squares = np.bincount(of_rows, np.square(rows.data), rows.shape[0]).astype(np.float64)
            along = rows @ mean
        distances: Floats = squares - 2 * along + np.dot(mean, mean)
        scales: Floats = length / np.maximum(np.sqrt(distances), CLOSEST)
        return scales

    @property
    def squared_lengths(self) -> Floats:
        """At least the squared length of each row, but for 2^-50 of it: (n,)."""
        return np.full(len(self), self.length**2)

    def product(self, matrix: Floats) -> Floats:
        """Return the rows times a matrix (D, k), as `exact.products.matrix_on_grid` leaves it: (n, k).

        u and m are at most 2^24 steps long, and a column of the matrix at most 2^27 of its own: both products are
        exact in any order, as there. Their difference and its product with the scale are rounded in one way.
        """
        products: Floats = self.rows @ matrix
        products -= self.mean @ matrix
        products *= self.scales[:, None]
        return products

    def summed(self, factors: Floats) -> Floats:
        """Return the sum over the rows of v d^T, (D, k), for factors d (n, k).

        A row's contribution is (u - m) e^T, with e = scale d, each number of which is rounded once: a function of the
        row and of d. Let length |d| <= c, so that no contribution is longer than c. Then |e| <= c / CLOSEST: the
        absolute values of u e^T and m e^T are at most SUM_PARTS c long together.

        Rounding. Up to COMPACT_BLOCK rows are added here, and then at most 32 sums of codes (`CutRows.summed`), and so
        are their e; m times that sum, the difference, and then the sums of blocks and shards are as
        `Network.clipped_sum` counts them, in SUM_PARTS n c.
        """
        each = factors * self.scales[:, None]
        summed: Floats = self.rows.T @ each
        summed -= np.multiply.outer(self.mean, each.sum(axis=0))
        return summed


def around(rows: Rows, mean: Floats, length: float = 1.0, centred: type[Centred] = SparseCentred) -> Rows:
    """Return rows as terms see them around a public mean (D,); what was made of them is kept as it is."""
    mean = on_steps(mean)
    once = partial(centred.scales_of, mean=mean, length=length)
    return replace(rows, view=View(once, partial(centred, mean=mean, length=length)))
