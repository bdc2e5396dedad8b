"""What is audited: the step of `training.releases.dpsgd`, whole."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.seeded import SeededRandomness
from training.releases.dpsgd.network import Network
from training.releases.dpsgd.step import DpSgdStep, StepRelease, private_step

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


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


def clipped(gradient: Floats, clip_norm: float) -> Floats:
    """Return the gradient, scaled down to norm `clip_norm` if it is longer."""
    norm = float(np.linalg.norm(gradient))
    return gradient if norm <= clip_norm else gradient * (clip_norm / norm)
