"""Sound steps look as they should. Bounds are held at 1 - 1e-6: one is convicted with at most that probability."""

import numpy as np
import pytest
import scipy.stats

from research.white_box.bounds import pooled_bound, repetition_bound
from research.white_box.observations import clip, sound
from tests.research.steps import CLAIM, CLAIMED_MU, SURE, observed


@pytest.fixture(scope="module")
def of_sound_step(network, records):
    return observed(sound(network, CLAIM, 1), records, 2000)


def test_a_sound_step_is_the_gaussian_that_it_claims(of_sound_step):
    """Kolmogorov and Smirnov at 5e-7 each: a false alarm once in a million."""
    inside, outside = of_sound_step
    for scores, mean in ((inside, 1), (outside, 0)):
        assert scipy.stats.kstest(scores, scipy.stats.norm(mean, CLAIM.noise_multiplier).cdf).pvalue > 5e-7


def test_a_sound_step_is_acquitted(of_sound_step):
    bound = pooled_bound(*of_sound_step, SURE)
    assert bound.value <= CLAIMED_MU


def test_a_sound_step_never_comes_back(of_sound_step):
    assert repetition_bound(*of_sound_step, SURE).value <= CLAIMED_MU


def test_clipping_shortens_only_what_is_longer():
    assert np.allclose(clip(np.array([3.0, 4.0]), 1.0), [0.6, 0.8])
    assert np.array_equal(clip(np.array([0.3, 0.4]), 1.0), [0.3, 0.4])
