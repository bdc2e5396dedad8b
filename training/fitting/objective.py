"""The certified head's objective, its gradient and Hessian, and a bound on the rounding of the gradient.

J(W) = sum_i w_i CE(W phi_i, y_i) + (Lambda/2) ||W||_F^2, with CE the cross-entropy of softmax and weights w_i from 0
to 1: all 1, or what `dpserve.training.inputs.records.Units` says. W: (C, D).
J is Lambda-strongly convex: CE is a log-sum-exp of linear functions of W minus a linear one, hence convex.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.elementary import softmax
from dpserve.training.inputs.sums import BLOCK, ROWS, SHARD, Rows, Shard, Sums, of_rows

_UNIT_ROUNDOFF = 2.0**-53
_POINT = "probabilities"


@dataclass(frozen=True, eq=False)
class RegularisedCrossEntropy:
    """J. classes: C; dimension: D; strong_convexity: Lambda; rows: makes phi, (m, D)."""

    records: Sums
    classes: int
    dimension: int
    strong_convexity: float
    rows: Rows = ROWS

    @classmethod
    def from_rows(cls, phi: Floats, y: NDArray[np.int64], classes: int, strong_convexity: float) -> Self:
        """Return J of records whose features are here. phi: (n, D); y: (n,)."""
        return cls(of_rows(phi, y), classes, phi.shape[1], strong_convexity)

    def value(self, W: Floats) -> float:
        """J(W)."""
        return self.value_and_gradient(W)[0]

    def gradient(self, W: Floats) -> Floats:
        """The gradient (C, D): sum_i w_i (p_i - e_{y_i}) phi_i^T + Lambda W."""
        return self.value_and_gradient(W)[1]

    def value_and_gradient(self, W: Floats) -> tuple[float, Floats]:
        """Return both, of one sum."""
        total = self.records.total(functools.partial(_value_and_gradient, W=W, rows=self.rows))
        value = float(total[0] + self.strong_convexity / 2 * np.vdot(W, W))
        gradient: Floats = total[1:].reshape(W.shape) + self.strong_convexity * W
        return value, gradient

    def hessian_vector_product(self, W: Floats, V: Floats) -> Floats:
        """The Hessian at W times V (C, D)."""
        product: Floats = self.records.total(functools.partial(_hessian_vector_product, W=W, V=V, rows=self.rows))
        return product + self.strong_convexity * V

    def gradient_rounding(self, W: Floats) -> float:
        """A bound on ||gradient(W) as computed - gradient of J||_F.

        u = 2^-53, g_k = k u / (1 - k u), the error of an inner product of length k in any order of summation
        (Higham 2002, Section 3.1). For one record, with ||phi|| <= 1:
        - the logits are off by at most e = g_D ||W||_F in L2;
        - softmax is 1/2-Lipschitz in L2 and its evaluation adds at most 2 (C + 16) u in L1, so p is off by at
          most e/2 + 2 (C + 16) u, and the record's gradient by that, and by 2 u more for its weight of at most 1;
        - summing in blocks of B, S/B of them in a shard of S, and k shards adds at most g_{B + S/B + k + 2} times the
          sum of the norms, sqrt(2) n;
        - Lambda W and the last addition add 4 u (Lambda ||W||_F + sqrt(2) n).
        """
        n, (C, D) = sum(self.records.lengths), W.shape
        norm = float(np.linalg.norm(W)) * (1 + 1e-9)
        logits = gamma(D) * norm
        each = logits / 2 + 2 * (C + 17) * _UNIT_ROUNDOFF
        summing = gamma(BLOCK + SHARD // BLOCK + len(self.records.lengths) + 2) * 1.5 * n
        sizes = self.strong_convexity * norm + 1.5 * n
        return 1.01 * float(n * each + summing + 4 * _UNIT_ROUNDOFF * sizes)


def _value_and_gradient(shard: Shard, _: None, *, W: Floats, rows: Rows) -> Floats:
    """Return a shard's sum of losses and, behind it, that of its gradients: (1 + C D,)."""
    total = np.zeros(1 + W.size)
    gradient = total[1:].reshape(W.shape)
    # The solver asks for products at this point next.
    held = _Held(shard, W)
    for phi, y, weights in shard.blocks(rows):
        P = scores(phi, W)
        own = y, np.arange(len(y))
        losses = -P[own]
        # Less the largest, so that no exponential overflows; the losses take it back.
        highest = P.max(axis=0)
        P -= highest
        losses += highest
        np.exp(P, out=P)
        sums = P.sum(axis=0)
        losses += np.log(sums)
        P /= sums
        held.add(P)
        if weights is not None:
            losses *= weights
        total[0] += losses.sum()
        # The gradient of a cross-entropy in the logits: probabilities, less 1 at the record's own class.
        P[own] -= 1
        gradient += products_of(P, phi, weights)
    held.keep()
    return total


def _hessian_vector_product(shard: Shard, _: None, *, W: Floats, V: Floats, rows: Rows) -> Floats:
    """Return a shard's part of the Hessian at W times V, (C, D)."""
    total = np.zeros_like(V)
    held = _Held(shard, W)
    probabilities = held.probability_blocks()
    for phi, _y, weights in shard.blocks(rows):
        # Conjugate gradients ask many products at one point: the probabilities there are computed once.
        P = softmax(scores(phi, W).T).T if probabilities is None else next(probabilities)
        weighted = P * scores(phi, V)
        weighted -= P * weighted.sum(axis=0)
        total += products_of(weighted, phi, weights)
    return total


class _Held:
    """The probabilities at the last point, which a shard keeps if they take no more room than its features may."""

    def __init__(self, shard: Shard, W: Floats) -> None:
        self._shard, self._point = shard, W.tobytes()
        self._blocks: list[Floats] | None = [] if 8 * len(W) * len(shard) <= shard.room else None

    def add(self, P: Floats) -> None:
        """Take a block's, (C, m)."""
        if self._blocks is not None:
            self._blocks.append(P.copy())

    def keep(self) -> None:
        """Keep all blocks."""
        self._shard.kept[_POINT] = self._point, self._blocks

    def probability_blocks(self) -> Iterator[Floats] | None:
        """Return the blocks of this point, if they were kept."""
        point, blocks = self._shard.kept.get(_POINT, (None, None))
        return iter(blocks) if point == self._point and blocks is not None else None


def scores(phi: Any, W: Floats) -> Floats:
    """Return W phi^T, (C, m): what is summed over classes is then summed over whole rows of numbers."""
    Z: Floats = W @ phi.T if isinstance(phi, np.ndarray) else np.ascontiguousarray((phi @ W.T).T)
    return Z


def products_of(left: Floats, phi: Any, weights: Floats | None) -> Floats:
    """Return left (C, m), weighted in its place, times phi (m, D)."""
    if weights is not None:
        left *= weights
    products: Floats = left @ phi if isinstance(phi, np.ndarray) else (phi.T @ left.T).T
    return products


def gamma(k: int) -> float:
    """Return g_k, the relative error of a sum or inner product of length k in any order of summation."""
    return k * _UNIT_ROUNDOFF / (1 - k * _UNIT_ROUNDOFF)
