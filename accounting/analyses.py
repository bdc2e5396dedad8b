"""The same releases under five analyses: basic, advanced, zCDP, RDP, and the exact curve or the PLD.

The privacy loss of what was released does not change with the analysis; only how close the bound comes does
(Erlingsson, Mironov, Raghunathan and Song 2019). Every epsilon is valid for ideal noise and releases whose
prices were fixed in advance, whoever chose the rows and however; which of them stay valid when prices are
chosen adaptively, each analysis says in `adaptive`. All rounding is towards the larger epsilon.

`dp_accounting` computes the RDP of the sampled Gaussian and every PLD, and is imported only when needed.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from accounting import conversions, domains
from accounting.crossings import crossing
from accounting.losses import (
    BoundedRangeLoss,
    ClaimedLoss,
    Cost,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    SubsampledGaussianLoss,
)

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

MOST_RELEASES = 10**12
_LEAST_FFT_DELTA = 1e-13
_MOST_LOSS_VALUES = 2**14
SAMPLED_ORDERS = np.concatenate(
    [np.linspace(1.1, 10.9, 99), np.arange(11, 64), np.unique(np.geomspace(64, 1024, 13) // 1)]
)
"""Orders at which the sampled Gaussian is looked at: finely up to 11, then whole numbers."""
_ROUND_UP = 1 + 2.0**-40


@dataclass(frozen=True)
class Analysis:
    """What one analysis says. `epsilon` is None where the analysis does not apply, and `method` says why."""

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


Composition = Counter[PrivacyLoss]
"""How often each privacy loss occurs."""


def composition_of(releases: Mapping[Cost, int]) -> Composition:
    """Return the losses of `releases`, the number of releases at each cost, with how often each occurs.

    A claimed loss counts as what is claimed: what is analysed is then a claim, too.
    """
    losses: Composition = Counter()
    for cost, count in releases.items():
        if not 0 <= count <= MOST_RELEASES:
            raise ValueError(f"a number of releases must lie between 0 and {MOST_RELEASES:g}, not be {count}")
        for loss in cost.losses:
            losses[loss.claim if isinstance(loss, ClaimedLoss) else loss] += count
    return +losses


def side_by_side(releases: Mapping[Cost, int], delta: float) -> SideBySide:
    """Return the five analyses of `releases` (how many at each cost) at delta, for ideal noise."""
    domains.require_delta(delta)
    losses = composition_of(releases)
    analyses = tuple(analyse(losses, delta) for analyse in ALL.values())
    known = [(analysis.epsilon, analysis.name) for analysis in analyses if analysis.epsilon is not None]
    return SideBySide(sum(releases.values()), delta, analyses, min(known, key=lambda pair: pair[0])[1])


def delta_at(analyse: Callable[[Composition, float], Analysis], losses: Composition, epsilon: float) -> float:
    """Return a delta at which `analyse` gives at most epsilon, rounded up; 1 where none between 1e-250 and 1 does.

    A search on ln delta, to a relative 1e-6, that ends where the analysis has been seen to hold.
    """
    domains.require_up_to("epsilon", epsilon, conversions.LARGEST_EPSILON)

    def excess(log_delta: float) -> float:
        found = analyse(losses, math.exp(log_delta)).epsilon
        return math.inf if found is None else found - epsilon

    strictest, laxest = math.log(1e-250), math.log(1 - 1e-9)
    if excess(strictest) <= 0:
        pure = math.fsum(loss.pure_epsilon * count for loss, count in losses.items())
        return 0.0 if pure <= epsilon else 1e-250
    if excess(laxest) > 0:
        return 1.0
    return math.exp(crossing(excess, laxest, strictest, tolerance=1e-9).met) * _ROUND_UP


def basic(losses: Composition, delta: float) -> Analysis:
    """Return basic composition: epsilons and deltas add up (Dwork et al. 2006).

    A loss with no pure epsilon enters as its exact (epsilon_0, delta_0), delta split evenly among all such
    releases, which for identical releases is the best split: epsilon_0 is convex in delta_0.
    """
    share = _even_share(losses, delta)
    epsilon = math.fsum(count * _one_release(loss, share) for loss, count in losses.items()) * _ROUND_UP
    method = "epsilons add up" if share is None else f"each release exact at delta {share:.3g}, epsilons add up"
    return Analysis("basic", epsilon, method, adaptive=share is None)


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


def zcdp(losses: Composition, delta: float) -> Analysis:
    """Return zero-concentrated DP: rhos add up, converted by `conversions.zcdp_epsilon`. It ignores sampling."""
    total = sum(loss.rho * count for loss, count in losses.items())
    rho = math.nextafter(float(total), math.inf) if total else 0.0
    if rho > conversions.LARGEST_RHO:
        return Analysis("zcdp", None, f"rho is above {conversions.LARGEST_RHO:g}", adaptive=True)
    sampled = any(isinstance(loss, SubsampledGaussianLoss) for loss in losses)
    note = "; ignores the sampling" if sampled else ""
    return Analysis("zcdp", conversions.zcdp_epsilon(rho, delta), f"rho = {rho:.6g}{note}", adaptive=True)


def rdp(losses: Composition, delta: float) -> Analysis:
    """Return Renyi DP, the moments accountant: divergences of every order add up, and the best order is taken.

    For each order alpha, epsilon = D_alpha + (ln(1/delta) - ln alpha)/(alpha - 1) + ln(1 - 1/alpha) (Canonne,
    Kamath and Steinke 2020, Proposition 12; Mironov 2017 for composition).
    """
    if not losses:
        return Analysis("rdp", 0.0, "nothing was released", adaptive=False)
    epsilon, order = conversions.rdp_epsilon(*renyi_curve(losses, delta), delta)
    return Analysis("rdp", epsilon, f"best order {order:.4g}", adaptive=False)


def log_odds(losses: Composition, delta: float) -> float:
    """Return t such that the posterior log-odds exceed t with probability at most delta, rounded up.

    `identifiability.zcdp_log_odds`'s argument at every order: P(dP/dQ > e^t) <= e^((alpha-1)(D_alpha - t)), so t =
    D_alpha + ln(1/delta)/(alpha - 1); and never more than the pure epsilons together.
    """
    domains.require_delta(delta)
    if not losses:
        return 0.0
    orders, divergences = renyi_curve(losses, delta)
    pure = math.fsum(count * loss.pure_epsilon for loss, count in losses.items())
    return min(float(np.min(divergences - math.log(delta) / (orders - 1))), pure) * _ROUND_UP


def renyi_curve(losses: Composition, delta: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return orders (k,) worth looking at for this delta, and the composed RDP at each (k,), rounded up."""
    orders = _orders(losses, delta)
    return orders, sum((count * renyi_divergence(loss, orders) for loss, count in losses.items()), 0 * orders)


def renyi_divergence(loss: PrivacyLoss, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the RDP of one release at `orders` (k,), all above 1, as an array (k,), rounded up.

    Gaussian: alpha mu^2/2. Laplace: ln(alpha/(2 alpha - 1) e^((alpha-1) epsilon) + (alpha-1)/(2 alpha - 1)
    e^(-alpha epsilon))/(alpha - 1) (Mironov 2017, Table II). Bounded range: the less of alpha epsilon^2/8 and
    epsilon. Sampled Gaussian: `dp_accounting`, and never more than the Gaussian that is not sampled.
    """
    if isinstance(loss, GaussianLoss):
        return orders * (loss.mu**2 / 2) * _ROUND_UP
    if isinstance(loss, LaplaceLoss):
        x, epsilon = orders - 1, loss.epsilon
        upper = np.log1p(x) - np.log1p(2 * x) + x * epsilon
        lower = np.log(x) - np.log1p(2 * x) - orders * epsilon
        closed = np.logaddexp(upper, lower) / x
        error = 2.0**-48 * (1 + np.abs(upper)) / x
        return np.minimum(closed + error, np.minimum(orders * epsilon**2 / 2, epsilon)) * _ROUND_UP
    if isinstance(loss, BoundedRangeLoss):
        return np.minimum(orders * loss.epsilon**2 / 8, loss.epsilon) * _ROUND_UP
    if isinstance(loss, SubsampledGaussianLoss):
        unsampled = orders / (2 * loss.noise_multiplier**2)
        return np.minimum(_sampled_divergence(loss, tuple(orders)), unsampled * _ROUND_UP)
    raise TypeError(f"no Renyi divergence is known for a {loss.kind} loss")


@lru_cache(maxsize=64)
def _sampled_divergence(loss: SubsampledGaussianLoss, orders: tuple[float, ...]) -> NDArray[np.float64]:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    absl = logging.getLogger("absl")
    absl.addFilter(_no_order_excluded)
    try:
        accountant = RdpAccountant(np.array(orders))
        step = dp_accounting.GaussianDpEvent(loss.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(loss.sampling_rate, step))
    finally:
        absl.removeFilter(_no_order_excluded)
    return np.asarray(accountant.rdp, dtype=np.float64) * (1 + 2.0**-30)


def _no_order_excluded(record: logging.LogRecord) -> bool:
    """Drop the accountant's warning about an order it leaves out: another order is then the best one."""
    return "Excluding this order" not in record.getMessage()


def exact(losses: Composition, delta: float) -> Analysis:
    """Return the exact curve where every loss is Gaussian, else the numerical composition of PLDs.

    Gaussian losses compose to one with mu^2 the sum of the mu^2 (Dong, Roth and Su 2022, Corollary 3.3). A PLD
    is discretised pessimistically (Doroshenko et al. 2022) by `dp_accounting`; the error of its Fourier
    transforms is taken off delta.
    """
    mu = _total_mu(losses)
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


@dataclass(frozen=True)
class NumericalCurve:
    """The PLD of a composition, discretised: its delta(epsilon) plus `allowance` is valid both ways round."""

    composed: "PrivacyLossDistribution"
    interval: float
    width: float
    """About how far the losses spread."""
    allowance: float
    """The error of the Fourier transforms in delta: 16 units of rounding for every composition."""

    def delta_at(self, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a valid delta at each of the epsilons (k,)."""
        deltas = np.asarray(self.composed.get_delta_for_epsilon(epsilons), dtype=np.float64)
        return np.minimum(deltas + self.allowance, 1.0)


def numerical_curve(losses: Composition, delta: float) -> NumericalCurve | str:
    """Return the PLD as closely as it must be known to be read at delta, or the reason why it cannot be."""
    return _numerical_curve(frozenset(losses.items()), delta)


@lru_cache(maxsize=8)
def _numerical_curve(losses: frozenset[tuple[PrivacyLoss, int]], delta: float) -> NumericalCurve | str:
    composition = Composition(dict(sorted(losses, key=str)))
    allowance = _LEAST_FFT_DELTA + 16 * 2.0**-53 * sum(composition.values())
    if allowance > delta / 4:
        return "the Fourier transform cannot resolve so small a delta"
    interval, width = _discretisation(composition, delta)
    if interval is None:
        return "too many releases of too little loss for a numerical PLD"
    try:
        return NumericalCurve(privacy_loss_distribution(composition, interval), interval, width, allowance)
    except (IndexError, ValueError, OverflowError) as error:
        return f"the numerical PLD cannot be had: {type(error).__name__}"


def privacy_loss_distribution(losses: Composition, interval: float) -> "PrivacyLossDistribution":
    """Return the pessimistic PLD of the whole composition, its losses rounded to multiples of `interval`."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = pld.identity(interval)
    mu = _total_mu(losses)
    if mu > 0:
        composed = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
    for loss, count in losses.items():
        if isinstance(loss, LaplaceLoss):
            one = pld.from_laplace_mechanism(1 / loss.epsilon, value_discretization_interval=interval)
        elif isinstance(loss, BoundedRangeLoss):
            one = _bounded_range_pld(loss.epsilon, interval)
        elif isinstance(loss, SubsampledGaussianLoss):
            one = pld.from_gaussian_mechanism(
                loss.noise_multiplier,
                sampling_prob=loss.sampling_rate,
                value_discretization_interval=interval,
            )
        elif isinstance(loss, GaussianLoss):
            continue
        else:
            raise TypeError(f"no privacy loss distribution is known for a {loss.kind} loss")
        composed = composed.compose(one.self_compose(count))
    return composed


def bounded_range_delta(epsilon: float, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the delta at `at` (k,) of any mechanism whose losses lie in an interval of length epsilon around 0.

    Let the interval be [t - epsilon, t]. The worst such pair has its loss at the two ends only, at t with
    probability p = (e^epsilon - e^t)/(e^epsilon - 1) (both laws sum to one), and delta(e) = p (1 - e^(e-t)).
    The best t for the attacker, e^t = e^((epsilon+e)/2), gives (e^(epsilon/2) - e^(e/2))^2/(e^epsilon - 1), for
    every e in [-epsilon, epsilon]. As a supremum of hockey-stick curves it is one, and dominates every t.
    """
    inside = np.clip(at, -epsilon, epsilon)
    curve = np.expm1((inside - epsilon) / 2) ** 2 / -np.expm1(-epsilon)
    return np.where(at >= epsilon, 0.0, np.where(at <= -epsilon, -np.expm1(np.minimum(at, 0.0)), curve))


def _bounded_range_pld(epsilon: float, interval: float) -> "PrivacyLossDistribution":
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    furthest = math.ceil(epsilon / interval)
    grid = np.arange(-furthest, furthest + 1)
    deltas = bounded_range_delta(epsilon, np.asarray(grid * interval, dtype=np.float64))
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(interval, grid, deltas))


def _total_mu(losses: Composition) -> float:
    """Return mu of the Gaussian losses together, rounded up."""
    square = sum(2 * loss.rho * count for loss, count in losses.items() if isinstance(loss, GaussianLoss))
    return math.nextafter(math.sqrt(math.nextafter(float(square), math.inf)), math.inf) if square else 0.0


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
    raise TypeError(f"no curve of one release is known for a {loss.kind} loss")


def amplified_epsilon(epsilon: float, sampling_rate: float) -> float:
    """Return ln(1 + q (e^epsilon - 1)), rounded up: epsilon after Poisson sampling at rate q."""
    if epsilon > 700:
        return epsilon
    return min(epsilon, math.log1p(sampling_rate * math.expm1(epsilon)) * _ROUND_UP)


def _orders(losses: Composition, delta: float) -> NDArray[np.float64]:
    """Return orders around the best one for the total rho and a wide range; for sampled Gaussians the usual ones."""
    if any(isinstance(loss, SubsampledGaussianLoss) for loss in losses):
        return SAMPLED_ORDERS
    rho = float(sum(loss.rho * count for loss, count in losses.items()))
    best = math.sqrt(-math.log(delta) / max(rho, conversions.LEAST_RHO))
    around = np.clip(best * np.geomspace(2.0**-8, 2.0**8, 513), 1e-12, 1e150)
    return 1 + np.concatenate([around, np.geomspace(1e-3, 1e9, 241)])


def _spread(loss: PrivacyLoss) -> float:
    """Return about the standard deviation of the loss of one release."""
    if isinstance(loss, SubsampledGaussianLoss):
        square = math.expm1(min(loss.noise_multiplier**-2, 100.0))
        return min(1 / loss.noise_multiplier, loss.sampling_rate * math.sqrt(square))
    return math.sqrt(2 * float(loss.rho))


def _discretisation(losses: Composition, delta: float) -> tuple[float | None, float]:
    """Return the interval of the PLD, and about how far its losses spread.

    A fiftieth of the narrowest loss, or as much more as the size allows; None where that would be more than half
    of it: Renyi DP is as close then, and takes no time.
    """
    width = 3 * (rdp(losses, min(delta, 1e-15)).epsilon or 0.0)
    repeated = [_spread(loss) for loss in losses if not isinstance(loss, GaussianLoss)]
    narrowest = min([*repeated, _total_mu(losses) or math.inf])
    interval = max(narrowest / 50, width / _MOST_LOSS_VALUES)
    return (interval if interval <= narrowest / 2 else None), width


ALL: Mapping[str, Callable[[Composition, float], Analysis]] = {
    "basic": basic,
    "advanced": advanced,
    "zcdp": zcdp,
    "rdp": rdp,
    "exact": exact,
}
"""The analyses by name, the loosest first."""
