"""What a composition of releases lets anyone infer about one record: bounds on beliefs and on attacks.

Proven bounds stand beside the published formulas, which are named as such. Every proven bound is rounded up and
holds for the noise as drawn: `ideal_delta` is the delta left for ideal noise, and the rest is the sampler's.
"""

import math
from collections.abc import Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from accounting import analyses, conversions, domains, identifiability, tradeoff
from accounting.analyses import Composition
from accounting.losses import Cost, GaussianLoss

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05, 0.1, 0.5)
"""Where the power of attacks is shown."""

_CURVE_POINTS = 33
_LARGEST_CURVE_EPSILON = 500.0
"""Beyond it a curve says nothing about the rates shown, and its exponentials overflow."""


class Identifiability(BaseModel):
    """What the releases mean for one record. Bounds are rounded up; see `accounting.identifiability`."""

    model_config = ConfigDict(frozen=True)

    posterior_belief_bound: Annotated[
        float, Field(description="even odds become a firmer belief than this with probability at most delta")
    ]
    posterior_belief_at_epsilon: Annotated[
        float, Field(description="1/(1 + e^-epsilon) at the tightest epsilon (Bernau et al. 2021, Theorem 1)")
    ]
    posterior_belief_under_rdp_as_published: Annotated[
        float, Field(description="1/(1 + e^-epsilon) at the RDP epsilon of their Section 4.4, at the best order")
    ]
    membership_advantage_bound: Annotated[float, Field(description="no attack has a larger TPR - FPR")]
    advantage_bound_from_epsilon_delta: Annotated[
        float, Field(description="(e^epsilon - 1 + 2 delta)/(e^epsilon + 1) at the tightest epsilon")
    ]
    advantage_bound_of_erlingsson: Annotated[float, Field(description="1 - e^-epsilon + delta e^-epsilon")]
    advantage_bound_of_yeom: Annotated[float, Field(description="e^epsilon - 1, for pure epsilon; 1 if above")]
    advantage_as_published_by_bernau: Annotated[
        float | None, Field(description="Theorem 2 as printed, for Gaussian noise of the classical size only")
    ]
    advantage_under_rdp_as_published: Annotated[
        float | None, Field(description="2 Phi(sqrt(D/(2 order))) - 1 (their Section 4.4), for Gaussian noise only")
    ]


class AttackPower(BaseModel):
    """What no attack with this false positive rate exceeds."""

    model_config = ConfigDict(frozen=True)

    false_positive_rate: float
    true_positive_rate_bound: Annotated[float, Field(description="1 - f(false positive rate), rounded up")]


class AttackReading(BaseModel):
    """What the exact rates of an attack say; for rates that were estimated, give the ends of their intervals."""

    model_config = ConfigDict(frozen=True)

    true_positive_rate: float
    false_positive_rate: float
    least_epsilon: Annotated[
        float, Field(description="ln((1 - delta)/(1 - advantage)), or 0: no smaller epsilon can be true at delta")
    ]
    true_positive_rate_bound: float
    possible: Annotated[bool, Field(description="false: the attack is better than what was released allows")]


def identifiability_of(
    composition: Composition, rho: float, epsilon: float, delta: float, ideal_delta: float
) -> Identifiability:
    """Return the bounds; those of the ideal noise hold at ideal_delta, with delta - ideal_delta to spare.

    `rho`: of the composition; `epsilon`: the tightest at delta. Beyond the largest mu and rho of the conversions
    every bound is 1 already.
    """
    spare = delta - ideal_delta
    pure = math.fsum(count * loss.pure_epsilon for loss, count in composition.items())
    gaussian = is_gaussian(composition)
    orders, divergences = analyses.renyi_curve(composition, delta)
    best = int(np.argmin(divergences - math.log(delta) / (orders - 1)))
    order, divergence = float(orders[best]), float(divergences[best])
    if gaussian:
        mu = _mu(rho)
        log_odds = identifiability.gaussian_log_odds(mu, ideal_delta)
        advantage = identifiability.gaussian_advantage(mu)
    else:
        log_odds = analyses.log_odds(composition, ideal_delta)
        advantage = identifiability.zcdp_advantage(rho)
    log_odds = min(log_odds + math.log(delta / ideal_delta), pure if spare == 0 else math.inf)
    from_curve = identifiability.advantage(epsilon, delta)
    return Identifiability(
        posterior_belief_bound=identifiability.posterior_belief(log_odds),
        posterior_belief_at_epsilon=identifiability.posterior_belief(epsilon),
        posterior_belief_under_rdp_as_published=(
            identifiability.published_rdp_belief(order, divergence, delta) if composition else 0.5
        ),
        membership_advantage_bound=min(1.0, advantage + spare, from_curve),
        advantage_bound_from_epsilon_delta=from_curve,
        advantage_bound_of_erlingsson=identifiability.erlingsson_advantage(epsilon, delta),
        advantage_bound_of_yeom=identifiability.yeom_advantage(pure),
        advantage_as_published_by_bernau=(
            identifiability.published_gaussian_advantage(epsilon, delta) if gaussian and epsilon else None
        ),
        advantage_under_rdp_as_published=(
            identifiability.rdp_gaussian_advantage(order, divergence) if gaussian else None
        ),
    )


def attack_power(
    composition: Composition,
    rho: float,
    epsilon: float,
    delta: float,
    ideal_delta: float,
    rates: tuple[float, ...] = FALSE_POSITIVE_RATES,
) -> tuple[AttackPower, ...]:
    """Return the greatest true positive rate at each false positive rate, from the best trade-off function known.

    Exact for Gaussian noise. Otherwise the least of what zCDP, (epsilon, delta) and, where it can be had, the
    PLD allow: lower bounds of f, so their maximum is one. The sampler adds delta - ideal_delta to any power.
    """
    levels = np.asarray(rates, dtype=np.float64)
    beta = 1 - levels if not composition else _trade_off(composition, rho, epsilon, delta, levels)
    powers = np.clip(1 - beta + (delta - ideal_delta), 0.0, 1.0)
    return tuple(
        AttackPower(false_positive_rate=rate, true_positive_rate_bound=float(power))
        for rate, power in zip(rates, powers, strict=True)
    )


def reading_of_attack(
    true_positive_rate: float, false_positive_rate: float, delta: float, power: AttackPower
) -> AttackReading:
    """Return what an attack with these rates says. `power`: what is allowed at its false positive rate."""
    domains.require_up_to("the true positive rate", true_positive_rate, 1)
    domains.require_up_to("the false positive rate", false_positive_rate, 1)
    advantage = true_positive_rate - false_positive_rate
    if advantage >= 1:
        raise ValueError("an attack that is always right has no epsilon; give the ends of confidence intervals")
    return AttackReading(
        true_positive_rate=true_positive_rate,
        false_positive_rate=false_positive_rate,
        least_epsilon=identifiability.epsilon_of_attack(advantage, delta),
        true_positive_rate_bound=power.true_positive_rate_bound,
        possible=true_positive_rate <= power.true_positive_rate_bound,
    )


def is_gaussian(composition: Composition) -> bool:
    """Tell whether something was released, and every loss is Gaussian."""
    return bool(composition) and all(isinstance(loss, GaussianLoss) for loss in composition)


def composition_and_rho(releases: Mapping[Cost, int]) -> tuple[Composition, float]:
    """Return the losses of the releases, and their rho together, at most what the conversions take."""
    composition = analyses.composition_of(releases)
    rho = float(sum(loss.rho * count for loss, count in composition.items()))
    return composition, min(math.nextafter(rho, math.inf) if rho else 0.0, conversions.LARGEST_RHO)


def _trade_off(
    composition: Composition, rho: float, epsilon: float, delta: float, levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    if is_gaussian(composition):
        return tradeoff.gaussian(_mu(rho), levels)
    bound = np.maximum(tradeoff.zcdp(rho, levels), tradeoff.epsilon_delta(epsilon, delta, levels))
    curve = analyses.numerical_curve(composition, delta)
    if not isinstance(curve, str):
        epsilons = np.linspace(0.0, min(epsilon, _LARGEST_CURVE_EPSILON), _CURVE_POINTS)
        bound = np.maximum(bound, tradeoff.of_curve(curve.delta_at, epsilons, levels))
    return bound


def _mu(rho: float) -> float:
    return min(conversions.mu_of_rho(math.nextafter(rho, math.inf)), conversions.LARGEST_MU)
