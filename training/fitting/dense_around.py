"""Dense rows around a public mean: what is computed of v = (u - m)/||u - m||, which is scaled after the product.

u and m are in steps of feature maps, so that u - m is exact, and so are its products with a matrix on a grid. Rows are
kept as u, which 32 bits hold, whatever the mean is. Rows that are mostly 0 are drawn around a mean in
`dpserve.training.fitting.around`.
"""

import functools
from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats, Singles
from dpserve.training.fitting.around import Centred


@dataclass(frozen=True, eq=False)
class DenseCentred(Centred):
    """Rows v (n, D) times `length`. rows: u (n, D), in STEP and at most 1 long; mean: m (D,), from `on_steps`.

    Everything of a row is a function of that row, of the mean and of a public matrix alone, bit for bit. u - m is a
    whole multiple of 2^-24 in every coordinate, and at most 2 long: ||u - m||^2 is a sum of whole multiples of 2^-48,
    of at most 2^50 of them, exact in any order. Its root and the quotient are rounded in one way. A row on the mean is
    zero.
    """

    @staticmethod
    def scales_of(rows: Singles | Floats, mean: Floats, length: float) -> Floats:
        """Return length / ||u - m||, or 0 where that is 0, (n,)."""
        apart = np.subtract(rows, mean, dtype=np.float64)
        distances = np.sqrt(np.vecdot(apart, apart))
        scales: Floats = np.divide(length, distances, out=np.zeros(len(rows)), where=distances > 0)
        return scales

    @functools.cached_property
    def apart(self) -> Floats:
        """u - m, exactly, (n, D)."""
        apart: Floats = np.subtract(self.rows, self.mean, dtype=np.float64)
        return apart

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
