"""One class and nothing else."""

import math

import numpy as np
from scipy import stats

from dpserve.accounting.losses import BoundedRangeLoss
from dpserve.mechanisms.label import Label


def test_an_answer_is_one_class(seeded):
    answers = Label(0.5).release(np.random.default_rng(1).normal(size=(100, 6)), np.full(100, 0.1), seeded(1))
    assert ((answers == 0) | (answers == 1)).all()
    assert (answers.sum(axis=1) == 1).all()


def test_classes_are_drawn_as_the_exponential_mechanism_says(seeded):
    """Chi-square with a fixed seed, false alarm 1e-6."""
    row, count = np.array([0.0, 0.2, 0.5]), 100_000
    answers = Label(0.7).release(np.tile(row, (count, 1)), np.full(count, 0.3), seeded(2))
    weights = np.exp(0.7 * row / (math.sqrt(2) * 0.3))
    assert stats.chisquare(answers.sum(axis=0), count * weights / weights.sum()).pvalue > 1e-6


def test_the_cost_is_a_range():
    assert Label(0.5).cost.losses == (BoundedRangeLoss(0.5),)
    assert Label(0.5).cost.rho == 1 / 32
