"""The quality of answers: accuracy, log loss, expected calibration error and the width of intervals."""

import math

import numpy as np
import pytest

from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.training.kinds.cases import Case, quality


def test_the_figures_of_a_few_rows_by_hand():
    """The two rows in the bin of 0.9 are right once: it is 0.4 off. The row in the bin of 0.6 is right: also 0.4."""
    answers = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]])
    found = quality(answers, np.array([0, 0, 0]))
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.log_loss == pytest.approx(-(math.log(0.9) + math.log(0.1) + math.log(0.6)) / 3)
    assert found.calibration_error == pytest.approx((2 * 0.4 + 0.4) / 3)
    assert found.interval is None


def test_answers_that_are_right_as_often_as_they_say_have_no_calibration_error():
    generator = np.random.default_rng(0)
    sure = generator.uniform(0.5, 1, size=200_000)
    right = generator.random(len(sure)) < sure
    found = quality(np.stack([sure, 1 - sure], axis=1), np.where(right, 0, 1))
    assert found.calibration_error < 0.01


def test_a_class_that_was_said_to_be_impossible_has_a_finite_loss():
    assert math.isfinite(quality(np.array([[1.0, 0.0]]), np.array([1])).log_loss)


def test_more_noise_makes_wider_intervals():
    answers = np.array([[0.7, 0.3]])
    noises = (AnswerNoise(GAUSSIAN, np.array([scale])) for scale in (0.01, 5.0))
    narrow, wide = (quality(answers, np.array([0]), noise).interval for noise in noises)
    assert narrow < 0.1
    assert wide > 0.95


def test_the_constant_predictor_answers_with_the_shares_of_the_records():
    y = np.array([0] * 3 + [1], dtype=np.int64)
    case = Case("small", 0, np.zeros((4, 1)), y, np.zeros((2, 1)), np.array([0, 1]), 2)
    shares = np.array([3.5, 1.5]) / 5
    assert case.constant.accuracy == 0.5
    assert case.constant.log_loss == pytest.approx(-np.log(shares).mean())
