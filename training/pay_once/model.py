"""Models that are private themselves, as a service needs them, and their answers to many rows at once.

A row's answer has the same bits whatever rows are beside it: products that round nothing, and functions of single
numbers that IEEE 754 rounds in one way.
"""

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.answer_noise import AnyNoise
from dpserve.mechanisms.elementary import row_sums
from dpserve.training.devices import NUMPY, Arithmetic, Matrix, TorchMatrix, product
from dpserve.training.exact.quantised import norms, norms_of
from dpserve.training.features.cut_rows import CutRows
from dpserve.training.pay_once.certificate import ReleaseCertificate


@runtime_checkable
class ReleasedModel(Protocol):
    """A model whose release was paid for once: what is computed from it is post-processing and costs nothing."""

    @property
    def certificate(self) -> ReleaseCertificate:
        """The certificate, which states its cost."""
        ...

    def values(self, X: Floats) -> Floats:
        """Return the answers to rows (n, d) within or beyond the declared bounds.

        They are (n, numbers), as the kind's outputs say: of a classifier its probabilities (n, C). The same for every
        caller, and bit for bit the same for a row whatever rows are beside it, except where an encoder computes their
        features.
        """
        ...

    def answers(self, X: Floats) -> tuple[Floats, AnyNoise]:
        """Return the `values` of rows, to the bit, and what is known of their noise, which is public."""
        ...


_STEP_BITS = 28
_LEAST_EXPONENT = -400
SHORTEST = 2.0**-300
"""A row that is shorter has no direction."""
CLOSEST = 2.0**-12
"""A row's direction that is closer to the mean is divided by this: its distance is known too little to divide by it."""


def rounded(matrix: Floats) -> Floats:
    """Return a released matrix (m, D) of finite numbers in steps of its rows, whose products with questions are exact.

    Each number moves by at most 2^-28 of its row's length: post-processing, done once. A product of phi (n, D) and its
    transpose rounds nothing: a row has the same bits whatever rows are beside it, in every order, on every processor.

    Proof. phi is 2^-24 times whole numbers, of norm at most 1: 2^24 steps. A row of the matrix is less than 2^e long
    but for the rounding of its length, e being that exponent. What is returned has whole multiples of a = 2^(e - 28),
    at most 2^28 (1 + 2^-20) + sqrt(D)/2 < 2^29 of them long, for D < 2^30. By Cauchy and Schwarz the absolute values
    of the products in a sum add up to at most 2^29 2^24 = 2^53 in units of 2^-24 a: a double holds every partial sum,
    in any order.
    """
    lengths = np.sqrt(row_sums(matrix * matrix))[:, None]
    steps = np.ldexp(1.0, np.maximum(np.frexp(lengths)[1], _LEAST_EXPONENT) - _STEP_BITS)
    on_steps: Floats = np.rint(matrix / steps) * steps
    return on_steps


@dataclass(frozen=True, eq=False)
class CentredProducts:
    """Products of a released matrix M (m, D), as `rounded` leaves it, with rows' directions v around a released mean.

    u = phi/||phi|| and v = (u - mean)/max(||u - mean||, CLOSEST), so that M v = (M u - M mean)/max(...), with
    ||u - mean||^2 = ||u||^2 - 2 <mean, u> + ||mean||^2: one product of matrices for all rows, and the same bits for a
    row whatever rows are beside it. The mean is rounded twice, the second time what the first left of it: the squared
    distance is off by a few 2^-53, and at CLOSEST or farther the distance by less than 10^-8 of itself.
    """

    rows: Matrix
    """M's, and the two of the mean."""
    of_mean: Floats
    squared: float

    @classmethod
    def mean(cls, mean: Floats, matrix: Floats, arithmetic: Arithmetic = NUMPY) -> Self:
        """Take directions around this mean, (D,), by products that this arithmetic computes."""
        coarse = rounded(mean[None])
        rows = arithmetic.matrix(np.asfortranarray(np.vstack([matrix, coarse, rounded(mean - coarse)])))
        # From left to right: a product of floats would have other bits in another memory layout, or by another library.
        of_mean, squared = row_sums(matrix * mean), row_sums((mean * mean)[None])
        return cls(rows, of_mean, float(squared[0]))

    def products(self, phi: Floats | CutRows) -> Floats:
        """Return M v, (n, m), for phi (n, D) from a feature map; 0 for a row with no direction, or on the mean.

        Of rows on cuts by their codes the same bits: their products with M, and their squared lengths, are exact.
        A device takes them as dense rows: look-ups by PyTorch were no faster than those here.
        """
        if isinstance(phi, CutRows) and isinstance(self.rows, TorchMatrix):
            phi = phi.dense()
        if isinstance(phi, CutRows):
            lengths, each = norms_of(phi.squared_lengths()), phi @ np.asarray(self.rows).T
        else:
            lengths, each = norms(phi), product(phi, self.rows.T)
        divided = np.maximum(lengths, SHORTEST)
        along = (each[:, -2] + each[:, -1]) / divided
        apart = np.sqrt(np.maximum((lengths > 0) - 2 * along + self.squared, 0.0))
        products = each[:, :-2] / divided[:, None]
        products -= self.of_mean
        products /= np.maximum(apart, CLOSEST)[:, None]
        return products
