"""Real records through the whole step: the sound one is acquitted, and a norm that forgets the biases convicted.

Every bound is held at a confidence of 1 - 1e-6, so a sound step is convicted with at most that probability.
"""

import numpy as np
import pytest
import scipy.stats

from accounting.conversions import gaussian_mu
from audit.white_box.bounds import ClaimedRun, step_bound
from audit.white_box.experiments import FAULT_EPSILON
from tests.audit.white_box.extreme_records import FAR, BiasOutsideTheNorm, extreme_records, observe_noisy_sums
from training.releases.dpsgd.network import Network
from training.releases.dpsgd.step import StepRelease

DELTA = 1e-5
CLAIMED_MU = gaussian_mu(FAULT_EPSILON, DELTA)
RELEASE = StepRelease(1 / CLAIMED_MU, 1.0, clip_norm=0.1)
STEP = ClaimedRun(RELEASE.noise_multiplier, RELEASE.sampling_rate, 1, DELTA)
SURE = 1 - 1e-6


def bound_of(network, records, kind, trials):
    example = extreme_records(network.widths[0], int(records.labels[0]))[kind]
    found = observe_noisy_sums(network, RELEASE, records, example, trials=trials, seed=3)
    return found, step_bound(*found, "f-DP (CP)", SURE, STEP).value


@pytest.mark.parametrize("kind", ["origin", "far"])
def test_a_sound_step_clips_extreme_records_to_the_norm(network, records, kind):
    """Acquitted; and the canary counts for all of the clipping norm, by Kolmogorov and Smirnov at 5e-7."""
    (inside, outside), bound = bound_of(network, records, kind, 1500)
    assert bound <= CLAIMED_MU
    for scores, mean in ((inside, 1), (outside, 0)):
        assert scipy.stats.kstest(scores, "norm", (mean, RELEASE.noise_multiplier)).pvalue > 5e-7


def test_a_norm_without_the_biases_is_convicted(network, records):
    """The record at the origin moves the sum by 8 clipping norms or more, where the noise is 3."""
    planted = BiasOutsideTheNorm(network.widths)
    (inside, _), bound = bound_of(planted, records, "origin", 400)
    assert inside.mean() > 7
    assert bound > CLAIMED_MU


def test_the_planted_fault_is_that_alone(records):
    """Where the weights' gradient is nearly all, the fault changes next to nothing."""
    planted, sound = BiasOutsideTheNorm((6, 3)), Network((6, 3))
    far = np.full((2, 6), FAR)
    sums = [each.clipped_sum(sound.initial(3), far, records.labels[:2], 0.1) for each in (planted, sound)]
    assert np.abs(sums[1]).max() > 0.01
    assert np.allclose(sums[0], sums[1], rtol=0, atol=1e-8)
