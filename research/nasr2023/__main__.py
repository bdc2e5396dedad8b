"""`python -m research.nasr2023`: DP-SGD on the papers' data sets, watched step by step, beside the paper's Table 1."""

import math
from dataclasses import asdict, replace
from typing import Annotated

import typer

from dpserve.audit.reports import Report
from dpserve.commands import reporting
from dpserve.commands.console import shares
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.errors import extra
from research.commands import DataDir, Repeatable, ReportOptions, finished_pieces, program, run
from research.nasr2023 import clipping
from research.nasr2023.faults import audit_of_fault
from research.nasr2023.methods import judge
from research.nasr2023.printed import EPSILONS
from research.nasr2023.runs import measure_runs, runs_report
from research.nasr2023.table import as_published, judge_together, over_repeats, table_1
from research.white_box import experiments
from research.white_box.bounds import Measured
from research.white_box.experiments import Material, Setting
from research.white_box.observations import Canary
from research.white_box.presentation import steps_report

SETTINGS: dict[str, Setting] = {
    "digits": experiments.DIGITS,
    "retail-100": Setting("retail-100", (32,), learning_rate=2.0),
    "mnist": Setting("mnist", (64,)),
    "cifar-10": Setting("cifar-10", (32,), runs=3),
    "random": Setting("random", (32,), runs=3),
}
"""Settings by data set."""

OBSERVATIONS = 20_000
"""Number for each cell of Table 1, each way: fixed before any was seen."""

app = program()


@app.command()
def watch(
    *,
    context: typer.Context,
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(SETTINGS)}.")] = "digits",
    data_dir: DataDir = None,
    table: Annotated[bool, typer.Option("--table", help="Table 1: at epsilon 1, 4, 8 and 16.")] = False,
    repeats: Annotated[
        int, typer.Option(min=1, help="Of --table, as Figure 6 has ten: also means and deviations.")
    ] = 1,
    epsilon: Annotated[float, typer.Option(help="What a run claims at delta = 1e-5.")] = 8.0,
    fault: Annotated[
        str | None,
        typer.Option(
            help="Plant one and claim epsilon 1.27 a step: clip-after-averaging, noise-from-100-seeds, "
            "noise-too-small, or none for a sound step with that claim."
        ),
    ] = None,
    noise_ratio: Annotated[float, typer.Option(help="Of noise too small, to the claimed one.")] = 0.6,
    clipping_alone: Annotated[
        bool, typer.Option("--clipping-alone", help="Figure 11: whole runs without noise, 40 each way if not more.")
    ] = False,
    canary: Annotated[str, typer.Option(help="dirac, crafted, blank or mislabelled.")] = "dirac",
    whole_runs: Annotated[int | None, typer.Option(min=10, help="Audit so many whole runs, each way.")] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs whose steps are observed.")] = None,
    steps: Annotated[int | None, typer.Option(min=10, help="Of a run.")] = None,
    sure: reporting.Confidences,
    again: Repeatable,
    shown: ReportOptions,
) -> None:
    """Train with DP-SGD, watch every step for a canary, and hold what is seen against what is claimed."""
    if dataset not in SETTINGS:
        raise ValueError(f"training is watched on {', '.join(SETTINGS)}, not on {dataset!r}")
    _refuse_ignored(context, fault, whole_runs, table=table)
    if clipping_alone:
        reporting.refuse(context, "with --clipping-alone", "epsilon", "fault", "table", "runs")
        whole_runs, canary = whole_runs or 40, "mislabelled" if canary == "dirac" else canary
    setting = experiments.scaled(SETTINGS[dataset], canary=canary, runs=whole_runs or runs, steps=steps)
    confidences = (sure.confidence, sure.conviction_confidence)
    material = experiments.prepare_records(setting, data_dir, again.seed)
    present = _craft_canary(material) if canary == "crafted" else experiments.canary_of(canary, material, again.seed)
    if clipping_alone:
        report = _clipping(setting, material, again, sure.confidence)
    elif table:
        reporting.refuse(context, "with --table", "epsilon", "fault", "whole_runs")
        if runs is None:
            setting = replace(setting, runs=math.ceil(OBSERVATIONS / setting.steps))
        report = _table(setting, material, again, confidences, repeats)
    elif fault is not None:
        report = audit_of_fault(
            setting, material, fault, noise_ratio, confidences, again.seed, again.resume, present, enough=runs is None
        )
    else:
        report = _watch_runs(setting, material, epsilon, confidences, again, present, whole_runs=whole_runs is not None)
    shown.show(report)


def _refuse_ignored(context: typer.Context, fault: str | None, whole_runs: int | None, *, table: bool) -> None:
    if fault is not None:
        reporting.refuse(context, "with --fault, which claims a step's epsilon", "epsilon", "whole_runs")
    if fault != "noise-too-small":
        reporting.refuse(context, "without --fault noise-too-small", "noise_ratio")
    if whole_runs is not None:
        reporting.refuse(context, "with --whole-runs", "runs")
    if not table:
        reporting.refuse(context, "without --table", "repeats")


def _craft_canary(material: Material) -> Canary:
    with extra("torch", "crafting canaries"):
        from research.nasr2023.crafting import CraftedCanary
    return CraftedCanary(material.network, material.probe.inputs, material.probe.labels)


def _watch_runs(
    setting: Setting,
    material: Material,
    epsilon: float,
    sure: tuple[float, float],
    again: Repeatable,
    canary: Canary,
    *,
    whole_runs: bool,
) -> Report:
    described = {**asdict(setting), "seed": again.seed, "epsilon": epsilon}
    title = f"DP-SGD on {setting.dataset}, with a {setting.canary}"
    with finished_pieces(again.resume) as store, shares(f"training on {setting.dataset}") as progress:
        if whole_runs:
            seen = measure_runs(setting, epsilon, material, store, again.seed, progress)
            return runs_report(seen, *sure, f"Audit of whole runs of {title} record", described)
        measured = experiments.measure(setting, epsilon, material, store, again.seed, progress, canary)
    finding = judge(measured, *sure)
    return steps_report(finding, measured, f"White-box audit of {title} canary", described, material.source)


def _clipping(setting: Setting, material: Material, again: Repeatable, confidence: float) -> Report:
    measured = {}
    with finished_pieces(again.resume) as store, shares(f"training on {setting.dataset}") as progress:
        for norm in clipping.CLIP_NORMS:
            measured[norm] = clipping.log_odds(setting, norm, material, store, again.seed, progress)
    return clipping.clipping_report(measured, confidence, setting, material.source)


def _table(setting: Setting, material: Material, again: Repeatable, sure: tuple[float, float], repeats: int) -> Report:
    executions: list[dict[int, Measured]] = [{} for _ in range(repeats)]
    with finished_pieces(again.resume) as store:
        for number, measured in enumerate(executions):
            seed = derived_seed(again.seed, f"repeat {number}") if number else again.seed
            for epsilon in EPSILONS:
                with shares(f"training on {setting.dataset} at epsilon {epsilon}") as progress:
                    measured[epsilon] = experiments.measure(setting, epsilon, material, store, seed, progress)
    findings = [judge_together(measured, *sure) for measured in executions]
    described = {**asdict(setting), "seed": again.seed, "repeats": repeats}
    chosen_afterwards = as_published(executions[0], sure[0])
    report = table_1(findings[0], setting.dataset, described, material.source, chosen_afterwards=chosen_afterwards)
    return report if repeats == 1 else replace(report, tables=(*report.tables, over_repeats(findings)))


if __name__ == "__main__":
    run(app)
