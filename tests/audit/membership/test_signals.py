"""Scores of single answers against formulas written out one by one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from audit.membership import signals

LOGITS = arrays(np.float64, (7, 4), elements=st.floats(-8, 8))
Y = np.array([0, 1, 2, 3, 0, 1, 2])


def softmax(z):
    weights = np.exp(z - z.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@given(LOGITS)
def test_every_signal_is_the_formula(z):
    p = softmax(z)
    for row, label in enumerate(Y):
        own = p[row, label]
        others = [p[row, other] for other in range(4) if other != label]
        assert signals.log_confidence(p, Y)[row] == pytest.approx(math.log(own))
        assert signals.scaled_confidence(p, Y)[row] == pytest.approx(math.log(own) - math.log(sum(others)), abs=1e-9)
        assert signals.negative_entropy(p, Y)[row] == pytest.approx(sum(q * math.log(q) for q in p[row]))
        modified = (1 - own) * math.log(own) + sum(q * math.log(1 - q) for q in others)
        assert signals.negative_modified_entropy(p, Y)[row] == pytest.approx(modified, abs=1e-12)
        assert signals.correctness(p, Y)[row] == (p[row].argmax() == label)


def test_a_label_that_was_not_released_has_a_finite_score():
    p = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    for signal in (
        signals.log_confidence,
        signals.scaled_confidence,
        signals.negative_entropy,
        signals.negative_modified_entropy,
    ):
        assert np.isfinite(signal(p, np.array([0, 0]))).all()


def test_a_sure_answer_counts_for_membership_only_where_it_is_right():
    p = np.array([[0.9, 0.1], [0.1, 0.9]])
    sure, wrong = signals.negative_modified_entropy(p, np.array([0, 0]))
    assert sure > wrong
    assert np.ptp(signals.negative_entropy(p, np.array([0, 0]))) == pytest.approx(0)


@given(LOGITS, st.integers(1, 5))
def test_averaging_answers_is_averaging_their_logits(z, copies):
    noise = np.random.default_rng(0).normal(size=(copies, *z.shape))
    np.testing.assert_allclose(signals.averaged(softmax(z + noise)), softmax((z + noise).mean(axis=0)), atol=1e-9)


def test_averaging_leaves_out_what_is_missing():
    answers = np.array([[[0.8, 0.2]], [[np.nan, np.nan]]])
    np.testing.assert_allclose(signals.averaged(answers), [[0.8, 0.2]])


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=12))
def test_the_best_threshold_is_the_best_of_all(pairs):
    scores, member = np.array([float(s) for s, _ in pairs]), np.array([m for _, m in pairs])
    if member.all() or not member.any():
        return

    def advantage(threshold):
        said = scores >= threshold
        return said[member].mean() - said[~member].mean()

    best = max(advantage(threshold) for threshold in scores)
    assert advantage(signals.best_threshold(scores, member)) == pytest.approx(best)


def test_class_thresholds_fall_back_where_a_class_is_one_sided():
    scores = np.array([1.0, 0.0, 5.0, 4.0, 9.0])
    y, member = np.array([0, 0, 1, 1, 2]), np.array([True, False, True, False, True])
    found = signals.class_thresholds(scores, y, member, 4)
    assert found[:2].tolist() == [1.0, 5.0]
    assert found[2] == found[3] == signals.best_threshold(scores, member)


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        signals.log_confidence(np.ones((2, 3)) / 3, np.array([0]))
