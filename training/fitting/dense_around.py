"""Dense rows around a public mean: what is computed of v = (u - m)/||u - m||, which is scaled after the product.

u and m are in steps of feature maps, so that u - m is exact, and so are its products with a matrix on a grid. Rows are
kept as u, which 32 bits hold, whatever the mean is. Rows that are mostly 0 are drawn around a mean in
`dpserve.training.fitting.around`.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dpserve.accounting.arrays import Floats, Mask, Singles
from dpserve.training.fitting.around import on_steps
from dpserve.training.inputs.sums import Rows, View


@dataclass(frozen=True, eq=False)
class DenseCentred:
    """Rows v (n, D) times `length`. rows: u (n, D), in STEP and at most 1 long; mean: m (D,), from `on_steps`.

    Everything of a row is a function of that row, of the mean and of a public matrix alone, bit for bit. u - m is a
    whole multiple of 2^-24 in every coordinate, and at most 2 long: ||u - m||^2 is a sum of whole multiples of 2^-48,
    of at most 2^50 of them, exact in any order. Its root and the quotient are rounded in one way. A row on the mean is
    zero.
    """

    rows: Singles | Floats
    mean: Floats
    scales: Floats
    """length / ||u - m||, or 0 where that is 0, (n,)."""
    length: float = 1.0

    @classmethod
    def at(cls, rows: Singles | Floats, mean: Floats, length: float = 1.0) -> Self:
        """Return the rows around the mean."""
        return cls(rows, mean, _Scales(mean, length)(rows), length)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, some: slice | Mask) -> "DenseCentred":
        """Return some of the rows."""
        return replace(self, rows=self.rows[some], scales=self.scales[some])

    @functools.cached_property
    def apart(self) -> Floats:
        """u - m, exactly, (n, D)."""
        return np.subtract(self.rows, self.mean, dtype=np.float64)

    @property
    def squared_lengths(self) -> Floats:
        """At least the squared length of each row, but for 2^-50 of it: (n,)."""
        squares: Floats = np.where(self.scales > 0, self.length**2, 0.0)
        return squares

    def product(self, matrix: Floats) -> Floats:
        """Return the rows times a matrix (D, k), as `exact.products.matrix_on_grid` leaves it: (n, k).

        u - m is at most 2^25 steps long, and a column of the matrix at most 2^27 of its own: the product is exact in
        any order, as there. Its product with the scale is rounded in one way.
        """
        products: Floats = self.apart @ matrix
        products *= self.scales[:, None]
        return products

    def summed(self, factors: Floats) -> Floats:
        """Return the sum over the rows of v d^T, (D, k), for factors d (n, k).

        A row's contribution is (u - m) e^T, with e = scale d, each number of which is rounded once: a function of the
        row and of d, no longer than length |d| but for 2^-50 of it.
        """
        summed: Floats = self.apart.T @ (factors * self.scales[:, None])
        return summed


@dataclass(frozen=True, eq=False)
class _Scales:
    mean: Floats
    length: float

    def __call__(self, rows: Singles | Floats) -> Floats:
        apart = np.subtract(rows, self.mean, dtype=np.float64)
        distances = np.sqrt(np.vecdot(apart, apart))
        scales: Floats = np.divide(self.length, distances, out=np.zeros(len(rows)), where=distances > 0)
        return scales


@dataclass(frozen=True, eq=False)
class _Around:
    mean: Floats
    length: float

    def __call__(self, rows: Any, scales: Floats) -> DenseCentred:
        return DenseCentred(rows, self.mean, scales, self.length)


def dense_around(rows: Rows, mean: Floats, length: float = 1.0) -> Rows:
    """Return dense rows as terms see them around a public mean (D,); what was made of them is kept as it is."""
    mean = on_steps(mean)
    return replace(rows, view=View(_Scales(mean, length), _Around(mean, length)))
