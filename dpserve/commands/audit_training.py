"""What `dpserve audit training` does."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import typer

from accounting.conversions import gaussian_mu
from audit.pieces import ResultStore
from audit.reports import Report
from audit.white_box import experiments, presentation
from audit.white_box.experiments import FAULT_EPSILON, Material, Setting
from audit.white_box.power import POWER, observations_for
from audit.white_box.steps import FAULTS, Fault
from dpserve.commands.audit_output import stored
from dpserve.commands.console import shares

_MOST_RUNS = 500
"""More than are begun unasked."""


def audit_training(
    setting: Setting,
    read: Callable[[Setting, int], Material],
    *,
    epsilon: float,
    fault: str | None,
    noise_ratio: float,
    canary: str,
    whole_runs: int | None,
    runs: int | None,
    steps: int | None,
    confidence: float,
    conviction_confidence: float,
    seed: int,
    resume: Path | None,
) -> Report:
    """Return the report. read: gives the records of a setting, drawn by a seed. Raises ValueError for nonsense."""
    planted = None if fault is None else _fault(fault)
    sure = (confidence, conviction_confidence)
    setting = experiments.scaled(setting, canary=canary, runs=runs, steps=steps)
    if runs is None and planted == "noise-too-small":
        setting = replace(setting, runs=_enough_runs(setting, noise_ratio, conviction_confidence))
    material = read(setting, seed)
    with stored(resume) as store:
        if fault is not None:
            return _of_fault(setting, planted, noise_ratio, material, store, seed, sure)
        if whole_runs is not None:
            return _whole_runs(replace(setting, runs=whole_runs), epsilon, material, store, seed, sure)
        with shares(f"training on {setting.dataset}") as progress:
            measured = experiments.measure(setting, epsilon, material, store, seed, progress)
    finding = presentation.judge(measured, *sure)
    title = f"White-box audit of DP-SGD on {setting.dataset}, with a {canary} canary"
    return presentation.report(finding, measured, title, _setting(setting, seed, epsilon=epsilon), material.source)


def _enough_runs(setting: Setting, noise_ratio: float, conviction_confidence: float) -> int:
    """Return how many runs convict noise of this ratio with the power POWER, and say so before they begin."""
    mu = gaussian_mu(FAULT_EPSILON, setting.delta)
    needed = observations_for(mu, noise_ratio, presentation.confidence_of_each(conviction_confidence))
    runs = math.ceil(needed / setting.steps)
    said = (
        f"noise {noise_ratio:g} times the claimed is convicted with probability {POWER:g} by {needed:,} observations: "
        f"{runs:,} runs of {setting.steps} steps"
    )
    if runs > _MOST_RUNS:
        raise ValueError(f"{said}; ask for them with --runs, or for a lower --conviction-confidence")
    typer.echo(f"dpserve: {said}", err=True)
    return runs


def _of_fault(
    setting: Setting,
    planted: Fault | None,
    noise_ratio: float,
    material: Material,
    store: ResultStore,
    seed: int,
    sure: tuple[float, float],
) -> Report:
    ratio = noise_ratio if planted == "noise-too-small" else None
    with shares(f"training on {setting.dataset}") as progress:
        measured = experiments.measure_fault(setting, planted, noise_ratio, material, store, seed, progress)
    finding = presentation.judge(measured, *sure)
    said = "no planted fault" if planted is None else f"the planted fault {planted!r}"
    title = f"White-box audit of DP-SGD on {setting.dataset} with {said}, which claims {FAULT_EPSILON:g} a step"
    chosen = _setting(setting, seed, fault=planted or "none", noise_ratio=ratio)
    return presentation.report(finding, measured, title, chosen, material.source, planted_ratio=ratio)


def _fault(name: str) -> Fault | None:
    if name == "none":
        return None
    for fault in FAULTS:
        if fault == name:
            return fault
    raise ValueError(f"the planted faults are {', '.join(FAULTS)}, or none, not {name!r}")


def _whole_runs(
    setting: Setting, epsilon: float, material: Material, store: ResultStore, seed: int, sure: tuple[float, float]
) -> Report:
    with shares(f"training on {setting.dataset}") as progress:
        measured = experiments.measure_runs(setting, epsilon, material, store, seed, progress)
    title = f"Audit of whole runs of DP-SGD on {setting.dataset}, with a {setting.canary} record"
    return presentation.runs_report(measured, *sure, title, _setting(setting, seed, epsilon=epsilon))


def _setting(setting: Setting, seed: int, **more: object) -> dict[str, object]:
    return {**asdict(setting), "seed": seed, **more}
