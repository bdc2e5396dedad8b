"""What is audited: the step of `training.releases.dpsgd`, whole, or with one planted fault.

The faults are the three of Nasr et al. 2023, Section 6.3. They exist to show that an audit finds them; nothing but an
audit can select one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mechanisms.seeded import SeededRandomness, derived_seed
from training.releases.dpsgd.network import Network
from training.releases.dpsgd.step import DpSgdStep, StepRelease, private_step

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Fault = Literal["clip-after-averaging", "noise-from-100-seeds", "noise-too-small"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

SEEDS = 100
_UNCLIPPED = 2.0**60


@dataclass(frozen=True)
class AuditedStep:
    """An implementation of the step and what is claimed of it.

    sum_with: from parameters (size,), inputs (b, width), labels (b,) and the gradient (size,) that one more record
    would have, not clipped, to the sum (size,) before noise. A gradient that no record has can enter nowhere else.
    """

    network: Network
    claim: StepRelease
    step: DpSgdStep
    sum_with: Callable[[Floats, Floats, Labels, Floats], Floats]


def sound(network: Network, claim: StepRelease, seed: int) -> AuditedStep:
    """Return the step as it is in a training run, its randomness seeded."""
    step = private_step(network, claim, SeededRandomness(seed, ("audited step",)))

    def sum_with(parameters: Floats, inputs: Floats, labels: Labels, gradient: Floats) -> Floats:
        return step.clipped_sum(parameters, inputs, labels) + clipped(gradient, claim.clip_norm)

    return AuditedStep(network, claim, step, sum_with)


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


def clipped(gradient: Floats, clip_norm: float) -> Floats:
    """Return the gradient, scaled down to norm `clip_norm` if it is longer."""
    norm = float(np.linalg.norm(gradient))
    return gradient if norm <= clip_norm else gradient * (clip_norm / norm)


def _clipping_after_averaging(audited: AuditedStep, lot: float) -> AuditedStep:
    def sum_with(parameters: Floats, inputs: Floats, labels: Labels, gradient: Floats) -> Floats:
        total = audited.network.clipped_sum(parameters, inputs, labels, _UNCLIPPED) + gradient
        return clipped(total / lot, audited.claim.clip_norm) * lot

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
