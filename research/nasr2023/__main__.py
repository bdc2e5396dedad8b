"""`python -m research.nasr2023`: DP-SGD on the papers' data sets, watched step by step, beside the paper's Table 1."""

import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from audit.reports import Report
from audit.white_box import experiments
from audit.white_box.experiments import Material, Setting
from dpserve.commands import reporting
from dpserve.commands.auditing import watched, watched_fault
from dpserve.commands.console import shares
from research import white_box
from research.commands import DataDir, Html, Json, Png, program, run, show, stored
from research.nasr2023.printed import EPSILONS
from research.nasr2023.table import judge_together, table_1

SETTINGS: dict[str, Setting] = {
    "digits": experiments.DIGITS,
    "retail-100": Setting("retail-100", (32,), learning_rate=2.0),
    "mnist": Setting("mnist", (64,)),
    "cifar-10": Setting("cifar-10", (32,), runs=3),
}
"""By data set."""

OBSERVATIONS = 20_000
"""Of each cell of Table 1, each way: fixed before any was seen."""

app = program()


@app.command()
def watch(
    context: typer.Context,
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(SETTINGS)}.")] = "digits",
    data_dir: DataDir = None,
    table: Annotated[bool, typer.Option("--table", help="Table 1: at epsilon 1, 4, 8 and 16.")] = False,
    epsilon: Annotated[float, typer.Option(help="What a run claims at delta = 1e-5.")] = 8.0,
    fault: Annotated[str | None, typer.Option(help="As of `dpserve audit training`.")] = None,
    noise_ratio: Annotated[float, typer.Option(help="Of noise too small, to the claimed one.")] = 0.6,
    canary: Annotated[str, typer.Option(help="dirac, crafted, blank or mislabelled.")] = "dirac",
    whole_runs: Annotated[int | None, typer.Option(min=10, help="Audit so many whole runs, each way.")] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs whose steps are observed.")] = None,
    steps: Annotated[int | None, typer.Option(min=10, help="Of a run.")] = None,
    confidence: reporting.Confidence = 0.95,
    conviction_confidence: reporting.ConvictionConfidence = reporting.SURE,
    seed: reporting.Seed = 0,
    resume: reporting.Resume = None,
    as_json: Json = False,
    html: Html = None,
    png: Png = None,
) -> None:
    """Train with DP-SGD, watch every step for a canary, and hold what is seen against what is claimed."""
    if dataset not in SETTINGS:
        raise ValueError(f"training is watched on {', '.join(SETTINGS)}, not on {dataset!r}")
    setting = experiments.scaled(SETTINGS[dataset], canary=canary, runs=whole_runs or runs, steps=steps)
    sure = (confidence, conviction_confidence)
    if table:
        reporting.refuse(context, "with --table", "epsilon", "fault", "noise_ratio", "whole_runs")
        if runs is None:
            setting = replace(setting, runs=math.ceil(OBSERVATIONS / setting.steps))
        report = _table(setting, white_box.prepared(setting, data_dir, seed), seed, sure, resume)
    else:
        reader = partial(_read, data_dir)
        if fault is None:
            report = watched(setting, reader, epsilon, sure, seed, resume, whole_runs=whole_runs is not None)
        else:
            report = watched_fault(setting, reader, fault, noise_ratio, sure, seed, resume, enough=runs is None)
    show(report, as_json=as_json, html=html, png=png)


def _read(data_dir: Path | None, setting: Setting, seed: int) -> Material:
    return white_box.prepared(setting, data_dir, seed)


def _table(setting: Setting, material: Material, seed: int, sure: tuple[float, float], resume: Path | None) -> Report:
    measured = {}
    with stored(resume) as store:
        for epsilon in EPSILONS:
            with shares(f"training on {setting.dataset} at epsilon {epsilon}") as progress:
                measured[epsilon] = experiments.measure(setting, epsilon, material, store, seed, progress)
    findings = judge_together(measured, *sure)
    return table_1(findings, setting.dataset, {**asdict(setting), "seed": seed}, material.source)


if __name__ == "__main__":
    run(app)
