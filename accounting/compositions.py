"""Renyi divergences and privacy loss distributions of whole compositions, computed numerically and rounded up.

`dp_accounting` is imported only when something is computed.
"""

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray

from dpserve.accounting import conversions, domains
from dpserve.accounting.losses import (
    BoundedRangeLoss,
    Composition,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    PureLoss,
    ReplacementGaussianLoss,
    SubsampledGaussianLoss,
)
from dpserve.accounting.remembered import remembered

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

SAMPLED_ORDERS = np.concatenate([np.linspace(1.1, 10.9, 99), np.arange(11, 64), np.geomspace(64, 1024, 13) // 1])
"""Orders at which the sampled Gaussian is looked at: finely up to 11, then whole numbers."""
_ROUND_UP = 1 + 2.0**-40


def renyi_curve(losses: Composition, delta: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return orders (k,) worth looking at for this delta, and the composed RDP at each (k,), rounded up."""
    orders = _orders(losses, delta)
    return orders, sum((count * renyi_divergence(loss, orders) for loss, count in losses.items()), 0 * orders)


def renyi_divergence(loss: PrivacyLoss, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the RDP of one release at `orders` (k,), all above 1, as an array (k,), rounded up.

    Gaussian: alpha mu^2/2. Laplace: ln(alpha/(2 alpha - 1) e^((alpha-1) epsilon) + (alpha-1)/(2 alpha - 1)
    e^(-alpha epsilon))/(alpha - 1) (Mironov 2017, Table II). Bounded range: the less of alpha epsilon^2/8 and
    epsilon. Sampled Gaussian: `dp_accounting`, and never more than the Gaussian that is not sampled. With replacement:
    as if every draw were of the one record.
    """
    if isinstance(loss, ReplacementGaussianLoss):
        return orders * float(loss.rho) * _ROUND_UP
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
    if isinstance(loss, PureLoss):
        return np.minimum(orders * loss.epsilon**2 / 2, loss.epsilon) * _ROUND_UP
    if isinstance(loss, SubsampledGaussianLoss):
        unsampled = orders / (2 * loss.noise_multiplier**2)
        sampled: NDArray[np.float64] = _sampled_divergence(loss, tuple(orders))
        return np.minimum(sampled, unsampled * _ROUND_UP)
    raise TypeError(f"no Renyi divergence is known for a {loss.kind} loss")


@remembered(64)
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


def _orders(losses: Composition, delta: float) -> NDArray[np.float64]:
    """Return orders around the best one for the total rho and a wide range; for sampled Gaussians the usual ones."""
    if any(isinstance(loss, SubsampledGaussianLoss) for loss in losses):
        return SAMPLED_ORDERS
    rho = float(sum(loss.rho * count for loss, count in losses.items()))
    best = math.sqrt(-math.log(delta) / max(rho, conversions.LEAST_RHO))
    around = np.clip(best * np.geomspace(2.0**-8, 2.0**8, 513), 1e-12, 1e150)
    return 1 + np.concatenate([around, np.geomspace(1e-3, 1e9, 241)])


_LEAST_FFT_DELTA = 1e-13
_MOST_LOSS_VALUES = 2**14


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


@remembered(8)
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
        return f"the numerical PLD is unavailable: {type(error).__name__}"


def privacy_loss_distribution(losses: Composition, interval: float) -> "PrivacyLossDistribution":
    """Return the pessimistic PLD of the whole composition, its losses rounded to multiples of `interval`."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    composed = pld.identity(interval)
    mu = total_mu(losses)
    if mu > 0:
        composed = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
    for loss, count in losses.items():
        if isinstance(loss, LaplaceLoss):
            one = pld.from_laplace_mechanism(1 / loss.epsilon, value_discretization_interval=interval)
        elif isinstance(loss, BoundedRangeLoss):
            one = _bounded_range_pld(loss.epsilon, interval)
        elif isinstance(loss, PureLoss):
            pure = DifferentialPrivacyParameters(loss.epsilon, 0)
            one = pld.from_privacy_parameters(pure, value_discretization_interval=interval)
        elif isinstance(loss, SubsampledGaussianLoss):
            one = pld.from_gaussian_mechanism(
                loss.noise_multiplier,
                sampling_prob=loss.sampling_rate,
                value_discretization_interval=interval,
            )
        elif isinstance(loss, ReplacementGaussianLoss):
            one = _replacement_pld(loss, interval)
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
    furthest = math.ceil(epsilon / interval)
    grid = np.arange(-furthest, furthest + 1)
    return _pld_of_curve(
        interval, furthest, bounded_range_delta(epsilon, np.asarray(grid * interval, dtype=np.float64))
    )


def replacement_delta(loss: ReplacementGaussianLoss, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the delta at `at` (k,), all at least 0, of a step that draws its batch with replacement, rounded up.

    Of n records, B draws: the one that differs is drawn K times, K ~ Binomial(B, 1/n), and by others than it with
    probability 1 - q = (1 - 1/n)^B. Given K = k and the other draws, the noisy sums are Gaussians at most 2 k / sigma
    apart. Balle, Barthe and Gaboardi 2018, Theorem 10: at ln(1 + q (e^epsilon - 1)) delta is at most the sum over
    k >= 1 of P(K = k) delta_k(epsilon), delta_k being that of Gaussian noise for k replaced records.
    """
    batch, share = int(loss.batch), 1 / loss.records
    counts = np.arange(1, batch + 1)
    chances = scipy.stats.binom.pmf(counts, batch, share)
    counts, chances = counts[chances > 0], chances[chances > 0]
    sampled = -math.expm1(batch * math.log1p(-share)) if share < 1 else 1.0
    # Rounded down; beyond 30 the 1 in the logarithm is less than the error that is allowed for.
    epsilons = np.log1p(np.expm1(np.minimum(at, 30.0)) / (sampled * _ROUND_UP)) + np.maximum(at - 30.0, 0.0)
    epsilons = np.maximum(epsilons - 2.0**-36, 0.0)
    total = np.zeros_like(at)
    for count, chance in zip(counts, chances, strict=True):
        mu = 2 * count / loss.noise_multiplier
        above = scipy.special.log_ndtr(mu / 2 - epsilons / mu)
        below = epsilons + scipy.special.log_ndtr(-mu / 2 - epsilons / mu)
        # The difference of two numbers that may be near: its error is that of the larger.
        total += chance * np.exp(above) * (-np.expm1(np.minimum(below - above, 0)) + 2.0**-44)
    return np.minimum(total * (1 + 2.0**-30), 1.0)


def _replacement_pld(loss: ReplacementGaussianLoss, interval: float) -> "PrivacyLossDistribution":
    furthest = 1
    while replacement_delta(loss, np.array([furthest * interval]))[0] > _LEAST_FFT_DELTA**1.5 and furthest < 2**16:
        furthest *= 2
    at = np.asarray(np.arange(furthest + 1) * interval, dtype=np.float64)
    above = replacement_delta(loss, at)
    # Replacing is symmetric: delta(-e) = 1 - e^-e + e^-e delta(e).
    below = -np.expm1(-at) + np.exp(-at) * above
    return _pld_of_curve(interval, furthest, np.asarray(np.concatenate([below[:0:-1], above]), dtype=np.float64))


def _pld_of_curve(interval: float, furthest: int, deltas: NDArray[np.float64]) -> "PrivacyLossDistribution":
    """Return the pessimistic PLD of a curve: deltas (2 furthest + 1,) at multiples of the interval, either way."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = np.arange(-furthest, furthest + 1)
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(interval, grid, deltas))


def total_mu(losses: Composition) -> float:
    """Return mu of the Gaussian losses together, rounded up."""
    square = sum(2 * loss.rho * count for loss, count in losses.items() if isinstance(loss, GaussianLoss))
    return math.nextafter(math.sqrt(math.nextafter(float(square), math.inf)), math.inf) if square else 0.0


def _like(loss: PrivacyLoss) -> PrivacyLoss:
    """Return a loss that spreads about as far, for the width of a grid: Poisson sampling for draws with replacement."""
    if not isinstance(loss, ReplacementGaussianLoss):
        return loss
    return SubsampledGaussianLoss(loss.noise_multiplier / 2, min(loss.batch / loss.records, 1.0))


def _spread(loss: PrivacyLoss) -> float:
    """Return about the standard deviation of the loss of one release."""
    if isinstance(loss, SubsampledGaussianLoss):
        square = math.expm1(min(loss.noise_multiplier**-2, 100.0))
        return min(1 / loss.noise_multiplier, loss.sampling_rate * math.sqrt(square))
    if isinstance(loss, ReplacementGaussianLoss):
        return _spread(_like(loss))
    return math.sqrt(2 * float(loss.rho))


def _discretisation(losses: Composition, delta: float) -> tuple[float | None, float]:
    """Return the interval of the PLD, and about how far its losses spread.

    A fiftieth of the narrowest loss, or as much more as the size allows; None where that would be more than half
    of it: Renyi DP is as close then, and takes no time.
    """
    strict = min(delta, 1e-15)
    losses = Composition({_like(loss): count for loss, count in losses.items()})
    width = 3 * conversions.rdp_epsilon(*renyi_curve(losses, strict), strict)[0] if losses else 0.0
    repeated = [_spread(loss) for loss in losses if not isinstance(loss, GaussianLoss)]
    narrowest = min([*repeated, total_mu(losses) or math.inf])
    interval = max(narrowest / 50, width / _MOST_LOSS_VALUES)
    return (interval if interval <= narrowest / 2 else None), width
