"""The convexified objective of a head, its gradient and Hessian, and a bound on the rounding of the gradient.

J(W) = n_min ((1/alpha) ln((1/n) sum_i exp(alpha l_i(W)))) + (Lambda/2) ||W||_F^2, l_i = CE(W phi_i, y_i). W: (C, D). It
is Lambda-strongly convex, and `dpserve.training.fitting.sensitivity.convexified_sensitivity` says how far one record
moves its minimum.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.training.fitting.objective import gamma, products_of, scores
from dpserve.training.fitting.sensitivity import Convexity
from dpserve.training.inputs.sums import BLOCK, ROWS, SHARD, Rows, Shard, Sums, of_rows

_UNIT_ROUNDOFF = 2.0**-53
_POINT = "probabilities and losses"


@dataclass(frozen=True, eq=False)
class RegularisedLogMeanExp:
    """J. classes: C; dimension: D; strong_convexity: Lambda; rows: makes phi, (m, D), of norm at most 1."""

    records: Sums
    classes: int
    dimension: int
    strong_convexity: float
    convexity: Convexity
    rows: Rows = ROWS
    _last: dict[bytes, "_Point"] = field(default_factory=dict)

    @classmethod
    def from_rows(
        cls, phi: Floats, y: NDArray[np.int64], classes: int, strong_convexity: float, convexity: Convexity
    ) -> Self:
        """Return J of records whose features are here. phi: (n, D); y: (n,)."""
        return cls(of_rows(phi, y), classes, phi.shape[1], strong_convexity, convexity)

    def value(self, W: Floats) -> float:
        """J(W)."""
        return self.value_and_gradient(W)[0]

    def gradient(self, W: Floats) -> Floats:
        """The gradient (C, D): n_min sum_i w_i (p_i - e_{y_i}) phi_i^T + Lambda W, w = softmax(alpha l)."""
        return self.value_and_gradient(W)[1]

    def value_and_gradient(self, W: Floats) -> tuple[float, Floats]:
        """Return both, of one sum."""
        at, least = self._point_at(W), self.convexity.least_records
        mean = (at.shift + math.log(at.total / sum(self.records.lengths))) / self.convexity.alpha
        value = float(least * mean + self.strong_convexity / 2 * np.vdot(W, W))
        return value, least * at.gradient + self.strong_convexity * W

    def hessian_vector_product(self, W: Floats, V: Floats) -> Floats:
        """The Hessian at W times V (C, D): n_min (sum w_i H_i V + alpha (sum w_i g_i <g_i, V> - g <g, V>)) + Lambda V.

        H_i and g_i are of the loss l_i, and g is the mean of the g_i with the weights w_i.
        """
        at, alpha = self._point_at(W), self.convexity.alpha
        term = functools.partial(_curved, W=W, V=V, alpha=alpha, shift=at.shift, rows=self.rows)
        product: Floats = self.records.total(term) / at.total - alpha * np.vdot(at.gradient, V) * at.gradient
        return self.convexity.least_records * product + self.strong_convexity * V

    def gradient_rounding(self, W: Floats) -> float:
        """A bound on ||gradient(W) as computed - gradient of J||_F.

        u = 2^-53, g_k = k u / (1 - k u), the error of a sum or inner product of length k in any order (Higham 2002,
        Section 3.1). For one record, with ||phi|| <= 1:
        - the logits are off by at most e = g_D ||W||_F in L2, and at most ||W||_F long;
        - p is off by at most q = e/2 + 2 (C + 16) u, softmax being 1/2-Lipschitz in L2, and the record's gradient by at
          most q;
        - the loss, whose gradient in the logits is at most sqrt(2) long, is off by at most
          a = sqrt(2) e + (C + 16) u + 4 u (||W||_F + ln C + 1): a term of its sum of exponentials whose exponent -x is
          rounded moves the logarithm by at most u x e^-x <= u, and the difference and the sum outside are of numbers of
          at most sqrt(2) ||W||_F and ln C + sqrt(2) ||W||_F;
        - alpha l less the shift of its block is rounded twice, by at most 2 u alpha B, B = ln C + 2 ||W||_F. Its
          exponential is then scaled from shift to higher shift h = S/B' + k + 2 times at most, in blocks of B', S/B' of
          them in a shard of S, and k shards: each time by 8 u, and by the rounding of the shifts' differences, which
          add up to at most u alpha B as the shifts only grow.
        So what a record weighs is off by a factor within exp(+-d/2), d = 2 (alpha (a + 3 u B) + 8 u h + 8 u), as is
        their sum but for its own roundings, g_{B' + h} of it, and its share by one within exp(+-(d + g_{B' + h})). The
        shares add up to 1, and gradients are at most sqrt(2) long: the mean of these is off by at most sqrt(2) (e^(d +
        g_{B' + h}) - 1) for the shares, q for the records and sqrt(2) g_{B' + h + 4} for sums and products, each of the
        latter with computed shares. What underflows is less than 2^-1000 for each record. Then n_min, Lambda W and the
        last addition add 4 u (Lambda ||W||_F + sqrt(2) n_min).
        """
        n, (C, D), alpha = sum(self.records.lengths), W.shape, self.convexity.alpha
        norm = float(np.linalg.norm(W)) * (1 + 1e-9)
        logits = gamma(D) * norm
        probabilities = logits / 2 + 2 * (C + 16) * _UNIT_ROUNDOFF
        loss = 1.5 * logits + (C + 16) * _UNIT_ROUNDOFF + 4 * _UNIT_ROUNDOFF * (norm + math.log(C) + 1)
        largest = math.log(C) + 2 * norm
        hops = SHARD // BLOCK + len(self.records.lengths) + 2
        weighing = 2 * (alpha * (loss + 3 * _UNIT_ROUNDOFF * largest) + 8 * _UNIT_ROUNDOFF * (hops + 1))
        share = weighing + gamma(BLOCK + hops)
        # Beyond, the bound says nothing useful, and the solver reports that it did not converge.
        if share > 0.1:
            return math.inf
        grown = math.exp(share)
        each = 1.5 * math.expm1(share) + grown * (probabilities + 1.5 * gamma(BLOCK + hops + 4)) + n * 2.0**-1000
        least = self.convexity.least_records
        sizes = self.strong_convexity * norm + 1.5 * least
        return float(1.01 * (least * each + 4 * _UNIT_ROUNDOFF * sizes))

    def _point_at(self, W: Floats) -> "_Point":
        """Return what the sums are at W, and keep it for the next question about the same W."""
        point = W.tobytes()
        if point not in self._last:
            term = functools.partial(_weighed, W=W, alpha=self.convexity.alpha, rows=self.rows)
            weighed: _Weighed = self.records.total(term)
            total = float(weighed.sums[0])
            # One point alone is kept, as it is as large as the weights, and the solver asks several things about one W.
            self._last.clear()
            self._last[point] = _Point(weighed.shift, total, weighed.sums[1:].reshape(W.shape) / total)
        return self._last[point]


@dataclass(frozen=True, eq=False)
class _Point:
    """At one W: e^shift times total is sum_i exp(alpha l_i), and gradient is that of the log-mean-exp (C, D)."""

    shift: float
    total: float
    gradient: Floats


@dataclass(frozen=True, eq=False)
class _Weighed:
    """Sums over records that weigh exp(alpha l_i) each, over e^shift, so that no weight overflows."""

    shift: float
    sums: Floats

    def __add__(self, other: "_Weighed") -> "_Weighed":
        """Return the sums over both's records."""
        shift = max(self.shift, other.shift)
        return _Weighed(shift, math.exp(self.shift - shift) * self.sums + math.exp(other.shift - shift) * other.sums)


def _weighed(shard: Shard, _: None, *, W: Floats, alpha: float, rows: Rows) -> _Weighed:
    """Return a shard's sum of weights and, behind it, that of its weighted gradients: (1 + C D,)."""
    # No loss is below 0, so that no shift is: a shard without records adds nothing.
    total = _Weighed(0.0, np.zeros(1 + W.size))
    for phi, y, P, losses in _blocks(shard, W, rows, keep=True):
        exponents = alpha * losses
        shift = float(exponents.max())
        weights = np.exp(exponents - shift)
        P[y, np.arange(len(y))] -= 1
        sums = np.concatenate([[weights.sum()], products_of(P, phi, weights).ravel()])
        total += _Weighed(shift, sums)
    return total


def _curved(shard: Shard, _: None, *, W: Floats, V: Floats, alpha: float, shift: float, rows: Rows) -> Floats:
    """Return a shard's sum of (H_i V + alpha g_i <g_i, V>) exp(alpha l_i - shift), (C, D)."""
    total = np.zeros_like(V)
    for phi, y, P, losses in _blocks(shard, W, rows):
        moved = scores(phi, V)
        curved = P * moved
        slopes = curved.sum(axis=0)
        curved -= P * slopes
        slopes -= moved[y, np.arange(len(y))]
        P[y, np.arange(len(y))] -= 1
        curved += alpha * slopes * P
        total += products_of(curved, phi, np.exp(alpha * losses - shift))
    return total


def _blocks(
    shard: Shard, W: Floats, rows: Rows, *, keep: bool = False
) -> Iterator[tuple[Any, NDArray[np.int64], Floats, Floats]]:
    """Yield phi (m, D), y (m,), the probabilities (C, m) and the losses (m,) of a shard's blocks. keep: for next time.

    They are kept if they take no more room than a shard's features may.
    """
    point, weights = shard.kept.get(_POINT, (None, None))
    if point != W.tobytes():
        weights = None
    kept: list[tuple[Floats, Floats]] | None = None
    if keep and 8 * (len(W) + 1) * len(shard) <= shard.room:
        kept = []
    for index, (phi, y, _weights) in enumerate(shard.blocks(rows)):
        P, losses = _losses(phi, y, W) if weights is None else weights[index]
        if kept is not None:
            kept.append((P, losses))
        # A copy, since the caller changes it in its place.
        yield phi, y, P.copy(), losses
    if kept is not None:
        shard.kept[_POINT] = W.tobytes(), kept


def _losses(phi: Any, y: NDArray[np.int64], W: Floats) -> tuple[Floats, Floats]:
    """Return the probabilities (C, m) and the losses (m,) of records."""
    P = scores(phi, W)
    losses = -P[y, np.arange(len(y))]
    highest = P.max(axis=0)
    P -= highest
    losses += highest
    np.exp(P, out=P)
    sums = P.sum(axis=0)
    losses += np.log(sums)
    P /= sums
    return P, losses
