"""Trade-off functions: the least false negative rate beta that a test of false positive rate alpha can reach.

f(alpha) says all there is to say about telling two neighbouring data sets apart (Dong, Roth and Su 2022). Every
function takes alpha as an array (k,) with values in [0, 1] and returns a lower bound of f as an array (k,): no
attack on the membership of one record lies below it.
"""

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from dpserve.accounting import conversions, domains

_SLACK = 2.0**-44


def gaussian(mu: float, alpha: ArrayLike) -> NDArray[np.float64]:
    """Return f of mu-GDP: Phi(Phi^-1(1 - alpha) - mu) (Dong, Roth and Su 2022, Equation 6)."""
    domains.require_up_to("mu", mu, conversions.LARGEST_MU)
    levels = _levels(alpha)
    return _round_down(scipy.special.ndtr(-scipy.special.ndtri(levels) - mu), levels)


def epsilon_delta(epsilon: float, delta: float, alpha: ArrayLike) -> NDArray[np.float64]:
    """Return f of (epsilon, delta)-DP: max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)).

    Wasserman and Zhou 2010, Theorem 2.4; Kairouz, Oh and Viswanath 2015.
    """
    domains.require_up_to("epsilon", epsilon, conversions.LARGEST_EPSILON)
    domains.require_up_to("delta", delta, 1)
    levels = _levels(alpha)
    with np.errstate(over="ignore", invalid="ignore"):
        steep = np.where(levels == 0, 1 - delta, 1 - delta - np.exp(min(epsilon, 1e3)) * levels)
    flat = np.exp(-epsilon) * (1 - delta - levels)
    return _round_down(np.maximum(steep, flat), levels)


def zcdp(rho: float, alpha: ArrayLike) -> NDArray[np.float64]:
    """Return a lower bound of f for rho-zCDP: the power at level alpha is at most e^-(sqrt(ln 1/alpha) - sqrt rho)^2.

    By Hoelder, as in `dpserve.accounting.sampling_error`, for alpha < e^-rho. zCDP holds both ways round, so the mirror
    image (alpha and beta exchanged) bounds f too: beta >= b for every b whose own bound allows alpha.
    """
    domains.require_up_to("rho", rho, conversions.LARGEST_RHO)
    levels = _levels(alpha)
    with np.errstate(divide="ignore"):
        surprise = -np.log(levels)
        refusal = -np.log1p(-levels)
    gap = np.maximum(np.sqrt(surprise) - np.sqrt(rho), 0.0)
    direct = -np.expm1(-(gap**2))
    mirrored = np.exp(-((np.sqrt(refusal) + np.sqrt(rho)) ** 2))
    return _round_down(np.maximum(direct, mirrored), levels)


def curve_bound(
    delta_at: Callable[[NDArray[np.float64]], NDArray[np.float64]], epsilons: ArrayLike, alpha: ArrayLike
) -> NDArray[np.float64]:
    """Return the lower bound of f that delta(epsilon) gives at finitely many epsilons (m,), all at least 0.

    The supremum over epsilon of `epsilon_delta` is f (Dong, Roth and Su 2022, Proposition 2.12), for a delta
    that holds both ways round; a maximum over some epsilons is below it. For a PLD pass
    `privacy_loss_distribution(...).get_delta_for_epsilon` of `dpserve.accounting.analyses`.
    """
    points = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
    levels = _levels(alpha)
    bound = np.zeros_like(levels)
    for epsilon, delta in zip(points, np.atleast_1d(delta_at(points)), strict=True):
        bound = np.maximum(bound, epsilon_delta(float(epsilon), float(delta), levels))
    return bound


def _levels(alpha: ArrayLike) -> NDArray[np.float64]:
    levels = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    if levels.ndim != 1 or not np.all((levels >= 0) & (levels <= 1)):
        raise ValueError("alpha must be an array of one dimension with values between 0 and 1")
    return levels


def _round_down(beta: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return beta less its rounding, never below 0, nor above 1 - alpha, which guessing reaches."""
    return np.clip(beta - _SLACK * np.abs(beta), 0.0, 1 - levels)
