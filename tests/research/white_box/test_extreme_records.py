"""Real records through the whole step: the sound one is acquitted, and a norm that forgets the biases convicted.

A canary that is only a gradient is added beside `Network.clipped_sum`, and audits the noise. These canaries are
records, and go in by the same door as every other: what is audited is `DpSgdStep.noisy_sum`, and with it the norms
that clipping goes by. Every bound is held at a confidence of 1 - 1e-6, so a sound step is convicted with at most that
probability.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats

from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease, private_step
from research.white_box.bounds import pooled_bound
from research.white_box.gradients import record_gradients
from research.white_box.observations import Example
from tests.research.steps import CLAIMED_MU, SURE

RELEASE = StepRelease(1 / CLAIMED_MU, 1.0, clip_norm=0.1)
FAR = 2.0**60


@dataclass(frozen=True)
class BiasOutsideTheNorm(Network):
    """A planted fault: the norm of a record's gradient is taken without that of the biases."""

    def _clipped(self, parameters, inputs, labels, clip_norm):
        factors = self.gradient_factors(parameters, inputs, labels)
        norms = np.sqrt(sum(np.square(a).sum(axis=1) * np.square(d).sum(axis=1) for a, d in factors))
        scales = (clip_norm / np.maximum(norms, clip_norm))[:, None]
        for a, d in factors:
            yield a, d * scales


def extreme_records(width, label):
    """Return records of this label.

    origin: of the first layer only the biases have a gradient. far: nearly all of it is of the weights.
    """
    return {"origin": Example(np.zeros(width), label), "far": Example(np.full(width, FAR), label)}


def observe_noisy_sums(network, release, records, example, *, trials, seed):
    """Return what `trials` steps release with the example among the records, and what as many release without it.

    Each is the component along the example's gradient, less what the records add, in clipping norms: (trials,) each.
    Nothing but `noisy_sum` is asked, at the network's first parameters. At a sampling rate of 1 the records' part is
    the same in every step.
    """
    step = private_step(network, release, SeededRandomness(seed, ("audited whole step",)))
    parameters = network.initial(seed)
    (gradient,) = record_gradients(network, parameters, example.x[None], np.array([example.label]))
    direction = gradient / np.linalg.norm(gradient) / release.clip_norm
    inputs = np.concatenate([records.inputs, example.x[None]])
    labels = np.append(records.labels, example.label)
    theirs = float(network.clipped_sum(parameters, records.inputs, records.labels, release.clip_norm) @ direction)

    def of(count):
        released = (step.noisy_sum(parameters, inputs[:count], labels[:count]) for _ in range(trials))
        return np.array([one @ direction for one in released]) - theirs

    return of(len(labels)), of(len(records.labels))


def bound_of(network, records, kind, trials):
    example = extreme_records(network.widths[0], int(records.labels[0]))[kind]
    found = observe_noisy_sums(network, RELEASE, records, example, trials=trials, seed=3)
    return found, pooled_bound(*found, SURE).value


@pytest.mark.parametrize("kind", ["origin", "far"])
def test_a_sound_step_clips_extreme_records_to_the_norm(network, records, kind):
    """Acquitted; and the canary counts for all of the clipping norm, by Kolmogorov and Smirnov at 5e-7."""
    (inside, outside), bound = bound_of(network, records, kind, 1500)
    assert bound <= CLAIMED_MU
    for scores, mean in ((inside, 1), (outside, 0)):
        assert scipy.stats.kstest(scores, scipy.stats.norm(mean, RELEASE.noise_multiplier).cdf).pvalue > 5e-7


def test_a_norm_without_the_biases_is_convicted(network, records):
    """The record at the origin moves the sum by 8 clipping norms or more, where the noise is 3."""
    planted = BiasOutsideTheNorm(network.widths)
    (inside, _), bound = bound_of(planted, records, "origin", 400)
    assert inside.mean() > 7
    assert bound > CLAIMED_MU
