"""Sound steps look as they should, and each planted fault is convicted.

Every bound here is held at a confidence of 1 - 1e-6, so a sound step is convicted with at most that probability. How
often a fault could escape is said where it is tested.
"""

import numpy as np
import pytest
import scipy.stats

from accounting.conversions import gaussian_mu
from audit.white_box import steps
from audit.white_box.bounds import ClaimedRun, observations_for, pooled_bound, repetition_bound, step_bound
from audit.white_box.canaries import DiracCanary
from audit.white_box.experiments import FAULT_EPSILON, noise_ratio_of
from audit.white_box.observations import Descent, observe_steps
from audit.white_box.steps import FAULTS, clipped, faulty, sound
from training.releases.dpsgd.step import StepRelease

DELTA = 1e-5
CLAIMED_MU = gaussian_mu(FAULT_EPSILON, DELTA)
CLAIM = StepRelease(1 / CLAIMED_MU, 0.2)
STEP = ClaimedRun(CLAIM.noise_multiplier, CLAIM.sampling_rate, 1, DELTA)
SURE = 1 - 1e-6


def observed(audited, records, steps):
    canary = DiracCanary(audited.network.size, 7, 100.0)
    found = observe_steps(audited, records, Descent(steps, 0.01), canary)
    return found.with_canary, found.without


@pytest.fixture(scope="module")
def of_sound_step(network, records):
    return observed(sound(network, CLAIM, 1), records, 2000)


def test_a_sound_step_is_the_gaussian_that_it_claims(of_sound_step):
    """Kolmogorov and Smirnov at 5e-7 each: a false alarm once in a million."""
    inside, outside = of_sound_step
    for scores, mean in ((inside, 1), (outside, 0)):
        assert scipy.stats.kstest(scores, "norm", (mean, CLAIM.noise_multiplier)).pvalue > 5e-7


def test_a_sound_step_is_acquitted(of_sound_step):
    bound = step_bound(*of_sound_step, "f-DP (CP)", SURE, STEP)
    assert bound.value <= CLAIMED_MU


def test_clipping_after_averaging_is_convicted(network, records):
    """The canary moves the sum by about 12 where the noise is 3; 300 observations hardly mix, where 70 would do."""
    audited = faulty("clip-after-averaging", network, CLAIM, 4, records=60)
    inside, outside = observed(audited, records, 300)
    assert step_bound(inside, outside, "f-DP (CP)", SURE, STEP).value > CLAIMED_MU


def test_noise_from_few_seeds_is_convicted(network, records):
    """Half of 2,000 observations show each of 100 noises but for a probability of 100 e^-10, and one unseen is little.

    So the score errs on less than 5 % of the other half, and mu is above 3, but for a probability far below 1e-6.
    """
    audited = faulty("noise-from-100-seeds", network, CLAIM, 5, records=60)
    inside, outside = observed(audited, records, 2000)
    assert np.count_nonzero(np.diff(np.sort(outside)) > 1e-4) < 100
    assert repetition_bound(inside, outside, SURE).value > 2 > CLAIMED_MU


def test_runs_of_a_program_with_few_seeds_share_its_noises_and_nothing_else(network, records, monkeypatch):
    """Runs that copied one another would look like repeated noise whatever the number of seeds."""
    runs = [observed(faulty("noise-from-100-seeds", network, CLAIM, run, records=60), records, 300) for run in (5, 6)]
    assert not np.array_equal(runs[0], runs[1])
    assert len(np.unique(np.round(np.concatenate([outside for _, outside in runs]), 6))) < 600
    monkeypatch.setattr(steps, "SEEDS", 10**9)
    many = [observed(faulty("noise-from-100-seeds", network, CLAIM, run, records=60), records, 500) for run in (5, 6)]
    inside, outside = (np.concatenate(both) for both in zip(*many, strict=True))
    assert repetition_bound(inside, outside, SURE).value <= CLAIMED_MU


def test_a_sound_step_never_comes_back(of_sound_step):
    assert repetition_bound(*of_sound_step, SURE).value <= CLAIMED_MU


def test_too_little_noise_is_convicted(network, records):
    """For a true epsilon of 2.17: as many observations as convict it but for a probability of 1e-6, in closed form."""
    ratio = noise_ratio_of(2.17, DELTA)
    audited = faulty("noise-too-small", network, CLAIM, 6, records=60, noise_ratio=ratio)
    inside, outside = observed(audited, records, observations_for(CLAIMED_MU, ratio, SURE, 1 - 1e-6))
    assert pooled_bound(inside, outside, SURE).value > CLAIMED_MU


def test_faults_need_names_and_ratios_that_mean_something(network):
    with pytest.raises(ValueError, match="planted faults are"):
        faulty("clip-never", network, CLAIM, 0, records=60)
    with pytest.raises(ValueError, match="between 0 and 1"):
        faulty("noise-too-small", network, CLAIM, 0, records=60, noise_ratio=1.0)
    assert len(FAULTS) == 3


def test_clipping_shortens_only_what_is_longer():
    assert np.allclose(clipped(np.array([3.0, 4.0]), 1.0), [0.6, 0.8])
    assert np.array_equal(clipped(np.array([0.3, 0.4]), 1.0), [0.3, 0.4])
