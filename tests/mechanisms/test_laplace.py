"""Laplace noise: neighbours never further apart in L1 than epsilon allows; the noise as large as its name."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpserve.mechanisms import grid, laplace
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.noise import LAPLACE_SCALE


@given(st.data(), st.integers(2, 40), st.floats(0.001, 4), st.floats(1e-9, 1e3))
def test_neighbours_on_the_grid_are_within_epsilon_scales(data, classes, epsilon, sensitivity):
    """The worst direction for L1, all coordinates alike, each from just short of a half-step over it."""
    steps = grid.steps_of(np.array([sensitivity]), laplace.step_per_sensitivity(epsilon, classes))
    signs = np.array(data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=classes, max_size=classes)))
    row = signs * (0.5 - 1e-6) * steps
    neighbour = row + signs * sensitivity / math.sqrt(classes) * (1 - 1e-9)
    moved = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(row.tolist(), neighbour.tolist(), strict=True))
    if moved <= Fraction(sensitivity) ** 2:
        difference = (grid.on_grid(row[None], steps) - grid.on_grid(neighbour[None], steps))[0].tolist()
        assert sum(map(abs, difference)) <= LAPLACE_SCALE * Fraction(epsilon)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 2.0])
def test_log_ratios_have_the_noise_that_epsilon_names(epsilon, seeded):
    """ln p_0 - ln p_1 is a difference of two Laplace variables; Kolmogorov-Smirnov, false alarm 1e-6."""
    sensitivity, count = 1e-3, 40_000
    answers = Laplace(epsilon).release(np.tile([0.3, -0.1], (count, 1)), np.full(count, sensitivity), seeded(7))
    ratios = np.log(answers[:, 0]) - np.log(answers[:, 1])
    scale = math.sqrt(2) * sensitivity / epsilon

    def distribution(x):
        t = np.abs(x - 0.4) / scale
        beyond = (0.5 + t / 4) * np.exp(-t)
        return np.where(x > 0.4, 1 - beyond, beyond)

    assert stats.kstest(ratios, distribution).pvalue > 1e-6


def test_an_epsilon_too_small_for_the_classes_is_refused_by_name():
    with pytest.raises(ValueError, match="must be at least"):
        Laplace(1e-4).prepare(1024)
    Laplace(1e-4).prepare(100)
