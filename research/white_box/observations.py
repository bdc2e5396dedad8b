"""Watching DP-SGD train, with and without a canary (Nasr et al. 2023, Algorithms 1 and 2).

An observation is the component of the released sum along the canary's gradient, in clipping norms. Without the canary
it is N(0, s^2), and with it N(1, s^2) where its gradient reaches the clipping norm, s the noise multiplier, but for
what the other records add. The auditor knows the other records of a step, as the guarantee allows, and takes their
part away, which the paper leaves in.

A canary is the record, or the gradient, whose presence an audit tells from its absence. A gradient canary stands for a
record whose gradient the auditor chooses, as a client of federated learning does. An input canary is a record, and
passes through all the code that a record does. Both are chosen without looking at noise, as the guarantee allows: it
holds for every pair of neighbouring data sets, however chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats, Labels
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.dpsgd.noisy_step import DpSgdStep, StepRelease, private_step
from research.white_box.gradients import record_gradients


@dataclass(frozen=True, eq=False)
class Example:
    """One record: x (width,) and its label."""

    x: Floats
    label: int


Canary = Example | Floats | Callable[[Floats], Example]
"""A gradient (size,), the same at all parameters; a record; or a record made anew for each step's parameters."""


def dirac(size: int, coordinate: int, length: float) -> Floats:
    """Return a gradient (size,) of zeros but for one coordinate, `length` there (Nasr et al. 2023, Section 5.3).

    Clipping brings any length above the clipping norm down to it, so that a great length changes nothing where
    gradients are clipped one by one, and shows where they are not.
    """
    gradient = np.zeros(size)
    gradient[coordinate] = length
    return gradient


def mislabel(inputs: Floats, labels: Labels, classes: int, seed: int) -> Example:
    """Return one of the records (n, width), drawn evenly, with a wrong label, drawn evenly."""
    draw = np.random.default_rng(seed)
    row = int(draw.integers(len(labels)))
    return Example(inputs[row], int((labels[row] + 1 + draw.integers(classes - 1)) % classes))


def quiet_coordinate(network: Network, parameters: Floats, inputs: Floats, labels: Labels) -> int:
    """Return the coordinate in which the gradients of such records are least; among equals the first.

    There a Dirac canary meets the least interference. The records (n, width) are others of the same distribution.
    """
    return int(np.square(record_gradients(network, parameters, inputs, labels)).sum(axis=0).argmin())


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
        return step.clipped_sum(parameters, inputs, labels) + clip(gradient, claim.clip_norm)

    return AuditedStep(network, claim, step, sum_with)


def clip(gradient: Floats, clip_norm: float) -> Floats:
    """Return the gradient, scaled down to norm `clip_norm` if it is longer."""
    norm = float(np.linalg.norm(gradient))
    return gradient if norm <= clip_norm else gradient * (clip_norm / norm)


@dataclass(frozen=True, eq=False)
class Records:
    """Training records: inputs (n, width), labels (n,)."""

    inputs: Floats
    labels: Labels


@dataclass(frozen=True)
class Descent:
    """A run's course: plain gradient descent on the released sums from the network's first parameters of `seed`."""

    steps: int
    learning_rate: float
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Observations:
    """One observation of each step without the canary (T,), one with it (T,); parameters (size,) at the end."""

    without: Floats
    with_canary: Floats
    parameters: Floats


def observe_steps(
    audited: AuditedStep,
    records: Records,
    descent: Descent,
    canary: Canary,
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> Observations:
    """Train once without the canary; at every step release also what the step would be with it (Algorithm 2).

    The canary joins for certain: that audits the noise, and the sampling is presumed. The two releases of a step have
    noise of their own and, unlike the paper's, the same other records.
    """
    parameters = audited.network.initial(descent.seed)
    found = np.empty((2, descent.steps))
    for t in range(descent.steps):
        moment = Moment.sampled(audited, records, parameters, canary)
        released = moment.release(member=False)
        found[:, t] = moment.look(released), moment.look(moment.release(member=True))
        parameters = parameters - rate_of(audited, records, descent) * released
        advance(t + 1)
    return Observations(found[0], found[1], parameters)


@dataclass(frozen=True, eq=False)
class Moment:
    """One step of a run: who takes part, and how its release is read. canary: present, if it is a member."""

    audited: AuditedStep
    parameters: Floats
    inputs: Floats
    labels: Labels
    canary: Example | Floats
    direction: Floats
    shift: float
    theirs: float

    @classmethod
    def sampled(cls, audited: AuditedStep, records: Records, parameters: Floats, canary: Canary) -> "Moment":
        """Return a step from these parameters, its records sampled."""
        taken = audited.step.sample(len(records.labels))
        inputs, labels = records.inputs[taken], records.labels[taken]
        present = canary(parameters) if callable(canary) else canary
        gradient = _gradient(audited, parameters, present)
        length, clip_norm = float(np.linalg.norm(gradient)), audited.claim.clip_norm
        direction = gradient / max(length, 1e-300) / clip_norm
        theirs = float(audited.network.clipped_sum(parameters, inputs, labels, clip_norm) @ direction)
        return cls(audited, parameters, inputs, labels, present, direction, min(length / clip_norm, 1.0), theirs)

    def release(self, *, member: bool) -> Floats:
        """Return a release (size,) of this step, with noise of its own."""
        step, inputs, labels = self.audited.step, self.inputs, self.labels
        if not member:
            return step.add_noise(step.clipped_sum(self.parameters, inputs, labels))
        if isinstance(self.canary, Example):
            inputs = np.concatenate([inputs, self.canary.x[None]])
            labels = np.append(labels, self.canary.label)
            return step.add_noise(step.clipped_sum(self.parameters, inputs, labels))
        return step.add_noise(self.audited.sum_with(self.parameters, inputs, labels, self.canary))

    def look(self, released: Floats) -> float:
        """Return the observation that the release is."""
        return float(released @ self.direction) - self.theirs


def _gradient(audited: AuditedStep, parameters: Floats, canary: Example | Floats) -> Floats:
    if not isinstance(canary, Example):
        return canary
    gradients = record_gradients(audited.network, parameters, canary.x[None], np.array([canary.label]))
    return np.asarray(gradients[0], dtype=np.float64)


def rate_of(audited: AuditedStep, records: Records, descent: Descent) -> float:
    """Return how far a step goes along its release."""
    return descent.learning_rate / (audited.claim.sampling_rate * len(records.labels))
