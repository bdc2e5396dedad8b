"""The distinguishing audit of a mechanism: answers under either of two worlds, scored and compared with its claim.

The claim is what a cost states, as a member of a family of trade-off functions.
"""

from dataclasses import dataclass, field

import numpy as np

from accounting import domains
from accounting.analyses import side_by_side
from accounting.arrays import Floats
from accounting.losses import (
    BoundedRangeLoss,
    Composition,
    Cost,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    PureLoss,
    SubsampledGaussianLoss,
    composition_of,
)
from audit import estimators
from audit.distinguishing.likelihood import Worlds, scores
from audit.estimators import LowerBound
from audit.families import BOUNDED_RANGE, GAUSSIAN, LAPLACE, PURE, Family, composition_family
from audit.many_thresholds import FEWEST_SCORES, Design, gdp_of_many_thresholds
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import Randomness

CONVICTION_CONFIDENCE = 1 - 1e-9
"""A sound mechanism is convicted by one audit in a thousand million at most."""

_CHUNK = 2000
_LARGEST_FACTOR = 16.0


@dataclass(frozen=True)
class ClaimedTradeoff:
    """The claimed cost of one release.

    cost: the claim. delta: where epsilon is stated, 0 where the cost has a pure epsilon and delta was left at 0.
    epsilon: at delta. family, parameter: the trade-off function that the cost states, as a member of a family.
    """

    cost: Cost
    delta: float
    epsilon: float
    family: Family
    parameter: float


def claimed_tradeoff(cost: Cost, delta: float) -> ClaimedTradeoff:
    """Return what `cost` claims, its epsilon taken at delta. Raises ValueError where none is finite there.

    A cost of one loss has that loss's own family; several losses together have the family of their composition, with
    the factor for parameter by which every loss would have to be larger: the claim is 1.
    """
    composition = composition_of({cost: 1})
    if delta == 0:
        epsilon = cost.pure_epsilon
        if epsilon == float("inf"):
            raise ValueError("Gaussian noise has no epsilon at delta = 0; state a delta above 0")
    else:
        epsilon = min(side_by_side({cost: 1}, delta).epsilon, cost.pure_epsilon)
    if len(composition) == 1 and sum(composition.values()) == 1:
        (loss,) = composition
        match loss:
            case GaussianLoss():
                return ClaimedTradeoff(cost, delta, epsilon, GAUSSIAN, loss.mu)
            case LaplaceLoss():
                return ClaimedTradeoff(cost, delta, epsilon, LAPLACE, loss.epsilon)
            case BoundedRangeLoss():
                return ClaimedTradeoff(cost, delta, epsilon, BOUNDED_RANGE, loss.epsilon)
            case PureLoss():
                return ClaimedTradeoff(cost, delta, epsilon, PURE, loss.epsilon)

    def scaled(factor: float) -> Composition:
        return Composition({_times(loss, factor): count for loss, count in composition.items()})

    family = composition_family("factor", scaled, delta or 1e-9, largest=_LARGEST_FACTOR)
    return ClaimedTradeoff(cost, delta, epsilon, family, 1.0)


def _times(loss: PrivacyLoss, factor: float) -> PrivacyLoss:
    match loss:
        case GaussianLoss():
            return GaussianLoss(loss.mu * factor)
        case LaplaceLoss():
            return LaplaceLoss(loss.epsilon * factor)
        case BoundedRangeLoss():
            return BoundedRangeLoss(loss.epsilon * factor)
        case PureLoss():
            return PureLoss(loss.epsilon * factor)
        case SubsampledGaussianLoss():
            return SubsampledGaussianLoss(loss.noise_multiplier / factor, loss.sampling_rate)
    raise ValueError(f"a {loss.kind} loss has no family to audit it by")


@dataclass(frozen=True)
class MechanismFinding:
    """The result of an audit. bounds: lower bounds by the estimator's name, to be compared with the claim.

    convicted: whether the claim is refuted with `conviction_confidence`, by exact bounds alone.
    """

    mechanism: str
    status: str
    claim: ClaimedTradeoff = field(repr=False)
    trials: int
    confidence: float
    conviction_confidence: float
    bounds: dict[str, LowerBound]
    convicted: bool

    @property
    def epsilon(self) -> float:
        """The largest lower bound of epsilon at the claim's delta that presumes no family: Clopper and Pearson's."""
        return self.bounds["epsilon_delta"].value

    @property
    def epsilon_through_the_family(self) -> float | None:
        """The closest exact bound through the claim's own family as an epsilon at the claim's delta.

        None where the family's parameter is no epsilon there, and where the claim is refuted: a mechanism that is
        not what it claims has no place in the claim's family.
        """
        if self.convicted:
            return None
        delta = self.claim.delta
        bound = self.bounds.get("pooled_gdp", self.bounds["tradeoff"])
        if bound.parameter == "mu" and delta > 0:
            return bound.epsilon(delta)
        return bound.value if bound.parameter == "epsilon" and delta == 0 else None


def observe(mechanism: Mechanism, worlds: Worlds, trials: int, randomness: Randomness) -> tuple[Floats, Floats]:
    """Return the scores of `trials` answers in the world with the record, and as many in the one without it.

    Each trial asks one row of `worlds`, all rows in turn.
    """
    found: tuple[list[Floats], list[Floats]] = ([], [])
    for start in range(0, trials, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, trials)) % len(worlds.sensitivity)
        batch = Worlds(worlds.logits_in[rows], worlds.logits_out[rows], worlds.sensitivity[rows])
        for logits, kept in zip((batch.logits_in, batch.logits_out), found, strict=True):
            kept.append(scores(mechanism, mechanism.release(logits, batch.sensitivity, randomness), batch))
    return np.concatenate(found[0]), np.concatenate(found[1])


def judge(
    mechanism: Mechanism,
    scores_in: Floats,
    scores_out: Floats,
    *,
    confidence: float = 0.95,
    conviction_confidence: float = CONVICTION_CONFIDENCE,
    delta: float,
) -> MechanismFinding:
    """Return what scores of log-likelihood ratios say about a mechanism's claim at delta.

    Exact findings can convict: an epsilon at delta above the claimed one, errors below the claim's trade-off function
    at a threshold that a share of the scores chose, and, of a Gaussian claim, too few errors of both kinds together at
    the threshold 0. Each may be wrong with an equal part of 1 - conviction_confidence for a claim that holds, so that
    together they are with at most that. The estimates with `confidence` are for showing; they convict none.
    """
    domains.require_between("the confidence", confidence, 0, 1)
    domains.require_between("the confidence of a conviction", conviction_confidence, 0, 1)
    claim = claimed_tradeoff(mechanism.cost, delta)
    return MechanismFinding(
        mechanism=mechanism.name,
        status=mechanism.status,
        claim=claim,
        trials=min(len(scores_in), len(scores_out)),
        confidence=confidence,
        conviction_confidence=conviction_confidence,
        bounds=_bounds(scores_in, scores_out, confidence, claim),
        convicted=contradicts(claim, scores_in, scores_out, conviction_confidence),
    )


def contradicts(claim: ClaimedTradeoff, scores_in: Floats, scores_out: Floats, confidence: float) -> bool:
    """Whether the scores refute the claim, wrongly with probability at most 1 - confidence; see `judge`."""
    gaussian = claim.family is GAUSSIAN
    each = estimators.confidence_of_each(confidence, 3 if gaussian else 2)
    if gaussian and estimators.pooled_gdp(scores_in, scores_out, each, threshold=0.0).value > claim.parameter:
        return True
    if estimators.epsilon_delta(scores_in, scores_out, each, delta=claim.delta).value > claim.epsilon:
        return True
    _, errors = estimators.choose_threshold(
        scores_in, scores_out, None, lambda errors: estimators.gdp_of_errors(errors, each)
    )
    return claim.parameter <= claim.family.largest and estimators.refuted_by_limits(
        claim.family, claim.parameter, *errors.upper_limits(each)
    )


def _bounds(scores_in: Floats, scores_out: Floats, confidence: float, claim: ClaimedTradeoff) -> dict[str, LowerBound]:
    pair = scores_in, scores_out, confidence
    found = {
        "epsilon_delta": estimators.epsilon_delta(*pair, delta=claim.delta),
        "tradeoff": estimators.tradeoff(*pair, claim.family),
    }
    if claim.family is not GAUSSIAN:
        return found
    found["pooled_gdp"] = estimators.pooled_gdp(*pair, threshold=0.0)
    fewest = min(map(len, (scores_in, scores_out)))
    if fewest >= FEWEST_SCORES:
        design = Design.for_log_ratios(claim.parameter, fewest)
        found["many_thresholds"] = gdp_of_many_thresholds(*pair, design=design)
    return found
