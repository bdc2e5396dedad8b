"""Watching DP-SGD train, with and without a canary (Nasr et al. 2023, Algorithms 1 and 2).

An observation is the component of the released sum along the canary's gradient, in clipping norms. Without the canary
it is N(0, s^2), and with it N(1, s^2) where its gradient reaches the clipping norm, s the noise multiplier, but for
what the other records add. The auditor knows the other records of a step, as the guarantee allows, and takes their
part away, which the paper leaves in.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.white_box.canaries import Canary, Example, FixedCanary
from audit.white_box.steps import AuditedStep

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Records:
    """Training records: inputs (n, width), labels (n,)."""

    inputs: Floats
    labels: Labels


@dataclass(frozen=True)
class Descent:
    """How a run goes: plain gradient descent on the released sums from the network's first parameters of `seed`."""

    steps: int
    learning_rate: float
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Observations:
    """One observation of each step without the canary (T,), one with it (T,); parameters (size,) at the end."""

    without: Floats
    with_canary: Floats
    parameters: Floats


@dataclass(frozen=True, eq=False)
class Run:
    """One training run as its observer saw it: the final parameters (size,) and an observation of every step (T,).

    shifts: (T,), by how much the canary's presence in a step moves its observation.
    """

    parameters: Floats
    observed: Floats
    shifts: Floats


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
        moment = _Moment.sampled(audited, records, parameters, canary)
        released = moment.release(member=False)
        found[:, t] = moment.look(released), moment.look(moment.release(member=True))
        parameters = parameters - _rate(audited, records, descent) * released
        advance(t + 1)
    return Observations(found[0], found[1], parameters)


def watch_run(
    audited: AuditedStep,
    records: Records,
    descent: Descent,
    canary: Canary,
    *,
    member: bool,
) -> Run:
    """Train once, the canary sampled like any record if it is a `member`, and observe every step."""
    rate = audited.claim.sampling_rate
    draw = np.random.default_rng([descent.seed, 2])
    parameters = audited.network.initial(descent.seed)
    observed, shifts = np.empty((2, descent.steps))
    for t in range(descent.steps):
        moment = _Moment.sampled(audited, records, parameters, canary)
        released = moment.release(member=member and draw.random() < rate)
        observed[t], shifts[t] = moment.look(released), moment.shift
        parameters = parameters - _rate(audited, records, descent) * released
    return Run(parameters, observed, shifts)


def log_likelihood_ratios(
    observed: Floats, noise_multiplier: float, canary_rate: float, shifts: "Floats | float" = 1.0
) -> Floats:
    """Return ln of the density with the canary over the density without, for each observation (T,).

    (1 - q) N(0, s^2) + q N(shift, s^2) against N(0, s^2). The sum over a run is the best score of the run.
    """
    gain = shifts * (2 * observed - shifts) / (2 * noise_multiplier**2)
    if canary_rate == 1:
        return gain
    mixed: Floats = np.logaddexp(math.log1p(-canary_rate), math.log(canary_rate) + gain)
    return mixed


def log_odds_of_label(audited: AuditedStep, parameters: Floats, example: Example) -> float:
    """Return ln(p/(1 - p)) of the example's label: what an auditor who sees only the model measures (Section 6.4)."""
    logits = audited.network.logits(parameters, example.x[None])[0]
    rest = np.delete(logits, example.label)
    return float(logits[example.label] - np.logaddexp.reduce(rest))


@dataclass(frozen=True)
class RunScores:
    """Scores of one run (Nasr et al. 2023, Algorithm 1 and Section 5.5).

    every_step: the log-likelihood ratio, by who sees every step. final_model: the log-odds of
    the canary's label, by who sees only the model at its end.
    """

    every_step: float
    final_model: float


def score_run(
    audited: AuditedStep, records: Records, descent: Descent, canary: FixedCanary, *, member: bool
) -> RunScores:
    """Train once with the canary among the records, if it is a `member`, or without, and score the run."""
    run = watch_run(audited, records, descent, canary, member=member)
    claim = audited.claim
    ratios = log_likelihood_ratios(run.observed, claim.noise_multiplier, claim.sampling_rate, run.shifts)
    return RunScores(float(ratios.sum()), log_odds_of_label(audited, run.parameters, canary.example))


@dataclass(frozen=True, eq=False)
class _Moment:
    """One step of a run: who takes part, and how its release is read."""

    audited: AuditedStep
    parameters: Floats
    inputs: Floats
    labels: Labels
    canary: Example | Floats
    direction: Floats
    shift: float
    theirs: float

    @classmethod
    def sampled(cls, audited: AuditedStep, records: Records, parameters: Floats, canary: Canary) -> "_Moment":
        taken = audited.step.sample(len(records.labels))
        inputs, labels = records.inputs[taken], records.labels[taken]
        present = canary.at(parameters)
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
        return float(released @ self.direction) - self.theirs


def _gradient(audited: AuditedStep, parameters: Floats, canary: Example | Floats) -> Floats:
    if not isinstance(canary, Example):
        return canary
    gradients = audited.network.record_gradients(parameters, canary.x[None], np.array([canary.label]))
    return np.asarray(gradients[0], dtype=np.float64)


def _rate(audited: AuditedStep, records: Records, descent: Descent) -> float:
    return descent.learning_rate / (audited.claim.sampling_rate * len(records.labels))
