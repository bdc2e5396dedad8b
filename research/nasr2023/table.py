"""Table 1 of Nasr et al. 2023: what was found on one data set at each epsilon, beside every printed column."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from dpserve.audit import estimators
from dpserve.audit.reports import Picture, Report, ReportTable, number
from research.nasr2023.methods import METHODS, NOTE, bound_as_published, judge
from research.nasr2023.printed import COLUMNS, TABLE_1
from research.white_box.bounds import POOLED, Measured, StepFinding, run_epsilon
from research.white_box.presentation import NOTE_ON_STEPS, seen, steps_content

if TYPE_CHECKING:
    from matplotlib.figure import Figure


AFTERWARDS = "here, as published"
_NOTE = (
    f"'{AFTERWARDS}' takes the best threshold of the very observations that it judges, as the printed figures do. It "
    "is no bound. 'here' fixes the threshold before any is seen."
)


def judge_together(
    measured: Mapping[int, Measured], confidence: float, conviction_confidence: float
) -> dict[int, StepFinding]:
    """Judge several claims: sound ones are all acquitted with `conviction_confidence`. Bounds shown hold one by one."""
    each = estimators.confidence_of_each(conviction_confidence, len(measured))
    return {epsilon: judge(one, confidence, each) for epsilon, one in measured.items()}


def as_published(measured: Mapping[int, Measured], confidence: float) -> dict[tuple[str, int], float]:
    """Return a run's epsilon by method and claim, each at the threshold that the same observations choose: no bound."""
    return {
        (method, epsilon): run_epsilon(
            bound_as_published(one.with_canary, one.without, method, confidence, one.claim), one.claim
        )
        for method in METHODS
        for epsilon, one in measured.items()
    }


def table_1(
    findings: Mapping[int, StepFinding],
    column: str,
    setting: Mapping[str, Any],
    *notes: str,
    chosen_afterwards: Mapping[tuple[str, int], float],
) -> Report:
    """Return Table 1's layout: what was found on one data set at each epsilon, beside all columns printed.

    chosen_afterwards: from `as_published`.
    """
    convicted = [epsilon for epsilon, finding in findings.items() if finding.convicted]
    reached = [
        epsilon
        for epsilon, finding in findings.items()
        if finding["f-DP (CP)"].run_epsilon >= max(TABLE_1["f-DP (CP)"][epsilon])
    ]
    rows = tuple(
        (
            method,
            f"{epsilon:g}",
            number(finding[method].run_epsilon),
            number(chosen_afterwards.get((method, epsilon))),
            *_printed(method, epsilon),
        )
        for method in _shown(findings)
        for epsilon, finding in findings.items()
    )
    said = f"f-DP (CP) reaches every printed column at epsilon {', '.join(map(str, reached)) or 'none'}"
    finding = f"at epsilon {', '.join(map(str, convicted))}" if convicted else said
    power_note = "; ".join(f"at epsilon {epsilon:g}, {seen(one, None)}" for epsilon, one in findings.items())
    return Report(
        title=f"Lower bounds of a training run's epsilon on {column}, beside Table 1 of Nasr et al. 2023",
        finding=finding,
        convicted=bool(convicted),
        content={
            "setting": dict(setting),
            "epsilons": {str(epsilon): steps_content(finding) for epsilon, finding in findings.items()},
            "chosen_afterwards": [
                {"method": method, "claimed": epsilon, "run_epsilon": value}
                for (method, epsilon), value in chosen_afterwards.items()
            ],
        },
        tables=(
            ReportTable(
                "Lower bound of epsilon", ("method", "claimed", f"here: {column}", AFTERWARDS, *COLUMNS), rows, _NOTE
            ),
            ReportTable(
                "The runs here",
                ("claimed", "noise multiplier", "observations", "accuracy"),
                tuple(
                    (
                        f"{epsilon:g}",
                        number(one.claim.noise_multiplier),
                        str(one.observations),
                        f"{one.accuracy:.1%}",
                    )
                    for epsilon, one in findings.items()
                ),
            ),
        ),
        picture=_curve(findings),
        notes=(*notes, NOTE_ON_STEPS, NOTE, f"What this could convict: {power_note}."),
    )


def over_repeats(repeats: Sequence[Mapping[int, StepFinding]]) -> ReportTable:
    """Return the means and deviations of independent executions, as Figure 6 has them; the verdict is the first's."""
    rows = []
    for method in _shown(repeats[0]):
        for epsilon in repeats[0]:
            found = [findings[epsilon][method].run_epsilon for findings in repeats]
            rows.append((method, f"{epsilon:g}", number(fmean(found)), number(stdev(found), 2)))
    columns = ("method", "claimed", "mean", "deviation")
    note = "The verdict and the other tables are of the first execution alone."
    return ReportTable(f"Lower bound of epsilon over {len(repeats)} executions", columns, tuple(rows), note)


def _shown(findings: Mapping[int, StepFinding]) -> Sequence[str]:
    """Return the methods that there is a bound of at every epsilon, the closest first."""
    everywhere = [{row.method for row in finding.rows} for finding in findings.values()]
    return [method for method in (POOLED, *METHODS) if all(method in methods for methods in everywhere)]


def _printed(method: str, epsilon: int) -> tuple[str, ...]:
    table: Mapping[str, Mapping[int, Sequence[float]]] = {str(name): row for name, row in TABLE_1.items()}
    if method not in table or epsilon not in table[method]:
        return ("-",) * len(COLUMNS)
    return tuple(f"{value:g}" for value in table[method][epsilon])


def _curve(findings: Mapping[int, StepFinding]) -> Picture:
    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        epsilons = sorted(findings)
        for method in _shown(findings):
            axes.plot(epsilons, [findings[one][method].run_epsilon for one in epsilons], "o-", label=f"here: {method}")
        printed = [one for one in epsilons if one in TABLE_1["f-DP (CP)"]]
        for index, name in enumerate(COLUMNS):
            axes.plot(
                printed,
                [TABLE_1["f-DP (CP)"][one][index] for one in printed],
                "x",
                color="black",
                label="printed: f-DP (CP)" if index == 0 else f"_{name}",
            )
        axes.plot(epsilons, epsilons, ":", color="grey", label="claimed")
        axes.set_xlabel("claimed epsilon")
        axes.set_ylabel("lower bound of epsilon")
        axes.legend(fontsize="small")

    return Picture(draw, (6.4, 4.4))
