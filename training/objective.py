"""The certified head's objective, its gradient and Hessian, and a bound on the rounding of the gradient.

J(W) = sum_i w_i CE(W phi_i, y_i) + (Lambda/2) ||W||_F^2, with CE the cross-entropy of softmax and weights w_i from 0
to 1: all 1, or what `training.data.records.Units` says. W: (C, D).
J is Lambda-strongly convex: CE is a log-sum-exp of linear functions of W minus a linear one, hence convex.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_UNIT_ROUNDOFF = 2.0**-53
_BLOCK = 1024
"""Rows summed at a time: the rounding of a long sum grows with the block plus the number of blocks."""


@dataclass(frozen=True, eq=False)
class RegularisedCrossEntropy:
    """J for n records. phi: (n, D) with rows of norm at most 1; y: (n,) class indices; strong_convexity: Lambda."""

    phi: Floats
    y: NDArray[np.int64]
    classes: int
    strong_convexity: float
    weights: Floats | None = field(default=None, kw_only=True)
    """(n,), from 0 to 1; None for 1 each."""

    def value(self, W: Floats) -> float:
        """J(W)."""
        Z = self.phi @ W.T
        highest = Z.max(axis=1)
        losses = highest + np.log(np.exp(Z - highest[:, None]).sum(axis=1)) - Z[np.arange(len(Z)), self.y]
        if self.weights is not None:
            losses *= self.weights
        return float(losses.sum() + self.strong_convexity / 2 * np.vdot(W, W))

    def gradient(self, W: Floats) -> Floats:
        """The gradient (C, D): sum_i w_i (p_i - e_{y_i}) phi_i^T + Lambda W."""
        total = np.zeros_like(W)
        for start in range(0, len(self.y), _BLOCK):
            phi, y = self.phi[start : start + _BLOCK], self.y[start : start + _BLOCK]
            residual = softmax(phi @ W.T)
            residual[np.arange(len(y)), y] -= 1
            if self.weights is not None:
                residual *= self.weights[start : start + _BLOCK, None]
            total += residual.T @ phi
        return total + self.strong_convexity * W

    def hessian_vector_product(self, P: Floats, V: Floats) -> Floats:
        """The Hessian at W times V (C, D), given P = softmax(phi W^T), (n, C)."""
        weighted = P * (self.phi @ V.T)
        weighted -= P * weighted.sum(axis=1, keepdims=True)
        if self.weights is not None:
            weighted *= self.weights[:, None]
        product: Floats = weighted.T @ self.phi + self.strong_convexity * V
        return product

    def probabilities(self, W: Floats) -> Floats:
        """softmax(W phi_i) for every record, (n, C)."""
        return softmax(self.phi @ W.T)

    def gradient_rounding(self, W: Floats) -> float:
        """A bound on ||gradient(W) as computed - gradient of J||_F.

        u = 2^-53, g_k = k u / (1 - k u), the error of an inner product of length k in any order of summation
        (Higham 2002, Section 3.1). For one record, with ||phi|| <= 1:
        - the logits are off by at most e = g_D ||W||_F in L2;
        - softmax is 1/2-Lipschitz in L2 and its evaluation adds at most 2 (C + 16) u in L1, so p is off by at
          most e/2 + 2 (C + 16) u, and the record's gradient by that, and by 2 u more for its weight of at most 1;
        - summing in blocks of B adds at most g_{B + n/B} times the sum of the norms, sqrt(2) n;
        - Lambda W and the last addition add 2 u (Lambda ||W||_F + sqrt(2) n).
        """
        n, (C, D) = len(self.y), W.shape
        norm = float(np.linalg.norm(W)) * (1 + 1e-9)
        logits = _gamma(D) * norm
        each = logits / 2 + 2 * (C + 17) * _UNIT_ROUNDOFF
        summing = _gamma(_BLOCK + n // _BLOCK + 2) * 1.5 * n
        return 1.01 * float(n * each + summing + 2 * _UNIT_ROUNDOFF * (self.strong_convexity * norm + 1.5 * n))


def softmax(Z: Floats) -> Floats:
    """Return the softmax of each row of Z: (..., C)."""
    E = np.exp(Z - Z.max(axis=-1, keepdims=True))
    shares: Floats = E / E.sum(axis=-1, keepdims=True)
    return shares


def _gamma(k: int) -> float:
    return k * _UNIT_ROUNDOFF / (1 - k * _UNIT_ROUNDOFF)
