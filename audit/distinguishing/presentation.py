"""A distinguishing audit's finding as a report: bounds beside the claim, and the trade-off of errors as a picture."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audit.distinguishing.mechanism import ClaimedTradeoff, MechanismFinding
from audit.estimators import LowerBound
from audit.reports import Picture, Report, Table, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_METHODS = {
    "epsilon_delta": "(epsilon, delta), Clopper-Pearson",
    "tradeoff": "the claim's trade-off function, Clopper-Pearson",
    "pooled_gdp": "mu-GDP, Clopper-Pearson, pooled errors",
    "many_thresholds": "mu-GDP, many thresholds",
    "credible_epsilon_delta": "(epsilon, delta), Bayesian",
    "katz": "epsilon, Katz log",
}
_POINTS = 401


def report(
    finding: MechanismFinding, scores_in: Floats, scores_out: Floats, title: str, setting: dict[str, Any], *notes: str
) -> Report:
    """Return the report. setting: what the audit was asked to do, for JSON. notes: sentences about this audit."""
    claim = finding.claim
    return Report(
        title=title,
        verdict=_verdict(finding),
        convicted=finding.convicted,
        content={"setting": setting} | content(finding),
        tables=(_table(finding),),
        pictures=(_trade_off(claim, scores_in, scores_out),),
        notes=(
            *notes,
            "A lower bound says what an attack has shown, not what a better one could show.",
            f"A claim that holds is convicted by one audit in {1 / (1 - finding.conviction_confidence):.0g} at most; "
            "only exact bounds convict.",
        ),
    )


def content(finding: MechanismFinding) -> dict[str, Any]:
    """Return the finding for JSON."""
    claim = finding.claim
    return {
        "mechanism": finding.mechanism,
        "status": finding.status,
        "trials": finding.trials,
        "confidence": finding.confidence,
        "conviction_confidence": finding.conviction_confidence,
        "claim": {
            "losses": str(claim.cost),
            "delta": claim.delta,
            "epsilon": claim.epsilon,
            claim.family.parameter: claim.parameter,
        },
        "epsilon_lower_bound": finding.epsilon,
        "epsilon_lower_bound_through_the_claims_family": finding.epsilon_through_the_family,
        "bounds": {name: asdict(bound) for name, bound in finding.bounds.items()},
    }


def _verdict(finding: MechanismFinding) -> str:
    claim = finding.claim
    at = f" at delta = {claim.delta:g}" if claim.delta else ""
    shown = f"epsilon >= {number(finding.epsilon)}{at} with {finding.confidence:.4g} confidence"
    if finding.convicted:
        return f"Convicted: {shown}, and the claim is {number(claim.epsilon)}."
    through = finding.epsilon_through_the_family
    closer = "" if through is None else f", and >= {number(through)} through the claim's own trade-off function"
    return f"Not refuted: {shown}{closer}; the claim is {number(claim.epsilon)}."


def _table(finding: MechanismFinding) -> Table:
    claim = finding.claim
    rows = tuple(
        (_METHODS[name], bound.parameter, number(bound.value), _claimed(name, bound, claim), bound.guarantee)
        for name, bound in finding.bounds.items()
    )
    return Table(
        f"lower bounds from {finding.trials} answers in each world, at {finding.confidence:.4g} confidence",
        ("method", "bounds", "at least", "claim", "guarantee"),
        rows,
        note="" if not finding.convicted else "Bounds through a family that the claim is refuted for mean nothing.",
    )


def _claimed(name: str, bound: LowerBound, claim: ClaimedTradeoff) -> str:
    through_family = name in ("tradeoff", "pooled_gdp", "many_thresholds") and bound.parameter == claim.family.parameter
    return number(claim.parameter if through_family else claim.epsilon)


def _trade_off(claim: ClaimedTradeoff, scores_in: Floats, scores_out: Floats) -> Picture:
    """Draw the errors that were observed at every threshold, and the fewest that the claim allows."""
    thresholds = np.unique(np.concatenate([scores_in, scores_out]))
    false_alarms = 1 - np.searchsorted(np.sort(scores_out), thresholds, side="left") / len(scores_out)
    missed = np.searchsorted(np.sort(scores_in), thresholds, side="left") / len(scores_in)
    levels = np.linspace(0, 1, _POINTS)
    least = claim.family.tradeoff(claim.parameter, levels)

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        axes.plot([0, 1], [1, 0], ":", color="grey", label="guessing")
        axes.plot(levels, least, label="the fewest errors that the claim allows")
        axes.plot(np.append(false_alarms, 0.0), np.append(missed, 1.0), label="errors observed, by threshold")
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("false negative rate")
        axes.set_aspect("equal")
        axes.legend(fontsize="small")

    return Picture(
        "trade-off of errors",
        "Each point is one threshold on the score. Points far below the claim's line refute it.",
        draw,
        inches=(5.2, 5.0),
    )
