"""The report of an audit of steps."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dpserve.audit.estimators import epsilon_of_mu
from dpserve.audit.reports import Picture, Report, ReportTable, number
from research.white_box.bounds import POOLED, POWER, Measured, StepFinding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE_ON_STEPS = (
    "A run's epsilon is what as many sampled steps tell that have the noise which a step's bound leaves possible."
)


def steps_report(
    finding: StepFinding,
    measured: Measured,
    title: str,
    setting: Mapping[str, Any],
    *notes: str,
    planted_ratio: float | None = None,
) -> Report:
    """Return the report of one implementation. planted_ratio: of its noise to the claimed one, if that is its fault."""
    claim = finding.claim
    # By an exact bound; and for an audit that refutes nothing, what it could have refuted.
    epsilon, confidence = finding[POOLED].step_epsilon, finding.confidence
    if finding.convicted:
        epsilon, confidence = epsilon_of_mu(finding.sure_mu, claim.delta), finding.conviction_confidence
    shown = (
        f"a step's epsilon >= {number(epsilon)} at delta = {claim.delta:g} with {confidence:.10g} confidence, "
        f"and {number(claim.step_epsilon)} is claimed"
    )

    def draw(axes: "Axes") -> None:
        edges = np.histogram_bin_edges(np.concatenate([measured.without, measured.with_canary]), bins=60)
        axes.hist(measured.without, edges.tolist(), alpha=0.6, label="without the canary")
        axes.hist(measured.with_canary, edges.tolist(), alpha=0.6, label="with the canary")

    return Report(
        title=title,
        finding=shown if finding.convicted else f"{shown}; {seen(finding, planted_ratio)}",
        convicted=finding.convicted,
        content={"setting": dict(setting), **steps_content(finding)},
        tables=(
            ReportTable.from_rows(
                f"Lower bounds at delta = {claim.delta:g}",
                ("method", "a step's epsilon", "a run's epsilon", "guarantee"),
                [
                    *((row.method, row.step_epsilon, row.run_epsilon, row.bound.guarantee) for row in finding.rows),
                    ("claimed", claim.step_epsilon, claim.epsilon, ""),
                ],
                f"{finding.observations} observations each way; noise multiplier {number(claim.noise_multiplier)}, "
                f"sampling rate {number(claim.sampling_rate)}, {claim.steps} steps; mean accuracy "
                f"{finding.accuracy:.1%}",
            ),
        ),
        picture=Picture.with_axes(("observation, in clipping norms", "steps"), draw),
        notes=(*notes, NOTE_ON_STEPS),
    )


_OF_STEPS = ("observations", "accuracy", "confidence", "conviction_confidence", "convicted")


def seen(finding: StepFinding, planted_ratio: float | None) -> str:
    """Say what such an audit convicts of noise that is too small, and how likely."""
    if planted_ratio is not None:
        return f"power {number(finding.power(planted_ratio), 2)} against noise {planted_ratio:g} times the claimed"
    ratio = finding.ratio_seen
    if ratio is None:
        return f"too few observations to convict any noise with power {POWER:g}"
    return f"power {POWER:g} against noise {number(ratio, 3)} times the claimed"


def steps_content(finding: StepFinding) -> dict[str, Any]:
    """Return the finding for JSON."""
    claim = finding.claim
    return {
        "claim": asdict(claim) | {"epsilon": claim.epsilon, "step_epsilon": claim.step_epsilon},
        **{name: getattr(finding, name) for name in _OF_STEPS},
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
