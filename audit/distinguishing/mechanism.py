"""The distinguishing audit of a mechanism: answers under either of two worlds, scored and compared with its claim.

The claim is what a cost states, as a member of a family of trade-off functions.
"""

from dataclasses import dataclass, field

import numpy as np

from dpserve.accounting import domains
from dpserve.accounting.analyses import side_by_side
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import (
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
from dpserve.audit import estimators
from dpserve.audit.estimators import LowerBound
from dpserve.audit.families import BOUNDED_RANGE, GAUSSIAN, LAPLACE, PURE, Family, composition_family
from dpserve.audit.noise import NoiseFinding, judge_known_logits, together
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.worlds import Worlds

CONVICTION_CONFIDENCE = 1 - 1e-9
"""A sound mechanism is convicted by one audit in a thousand million at most."""

_NOISE_SHARE = 1e-3
"""Share of the probability of a false conviction."""
_UNTESTED = NoiseFinding(0, note="the noise of the answers was not seen")
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
    raise ValueError(f"the audit has no test for a privacy loss of the kind {loss.kind}")


@dataclass(frozen=True)
class MechanismFinding:
    """The result of an audit. bounds: lower bounds by the estimator's name, to be compared with the claim.

    convictions: what refutes the claim with `conviction_confidence`, exact bounds and the noise of answers alone.
    """

    mechanism: str
    status: str
    claim: ClaimedTradeoff = field(repr=False)
    trials: int
    confidence: float
    conviction_confidence: float
    bounds: dict[str, LowerBound]
    convictions: tuple[str, ...]
    noise: NoiseFinding

    @property
    def convicted(self) -> bool:
        """Whether the claim is refuted."""
        return bool(self.convictions)

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
    return observe_noise(mechanism, worlds, trials, randomness)[:2]


def observe_noise(
    mechanism: Mechanism, worlds: Worlds, trials: int, randomness: Randomness
) -> tuple[Floats, Floats, NoiseFinding]:
    """Return what `observe` returns, and what the answers show of their noise, about the exact logits."""
    both: tuple[list[Floats], list[Floats]] = ([], [])
    noise = []
    for start in range(0, trials, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, trials)) % len(worlds.sensitivity)
        batch = Worlds(worlds.logits_in[rows], worlds.logits_out[rows], worlds.sensitivity[rows])
        for logits, kept in zip((batch.logits_in, batch.logits_out), both, strict=True):
            answers = mechanism.release(logits, batch.sensitivity, randomness)
            kept.append(mechanism.log_ratio(answers, batch))
            noise.append(judge_known_logits(mechanism, answers, logits, batch.sensitivity))
    return np.concatenate(both[0]), np.concatenate(both[1]), together(noise)


def judge(
    mechanism: Mechanism,
    scores_in: Floats,
    scores_out: Floats,
    *,
    confidence: float = 0.95,
    conviction_confidence: float = CONVICTION_CONFIDENCE,
    delta: float,
    noise: NoiseFinding = _UNTESTED,
) -> MechanismFinding:
    """Return what scores of log-likelihood ratios say about a mechanism's claim at delta.

    Exact findings can convict: an epsilon at delta above the claimed one, errors below the claim's trade-off function
    at a threshold that a share of the scores chose, and, of a Gaussian claim, too few errors of both kinds together at
    the threshold 0. Each may be wrong with an equal part of 1 - conviction_confidence for a claim that holds, so that
    together they are with at most that. The noise of the answers convicts, too, with a thousandth of that probability,
    which the others lack. The estimates with `confidence` are for showing; they convict none.
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
        convictions=_convictions(claim, scores_in, scores_out, noise, conviction_confidence),
        noise=noise,
    )


def _convictions(
    claim: ClaimedTradeoff, scores_in: Floats, scores_out: Floats, noise: NoiseFinding, confidence: float
) -> tuple[str, ...]:
    """Return the names of what refutes the claim."""
    doubt, convictions = 1 - confidence, []
    if contradicts(claim, scores_in, scores_out, 1 - doubt * (1 - _NOISE_SHARE)):
        convictions.append("fewer errors in telling the two inputs apart than the claim allows")
    if noise.p_value <= doubt * _NOISE_SHARE:
        convictions.append(noise.strongest)
    return tuple(convictions)


def contradicts(claim: ClaimedTradeoff, scores_in: Floats, scores_out: Floats, confidence: float) -> bool:
    """Whether the scores refute the claim, wrongly with probability at most 1 - confidence; see `judge`."""
    gaussian = claim.family is GAUSSIAN
    level = estimators.confidence_of_each(confidence, 3 if gaussian else 2)
    if gaussian and estimators.pooled_gdp(scores_in, scores_out, level, threshold=0.0).value > claim.parameter:
        return True
    scores_in, scores_out = _oriented(scores_in, scores_out)
    if estimators.epsilon_delta(scores_in, scores_out, level, delta=claim.delta).value > claim.epsilon:
        return True
    _, errors = estimators.choose_threshold(
        scores_in, scores_out, None, lambda errors: estimators.gdp_of_errors(errors, level)
    )
    return claim.parameter <= claim.family.largest and estimators.refuted_by_limits(
        claim.family, claim.parameter, *errors.upper_limits(level)
    )


def _oriented(scores_in: Floats, scores_out: Floats) -> tuple[Floats, Floats]:
    """Return the scores, with their sign changed where they are larger without the record.

    Seen on the share that chooses thresholds and is left out of what is counted. A right mechanism's are not; one that
    repeats its noise may show the same wrong score every time.
    """
    some_in, some_out = (
        scores[: round(len(scores) * estimators.SELECTION_SHARE)] for scores in (scores_in, scores_out)
    )
    if np.median(some_in) >= np.median(some_out):
        return scores_in, scores_out
    return -scores_in, -scores_out


def _bounds(scores_in: Floats, scores_out: Floats, confidence: float, claim: ClaimedTradeoff) -> dict[str, LowerBound]:
    pair = scores_in, scores_out, confidence
    bounds = {
        "epsilon_delta": estimators.epsilon_delta(*pair, delta=claim.delta),
        "tradeoff": estimators.tradeoff(*pair, claim.family),
    }
    if claim.family is GAUSSIAN:
        bounds["pooled_gdp"] = estimators.pooled_gdp(*pair, threshold=0.0)
    return bounds
