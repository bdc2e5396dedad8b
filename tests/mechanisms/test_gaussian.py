"""Gaussian noise: neighbours never further apart than mu allows, in integers; the noise as large as its name."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpserve.mechanisms import grid
from dpserve.mechanisms.gaussian import Gaussian


def test_mu_is_rounded_up():
    for multiplier in [3.0, 7.0, 10.0, 20.0, 49.0, 0.3, 22.36067977499790]:
        mechanism = Gaussian(multiplier)
        assert Fraction(mechanism.mu) * Fraction(multiplier) >= 1
        assert Fraction(math.nextafter(mechanism.mu, 0)) * Fraction(multiplier) < 1


@given(st.data(), st.integers(2, 40), st.floats(0.25, 1000), st.floats(1e-9, 1e3), st.floats(-0.5, 0.5))
def test_neighbours_on_the_grid_are_within_mu_standard_deviations(data, classes, multiplier, sensitivity, offset):
    """Rows start near half-steps in every coordinate and use the whole sensitivity: exactly, as integers."""
    mu = Gaussian(multiplier).mu
    scale, per_sensitivity = grid.gaussian_noise(Gaussian(multiplier).mu, classes)
    steps = grid.steps_of(np.array([sensitivity]), per_sensitivity)
    direction = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=classes, max_size=classes)))
    direction = direction / max(float(np.linalg.norm(direction)), 1e-3)
    row = (np.array(data.draw(st.lists(st.integers(-99, 99), min_size=classes, max_size=classes))) + offset) * steps
    neighbour = row + direction * sensitivity * (1 - 1e-9)
    moved = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(row.tolist(), neighbour.tolist(), strict=True))
    if moved <= Fraction(sensitivity) ** 2:
        difference = (grid.on_grid(row[None], steps) - grid.on_grid(neighbour[None], steps))[0].tolist()
        assert sum(d * d for d in difference) <= (scale * Fraction(mu)) ** 2


@given(st.data(), st.integers(2, 200), st.floats(0.25, 1000), st.floats(1e-6, 1e3))
def test_the_worst_rounding_in_every_coordinate_is_within_mu(data, classes, multiplier, sensitivity):
    """All coordinates move alike, each from just short of a half-step over it."""
    mu = Gaussian(multiplier).mu
    scale, per_sensitivity = grid.gaussian_noise(Gaussian(multiplier).mu, classes)
    steps = grid.steps_of(np.array([sensitivity]), per_sensitivity)
    signs = np.array(data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=classes, max_size=classes)))
    row = signs * (0.5 - 1e-6) * steps
    neighbour = row + signs * sensitivity / math.sqrt(classes) * (1 - 1e-9)
    difference = (grid.on_grid(row[None], steps) - grid.on_grid(neighbour[None], steps))[0].tolist()
    assert sum(d * d for d in difference) <= (scale * Fraction(mu)) ** 2


@pytest.mark.parametrize("multiplier", [0.3, 20.0, 150.0])
def test_log_ratios_have_the_noise_that_the_multiplier_names(multiplier, seeded):
    """Kolmogorov-Smirnov on ln p_0 - ln p_1, false alarm 1e-6; the overhead of the grid is at most 1 %."""
    sensitivity, count = 1e-3, 40_000
    answers = Gaussian(multiplier).release(np.tile([0.3, -0.1], (count, 1)), np.full(count, sensitivity), seeded(7))
    ratios = np.log(answers[:, 0]) - np.log(answers[:, 1])
    scale, per_sensitivity = grid.gaussian_noise(Gaussian(multiplier).mu, 2)
    deviation = scale * float(per_sensitivity) * sensitivity
    assert multiplier * sensitivity <= deviation <= 1.0102 * multiplier * sensitivity
    assert stats.kstest(ratios, stats.norm(0.4, math.sqrt(2) * deviation).cdf).pvalue > 1e-6


def test_noise_on_different_logits_is_independent(seeded):
    """Differences from logit 0 have covariance sigma^2 (I + 1): each entry within 6 standard errors, 10 entries."""
    count, mechanism = 60_000, Gaussian(5.0)
    answers = mechanism.release(np.zeros((count, 5)), np.full(count, 0.01), seeded(9))
    differences = np.log(answers[:, 1:]) - np.log(answers[:, :1])
    scale, per_sensitivity = grid.gaussian_noise(mechanism.mu, 5)
    found = np.cov(differences.T) / (scale * float(per_sensitivity) * 0.01) ** 2
    np.testing.assert_allclose(found, np.eye(4) + 1, atol=6 * math.sqrt(8 / count))


def test_too_much_noise_for_the_largest_table_is_refused_by_name():
    with pytest.raises(ValueError, match="must be at least"):
        Gaussian(1e4).prepare(1024)
    with pytest.raises(ValueError, match="must be at least"):
        Gaussian(1e4).release(np.zeros((1, 1024)), np.ones(1), None)
    Gaussian(1e4).prepare(2)
