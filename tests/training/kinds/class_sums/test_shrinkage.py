"""Denoising with known noise: post-processing, so what matters is that it helps and never breaks."""

import numpy as np
import pytest

from dpserve.training.kinds.class_sums.shrinkage import by_both, by_entry, by_singular_value, shrunk, unit_rows


def agreement(found, truth):
    return float((unit_rows(found) * unit_rows(truth)).sum(axis=1).mean())


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def sparse_sums(generator):
    truth = np.zeros((20, 200))
    truth[:, :10] = generator.standard_normal((20, 10)) * 3
    return truth


def low_rank_sums(generator):
    return generator.standard_normal((20, 2)) @ generator.standard_normal((2, 200)) * 0.7


def test_each_estimator_suits_what_it_is_for_and_their_mean_suits_both(generator):
    scattered = np.where(generator.uniform(size=(20, 200)) < 0.05, 5.0, 0.0)
    for truth, best in (
        (scattered, by_entry),
        (sparse_sums(generator), by_both),
        (low_rank_sums(generator), by_singular_value),
    ):
        noisy = truth + generator.standard_normal(truth.shape)
        assert agreement(best(noisy, 1.0), truth) > agreement(noisy, truth) + 0.05
        assert agreement(shrunk(noisy, 1.0), truth) > agreement(noisy, truth) + 0.05


def test_without_noise_nothing_is_changed(generator):
    truth = low_rank_sums(generator)
    for estimator in (by_singular_value, by_both, by_entry):
        np.testing.assert_allclose(estimator(truth, 1e-12), truth, rtol=1e-9, atol=1e-9)


def test_where_there_is_only_noise_nothing_breaks(generator):
    for noisy in (np.zeros((3, 5)), generator.standard_normal((2, 300)), generator.standard_normal((300, 2))):
        found = unit_rows(shrunk(noisy, 10.0))
        lengths = np.linalg.norm(found, axis=1)
        assert np.isfinite(found).all()
        assert np.all((np.abs(lengths - 1) < 1e-12) | (lengths == 0))


def test_what_is_left_is_a_function_of_what_was_released(generator):
    noisy = generator.standard_normal((4, 30))
    np.testing.assert_array_equal(shrunk(noisy, 1.0), shrunk(noisy.copy(), 1.0))
