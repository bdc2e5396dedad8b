"""What a service needs of a model that is private itself, and how one answers many rows at once.

A row's answer has the same bits whatever rows are beside it: products that round nothing, and functions of single
numbers that IEEE 754 rounds in one way.
"""

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mechanisms.answer_noise import AnyNoise
from training.quantised import norms
from training.releases.certificate import ReleaseCertificate

Floats = NDArray[np.float64]


@runtime_checkable
class ReleasedModel(Protocol):
    """A model whose release was paid for once: what is computed from it is post-processing and costs nothing."""

    @property
    def certificate(self) -> ReleaseCertificate:
        """What it cost, and what it is."""
        ...

    def probabilities(self, X: Floats) -> Floats:
        """Return the answers (n, C) to rows (n, d) within or beyond the declared bounds.

        The same for every caller, and bit for bit the same for a row whatever rows are beside it, except where an
        encoder computes their features.
        """
        ...

    def answers(self, X: Floats) -> tuple[Floats, AnyNoise]:
        """Return `probabilities` of rows (n, d), and what is known of the noise in them: public."""
        ...


@runtime_checkable
class TieredModel(ReleasedModel, Protocol):
    """A released model of several precisions, `certificate.tiers`. Its own answers are the finest's."""

    def at(self, tier: str) -> ReleasedModel:
        """Return the model of one tier. Raises KeyError for an unknown name."""
        ...


_COARSE_BITS = 26
_FINE_BITS = 28
_LEAST_EXPONENT = -400
_SHORTEST = 2.0**-300
CLOSEST = 2.0**-12
"""A row's direction that is closer to the mean is divided by this: its distance is known too little to divide by it."""


def exact_parts(matrix: Floats) -> Floats:
    """Return A over B, (2m, D), for a released matrix (m, D) of finite numbers: A + B is it, but for rounding.

    Each number moves by at most 2^(c - 55) times the length of its row, with c the least number with 2^c >= sqrt(D):
    post-processing, done once. `quantised.products` of phi (n, D) and these parts is exact but for its last addition,
    which is rounded once: a row has the same bits whatever rows are beside it, in every order, on every processor.

    Proof. phi is 2^-24 times whole numbers, of norm at most 1: 2^24 steps. A row of the matrix is less than 2^e long
    but for the rounding of its length, e being that exponent. A's rows are whole multiples of a = 2^(e - 26): at most
    2^26 (1 + 2^-40) + sqrt(D)/2 < 2^28 of them long, for D < 2^50. What A leaves of a row is at most a/2 in each
    number, so at most sqrt(D) a/2 <= 2^(c - 1) a long; B's rows are multiples of b = 2^(c - 28) a, and at most 2^27 +
    sqrt(D)/2 < 2^28 of them long. By Cauchy and Schwarz the absolute values of the products in a sum add up to at most
    2^28 2^24 < 2^53 in units of 2^-24 a, or 2^-24 b: a double holds every partial sum, in any order.
    """
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    steps = np.ldexp(1.0, np.maximum(np.frexp(lengths)[1], _LEAST_EXPONENT) - _COARSE_BITS)
    coarse = np.rint(matrix / steps) * steps
    fine = steps * 2.0 ** (((matrix.shape[1] - 1).bit_length() + 1) // 2 - _FINE_BITS)
    return np.concatenate([coarse, np.rint((matrix - coarse) / fine) * fine])


@dataclass(frozen=True, eq=False)
class Around:
    """Products of a released matrix (m, D) with rows' directions v around a released mean (D,).

    u = phi/||phi|| and v = (u - mean)/max(||u - mean||, CLOSEST), so that M v = (M u - M mean)/max(...), with
    ||u - mean||^2 = ||u||^2 - 2 <mean, u> + ||mean||^2: one product of matrices for all rows, and the same bits for a
    row everywhere. The squared distance is off by a few 2^-53, and at CLOSEST or farther the distance by less than
    10^-8 of itself.
    """

    parts: Floats
    of_mean: Floats
    squared: float
    rough: int = 0

    @classmethod
    def mean(cls, mean: Floats, matrix: Floats, rough: Floats | None = None) -> Self:
        """Take directions around this mean. rough: (k, D), whose products are known to 2^-26 of its rows' lengths."""
        parts, k = exact_parts(np.vstack([matrix, mean])), 0
        if rough is not None:
            k, matrix = len(rough), np.vstack([matrix, rough])
            parts = np.vstack([parts, exact_parts(rough)[:k]])
        return cls(parts, matrix @ mean, float(mean @ mean), k)

    def products(self, phi: Floats) -> Floats:
        """Return M v, (n, m + k), for phi (n, D) from a feature map; 0 for a row with no direction, or on the mean."""
        lengths, each = norms(phi), phi @ self.parts.T
        ends = (len(self.parts) - self.rough) // 2
        along = each[:, :ends] + each[:, ends : 2 * ends]
        apart = np.sqrt(
            np.maximum((lengths > 0) - 2 * along[:, -1] / np.maximum(lengths, _SHORTEST) + self.squared, 0.0)
        )
        products = along[:, :-1] if not self.rough else np.hstack([along[:, :-1], each[:, 2 * ends :]])
        products /= np.maximum(lengths, _SHORTEST)[:, None]
        products -= self.of_mean
        products /= np.maximum(apart, CLOSEST)[:, None]
        return products
