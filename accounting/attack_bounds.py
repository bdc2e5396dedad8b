"""Bounds on what releases let anyone infer about one record: on beliefs and on attacks.

They hold for a composition with ideal noise whose prices were settled before the first release, and for an account at
its limit, with the noise as sampled, whose clients choose on the way and stop when they like
(`dpserve.accounting.budgets`). Every bound is rounded up.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpserve.accounting import compositions, conversions, domains, identifiability, tradeoff
from dpserve.accounting.budgets import Budget
from dpserve.accounting.disclosure import ASKED, Asked, DisclosedModel
from dpserve.accounting.losses import Composition, Cost, GaussianLoss, composition_of, without_coins

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05, 0.1, 0.5)
"""Where the power of attacks is shown."""

_CURVE_POINTS = 65
_LARGEST_CURVE_EPSILON = 500.0
"""Beyond it a curve says nothing about the rates shown, and its exponentials overflow."""


class Identifiability(DisclosedModel):
    """Bounds on beliefs about one record and on attacks, rounded up; see `dpserve.accounting.identifiability`."""

    posterior_belief_bound: Asked[
        Annotated[float, Field(description="even odds become a firmer belief than this with probability at most delta")]
    ]
    posterior_belief_at_epsilon: Asked[
        Annotated[
            float, Field(description="1/(1 + e^-epsilon) at the tightest epsilon (Bernau et al. 2021, Theorem 1)")
        ]
    ]
    membership_advantage_bound: Annotated[float, ASKED, Field(description="no attack has a larger TPR - FPR")]
    advantage_bound_from_epsilon_delta: Asked[
        Annotated[float, Field(description="(e^epsilon - 1 + 2 delta)/(e^epsilon + 1) at the tightest epsilon")]
    ]


class AttackPower(DisclosedModel):
    """The largest true positive rate of any attack with this false positive rate."""

    false_positive_rate: Asked[float]
    true_positive_rate_bound: Annotated[float, ASKED, Field(description="1 - f(false positive rate), rounded up")]


class AttackReading(DisclosedModel):
    """Conclusions from the exact rates of an attack; for estimated rates, give the ends of their intervals."""

    true_positive_rate: Asked[float]
    false_positive_rate: Asked[float]
    least_epsilon: Asked[
        Annotated[
            float, Field(description="ln((1 - delta)/(1 - advantage)), or 0: no smaller epsilon can be true at delta")
        ]
    ]
    true_positive_rate_bound: Asked[float]
    possible: Annotated[bool, ASKED, Field(description="false: the attack is better than what was released allows")]


def identifiability_of(composition: Composition, rho: float, epsilon: float, delta: float) -> Identifiability:
    """Return the bounds of a composition with ideal noise.

    `rho`: of the composition; `epsilon`: the tightest at delta. Beyond the largest mu and rho of the conversions
    every bound is 1 already. Coins add their probability to the power of any test, so they come off delta.
    """
    composition, ideal_delta = _coins_off(composition, delta)
    spare = delta - ideal_delta
    pure = math.fsum(count * loss.pure_epsilon for loss, count in composition.items())
    if is_gaussian(composition):
        mu = _mu(rho)
        log_odds = identifiability.gaussian_log_odds(mu, ideal_delta)
        advantage = identifiability.gaussian_advantage(mu)
    else:
        log_odds = compositions.log_odds(composition, ideal_delta)
        advantage = identifiability.zcdp_advantage(rho)
        curve = _curve(composition, ideal_delta)
        if curve is not None:
            log_odds = min(log_odds, curve_log_odds(curve.delta_at, _epsilons(2 * epsilon), ideal_delta))
            advantage = min(advantage, float(curve.delta_at(np.zeros(1))[0]))
    log_odds = min(log_odds + spare / ideal_delta, pure if spare == 0 else math.inf)
    from_curve = identifiability.advantage(epsilon, delta)
    return Identifiability(
        posterior_belief_bound=identifiability.posterior_belief(log_odds),
        posterior_belief_at_epsilon=identifiability.posterior_belief(epsilon),
        membership_advantage_bound=min(1.0, advantage + spare, from_curve),
        advantage_bound_from_epsilon_delta=from_curve,
    )


def identifiability_at_limit(budget: Budget) -> Identifiability:
    """Return the bounds on what an account with this budget may ever tell, whatever is asked and wherever one stops."""
    epsilon = budget.epsilon_at(budget.limit)
    return Identifiability(
        posterior_belief_bound=budget.posterior_belief_at(budget.limit),
        posterior_belief_at_epsilon=identifiability.posterior_belief(epsilon),
        membership_advantage_bound=budget.advantage_at(budget.limit),
        advantage_bound_from_epsilon_delta=identifiability.advantage(epsilon, budget.delta),
    )


def attack_power(
    composition: Composition,
    rho: float,
    epsilon: float,
    delta: float,
    rates: tuple[float, ...] = FALSE_POSITIVE_RATES,
) -> tuple[AttackPower, ...]:
    """Return the greatest true positive rate at each false positive rate, from the best trade-off function known.

    Exact for Gaussian noise. Otherwise the least of what zCDP, (epsilon, delta) and, where it is available, the
    PLD allow: lower bounds of f, so their maximum is one. Coins add their probability to any power.

    It holds for a composition settled beforehand. Where the client chose the prices, this is the composition of one
    branch: Laplace(1), and by its outcome Laplace(3) or Gaussian(mu = 2), has compositions that allow a true positive
    rate of at most 0.441 at a false positive rate of 0.01, and a test that reaches 0.480.
    """
    composition, ideal_delta = _coins_off(composition, delta)
    levels = np.asarray(rates, dtype=np.float64)
    if composition:
        beta = _trade_off(composition, rho, epsilon, ideal_delta, levels)
        powers = np.clip(1 - beta + (delta - ideal_delta), 0.0, 1.0)
    else:
        powers = levels
    return _powers_at_rates(rates, powers)


def attack_power_at_limit(budget: Budget, rates: tuple[float, ...] = FALSE_POSITIVE_RATES) -> tuple[AttackPower, ...]:
    """Return the greatest true positive rates against all that an account with this budget may ever tell."""
    return _powers_at_rates(rates, budget.true_positive_rates_at(budget.limit, rates))


def _powers_at_rates(rates: Iterable[float], powers: Iterable[float]) -> tuple[AttackPower, ...]:
    return tuple(
        AttackPower(false_positive_rate=rate, true_positive_rate_bound=float(power))
        for rate, power in zip(rates, powers, strict=True)
    )


def reading_of_attack(
    true_positive_rate: float, false_positive_rate: float, delta: float, power: AttackPower, complement: AttackPower
) -> AttackReading:
    """Return what an attack with these rates says.

    power: what is allowed at its false positive rate. complement: the same for the attack that accuses whom this
    one does not, which is as much of an attack.
    """
    domains.require_up_to("the true positive rate", true_positive_rate, 1)
    domains.require_up_to("the false positive rate", false_positive_rate, 1)
    advantage = abs(true_positive_rate - false_positive_rate)
    if advantage >= 1:
        raise ValueError("an attack that is always right has no epsilon; give the ends of confidence intervals")
    return AttackReading(
        true_positive_rate=true_positive_rate,
        false_positive_rate=false_positive_rate,
        least_epsilon=identifiability.epsilon_of_attack(advantage, delta),
        true_positive_rate_bound=power.true_positive_rate_bound,
        possible=true_positive_rate <= power.true_positive_rate_bound
        and 1 - true_positive_rate <= complement.true_positive_rate_bound,
    )


def is_gaussian(composition: Composition) -> bool:
    """Tell whether something was released, and every loss is Gaussian."""
    return bool(composition) and all(isinstance(loss, GaussianLoss) for loss in composition)


def composition_and_rho(releases: Mapping[Cost, int]) -> tuple[Composition, float]:
    """Return the losses of the releases, and their rho together, at most what the conversions take."""
    composition = composition_of(releases)
    rho = float(sum(loss.rho * count for loss, count in composition.items()))
    return composition, min(math.nextafter(rho, math.inf) if rho else 0.0, conversions.LARGEST_RHO)


def curve_log_odds(
    delta_at: Callable[[NDArray[np.float64]], NDArray[np.float64]], epsilons: NDArray[np.float64], delta: float
) -> float:
    """Return t such that the posterior log-odds exceed t with probability at most delta, from a delta(epsilon).

    Let A be the event that dP/dQ > e^t, p = P(A), so Q(A) < e^-t p. For every epsilon, p - e^epsilon Q(A) <=
    delta(epsilon), so p (1 - e^(epsilon-t)) < delta(epsilon), and p > delta is impossible once t reaches epsilon -
    ln(1 - delta(epsilon)/delta). The least of these over `epsilons` (m,) is returned, rounded up; infinity where
    delta(epsilon) is nowhere below delta. For Gaussian noise the least over all epsilons is
    `identifiability.gaussian_log_odds`: both are attained by revealing only whether A happened.
    """
    shares = np.asarray(delta_at(epsilons), dtype=np.float64) / delta
    useful = shares < 1
    if not useful.any():
        return math.inf
    return float(np.min(epsilons[useful] - np.log1p(-shares[useful]))) * (1 + 2.0**-40) + 2.0**-40


def _coins_off(composition: Composition, delta: float) -> tuple[Composition, float]:
    rest, coins = without_coins(composition)
    if coins >= delta:
        raise ValueError(
            f"delta must be above {coins:.3g}, the probability that a release's noise is too extreme to be bounded"
        )
    return rest, math.nextafter(delta - coins, 0.0) if coins else delta


def _curve(composition: Composition, delta: float) -> compositions.NumericalCurve | None:
    curve = compositions.numerical_curve(composition, delta) if composition else ""
    return None if isinstance(curve, str) else curve


def _epsilons(largest: float) -> NDArray[np.float64]:
    return np.linspace(0.0, min(largest, _LARGEST_CURVE_EPSILON), _CURVE_POINTS)


def _trade_off(
    composition: Composition, rho: float, epsilon: float, delta: float, levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    if is_gaussian(composition):
        return tradeoff.gaussian(_mu(rho), levels)
    bound = np.maximum(tradeoff.zcdp(rho, levels), tradeoff.epsilon_delta(epsilon, delta, levels))
    curve = _curve(composition, delta)
    if curve is not None:
        bound = np.maximum(bound, tradeoff.curve_bound(curve.delta_at, _epsilons(epsilon), levels))
    return bound


def _mu(rho: float) -> float:
    above = min(math.nextafter(rho, math.inf), conversions.LARGEST_RHO)
    return min(conversions.mu_of_rho(above), conversions.LARGEST_MU)
