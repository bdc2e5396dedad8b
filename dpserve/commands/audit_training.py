"""What `dpserve audit training` and `dpserve audit adversary` do."""

import math
from dataclasses import asdict, replace
from pathlib import Path

import typer

from accounting.conversions import gaussian_mu
from audit.adversary import experiments as adversary
from audit.adversary import presentation as of_adversary
from audit.pieces import ResultStore
from audit.reports import Report
from audit.white_box import experiments, presentation
from audit.white_box.experiments import Material, Setting
from audit.white_box.power import POWER, observations_for
from audit.white_box.printed import EPSILONS, FAULT_EPSILON
from audit.white_box.steps import FAULTS, Fault
from dpserve.commands.audit_output import stored
from dpserve.commands.console import shares

_MOST_RUNS = 500
"""More than are begun unasked."""


def audit_training(
    dataset: str,
    *,
    data_dir: Path | None,
    epsilon: float,
    table: bool,
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
    """Return the report. Raises ValueError for nonsense, and DataError for missing files."""
    if dataset not in experiments.SETTINGS:
        raise ValueError(f"training is audited on {', '.join(experiments.SETTINGS)}, not on {dataset!r}")
    if canary not in experiments.CANARIES:
        raise ValueError(f"the canaries are {', '.join(experiments.CANARIES)}, not {canary!r}")
    planted = None if fault is None else _fault(fault)
    sure = (confidence, conviction_confidence)
    setting = replace(experiments.scaled(experiments.SETTINGS[dataset], runs=runs, steps=steps), canary=canary)
    if runs is None and table:
        setting = replace(setting, runs=math.ceil(experiments.TABLE_OBSERVATIONS / setting.steps))
    if runs is None and planted == "noise-too-small":
        setting = replace(setting, runs=_enough_runs(setting, noise_ratio, conviction_confidence))
    material = experiments.prepare(setting, experiments.read(dataset, data_dir), seed)
    with stored(resume) as store:
        if fault is not None:
            return _of_fault(setting, planted, noise_ratio, material, store, seed, sure)
        if table:
            return _table(setting, material, store, seed, sure)
        if whole_runs is not None:
            return _whole_runs(replace(setting, runs=whole_runs), epsilon, material, store, seed, sure)
        with shares(f"training on {dataset}") as progress:
            measured = experiments.measure(setting, epsilon, material, store, seed, progress)
    finding = presentation.judge(measured, *sure)
    title = f"White-box audit of DP-SGD on {dataset}, with a {canary} canary"
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


def _table(setting: Setting, material: Material, store: ResultStore, seed: int, sure: tuple[float, float]) -> Report:
    measured = {}
    for epsilon in EPSILONS:
        with shares(f"training on {setting.dataset} at epsilon {epsilon}") as progress:
            measured[epsilon] = experiments.measure(setting, epsilon, material, store, seed, progress)
    findings = presentation.judge_together(measured, *sure)
    return presentation.table_1(findings, setting.dataset, _setting(setting, seed), material.source)


def _whole_runs(
    setting: Setting, epsilon: float, material: Material, store: ResultStore, seed: int, sure: tuple[float, float]
) -> Report:
    with shares(f"training on {setting.dataset}") as progress:
        measured = experiments.measure_runs(setting, epsilon, material, store, seed, progress)
    title = f"Audit of whole runs of DP-SGD on {setting.dataset}, with a {setting.canary} record"
    return presentation.runs_report(measured, *sure, title, _setting(setting, seed, epsilon=epsilon))


def audit_adversary(
    dataset: str,
    *,
    data_dir: Path | None,
    games: int,
    conviction_confidence: float,
    seed: int,
    resume: Path | None,
) -> Report:
    """Return the report of the games. Raises ValueError for nonsense, and DataError for missing files."""
    if dataset not in adversary.SETTINGS:
        raise ValueError(f"the adversary plays on {', '.join(adversary.SETTINGS)}, not on {dataset!r}")
    setting = adversary.SETTINGS[dataset]
    data = adversary.read(dataset, data_dir)
    found = {}
    with stored(resume) as store:
        for kind in adversary.KINDS:
            with shares(" ".join(kind)) as progress:
                found[kind] = adversary.run(setting, kind, data, games, store, seed, progress)
    return of_adversary.report(setting, found, data.source, conviction_confidence)


def _setting(setting: Setting, seed: int, **more: object) -> dict[str, object]:
    return {**asdict(setting), "seed": seed, **more}
