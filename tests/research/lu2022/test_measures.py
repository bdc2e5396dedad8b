"""The paper's measures on cases that can be counted by hand."""

import math

import numpy as np
import pytest

from research.lu2022 import measures


def test_accuracy_counts_the_largest_entry() -> None:
    answers = np.array([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5], [0.4, 0.6]])
    assert measures.accuracy(answers, np.array([1, 1, 0, 1])) == 0.75
    with pytest.raises(ValueError, match="do not fit"):
        measures.accuracy(answers, np.array([1]))


def test_accuracy_loss_is_equation_31() -> None:
    assert measures.accuracy_loss(0.3, 0.6) == 0.5
    assert measures.accuracy_loss(0.6, 0.6) == 0
    assert measures.accuracy_loss(0.66, 0.6) == pytest.approx(-0.1)
    with pytest.raises(ValueError, match="above 0"):
        measures.accuracy_loss(0.1, 0.0)


def test_privacy_leakage_is_equation_32() -> None:
    members, others = np.array([True, True, False, True]), np.array([True, False])
    assert measures.privacy_leakage(members, others) == 0.25
    with pytest.raises(ValueError, match="at least one"):
        measures.privacy_leakage(members, others[:0])


def test_an_attack_fits_the_seam() -> None:
    class SaysMemberWhereSure:
        def decide(self, answers: np.ndarray, y: np.ndarray) -> np.ndarray:
            return answers[np.arange(len(y)), y] > 0.8

    sure = np.array([[0.9, 0.1], [0.05, 0.95]])
    unsure = np.array([[0.6, 0.4], [0.9, 0.1]])
    y = np.array([0, 1])
    assert measures.attack_leakage(SaysMemberWhereSure(), (sure, y), (unsure, y)) == 1


def test_the_drawn_bound_is_cut_at_the_baseline() -> None:
    assert measures.leakage_bound(0.1) == pytest.approx(math.expm1(0.1))
    assert measures.leakage_bound(5.0) == 1
    assert measures.leakage_bound(1000.0, 0.36) == 0.36
