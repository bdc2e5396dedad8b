"""Conversions between mu-GDP, zCDP rho and (epsilon, delta), always to the safe side.

An epsilon or a delta that a function returns is at least the exact one for what it converts from, a mu or a
rho at most the exact one for what it was asked. Two things make that so: a curve is evaluated as an upper
bound in logarithms, with the error of the evaluation added, and a search returns a point at which that upper
bound has itself been seen to meet the condition.

Assumed of the platform, and tested against 60-digit arithmetic: IEEE doubles; `exp`, `log`, `log1p` within
2 units in the last place; `scipy.special.erfcx` and `math.erfc` within a relative 2**-46.
"""

import functools
import math

import numpy as np
import scipy
from numpy.typing import NDArray

from dpserve.accounting import domains
from dpserve.accounting.crossings import crossing

_HALF_ULP = 2.0**-53
_ERFCX_ERROR = 2.0**-46
_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
_ROOT_HALF_PI = math.sqrt(math.pi / 2)
_SMALL_MU = 0.5
_ASYMPTOTIC_FROM = 20.0
_SMALLEST = math.ulp(0.0)

LEAST_MU, LARGEST_MU = 1e-100, 1e6
LEAST_RHO, LARGEST_RHO = 1e-200, 1e12
LARGEST_EPSILON = 1e11
"""Where the curves are evaluated. A smaller mu or rho above 0 is taken for the least, which is the safe side."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which mu-GDP gives delta, rounded up; 0 where delta allows it.

    The search starts from mu^2/2 + mu sqrt(2 ln(1/delta)), which suffices because delta(epsilon) <=
    Phi(-a) <= e^(-a^2/2) at a = epsilon/mu - mu/2.
    """
    domains.require_up_to("mu", mu, LARGEST_MU)
    domains.require_delta(delta)
    log_delta = _log_down(delta)
    if mu == 0 or _log_gaussian_delta(mu, 0.0) <= log_delta:
        return 0.0
    mu = max(mu, LEAST_MU)  # steps from an epsilon that is subnormal would round to no step
    enough = mu * mu / 2 + mu * math.sqrt(-2 * log_delta)
    while _log_gaussian_delta(mu, enough) > log_delta:
        enough *= 1 + 2.0**-20
    return crossing(lambda epsilon: _log_gaussian_delta(mu, epsilon) - log_delta, enough, 0.0).met


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP gives (epsilon, delta), rounded down.

    The search starts from two values that suffice: mu with mu^2/2 + mu sqrt(2 ln(1/delta)) = epsilon (see
    `gaussian_epsilon`), and delta sqrt(2 pi), since delta(epsilon) <= delta(0) = 2 Phi(mu/2) - 1 <=
    mu / sqrt(2 pi).
    """
    domains.require_up_to("epsilon", epsilon, LARGEST_EPSILON)
    domains.require_delta(delta)
    log_delta = _log_down(delta)
    tail = math.sqrt(-2 * log_delta)
    enough = max(2 * epsilon / (tail + math.sqrt(tail * tail + 2 * epsilon)), delta * math.exp(_LOG_ROOT_TWO_PI))
    while _log_gaussian_delta(enough, epsilon) > log_delta:
        enough *= 1 - 2.0**-20
    too_much = 2 * enough
    while _log_gaussian_delta(too_much, epsilon) <= log_delta:
        enough, too_much = too_much, 2 * too_much
    return crossing(lambda mu: _log_gaussian_delta(mu, epsilon) - log_delta, enough, too_much).met


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Return a delta that rho-zCDP gives at epsilon, rounded up.

    For every alpha > 1: delta <= e^((alpha-1)(alpha rho - epsilon)) (alpha-1)^(alpha-1) / alpha^alpha
    (Canonne, Kamath and Steinke 2020, Proposition 12, with D_alpha <= alpha rho). Why: delta = E[max(0, 1 -
    e^(epsilon - L))] over the privacy loss L, and max(0, 1 - e^-t) <= e^((alpha-1)t) (alpha-1)^(alpha-1) /
    alpha^alpha for every t, with equality where e^-t = (alpha-1)/alpha. The logarithm is convex in alpha; the
    alpha used is near its minimum, and the bound holds for the alpha used.
    """
    domains.require_up_to("rho", rho, LARGEST_RHO)
    domains.require_up_to("epsilon", epsilon, LARGEST_EPSILON)
    return _exp_up(_log_zcdp_delta(rho, epsilon)) if rho > 0 else 0.0


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return an epsilon that rho-zCDP gives at delta, rounded up; 0 where delta allows it.

    The bound of `zcdp_delta` solved for epsilon, with x = alpha - 1: epsilon = (1+x) rho + (ln(1/delta) -
    ln(1+x))/x - ln(1 + 1/x), least where rho x^2 + ln(1+x) = ln(1/delta), whose left side increases with x.
    """
    domains.require_up_to("rho", rho, LARGEST_RHO)
    domains.require_delta(delta)
    if rho == 0:
        return 0.0
    surprise = -_log_down(delta)
    rho = max(rho, LEAST_RHO)
    x = _best_order_for_epsilon(rho, surprise)
    terms = ((1 + x) * rho, surprise / x, -math.log1p(x) / x, -math.log1p(1 / x))
    error = 8 * _HALF_ULP * math.fsum(map(abs, terms))
    return max(0.0, math.nextafter(math.fsum(terms) + error, math.inf))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho for which `zcdp_epsilon` stays within epsilon, rounded down.

    The search starts from two values that suffice: rho with rho + 2 sqrt(rho ln(1/delta)) = epsilon (Bun and
    Steinke 2016, Proposition 3, which the bound of `zcdp_epsilon` improves on), and 2 delta^2 scaled down
    until it passes, since the total variation distance is at most sqrt(rho/2).
    """
    domains.require_up_to("epsilon", epsilon, LARGEST_EPSILON)
    domains.require_delta(delta)
    tail = math.sqrt(-math.log(delta))
    enough = max((epsilon / (tail + math.sqrt(tail * tail + epsilon))) ** 2, 2 * delta * delta)
    while zcdp_epsilon(enough, delta) > epsilon:
        if enough < LEAST_RHO:
            return 0.0
        enough *= 0.75
    too_much = 2 * enough
    while zcdp_epsilon(too_much, delta) <= epsilon:
        enough, too_much = too_much, 2 * too_much
    return crossing(lambda rho: zcdp_epsilon(rho, delta) - epsilon, enough, too_much).met


def rdp_epsilon(orders: NDArray[np.float64], divergences: NDArray[np.float64], delta: float) -> tuple[float, float]:
    """Return the least epsilon over Renyi divergences (k,) at orders (k,) above 1, rounded up, and its order.

    The bound of `zcdp_epsilon` with the divergence itself for alpha rho. Orders whose divergence is not finite
    are passed over; infinity if all are.
    """
    domains.require_delta(delta)
    x = orders - 1
    terms = np.stack([divergences, -_log_down(delta) / x, -np.log1p(x) / x, -np.log1p(1 / x)])
    epsilons = terms.sum(axis=0) + 16 * _HALF_ULP * np.abs(terms).sum(axis=0)
    epsilons = np.where(np.isfinite(divergences), epsilons, np.inf)
    best = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[best])), float(orders[best])


def mu_of_rho(rho: float) -> float:
    """Return mu = sqrt(2 rho), rounded up: what Gaussian charges that sum to rho amount to."""
    domains.require_up_to("rho", rho, LARGEST_RHO)
    return math.nextafter(math.sqrt(math.nextafter(2 * rho, math.inf)), math.inf) if rho > 0 else 0.0


def _log_gaussian_delta(mu: float, epsilon: float) -> float:
    """Return an upper bound of ln delta for mu > 0.

    delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2), exactly, for the Gaussian mechanism
    (Balle and Wang 2018, Theorem 8) and for whatever is mu-GDP (Dong, Roth and Su 2022, Corollary 2.13).

    With a = epsilon/mu - mu/2, b = a + mu, phi the normal density and R = Phi(-x)/phi(x) Mills' ratio,
    e^epsilon phi(b) = phi(a), so delta = phi(a) (R(a) - R(b)) without overflow. delta falls as a grows at
    fixed mu, so a is first lowered by the error of its own evaluation. A small mu makes R(a) and R(b) cancel;
    there R(a) - R(b) is the integral of h = -R' = 1 - x R over [a, b], by 8-point Gauss-Legendre quadrature,
    whose relative error for mu <= 1/2 is below 1e-19 (its error term with the 16th derivative of h, which is
    the integral of t^17 e^(-xt - t^2/2) over t > 0).
    """
    mu = max(mu, LEAST_MU)
    ratio = epsilon / mu
    a = ratio - mu / 2
    a -= _HALF_ULP * (2 * ratio + mu + 2 * abs(a))
    b = a + mu
    if mu <= _SMALL_MU:
        log_density = -a * a / 2 - _LOG_ROOT_TWO_PI
        nodes, weights = _nodes_and_weights()
        log_delta = log_density + math.log(mu * float(weights @ _mills_descent(a + mu * nodes)))
    elif a >= 0:
        log_density = -a * a / 2 - _LOG_ROOT_TWO_PI
        log_delta = log_density + math.log(_mills(a) * (1 + _ERFCX_ERROR) - _mills(b) * (1 - _ERFCX_ERROR))
    else:
        above = math.erfc(a / math.sqrt(2)) / 2 * (1 + _ERFCX_ERROR)
        below = math.exp(-a * a / 2 - _LOG_ROOT_TWO_PI) * _mills(b) * (1 - (a * a + 8) * _HALF_ULP - _ERFCX_ERROR)
        log_delta = math.log(above - max(below, 0.0))
    return min(log_delta + (a * a + abs(log_delta) + 64) * 2 * _HALF_ULP, 0.0)


def _mills(x: float) -> float:
    """Return Mills' ratio Phi(-x)/phi(x) = sqrt(pi/2) erfcx(x/sqrt 2)."""
    return _ROOT_HALF_PI * float(scipy.special.erfcx(x / math.sqrt(2)))


@functools.cache
def _nodes_and_weights() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return those of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    return (nodes + 1) / 2, weights / 2


def _mills_descent(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an upper bound of h = 1 - x R(x).

    From 20 on by the asymptotic series 1/x^2 - 3/x^4 + 15/x^6 - ..., which envelopes h: cut after a positive
    term it is an upper bound, and nine terms leave a relative 1e-13.
    """
    if x[0] >= _ASYMPTOTIC_FROM:
        inverse_square = 1 / (x * x)
        series = np.zeros_like(x)
        for k in range(8, 0, -1):
            series = -(2 * k + 1) * inverse_square * (1 + series)
        return inverse_square * (1 + series) * (1 + _ERFCX_ERROR)
    product = x * (_ROOT_HALF_PI * scipy.special.erfcx(x / math.sqrt(2)))
    return 1 - product + np.abs(product) * _ERFCX_ERROR


def _log_zcdp_delta(rho: float, epsilon: float) -> float:
    """Return an upper bound of ln delta for rho > 0; see `zcdp_delta`.

    With x = alpha - 1 it is the least of x ((1+x) rho - epsilon) - x ln(1 + 1/x) - ln(1 + x), found where the
    derivative rho (2x + 1) - epsilon - ln(1 + 1/x), increasing in x, is zero.
    """
    rho = max(rho, LEAST_RHO)

    def slope(x: float) -> float:
        return rho * (2 * x + 1) - epsilon - math.log1p(1 / x)

    above = max(1.0, (epsilon + math.log(2)) / (2 * rho))
    below = (epsilon - rho) / (2 * rho) if epsilon > rho else math.exp(-min(3 * rho - epsilon, 600.0))
    below = max(below, 1e-280)
    if below >= above or slope(below) > 0 or slope(above) <= 0:
        x = below
    else:
        x = crossing(slope, below, above, tolerance=2.0**-24).met
    terms = (x * ((1 + x) * rho), -x * epsilon, -x * math.log1p(1 / x), -math.log1p(x))
    error = 8 * _HALF_ULP * math.fsum(map(abs, terms))
    return min(math.fsum(terms) + error, 0.0)


def _best_order_for_epsilon(rho: float, surprise: float) -> float:
    """Return x > 0 near the root of rho x^2 + ln(1+x) = surprise. Any x > 0 gives a valid epsilon.

    From x where rho x^2 alone reaches it, or ln(1+x) alone, Newton's iteration in ln x; eight steps reach the
    root to about nine digits, and the value at a minimum is flat.
    """
    highest = math.sqrt(surprise / rho)
    if surprise < 600:
        highest = min(highest, math.expm1(surprise))
    log_x = math.log(max(highest, 1e-290))
    for _ in range(8):
        x = math.exp(log_x)
        excess = rho * x * x + math.log1p(x) - surprise
        log_x -= excess / (2 * rho * x * x + x / (1 + x))
    return math.exp(log_x)


def _log_down(delta: float) -> float:
    """Return ln delta rounded down."""
    log_delta = math.log(delta)
    return log_delta - 4 * _HALF_ULP * abs(log_delta)


def _exp_up(log_value: float) -> float:
    """Return e^log_value rounded up, at least the smallest positive double and at most 1."""
    return min(max(math.exp(log_value) * (1 + 4 * _HALF_ULP), _SMALLEST), 1.0)
