"""The same releases under five analyses: basic, advanced, zCDP, RDP, and the exact curve or the PLD.

The privacy loss of what was released does not change with the analysis; only how close the bound comes does
(Erlingsson, Mironov, Raghunathan and Song 2019). Every epsilon is valid for ideal noise and releases whose
prices were fixed in advance, whoever chose the rows and however; which of them stay valid when prices are
chosen adaptively, each analysis says in `adaptive`. All rounding is towards the larger epsilon.

The coins of approximate losses come off delta first, and what is left is analysed (`losses.without_coins`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps

import numpy as np

from dpserve.accounting import conversions, domains
from dpserve.accounting.compositions import numerical_curve, renyi_curve, replacement_delta, total_mu
from dpserve.accounting.crossings import crossing
from dpserve.accounting.losses import (
    BoundedRangeLoss,
    Composition,
    Cost,
    GaussianLoss,
    PrivacyLoss,
    ReplacementGaussianLoss,
    SubsampledGaussianLoss,
    composition_of,
    without_coins,
)

_ROUND_UP = 1 + 2.0**-40


@dataclass(frozen=True)
class Analysis:
    """The result of one analysis. `epsilon` is None where the analysis does not apply, and `method` says why."""

    name: str
    epsilon: float | None
    method: str
    adaptive: bool
    """Whether it stays valid when later prices depend on earlier answers and the total is bounded in advance."""


@dataclass(frozen=True)
class SideBySide:
    """Five analyses of the same releases at the same delta; `tightest` names the one with the least epsilon."""

    releases: int
    delta: float
    analyses: tuple[Analysis, ...]
    tightest: str

    def __getitem__(self, name: str) -> Analysis:
        """Return the analysis of that name."""
        return next(analysis for analysis in self.analyses if analysis.name == name)

    @property
    def epsilon(self) -> float:
        """The least valid epsilon."""
        return min(analysis.epsilon for analysis in self.analyses if analysis.epsilon is not None)


def side_by_side(releases: Mapping[Cost, int], delta: float) -> SideBySide:
    """Return the five analyses of `releases` (how many at each cost) at delta, for ideal noise."""
    domains.require_delta(delta)
    losses = composition_of(releases)
    analyses = tuple(analyse(losses, delta) for analyse in ALL.values())
    finite = [(analysis.epsilon, analysis.name) for analysis in analyses if analysis.epsilon is not None]
    if not finite:
        raise ValueError(f"no epsilon can be given at delta = {delta:g}: {analyses[0].method}")
    return SideBySide(sum(releases.values()), delta, analyses, min(finite, key=lambda pair: pair[0])[1])


def _coins_first(analyse: Callable[[Composition, float], Analysis]) -> Callable[[Composition, float], Analysis]:
    """Return the analysis of compositions that may have coins: they come off delta, and it analyses the rest."""

    @wraps(analyse)
    def with_coins(losses: Composition, delta: float) -> Analysis:
        rest, coins = without_coins(losses)
        if not coins:
            return analyse(losses, delta)
        left = math.nextafter(delta - coins, 0.0)
        if left <= 0:
            return Analysis(analyse.__name__, None, f"failure probabilities take {coins:.3g} of delta", False)
        analysis = analyse(rest, left)
        return replace(analysis, method=f"{analysis.method}; failure probabilities take {coins:.3g} of delta")

    return with_coins


def delta_at(analyse: Callable[[Composition, float], Analysis], losses: Composition, epsilon: float) -> float:
    """Return a delta at which `analyse` gives at most epsilon, rounded up; 1 where none between 1e-250 and 1 does.

    A search on ln delta, to a relative 1e-6, that ends where the analysis has been seen to hold.
    """
    domains.require_up_to("epsilon", epsilon, conversions.LARGEST_EPSILON)

    def excess(log_delta: float) -> float:
        epsilon_at = analyse(losses, math.exp(log_delta)).epsilon
        return math.inf if epsilon_at is None else epsilon_at - epsilon

    strictest, laxest = math.log(1e-250), math.log(1 - 1e-9)
    if excess(strictest) <= 0:
        pure = math.fsum(loss.pure_epsilon * count for loss, count in losses.items())
        return 0.0 if pure <= epsilon else 1e-250
    if excess(laxest) > 0:
        return 1.0
    return math.exp(crossing(excess, laxest, strictest, tolerance=1e-9).met) * _ROUND_UP


@_coins_first
def basic(losses: Composition, delta: float) -> Analysis:
    """Return basic composition: epsilons and deltas add up (Dwork et al. 2006).

    A loss with no pure epsilon enters as its exact (epsilon_0, delta_0), delta split evenly among all such
    releases, which for identical releases is the best split: epsilon_0 is convex in delta_0.
    """
    share = _even_share(losses, delta)
    epsilon = math.fsum(count * _one_release(loss, share) for loss, count in losses.items()) * _ROUND_UP
    method = "epsilons add up" if share is None else f"each release exact at delta {share:.3g}, epsilons add up"
    return Analysis("basic", epsilon, method, adaptive=share is None)


@_coins_first
def advanced(losses: Composition, delta: float) -> Analysis:
    """Return advanced composition, for the best of several splits of delta.

    Let release i be (epsilon_i, delta_i)-DP. But for a probability sum delta_i its loss lies in an interval of
    length 2 epsilon_i with mean at most epsilon_i tanh(epsilon_i/2) (Kairouz, Oh and Viswanath 2015, Theorem
    3.5), for the exponential mechanism in one of length epsilon_i with mean at most epsilon_i^2/8 (Dong, Durfee
    and Rogers 2020). By Azuma and Hoeffding the sum exceeds its mean by sqrt(2 v ln(1/delta')) with probability
    at most delta', v the sum of the squared half-lengths.
    """
    if _even_share(losses, delta) is None:
        slacks = [1.0]
    else:
        slacks = [0.5, *(1 - 10.0**-k for k in range(1, 5)), *(10.0**-k for k in range(1, 5))]
    best = min((_advanced_at(losses, delta, slack), slack) for slack in slacks)
    method = "bounded losses concentrate (Azuma)" + ("" if best[1] == 1 else f"; {best[1]:g} of delta for the slack")
    return Analysis("advanced", best[0], method, adaptive=False)


def _advanced_at(losses: Composition, delta: float, slack: float) -> float:
    share = _even_share(losses, delta * (1 - slack))
    mean = spread = 0.0
    for loss, count in losses.items():
        epsilon = _one_release(loss, share)
        if isinstance(loss, BoundedRangeLoss):
            mean += count * epsilon**2 / 8
            spread += count * epsilon**2 / 4
        else:
            mean += count * epsilon * math.tanh(epsilon / 2)
            spread += count * epsilon**2
    return (mean + math.sqrt(2 * spread * -math.log(delta * slack))) * _ROUND_UP


@_coins_first
def zcdp(losses: Composition, delta: float) -> Analysis:
    """Return zero-concentrated DP: rhos add up, converted by `conversions.zcdp_epsilon`. It ignores sampling."""
    total = sum(loss.rho * count for loss, count in losses.items())
    rho = math.nextafter(float(total), math.inf) if total else 0.0
    if rho > conversions.LARGEST_RHO:
        return Analysis("zcdp", None, f"rho is above {conversions.LARGEST_RHO:g}", adaptive=True)
    sampled = any(isinstance(loss, SubsampledGaussianLoss | ReplacementGaussianLoss) for loss in losses)
    note = "; ignores the sampling" if sampled else ""
    return Analysis("zcdp", conversions.zcdp_epsilon(rho, delta), f"rho = {rho:.6g}{note}", adaptive=True)


@_coins_first
def rdp(losses: Composition, delta: float) -> Analysis:
    """Return Renyi DP, the moments accountant: divergences of every order add up, and the best order is taken.

    For each order alpha, epsilon = D_alpha + (ln(1/delta) - ln alpha)/(alpha - 1) + ln(1 - 1/alpha) (Canonne,
    Kamath and Steinke 2020, Proposition 12; Mironov 2017 for composition).
    """
    if not losses:
        return Analysis("rdp", 0.0, "nothing was released", adaptive=False)
    epsilon, order = conversions.rdp_epsilon(*renyi_curve(losses, delta), delta)
    note = "; ignores the sampling" if any(isinstance(loss, ReplacementGaussianLoss) for loss in losses) else ""
    return Analysis("rdp", epsilon, f"best order {order:.4g}{note}", adaptive=False)


@_coins_first
def exact(losses: Composition, delta: float) -> Analysis:
    """Return the exact curve where every loss is Gaussian, else the numerical composition of PLDs.

    Gaussian losses compose to one with mu^2 the sum of the mu^2 (Dong, Roth and Su 2022, Corollary 3.3). A PLD
    is discretised pessimistically (Doroshenko et al. 2022) by `dp_accounting`; the error of its Fourier
    transforms is taken off delta.
    """
    mu = total_mu(losses)
    if all(isinstance(loss, GaussianLoss) for loss in losses):
        if mu > conversions.LARGEST_MU:
            return Analysis("exact", None, f"mu is above {conversions.LARGEST_MU:g}", adaptive=True)
        return Analysis("exact", conversions.gaussian_epsilon(mu, delta), f"Gaussian, mu = {mu:.6g}", adaptive=True)
    curve = numerical_curve(losses, delta)
    if isinstance(curve, str):
        return Analysis("exact", None, curve, adaptive=False)
    method = f"numerical PLD, pessimistic, interval {curve.interval:.3g}"

    def excess(epsilon: float) -> float:
        return float(curve.composed.get_delta_for_epsilon(epsilon)) - (delta - curve.allowance)

    if excess(0.0) <= 0:
        return Analysis("exact", 0.0, method, adaptive=False)
    enough = (rdp(losses, delta).epsilon or 0.0) + curve.interval
    while excess(enough) > 0:
        if enough > curve.width:
            return Analysis("exact", None, "the numerical PLD has too much mass at infinity", adaptive=False)
        enough *= 1.5
    return Analysis("exact", crossing(excess, enough, 0.0, tolerance=1e-9).met, method, adaptive=False)


def _even_share(losses: Composition, delta: float) -> float | None:
    """Return the delta of each release that has no pure epsilon, or None if all have one."""
    needy = sum(count for loss, count in losses.items() if loss.pure_epsilon == math.inf)
    return delta / needy * (1 - 2.0**-50) if needy else None


def _one_release(loss: PrivacyLoss, share: float | None) -> float:
    """Return the exact epsilon of one release at delta = share; its pure epsilon where it has one.

    Sampling at rate q turns (epsilon, delta) into (ln(1 + q (e^epsilon - 1)), q delta) (Balle, Barthe and
    Gaboardi 2018, Theorem 8).
    """
    if share is None or loss.pure_epsilon < math.inf:
        return loss.pure_epsilon
    if isinstance(loss, GaussianLoss):
        return conversions.gaussian_epsilon(loss.mu, share)
    if isinstance(loss, SubsampledGaussianLoss):
        if share >= loss.sampling_rate:
            return 0.0
        unsampled = conversions.gaussian_epsilon(1 / loss.noise_multiplier * _ROUND_UP, share / loss.sampling_rate)
        return amplified_epsilon(unsampled, loss.sampling_rate)
    if isinstance(loss, ReplacementGaussianLoss):

        def excess(epsilon: float) -> float:
            return float(replacement_delta(loss, np.array([epsilon]))[0]) - share

        largest = conversions.gaussian_epsilon(2 * loss.batch / loss.noise_multiplier * _ROUND_UP, share)
        return 0.0 if excess(0.0) <= 0 else crossing(excess, largest, 0.0, tolerance=1e-9).met * _ROUND_UP
    raise TypeError(f"no curve of one release is known for a {loss.kind} loss")


def amplified_epsilon(epsilon: float, sampling_rate: float) -> float:
    """Return ln(1 + q (e^epsilon - 1)), rounded up: epsilon after Poisson sampling at rate q."""
    if epsilon > 700:
        return epsilon
    return min(epsilon, math.log1p(sampling_rate * math.expm1(epsilon)) * _ROUND_UP)


ALL: Mapping[str, Callable[[Composition, float], Analysis]] = {
    "basic": basic,
    "advanced": advanced,
    "zcdp": zcdp,
    "rdp": rdp,
    "exact": exact,
}
"""The analyses by name, the loosest first."""
