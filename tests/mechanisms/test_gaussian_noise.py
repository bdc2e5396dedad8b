"""Noise by itself: its law on the grid, and what rounding it can add."""

import math

import numpy as np
import pytest
from scipy import stats

from mechanisms.gaussian_noise import GaussianNoise
from tests.seeded import Seeded

FALSE_ALARM = 1e-6


def test_it_is_gaussian_and_on_the_grid():
    """Kolmogorov and Smirnov's test at a fixed seed; false alarm 1e-6."""
    noise = GaussianNoise(3.0, 20_000)
    drawn = noise.draw(Seeded(0))
    assert stats.kstest(drawn / 3.0, "norm").pvalue > FALSE_ALARM
    assert np.all(drawn / noise.step == np.rint(drawn / noise.step))
    assert len(np.unique(drawn)) > 15_000


def test_rounding_is_at_most_half_a_step_on_each():
    noise = GaussianNoise(1.0, 10_000)
    ideal = np.random.default_rng(0).standard_normal(10_000)
    assert np.linalg.norm(np.rint(ideal / noise.step) * noise.step - ideal) <= noise.rounding
    assert noise.rounding == pytest.approx(0.5 / 2**16 * math.sqrt(10_000))


@pytest.mark.parametrize(("sigma", "size"), [(0.0, 3), (math.inf, 3), (1.0, 0), (1.0, 2**24 + 1)])
def test_what_cannot_be_drawn_is_refused(sigma, size):
    with pytest.raises(ValueError, match=r"standard deviation must|between 1 and"):
        GaussianNoise(sigma, size)
