"""Sensitivity: the distance by which one record can move the certified head and its answers.

Every figure is global: it holds for all pairs of neighbouring data sets on which training succeeds. Neighbouring
data sets differ by the addition or removal of one record, or of all records of one privacy unit where the training
weights them.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.training.exact.quantised import LARGEST_WEIGHT_NORM, weight_step

_UNIT_ROUNDOFF = 2.0**-53
_UP = 1 + 2.0**-40
"""Lifts a result of a few roundings, each at most 2^-53 relative, to a bound from above."""

SMALLEST_PARAMETER, LARGEST_PARAMETER = 1e-12, 1e12
"""Lambda and the tolerance lie between these, so that no sensitivity overflows or vanishes."""

SMALLEST_ALPHA, LARGEST_ALPHA = 1e-6, 1e6
"""Alpha lies between these: with a smaller one a double no longer holds what it does to the value."""

MOST_LEAST_RECORDS = 2**40


def weight_norm(weights: Floats) -> float:
    """Return the Frobenius norm to within 2 u: the squares are rounded once each and summed exactly."""
    return math.sqrt(math.fsum(np.square(weights).ravel()))


def projected(weights: Floats) -> Floats:
    """Return the weights scaled down to the ball of LARGEST_WEIGHT_NORM, if they lie outside.

    The ball aimed at is smaller by 2^-30 of its radius, so that rounding cannot leave them outside; against the
    projection onto that ball the norm is off by 2 u, the factor and the product by u each: 4 u in all.
    """
    radius = LARGEST_WEIGHT_NORM * (1 - 2.0**-30)
    norm = weight_norm(weights)
    return weights if norm <= radius else weights * (radius / norm)


def weight_sensitivity(strong_convexity: float, tolerance: float, norm_bound: float) -> float:
    """Return Delta_W: how far the trained weights of neighbouring data sets can be apart in Frobenius norm.

    strong_convexity: Lambda > 0. tolerance: tau, the gradient norm that training reaches or fails.
    norm_bound: R >= ||phi(x)|| for every x.

    Proof. Let W and W' be the exact minimisers for D and for D plus the record (x, y), J and J' the objectives.
    The gradient of CE in W is (p - e_y) phi^T, of norm ||p - e_y|| ||phi|| <= sqrt(2) R, since
    ||p - e_y||^2 = (1 - p_y)^2 + sum_{j != y} p_j^2 <= 2 (1 - p_y)^2 <= 2. So ||grad J'(W)|| =
    ||grad J(W) + grad CE(W phi, y)|| <= sqrt(2) R. J' is Lambda-strongly convex and grad J'(W') = 0, hence
    Lambda ||W - W'|| <= ||grad J'(W) - grad J'(W')|| <= sqrt(2) R. Training returns V with ||grad J(V)|| <= tau,
    hence ||V - W|| <= tau / Lambda, for either data set: ||V - V'|| <= (sqrt(2) R + 2 tau) / Lambda. Projection
    onto a ball is 1-Lipschitz; as computed (`projected`) it is off by at most 4 u times the radius for each.
    Privacy units. Let each record of unit u have the weight w <= 1/n_u, as `dpserve.training.inputs.records.Units`
    gives it: a function of the unit's own number of records, so that no other unit's weights change with it. All of the
    unit more or fewer changes the gradient at W by sum_i w (p_i - e_y) phi_i^T over its n_u records, of norm at most
    n_u w sqrt(2) R <= sqrt(2) R: the same bound, and the same proof from there on. It holds for one record of the unit
    more or fewer, too: of n >= 2 records the weights of n - 1 change by 1/(n(n - 1)), and that of one by 1/n, together
    by 2/n <= 1.
    The tolerance must be the public one. The norm that was measured for D says nothing about its neighbours.
    (Chaudhuri, Monteleoni and Sarwate 2011, Lemma 7 and Corollary 8, for the sum of losses and add/remove.)
    """
    _check_between(strong_convexity, tolerance)
    exact = (math.sqrt(2) * norm_bound + 2 * tolerance) / strong_convexity
    return (exact + 8 * _UNIT_ROUNDOFF * LARGEST_WEIGHT_NORM) * _UP


@dataclass(frozen=True)
class Convexity:
    """The public choices of the convexified objective. alpha; least_records: n_min, below which training refuses.

    J(W) = n_min ((1/alpha) ln((1/n) sum_i exp(alpha l_i(W)))) + (Lambda/2) ||W||_F^2 with l_i = CE(W phi_i, y_i). Over
    n_min it is the log-mean-exp of the losses plus (lambda/2) ||W||_F^2, lambda = Lambda / n_min. As alpha tends to 0
    J tends to the plain sum of losses where n = n_min: one Lambda and one tolerance mean the same to both.
    """

    alpha: float
    least_records: int

    def __post_init__(self) -> None:
        """Refuse what no sensitivity could be derived for. Raises ValueError."""
        if not SMALLEST_ALPHA <= self.alpha <= LARGEST_ALPHA:
            raise ValueError(f"alpha must lie between {SMALLEST_ALPHA:g} and {LARGEST_ALPHA:g}, not be {self.alpha}")
        if not 2 <= self.least_records <= MOST_LEAST_RECORDS:
            raise ValueError(f"the least number of records must be at least 2, not {self.least_records}")


@dataclass(frozen=True)
class ConvexifiedSensitivity:
    """The result of `convexified_sensitivity`.

    weights: Delta_W. gradient_norm: rho. largest_norm: r. largest_loss: B. largest_share: s.
    """

    weights: float
    gradient_norm: float
    largest_norm: float
    largest_loss: float
    largest_share: float


def convexified_sensitivity(
    convexity: Convexity, strong_convexity: float, tolerance: float, norm_bound: float, classes: int
) -> ConvexifiedSensitivity:
    """Return Delta_W of the convexified objective, (s (rho + lambda r) + 2 tau / n_min) / lambda, and its parts.

    strong_convexity: Lambda > 0, and lambda = Lambda / n_min. tolerance: tau, the norm of J's gradient that training
    reaches or fails. norm_bound: R >= ||phi(x)|| for every x. rho = sqrt(2) R.

    Proof, for J over n_min: F + (lambda/2) ||W||^2 with the log-mean-exp F. Let D have n >= n_min records, and D' all
    of them but record i. F, J, W belong to D, and F', J', W' to D'; W and W' are the exact minimisers. g_j is the
    gradient of l_j, and w = softmax(alpha l) over D.
    0. ||g_j|| <= rho (`weight_sensitivity`). l_j is convex and no less than 0. log-mean-exp is convex and does not fall
       in any argument, so F is convex and J lambda-strongly convex.
    1. grad F = sum_j w_j g_j, a mean of gradients: ||grad F|| <= rho. Over D' the weights are w_j / (1 - w_i), so with
       g' = grad F' at the same point grad F = w_i g_i + (1 - w_i) g', and grad F - grad F' = w_i (g_i - g').
    2. At 0 every loss is ln C, and J'(0) = F'(0) = ln C. By strong convexity J'(0) >= J'(W') + (lambda/2) ||W'||^2, and
       J'(W') = F'(W') + (lambda/2) ||W'||^2 with F'(W') >= 0: lambda ||W'||^2 <= ln C. And lambda W' = -g'(W'), so
       lambda ||W'|| <= rho. Hence ||W'|| <= r = min(sqrt(ln C / lambda), rho / lambda), and ||g'(W')|| <= lambda r.
    3. l_i is rho-Lipschitz and ln C at 0: l_i(W') <= B = ln C + rho r. The n - 1 others are no less than 0. So
       w_i(W') <= e^{alpha B} / (e^{alpha B} + n - 1) <= s = e^{alpha B} / (e^{alpha B} + n_min - 1).
    4. grad J'(W') = 0, so ||grad J(W')|| = w_i ||g_i - g'|| <= s (rho + lambda r). J is lambda-strongly convex and
       grad J(W) = 0: lambda ||W - W'|| <= s (rho + lambda r). As lambda r <= rho, that is at most 2 rho s.
    5. Training returns V whose gradient of J over n_min is at most tau / n_min long: ||V - W|| <= tau / (n_min lambda)
       = tau / Lambda, for either data set. Nothing above is about V. Projection and rounding: `weight_sensitivity`.
    Removal and addition are one pair, D and D', named from either end. Where D has n_min records training refuses D':
    the bound holds of the two minimisers all the same, and that training succeeded is what the certificate assumes.
    2 <= n_min, so that D' has a record. n enters F as a constant alone, and no minimiser depends on it.
    No privacy units: a unit's n_u records have up to n_u shares, and s is a bound on one.
    """
    _check_between(strong_convexity, tolerance)
    alpha, least = convexity.alpha, convexity.least_records
    lam = strong_convexity / least
    rho = math.sqrt(2) * norm_bound * _UP
    norm = min(math.sqrt(math.log(classes) / lam), rho / lam) * _UP
    loss = (math.log(classes) + rho * norm) * _UP
    # Below e^-745, the least that a double holds, s differs from 1 by less than _UP does.
    share = min(1.0, _UP / (1 + (least - 1) * math.exp(-min(alpha * loss, 745.0))))
    exact = (share * least * (rho + lam * norm) + 2 * tolerance) / strong_convexity * _UP
    return ConvexifiedSensitivity(
        weights=(exact + 8 * _UNIT_ROUNDOFF * LARGEST_WEIGHT_NORM) * _UP,
        gradient_norm=rho,
        largest_norm=norm,
        largest_loss=loss,
        largest_share=share,
    )


def _check_between(strong_convexity: float, tolerance: float) -> None:
    for name, value in (("Lambda", strong_convexity), ("the tolerance", tolerance)):
        if not SMALLEST_PARAMETER <= value <= LARGEST_PARAMETER:
            raise ValueError(
                f"{name} must lie between {SMALLEST_PARAMETER:g} and {LARGEST_PARAMETER:g}, not be {value}"
            )


def quantised_weight_sensitivity(exact: float, classes: int, dimension: int) -> float:
    """Return Delta_W of weights that are rounded to their grid after training
    (`dpserve.training.exact.quantised.quantised`).

    exact: Delta_W before. Rounding moves each of C D entries of each of two neighbours by at most half a step: both
    together by at most sqrt(C D) step in Frobenius norm.
    """
    return (exact + math.sqrt(classes * dimension) * weight_step(dimension)) * _UP


def logit_sensitivity_per_norm(weights: float) -> float:
    """Return s such that the logits at x as computed move by at most s ||phi(x)||_2 in L2, and in each coordinate.

    weights: Delta_W of the rounded weights V. ||(V - V') phi|| <= ||V - V'||_F ||phi|| = Delta_W ||phi||. The logits
    are exact except for one rounded addition (`dpserve.training.exact.quantised.products`): for each neighbour and
    class at most 2^-53 of |v_c phi|, hence 2^-53 ||V||_F ||phi|| in L2 over the classes, and ||V||_F <=
    LARGEST_WEIGHT_NORM."""
    return (weights + 2 * _UNIT_ROUNDOFF * LARGEST_WEIGHT_NORM) * _UP
