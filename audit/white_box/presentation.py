"""White-box audits of training as reports: bounds beside the claim."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audit import estimators
from audit.estimators import LowerBound, epsilon_of_mu
from audit.estimators.many_thresholds import FEWEST_SCORES
from audit.reports import Picture, Report, Table, number, picture
from audit.white_box.bounds import METHODS, Claim, many_thresholds_bound, pooled_bound, run_epsilon, step_bound
from audit.white_box.experiments import Measured, MeasuredRuns
from audit.white_box.power import POWER, largest_ratio, power
from audit.white_box.repetition import repetition_bound
from audit.white_box.runs import run_bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

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
class Finding:
    """What an audit of steps found. rows: with `confidence`; sure_mu: a bound of mu with `conviction_confidence`."""

    claim: Claim
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


def judge(measured: Measured, confidence: float, conviction_confidence: float) -> Finding:
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
    bounds |= {method: step_bound(inside, outside, method, confidence, claim) for method in METHODS}
    bounds[CHOSEN] = estimators.gdp(inside, outside, confidence)
    bounds[REPEATED] = repetition_bound(inside, outside, confidence)
    sure_mu = max(
        pooled_bound(inside, outside, each).value,
        estimators.gdp(inside, outside, each).value,
        repetition_bound(inside, outside, each).value,
    )
    return Finding(
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


def report(
    finding: Finding,
    measured: Measured,
    title: str,
    setting: Mapping[str, Any],
    *notes: str,
    planted_ratio: float | None = None,
) -> Report:
    """Return the report of one implementation. planted_ratio: of its noise to the claimed one, if that is its fault."""
    return Report(
        title=title,
        verdict=_verdict(finding, planted_ratio),
        convicted=finding.convicted,
        content={"setting": dict(setting), **content_of(finding)},
        tables=(_table(finding),),
        pictures=(_histograms(measured),),
        notes=(*notes, *NOTES),
    )


def _verdict(finding: Finding, planted_ratio: float | None) -> str:
    """Say what was found, by an exact bound, and for an audit that refutes nothing what it could have refuted."""
    claim = finding.claim
    if finding.convicted:
        epsilon, confidence = epsilon_of_mu(finding.sure_mu, claim.delta), finding.conviction_confidence
    else:
        epsilon, confidence = finding[POOLED].step_epsilon, finding.confidence
    shown = (
        f"a step's epsilon >= {number(epsilon)} at delta = {claim.delta:g} with {confidence:.10g} confidence, "
        f"and {number(claim.step_epsilon)} is claimed"
    )
    if finding.convicted:
        return f"Convicted: {shown}."
    return f"Not refuted; {seen(finding, planted_ratio)}: {shown}."


def seen(finding: Finding, planted_ratio: float | None) -> str:
    """Say what such an audit convicts of noise that is too small, and how likely."""
    if planted_ratio is not None:
        return f"power {number(finding.power(planted_ratio), 2)} against noise {planted_ratio:g} times the claimed"
    ratio = finding.ratio_seen
    if ratio is None:
        return f"so few observations convict no noise with power {POWER:g}"
    return f"power {POWER:g} against noise {number(ratio, 3)} times the claimed"


def runs_report(
    measured: MeasuredRuns, confidence: float, conviction_confidence: float, title: str, setting: Mapping[str, Any]
) -> Report:
    """Return the report of whole runs: by who sees every step, and by who sees only the model."""
    claim = measured.claim
    found = {
        "sees every step": run_bound(*measured.every_step, claim, confidence, threshold=0.0),
        "sees the final model": run_bound(*measured.final_model, claim, confidence),
    }
    bound, _ = run_bound(*measured.every_step, claim, conviction_confidence, threshold=0.0)
    convicted = bound.value > 1 / claim.noise_multiplier
    _, lower = found["sees every step"]
    shown = (
        f"who sees every step finds epsilon >= {number(lower)} at delta = {claim.delta:g} with {confidence:.4g} "
        "confidence"
    )
    return Report(
        title=title,
        verdict=f"{'Convicted' if convicted else 'Not refuted'}: {shown}, and {number(claim.epsilon)} is claimed.",
        convicted=convicted,
        content={
            "setting": dict(setting),
            "claim": {**asdict(claim), "epsilon": claim.epsilon},
            "bounds": {who: {"bound": bound, "epsilon": epsilon} for who, (bound, epsilon) in found.items()},
        },
        tables=(
            Table(
                "Lower bounds of the run's epsilon, f-DP (CP) through the composed run",
                ("observer", "runs, each way", "epsilon"),
                tuple(
                    (who, str(len(scores[0])), number(epsilon))
                    for (who, (_, epsilon)), scores in zip(
                        found.items(), (measured.every_step, measured.final_model), strict=True
                    )
                ),
            ),
        ),
        notes=("Each run is one observation; the observer of the final model sees no step.",),
    )


NOTES = (
    "A run's epsilon is what as many sampled steps tell that have the noise which a step's bound leaves possible.",
    "f-DP (ZB) and (eps, delta)-DP (ZB) are Bayesian credible bounds; eps-DP (Katz) is at delta = 0 and asymptotic.",
)


def content_of(finding: Finding) -> dict[str, Any]:
    """Return it for JSON."""
    return {
        "claim": {
            **asdict(finding.claim),
            "epsilon": finding.claim.epsilon,
            "step_epsilon": finding.claim.step_epsilon,
        },
        "observations": finding.observations,
        "accuracy": finding.accuracy,
        "confidence": finding.confidence,
        "conviction_confidence": finding.conviction_confidence,
        "convicted": finding.convicted,
        "power": {"power": POWER, "against_noise_ratio": finding.ratio_seen},
        "bounds": {
            row.method: {
                row.bound.parameter: row.bound.value,
                "guarantee": row.bound.guarantee,
                "step_epsilon": row.step_epsilon,
                "run_epsilon": row.run_epsilon,
            }
            for row in finding.rows
        },
    }


def _table(finding: Finding) -> Table:
    rows = tuple(
        (row.method, number(row.step_epsilon), number(row.run_epsilon), row.bound.guarantee) for row in finding.rows
    )
    claim = finding.claim
    claimed = ("claimed", number(claim.step_epsilon), number(claim.epsilon), "")
    note = (
        f"{finding.observations} observations each way; noise multiplier {number(claim.noise_multiplier)}, sampling "
        f"rate {number(claim.sampling_rate)}, {claim.steps} steps; mean accuracy {finding.accuracy:.1%}"
    )
    columns = ("method", "a step's epsilon", "a run's epsilon", "guarantee")
    return Table(f"Lower bounds at delta = {claim.delta:g}", columns, (*rows, claimed), note)


def _histograms(measured: Measured) -> Picture:
    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        edges = np.histogram_bin_edges(np.concatenate([measured.without, measured.with_canary]), bins=60)
        axes.hist(measured.without, edges.tolist(), alpha=0.6, label="without the canary")
        axes.hist(measured.with_canary, edges.tolist(), alpha=0.6, label="with the canary")
        axes.set_xlabel("observation, in clipping norms")
        axes.set_ylabel("steps")
        axes.legend()

    return picture("Observations", "What one step shows, with the canary and without it.", draw, inches=(6.4, 4.0))
