"""Auditing the step as a whole, sampling, clipping and noise together, by real records whose gradients are extreme.

A canary that is only a gradient is added beside `Network.clipped_sum`, and audits the noise. These canaries are
records, and go in by the same door as every other: what is audited is `DpSgdStep.noisy_sum`, and with it the norms
that clipping goes by.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from audit.white_box.canaries import Example
from audit.white_box.observations import Floats, Records
from mechanisms.seeded import SeededRandomness
from training.releases.dpsgd.network import Labels, Network
from training.releases.dpsgd.step import StepRelease, private_step

FAR = 2.0**60


@dataclass(frozen=True)
class BiasOutsideTheNorm(Network):
    """A planted fault: the norm of a record's gradient is taken without that of the biases."""

    def _clipped(
        self, parameters: Floats, inputs: Floats, labels: Labels, clip_norm: float
    ) -> Iterator[tuple[Floats, Floats]]:
        factors = self._factors(parameters, inputs, labels)
        norms = np.sqrt(sum(np.square(a).sum(axis=1) * np.square(d).sum(axis=1) for a, d in factors))
        scales = (clip_norm / np.maximum(norms, clip_norm))[:, None]
        for a, d in factors:
            yield a, d * scales


def extreme_records(width: int, label: int) -> dict[str, Example]:
    """Return records of this label.

    origin: of the first layer only the biases have a gradient. far: nearly all of it is of the weights.
    """
    return {"origin": Example(np.zeros(width), label), "far": Example(np.full(width, FAR), label)}


def observe_noisy_sums(
    network: Network, release: StepRelease, records: Records, example: Example, *, trials: int, seed: int
) -> tuple[Floats, Floats]:
    """Return what `trials` steps release with the example among the records, and what as many release without it.

    Each is the component along the example's gradient, less what the records add, in clipping norms: (trials,) each.
    Nothing but `noisy_sum` is asked, at the network's first parameters. At a sampling rate of 1 the records' part is
    the same in every step.
    """
    step = private_step(network, release, SeededRandomness(seed, ("audited whole step",)))
    parameters = network.initial(seed)
    (gradient,) = network.record_gradients(parameters, example.x[None], np.array([example.label]))
    direction = gradient / np.linalg.norm(gradient) / release.clip_norm
    inputs = np.concatenate([records.inputs, example.x[None]])
    labels = np.append(records.labels, example.label)
    theirs = float(network.clipped_sum(parameters, records.inputs, records.labels, release.clip_norm) @ direction)

    def of(count: int) -> Floats:
        released = (step.noisy_sum(parameters, inputs[:count], labels[:count]) for _ in range(trials))
        return np.array([one @ direction for one in released]) - theirs

    return of(len(labels)), of(len(records.labels))
