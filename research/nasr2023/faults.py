"""The step with one planted fault, of three (Nasr et al. 2023, Section 6.3): they show that an audit finds them."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import typer

from dpserve.accounting.arrays import Floats, Labels
from dpserve.accounting.conversions import gaussian_mu
from dpserve.audit.pieces import ResultStore
from dpserve.audit.progress import OnStage
from dpserve.audit.reports import Report
from dpserve.commands.console import shares
from dpserve.mechanisms.seeded import SeededRandomness, derived_seed
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease, private_step
from research.commands import finished_pieces
from research.nasr2023.methods import judge
from research.white_box import bounds
from research.white_box.bounds import POWER, ClaimedRun, Measured, power
from research.white_box.experiments import Material, Setting, measure_implementation
from research.white_box.observations import AuditedStep, Canary, clip, sound
from research.white_box.presentation import steps_report

Fault = Literal["clip-after-averaging", "noise-from-100-seeds", "noise-too-small"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

FAULT_EPSILON = 1.27
"""The faulty implementations' claim for a step, at delta = 1e-5."""

SEEDS = 100
_UNCLIPPED = 2.0**60
_MOST_OBSERVATIONS = 2**30
_MOST_RUNS = 500
"""More than are begun unasked."""


def faulty(
    fault: Fault, network: Network, claim: StepRelease, seed: int, *, records: int, noise_ratio: float = 0.5
) -> AuditedStep:
    """Return the step with one planted fault.

    clip-after-averaging: the mean over the expected number of `records` sampled is clipped, and not each gradient.
    noise-from-100-seeds: the noise is one of 100 vectors. noise-too-small: `noise_ratio` times the claimed noise.
    Raises ValueError for another name, and for a ratio that is no fault.
    """
    audited = sound(network, claim, seed)
    if fault == "clip-after-averaging":
        return _clipping_after_averaging(audited, claim.sampling_rate * records)
    if fault == "noise-from-100-seeds":
        return replace(audited, step=replace(audited.step, add_noise=_noise_from_few_seeds(audited, seed)))
    if fault == "noise-too-small":
        if not 0 < noise_ratio < 1:
            raise ValueError(f"too small a noise is between 0 and 1 times the claimed one, not {noise_ratio}")
        quieter = sound(network, replace(claim, noise_multiplier=claim.noise_multiplier * noise_ratio), seed)
        return replace(quieter, claim=claim)
    raise ValueError(f"the planted faults are {', '.join(FAULTS)}, not {fault!r}")


def _clipping_after_averaging(audited: AuditedStep, lot: float) -> AuditedStep:
    def sum_with(parameters: Floats, inputs: Floats, labels: Labels, gradient: Floats) -> Floats:
        total = audited.network.clipped_sum(parameters, inputs, labels, _UNCLIPPED) + gradient
        return clip(total / lot, audited.claim.clip_norm) * lot

    def clipped_sum(parameters: Floats, inputs: Floats, labels: Labels) -> Floats:
        return sum_with(parameters, inputs, labels, np.zeros(audited.network.size))

    return replace(audited, step=replace(audited.step, clipped_sum=clipped_sum), sum_with=sum_with)


def _noise_from_few_seeds(audited: AuditedStep, seed: int) -> Callable[[Floats], Floats]:
    # The few seeds belong to the program and are the same in every run; which of them a step takes is the run's own.
    seeds = SeededRandomness(seed, ("which of few seeds",))

    def add_noise(total: Floats) -> Floats:
        one_of_few = derived_seed(0, "one of few", str(int(seeds.words(1)[0]) % SEEDS))
        randomness = SeededRandomness(one_of_few, ("noise",))
        return private_step(audited.network, audited.claim, randomness).add_noise(total)

    return add_noise


def planted_fault(name: str) -> Fault | None:
    """Return the fault with this name; None for "none". Raises ValueError for another."""
    for fault in FAULTS:
        if fault == name:
            return fault
    if name == "none":
        return None
    raise ValueError(f"the planted faults are {', '.join(FAULTS)}, or none, not {name!r}")


def measure_fault(
    setting: Setting,
    fault: Fault | None,
    noise_ratio: float,
    material: Material,
    store: ResultStore,
    seed: int,
    progress: OnStage,
    canary: Canary | None = None,
) -> Measured:
    """Observe an implementation with a planted fault, or a sound one, that claims 1.27 for a step (Section 6.3)."""
    noise = 1 / gaussian_mu(FAULT_EPSILON, setting.delta)
    claim = ClaimedRun(noise, setting.sampling_rate, setting.steps, setting.delta)
    release = StepRelease(noise, setting.sampling_rate)

    def implementation(run: int) -> AuditedStep:
        if fault is None:
            return sound(material.network, release, run)
        return faulty(
            fault, material.network, release, run, records=len(material.records.labels), noise_ratio=noise_ratio
        )

    purpose = (str(fault), f"{noise_ratio:.6g}", "runs of their own")
    return measure_implementation(setting, claim, material, implementation, purpose, store, seed, progress, canary)


def noise_ratio_of(true_epsilon: float, delta: float) -> float:
    """Return by how much less noise than for 1.27 a step has `true_epsilon`."""
    return gaussian_mu(FAULT_EPSILON, delta) / gaussian_mu(true_epsilon, delta)


def observations_for(mu: float, ratio: float, confidence: float, asked: float = POWER) -> int:
    """Return how many observations each way convict noise `ratio` times the claimed with the power asked for.

    Raises ValueError where 2^30 do not.
    """
    enough = _least(lambda count: power(mu, ratio, count, confidence) >= asked)
    if enough is None:
        raise ValueError(
            f"{_MOST_OBSERVATIONS} observations cannot distinguish {ratio:g} times the claimed noise from it"
        )
    return enough


def _least(enough: Callable[[int], bool]) -> int | None:
    """Return a number that is enough, where half of it, to a hundredth, is not: power is not quite monotone in it."""
    high = 1
    while not enough(high):
        if high >= _MOST_OBSERVATIONS:
            return None
        high *= 2
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def audit_of_fault(
    setting: Setting,
    material: Material,
    fault: str,
    noise_ratio: float,
    sure: tuple[float, float],
    seed: int,
    resume: Path | None,
    canary: Canary | None,
    *,
    enough: bool,
) -> Report:
    """Return the report of training with a planted fault, or with "none".

    sure: the confidence of what is shown, and of a conviction. enough: as many runs as convict noise that is too small.
    """
    planted = planted_fault(fault)
    ratio = noise_ratio if planted == "noise-too-small" else None
    if ratio is not None and enough:
        setting = replace(setting, runs=_enough_runs(setting, ratio, sure[1]))
    with finished_pieces(resume) as store, shares(f"training on {setting.dataset}") as progress:
        measured = measure_fault(setting, planted, noise_ratio, material, store, seed, progress, canary)
    said = "no planted fault" if planted is None else f"the planted fault {planted!r}"
    return steps_report(
        judge(measured, *sure),
        measured,
        f"White-box audit of DP-SGD on {setting.dataset} with {said}, which claims {FAULT_EPSILON:g} a step",
        {**asdict(setting), "seed": seed, "fault": fault, "noise_ratio": ratio},
        material.source,
        planted_ratio=ratio,
    )


def _enough_runs(setting: Setting, noise_ratio: float, conviction_confidence: float) -> int:
    """Return how many runs convict noise of this ratio with the power POWER, and say so before they begin."""
    mu = gaussian_mu(FAULT_EPSILON, setting.delta)
    needed = observations_for(mu, noise_ratio, bounds.confidence_of_each(conviction_confidence))
    runs = -(-needed // setting.steps)
    said = (
        f"noise {noise_ratio:g} times the claimed is convicted with probability {POWER:g} by {needed:,} "
        f"observations: {runs:,} runs of {setting.steps} steps"
    )
    if runs > _MOST_RUNS:
        raise ValueError(f"{said}; ask for them with --runs, or for a lower --conviction-confidence")
    typer.echo(f"dpserve: {said}", err=True)
    return runs
