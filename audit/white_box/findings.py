"""What an audit of DP-SGD steps found: every method's bounds, whether the claim is refuted, and what could be."""

from dataclasses import dataclass

from audit import estimators
from audit.estimators import LowerBound
from audit.many_thresholds import FEWEST_SCORES
from audit.white_box.bounds import (
    ClaimedRun,
    largest_ratio,
    many_thresholds_bound,
    pooled_bound,
    power,
    repetition_bound,
    run_epsilon,
)
from audit.white_box.experiments import Measured

CLOSEST = "f-DP (many thresholds)"
POOLED = "f-DP (CP), pooled errors"
CHOSEN = "f-DP (CP), chosen threshold"
REPEATED = "f-DP (CP) of repeated noise"
CONVICTING = (POOLED, CHOSEN, REPEATED)


def confidence_of_each(conviction_confidence: float) -> float:
    """Return the confidence of each bound that can convict, so that all together have this one."""
    return estimators.confidence_of_each(conviction_confidence, len(CONVICTING))


@dataclass(frozen=True)
class Row:
    """One method's bound: of a step, as an epsilon at delta, and of the run that such steps make."""

    method: str
    bound: LowerBound
    step_epsilon: float
    run_epsilon: float


@dataclass(frozen=True)
class StepFinding:
    """What an audit of steps found. rows: with `confidence`; sure_mu: a bound of mu with `conviction_confidence`."""

    claim: ClaimedRun
    observations: int
    accuracy: float
    confidence: float
    conviction_confidence: float
    rows: tuple[Row, ...]
    sure_mu: float

    @property
    def convicted(self) -> bool:
        """Whether a step tells more than is claimed."""
        return self.sure_mu > 1 / self.claim.noise_multiplier

    @property
    def ratio_seen(self) -> float | None:
        """The largest ratio of the noise to the claimed one that is convicted with the probability POWER."""
        each = confidence_of_each(self.conviction_confidence)
        return largest_ratio(1 / self.claim.noise_multiplier, self.observations, each)

    def power(self, ratio: float) -> float:
        """Return the probability that so many observations convict noise of this ratio to the claimed one."""
        each = confidence_of_each(self.conviction_confidence)
        return power(1 / self.claim.noise_multiplier, ratio, self.observations, each)

    def __getitem__(self, method: str) -> Row:
        """Return the row of a method. Raises KeyError where there were too few observations for it."""
        for row in self.rows:
            if row.method == method:
                return row
        raise KeyError(method)


def judge(measured: Measured, confidence: float, conviction_confidence: float) -> StepFinding:
    """Return every method's bounds, and whether the claim of the step is refuted.

    Three exact bounds of mu can convict, each allowed a third of 1 - conviction_confidence: of the projection on the
    canary at the threshold 1/2, which suits the claim; at one chosen on a share of the observations, for a step that is
    nothing like its claim; and `repetition_bound`. A step that holds its claim is convicted with at most that
    probability: the observations of a sound step are independent, N(0, s^2) and N(1, s^2) exactly but for rounding,
    where the auditor takes the other records' part away.
    """
    claim, inside, outside = measured.claim, measured.with_canary, measured.without
    each = confidence_of_each(conviction_confidence)
    bounds: dict[str, LowerBound] = {}
    if min(len(inside), len(outside)) >= FEWEST_SCORES:
        bounds[CLOSEST] = many_thresholds_bound(inside, outside, confidence, claim)
    bounds[POOLED] = pooled_bound(inside, outside, confidence)
    bounds[CHOSEN] = estimators.gdp(inside, outside, confidence)
    bounds[REPEATED] = repetition_bound(inside, outside, confidence)
    sure_mu = max(
        pooled_bound(inside, outside, each).value,
        estimators.gdp(inside, outside, each).value,
        repetition_bound(inside, outside, each).value,
    )
    return StepFinding(
        claim=claim,
        observations=len(inside),
        accuracy=measured.accuracy,
        confidence=confidence,
        conviction_confidence=conviction_confidence,
        rows=tuple(
            Row(method, bound, bound.epsilon(claim.delta), run_epsilon(bound, claim))
            for method, bound in bounds.items()
        ),
        sure_mu=sure_mu,
    )
