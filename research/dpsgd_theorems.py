"""The cost of DP-SGD, from noise multiplier, sampling rate and number of steps, whatever trained the model.

A step draws each record independently with probability `sampling_rate`, clips its gradient to norm c and adds
N(0, (noise_multiplier c)^2) to the sum. The model, and every intermediate model, may be published. Neighbouring
data sets differ by one record added or removed, as everywhere.

Three theorems as they are taught, and as published tables use them, are compared with the valid analyses of
`dpserve.accounting.analyses`: composition, advanced composition (Dwork, Rothblum and Vadhan 2010), and the moments
accountant (Abadi et al. 2016). The first two use the classical noise sigma = sqrt(2 ln(1.25/delta))/epsilon for a
step, proved only for epsilon < 1 (Dwork and Roth 2014, Theorem A.1); where a step exceeds that, `proven` is false.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpserve.accounting import analyses, compositions, domains
from dpserve.accounting.losses import Cost, SubsampledGaussianLoss

_SLACKS = (0.5, 0.3, 0.1, 0.03, 0.01, 0.001)


@dataclass(frozen=True)
class Theorem:
    """The epsilon of one published theorem at the delta asked for, and whether its premises hold here."""

    name: str
    epsilon: float
    proven: bool


@dataclass(frozen=True)
class Guarantees:
    """The guarantees of one training run: three theorems as published, and the five analyses side by side."""

    cost: Cost
    steps: int
    delta: float
    theorems: tuple[Theorem, ...]
    analyses: analyses.SideBySide


def guarantees(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> Guarantees:
    """Return the guarantees of `steps` steps of DP-SGD at delta."""
    cost = Cost((SubsampledGaussianLoss(noise_multiplier, sampling_rate),))
    return Guarantees(
        cost=cost,
        steps=steps,
        delta=delta,
        theorems=theorems(noise_multiplier, sampling_rate, steps, delta),
        analyses=analyses.side_by_side({cost: steps}, delta),
    )


def theorems(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> tuple[Theorem, ...]:
    """Return the three theorems as taught: composition, advanced composition, moments accountant."""
    proven = classical_epsilon(noise_multiplier, delta / steps / sampling_rate / 2) < 1
    return (
        Theorem("composition", composed_epsilon(noise_multiplier, sampling_rate, steps, delta), proven),
        Theorem("advanced composition", advanced_epsilon(noise_multiplier, sampling_rate, steps, delta), proven),
        Theorem("moments accountant", moments_epsilon(noise_multiplier, sampling_rate, steps, delta), True),
    )


def classical_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return sqrt(2 ln(1.25/delta))/sigma: the epsilon of one Gaussian release as taught, proved where below 1.

    The theorem is often misprinted with sigma^2 for sigma.
    """
    domains.require_above_zero("the noise multiplier", noise_multiplier)
    domains.require_above_zero("delta", delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier if delta < 1.25 else 0.0


def step_epsilon(noise_multiplier: float, sampling_rate: float, delta: float) -> float:
    """Return ln(1 + q (e^epsilon - 1)) with the classical epsilon at delta/q: one sampled step as taught."""
    return analyses.amplified_epsilon(classical_epsilon(noise_multiplier, delta / sampling_rate), sampling_rate)


def composed_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return T epsilon_0 with delta_0 = delta/T: the composition theorem (Dwork et al. 2006)."""
    _check(sampling_rate, steps, delta)
    return steps * step_epsilon(noise_multiplier, sampling_rate, delta / steps)


def advanced_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return sqrt(2 T ln(1/delta')) epsilon_0 + T epsilon_0 (e^epsilon_0 - 1), delta = T delta_0 + delta'.

    Dwork, Rothblum and Vadhan 2010, Theorem III.3, for the best of several delta'. The factor epsilon_0 stands
    outside the root, where Azuma's inequality puts it.
    """
    _check(sampling_rate, steps, delta)
    return min(_advanced_at(noise_multiplier, sampling_rate, steps, delta, slack) for slack in _SLACKS)


def _advanced_at(noise_multiplier: float, sampling_rate: float, steps: int, delta: float, slack: float) -> float:
    epsilon = step_epsilon(noise_multiplier, sampling_rate, delta * (1 - slack) / steps)
    drift = math.expm1(epsilon) if epsilon < 700 else math.inf
    return math.sqrt(2 * steps * -math.log(delta * slack)) * epsilon + steps * epsilon * drift


def moments_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return the least (T alpha(l) + ln(1/delta))/l over moments l (Abadi et al. 2016, Theorem 2).

    alpha(l), the log of the moment generating function of the privacy loss of one step at l, is l times its Renyi
    divergence of order l + 1. Valid; `dpserve.accounting.analyses.rdp` converts the same divergences more closely.
    """
    _check(sampling_rate, steps, delta)
    loss = SubsampledGaussianLoss(noise_multiplier, sampling_rate)
    orders = compositions.SAMPLED_ORDERS
    composed = steps * compositions.renyi_divergence(loss, orders) - math.log(delta) / (orders - 1)
    return float(np.min(composed)) * (1 + 2.0**-40)


def _check(sampling_rate: float, steps: int, delta: float) -> None:
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"the sampling rate must lie above 0 and be at most 1, not be {sampling_rate}")
    if steps < 1:
        raise ValueError(f"the number of steps must be at least 1, not {steps}")
    domains.require_delta(delta)
