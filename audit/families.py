"""Families of trade-off functions with one parameter: the larger it is, the more may leak.

A bound "through a trade-off function" presumes that the mechanism has one of the family, and says which members the
scores refute. (epsilon, delta)-DP presumes least; a family closer to the mechanism's own loses less.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpserve.accounting import analyses, compositions, conversions
from dpserve.accounting import tradeoff as tradeoffs
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Composition

TradeOff = Callable[[float, Floats], Floats]

_CURVE_POINTS = 201
_DOWN = 1 - 2.0**-44


@dataclass(frozen=True)
class Family:
    """f_t(alpha), non-increasing in alpha and in the parameter t, from t = 0, where f is 1 - alpha.

    tradeoff: of t and levels (k,), a lower bound of f_t there. largest: of t. tolerance: relative, of a search for t.
    """

    parameter: str
    tradeoff: TradeOff
    largest: float
    tolerance: float = 2.0**-40


GAUSSIAN = Family("mu", tradeoffs.gaussian, 100.0)
"""mu-GDP."""


def epsilon_delta(delta: float) -> Family:
    """Return (epsilon, delta)-DP with epsilon for the parameter."""
    return Family("epsilon", lambda epsilon, alpha: tradeoffs.epsilon_delta(epsilon, delta, alpha), 700.0)


PURE = epsilon_delta(0.0)
"""Pure epsilon: what `dpserve.accounting.losses.PureLoss` states."""


def _laplace(epsilon: float, alpha: Floats) -> Floats:
    """Return f of Laplace noise of scale 1 on numbers epsilon apart (Dong, Roth and Su 2022, Proposition A.1).

    1 - e^epsilon alpha below alpha = e^-epsilon/2, e^-epsilon/(4 alpha) up to 1/2, e^-epsilon (1 - alpha) from there.
    """
    least = math.exp(-epsilon)
    with np.errstate(divide="ignore", over="ignore"):
        middle = least / (4 * alpha)
        steep = 1 - alpha / least
    beta = np.where(alpha < least / 2, steep, np.where(alpha <= 0.5, middle, least * (1 - alpha)))
    return np.clip(beta * _DOWN, 0.0, 1 - alpha)


LAPLACE = Family("epsilon", _laplace, 700.0)
"""One Laplace variable that moves by epsilon of its scales: what `dpserve.accounting.losses.LaplaceLoss` states."""


def _bounded_range(epsilon: float, alpha: Floats) -> Floats:
    epsilons = np.linspace(0.0, epsilon, _CURVE_POINTS)
    if epsilon == 0:
        return 1 - alpha
    return tradeoffs.curve_bound(lambda at: compositions.bounded_range_delta(epsilon, at), epsilons, alpha)


BOUNDED_RANGE = Family("epsilon", _bounded_range, 700.0)
"""A loss in an interval of length epsilon that holds 0: what `dpserve.accounting.losses.BoundedRangeLoss` states."""


def composition_family(
    parameter: str, losses: Callable[[float], Composition], delta: float, *, largest: float, tolerance: float = 1e-4
) -> Family:
    """Return the family of the releases `losses(t)`, by numerical composition of their privacy loss distributions.

    parameter: what t is called. losses: how often each privacy loss occurs; what it may tell must grow with t. delta:
    how small a delta the curve is made for. At t = 0 nothing is released. f is the largest of the lines that
    (epsilon, delta(epsilon)) give on a grid (Nasr et al. 2023, Algorithm 4, which prints the smallest; each line is a
    lower bound of f, and the largest is meant). Each new t costs a composition, from milliseconds to seconds.
    Raises ValueError where the composition cannot be had.
    """

    @lru_cache(maxsize=256)
    def curve(t: float) -> tuple[Floats, Floats]:
        composition = losses(t)
        curve = compositions.numerical_curve(composition, delta)
        if isinstance(curve, str):
            raise ValueError(f"{parameter} = {t:g}: {curve}")  # noqa: TRY004 - the words are the reason
        spent = analyses.rdp(composition, delta).epsilon or 0.0
        epsilons = np.linspace(0.0, min(spent, conversions.LARGEST_EPSILON), _CURVE_POINTS)
        return epsilons, curve.delta_at(epsilons)

    def beta(t: float, alpha: Floats) -> Floats:
        if t == 0:
            return 1 - alpha
        epsilons, deltas = curve(t)
        return tradeoffs.curve_bound(lambda _: deltas, epsilons, alpha)

    return Family(parameter, beta, largest, tolerance)
