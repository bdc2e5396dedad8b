"""The region of privacy (Erlingsson, Mironov, Raghunathan and Song 2019, Section 5.3): between attack and proof.

For one mechanism at many noise multipliers: the best lower bound of epsilon from attacks, and the best upper bound from
analyses of what was released. What the mechanism really tells lies between; a lower bound above an upper one convicts.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from dpserve.accounting import conversions, domains, identifiability
from dpserve.accounting.analyses import side_by_side
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.audit import estimators
from dpserve.audit.distinguishing.mechanism import ClaimedTradeoff, claimed_tradeoff, contradicts, observe
from dpserve.audit.families import GAUSSIAN
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.registry import priced
from research.erlingsson2019.presentation import Point

Scores = tuple[Floats, Floats]


def mechanism_at(name: str, classes: int, noise_multiplier: float) -> Mechanism:
    """Return the mechanism that costs rho = 1/(2 noise_multiplier^2) a row, as Gaussian noise of that multiplier does.

    Raises ValueError for a name or a multiplier that there is not.
    """
    domains.require_between("the noise multiplier", noise_multiplier, 1e-6, 1e6)
    rho = Fraction(1) / (2 * Fraction(noise_multiplier) ** 2)
    return priced(name, f"rho:{float(rho):.15g}", classes)


def observe_releases(mechanism: Mechanism, classes: int, releases: int, trials: int, randomness: Randomness) -> Scores:
    """Return the log-likelihood ratios (trials,) of so many releases together, with the record in and out.

    The sum over releases is what an adversary who knows all other records comes to hold as log-odds, from even ones.
    """
    scores = observe(mechanism, mechanism.worst_neighbours(classes), trials * releases, randomness)
    inside, outside = (found.reshape(trials, releases).sum(axis=1) for found in scores)
    return inside, outside


def point_of(
    mechanism: Mechanism,
    noise_multiplier: float,
    releases: int,
    scores: Scores,
    *,
    delta: float,
    confidence: float,
    conviction_confidence: float,
    points: int,
) -> Point:
    """Return what scores of `releases` releases together say, and every analysis of them.

    The lower bounds are exact, and hold together with `confidence`: each of k has (1 - confidence)/k of the doubt.
    points: how many such points a report has. Sound ones are all acquitted with `conviction_confidence`: any convicts.
    """
    claim = claimed_tradeoff(together(mechanism.cost, releases), delta)
    upper = {one.name: one.epsilon for one in side_by_side({mechanism.cost: releases}, delta).analyses}
    beliefs = np.concatenate([scores[0], -scores[1]])
    return Point(
        noise_multiplier,
        jointly(attacks(claim, scores), confidence),
        {name: epsilon for name, epsilon in upper.items() if epsilon is not None},
        {
            "advantage": float(np.mean(scores[0] > 0) - np.mean(scores[1] > 0)),
            "mean belief in the truth": float(np.mean(1 / (1 + np.exp(-np.clip(beliefs, -700, 700))))),
        },
        contradicts(claim, *scores, estimators.confidence_of_each(conviction_confidence, points)),
    )


def attacks(claim: ClaimedTradeoff, scores: Scores) -> dict[str, Callable[[float], float]]:
    """Return the exact lower bounds of epsilon at the claim's delta, as functions of a confidence.

    Scores are log-likelihood ratios, so the threshold 0 is stated ahead of them.
    """
    found: dict[str, Callable[[float], float]] = {
        "(epsilon, delta), Clopper-Pearson": lambda each: (
            estimators.epsilon_delta(*scores, each, delta=claim.delta).value
        ),
        "membership advantage": lambda each: epsilon_of_best_advantage(scores, each, claim.delta),
    }
    if claim.family is GAUSSIAN and claim.delta > 0:
        found["mu-GDP, pooled errors"] = lambda each: estimators.pooled_gdp(*scores, each, threshold=0.0).epsilon(
            claim.delta
        )
    elif claim.delta == 0 and claim.family.parameter == "epsilon":
        found["the claim's trade-off function"] = lambda each: estimators.tradeoff(*scores, each, claim.family).value
    return found


def jointly(bounds: Mapping[str, Callable[[float], float]], confidence: float) -> dict[str, float]:
    """Return bounds that hold together with `confidence`, by equal parts of the doubt (Bonferroni)."""
    each = estimators.confidence_of_each(confidence, len(bounds))
    return {name: bound(each) for name, bound in bounds.items()}


def together(cost: Cost, releases: int) -> Cost:
    """Return the cost of so many releases of `cost`: one Gaussian loss, rounded up, where all are Gaussian."""
    if releases == 1:
        return cost
    if cost.is_gaussian and all(isinstance(loss, GaussianLoss) for loss in cost.losses):
        return Cost((GaussianLoss(conversions.mu_of_rho(float(cost.rho * releases))),))
    return Cost(cost.losses * releases)


def epsilon_of_best_advantage(scores: Scores, confidence: float, delta: float) -> float:
    """Return the epsilon that the best TPR - FPR implies (Erlingsson et al. 2019, Proposition 3), at `confidence`.

    The best threshold of log-likelihood ratios is 0; the advantage is what Clopper and Pearson's limits leave of it.
    """
    false_positives, false_negatives = estimators.errors_at(*scores, 0.0).upper_limits(confidence)
    return identifiability.epsilon_of_attack(max(0.0, 1 - false_positives - false_negatives), delta)
