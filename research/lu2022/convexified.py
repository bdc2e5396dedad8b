"""The certified head on the convexified objective: its sensitivity, its price, and a solver that proves its end.

J(W) = (1/alpha) ln( (1/n) sum_i exp(alpha l_i(W)) ) + (lambda/2) ||W||_F^2, with l_i = CE(W phi_i, y_i), W: (C, D) and
||phi_i|| <= R. As alpha tends to 0 the first term becomes the mean of the losses. Neighbouring data sets differ by the
addition or removal of one record; both have at least `least_records` records, which is public.

J is lambda-strongly convex: each l_i is convex in W, a log-sum-exp of linear functions minus a linear one, and
log-mean-exp is convex and nondecreasing in each argument, so that its composition with convex functions is convex.
Unlike the published method this needs no convexity of a network, no even spreading and no exact minimiser.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

from training.errors import DataError, NotConverged

Floats = NDArray[np.float64]
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]

_UNIT_ROUNDOFF = 2.0**-53
_UP = 1 + 2.0**-40
"""Lifts a result of a few roundings to a bound from above."""

_NEWTON_STEPS = 20


@dataclass(frozen=True)
class ConvexifiedSensitivity:
    """What alpha costs. All figures hold for every data set of at least `least_records` records.

    weights: Delta_W, how far the trained weights of neighbours can be apart in Frobenius norm.
    largest_share: s, the largest weight that one record can have in the gradient at a minimiser.
    largest_norm: the largest norm of a minimiser. largest_loss: B, the largest loss of a record there.
    mean_of_losses: Delta_W of the plain mean, alpha = 0, for the same lambda, least_records and tolerance.
    sum_of_losses: Delta_W of the plain sum with Lambda = lambda least_records and tolerance scaled alike, the figure
    that the default head certifies. price: weights / sum_of_losses.
    """

    weights: float
    largest_share: float
    largest_norm: float
    largest_loss: float
    mean_of_losses: float
    sum_of_losses: float

    @property
    def price(self) -> float:
        """How many times farther the weights can move than with the plain sum of losses."""
        return self.weights / self.sum_of_losses


def convexified_sensitivity(
    alpha: float, lam: float, tolerance: float, norm_bound: float, classes: int, least_records: int
) -> ConvexifiedSensitivity:
    """Return Delta_W = (2 rho s + 2 tau) / lambda and what it is made of, rho = sqrt(2) R.

    lam: lambda > 0 of the (lambda/2) ||W||^2 added to the log-mean-exp. tolerance: tau, the gradient norm that training
    reaches or fails. norm_bound: R. least_records: n_min >= 2, below which training refuses.

    Proof. Let D have n >= n_min records and D' lack its record i. F and F' are the log-mean-exps, g_j the gradient of
    l_j, w = softmax(alpha l) over D. ||g_j|| = ||p_j - e_{y_j}|| ||phi_j|| <= sqrt(2) R = rho.
    1. grad F = sum_j w_j g_j. Over D' the weights are w_j / (1 - w_i), so with g' = grad F' at the same point,
       grad F = w_i g_i + (1 - w_i) g', hence grad F - grad F' = w_i (g_i - g'), at most 2 rho w_i in norm.
    2. Let W, W' minimise J, J'. grad J(W) = 0, so ||grad J'(W)|| <= 2 rho w_i(W), and strong convexity of J' gives
       lambda ||W - W'|| <= 2 rho w_i(W).
    3. At W: (lambda/2) ||W||^2 <= J(W) - F(W) <= J(0) - 0 = ln C, since every loss is ln C at 0 and none is negative.
       Also lambda W = -grad F(W), so ||W|| <= rho / lambda. So ||W|| <= r = min(sqrt(2 ln C / lambda), rho / lambda).
    4. l_j is rho-Lipschitz and ln C at 0: 0 <= l_j(W) <= B = ln C + rho r. So
       w_i = e^{alpha l_i} / (e^{alpha l_i} + sum_{j != i} e^{alpha l_j}) <= e^{alpha B} / (e^{alpha B} + n - 1) <= s
       with s = e^{alpha B} / (e^{alpha B} + n_min - 1).
    5. Training returns V with ||grad J(V)|| <= tau, so ||V - W|| <= tau / lambda, for either data set.
    As alpha tends to 0, s tends to 1/n_min and Delta_W to (2 rho / n_min + 2 tau) / lambda.
    """
    _check(alpha, lam, tolerance, norm_bound, classes, least_records)
    rho = math.sqrt(2) * norm_bound
    norm = min(math.sqrt(2 * math.log(classes) / lam), rho / lam) * _UP
    loss = (math.log(classes) + rho * norm) * _UP
    share = min(1.0, _UP / (1 + (least_records - 1) * math.exp(-min(alpha * loss * _UP, 745.0))))
    return ConvexifiedSensitivity(
        weights=(2 * rho * share + 2 * tolerance) / lam * _UP,
        largest_share=share,
        largest_norm=norm,
        largest_loss=loss,
        mean_of_losses=(2 * rho / least_records + 2 * tolerance) / lam * _UP,
        sum_of_losses=(rho / least_records + 2 * tolerance) / lam * _UP,
    )


@dataclass(frozen=True, eq=False)
class RegularisedLogMeanExp:
    """J for n records. phi: (n, D) with rows of norm at most 1; y: (n,) class indices; lam: lambda."""

    phi: Floats
    y: NDArray[np.int64]
    classes: int
    alpha: float
    lam: float

    def value(self, W: Floats) -> float:
        """J(W)."""
        exponents = self.alpha * self.losses(W)[0]
        highest = float(exponents.max())
        mean = math.log(float(np.exp(exponents - highest).mean()))
        return float((highest + mean) / self.alpha + self.lam / 2 * np.vdot(W, W))

    def gradient(self, W: Floats) -> Floats:
        """The gradient (C, D): sum_i w_i (p_i - e_{y_i}) phi_i^T + lambda W."""
        _, residual, shares = self.terms(W)
        total: Floats = (residual * shares[:, None]).T @ self.phi + self.lam * W
        return total

    def hessian_product(self, W: Floats) -> Callable[[Floats], Floats]:
        """V -> Hessian at W times V: sum w_i H_i V + alpha (sum w_i g_i <g_i, V> - g <g, V>) + lambda V."""
        P, residual, shares = self.terms(W)
        weighted = residual * shares[:, None]
        gradient = weighted.T @ self.phi

        def product(V: Floats) -> Floats:
            moved = self.phi @ V.T
            curvature = P * moved
            curvature -= P * curvature.sum(axis=1, keepdims=True)
            slopes = np.einsum("ij,ij->i", residual, moved)
            inner = curvature * shares[:, None] + self.alpha * weighted * slopes[:, None]
            result: Floats = inner.T @ self.phi - self.alpha * gradient * np.vdot(gradient, V) + self.lam * V
            return result

        return product

    def gradient_rounding(self, W: Floats) -> float:
        """A bound on ||gradient(W) as computed - gradient of J||_F.

        u = 2^-53, g_k = k u / (1 - k u), the error of a sum or inner product of length k in any order (Higham 2002,
        Section 3.1). With ||phi|| <= 1, for one record:
        - the logits are off by at most e = g_D ||W||_F in L2, and are at most ||W||_F;
        - p is off by at most q = e/2 + 2 (C + 16) u, softmax being 1/2-Lipschitz in L2, and the record's gradient by at
          most q;
        - the loss, whose gradient in the logits is at most sqrt(2) in L2, is off by at most
          a = sqrt(2) e + (C + 16) u + 4 u (||W||_F + ln C + 1), as log-sum-exp adds C relative errors inside the
          logarithm and three roundings outside;
        - its share is off by a factor within exp(+-d), d = 2 alpha (a + 2 u B) + 2 g_{n+4}, B = ln C + 2 ||W||_F: the
          exponent twice (own and normaliser), the common shift rounding alike, and the normaliser's sum.
        Shares add up to one, so the records' gradients add up with an error of at most 2 (e^d - 1) + q + 2 g_n;
        lambda W and the last addition add 2 u (lambda ||W||_F + 2).
        """
        n, (C, D) = self.phi.shape[0], W.shape
        norm = float(np.linalg.norm(W)) * (1 + 1e-9)
        logits = _gamma(D) * norm
        probability = logits / 2 + 2 * (C + 16) * _UNIT_ROUNDOFF
        loss = 1.5 * logits + (C + 16) * _UNIT_ROUNDOFF + 4 * _UNIT_ROUNDOFF * (norm + math.log(C) + 1)
        largest = math.log(C) + 2 * norm
        share = 2 * self.alpha * (loss + 2 * _UNIT_ROUNDOFF * largest) + 2 * _gamma(n + 4)
        if share > 1:
            return math.inf
        each = 2 * math.expm1(share) + probability + 2 * _gamma(n)
        return float(1.01 * (each + 2 * _UNIT_ROUNDOFF * (self.lam * norm + 2)))

    def losses(self, W: Floats) -> tuple[Floats, Floats]:
        """Return each record's loss (n,), and the probabilities of its classes (n, C)."""
        Z = self.phi @ W.T
        highest = Z.max(axis=1)
        E = np.exp(Z - highest[:, None])
        total = E.sum(axis=1)
        losses: Floats = highest + np.log(total) - Z[np.arange(len(Z)), self.y]
        return losses, E / total[:, None]

    def terms(self, W: Floats) -> tuple[Floats, Floats, Floats]:
        """p (n, C), p - e_y (n, C) and the shares w (n,)."""
        losses, P = self.losses(W)
        residual = P.copy()
        residual[np.arange(len(P)), self.y] -= 1
        exponents = self.alpha * losses
        shares = np.exp(exponents - exponents.max())
        return P, residual, shares / shares.sum()


def minimise(objective: RegularisedLogMeanExp, tolerance: float, least_records: int) -> Floats:
    """Return W (C, D) whose exact gradient norm is shown to be at most the tolerance, rounding included.

    Raises DataError below `least_records`, and NotConverged where that cannot be shown: then there is no certificate.
    """
    if len(objective.y) < least_records:
        raise DataError(
            f"the certificate needs at least {least_records} records, the declared lower bound, and there are fewer"
        )
    W = _trust_region(objective, tolerance)
    bound = gradient_bound(objective, W)
    for _ in range(_NEWTON_STEPS):
        if bound <= tolerance:
            return W
        tried = W - _newton_direction(objective, W)
        reached = gradient_bound(objective, tried)
        if not reached < bound:
            break
        W, bound = tried, reached
    if not bound <= tolerance:
        raise NotConverged(
            f"the gradient norm could only be shown to be below {bound:.3g}, and the tolerance is {tolerance:.3g}: "
            "raise the tolerance (it adds 2 tolerance / lambda to the sensitivity) or lambda, or lower alpha"
        )
    return W


def gradient_bound(objective: RegularisedLogMeanExp, W: Floats) -> float:
    """The computed gradient norm plus its rounding: a bound on the exact one."""
    computed = float(np.linalg.norm(objective.gradient(W)))
    return computed * (1 + 1e-9) + objective.gradient_rounding(W)


def _trust_region(objective: RegularisedLogMeanExp, tolerance: float) -> Floats:
    shape = (objective.classes, objective.phi.shape[1])
    last: tuple[Vector | None, Callable[[Floats], Floats]] = (None, lambda V: V)

    def product(w: Vector, v: Vector) -> Vector:
        nonlocal last
        if last[0] is None or not np.array_equal(last[0], w):
            last = (w.copy(), objective.hessian_product(w.reshape(shape)))
        return last[1](v.reshape(shape)).ravel()

    def value(w: Vector) -> float:
        return objective.value(w.reshape(shape))

    def gradient(w: Vector) -> Vector:
        return objective.gradient(w.reshape(shape)).ravel()

    result = minimize(
        value,
        np.zeros(shape[0] * shape[1]),
        jac=gradient,
        hessp=product,
        method="trust-ncg",
        options={"gtol": tolerance / 4, "maxiter": 1000, "initial_trust_radius": 1.0, "max_trust_radius": 1e4},
    )
    return np.asarray(result.x, dtype=np.float64).reshape(shape)


def _newton_direction(objective: RegularisedLogMeanExp, W: Floats) -> Floats:
    product = objective.hessian_product(W)
    operator = LinearOperator((W.size, W.size), matvec=lambda v: product(v.reshape(W.shape)).ravel(), dtype=np.float64)
    direction, _ = cg(operator, objective.gradient(W).ravel(), rtol=1e-8, maxiter=1000)
    step: Floats = direction.reshape(W.shape)
    return step


def _gamma(length: int) -> float:
    return length * _UNIT_ROUNDOFF / (1 - length * _UNIT_ROUNDOFF)


def _check(alpha: float, lam: float, tolerance: float, norm_bound: float, classes: int, least_records: int) -> None:
    for what, value in (("alpha", alpha), ("lambda", lam), ("the tolerance", tolerance), ("R", norm_bound)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{what} must be positive and finite, not {value}")
    if classes < 2:
        raise ValueError(f"there are at least two classes, not {classes}")
    if least_records < 2:
        raise ValueError(f"the declared least number of records must be at least 2, not {least_records}")
