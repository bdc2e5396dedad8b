"""Renyi divergences of privacy losses, composed over all orders worth looking at, and rounded up.

`dp_accounting` computes that of the sampled Gaussian, and is imported only when needed.
"""

import logging
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from accounting import conversions, domains
from accounting.losses import (
    BoundedRangeLoss,
    Composition,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    SubsampledGaussianLoss,
)

SAMPLED_ORDERS = np.concatenate(
    [np.linspace(1.1, 10.9, 99), np.arange(11, 64), np.unique(np.geomspace(64, 1024, 13) // 1)]
)
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
