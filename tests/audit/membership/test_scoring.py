"""Scores of single answers against formulas written out one by one; LiRA against SciPy's normal law."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpserve.audit.membership import scoring
from dpserve.audit.membership.scoring import (
    offline_ratio,
    online_ratio,
    pooled_ratio,
    relative_confidence,
)

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
        assert scoring.log_confidence(p, Y)[row] == pytest.approx(math.log(own))
        assert scoring.scaled_confidence(p, Y)[row] == pytest.approx(math.log(own) - math.log(sum(others)), abs=1e-9)


def test_a_label_that_was_not_released_has_a_finite_score():
    p = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    for signal in (scoring.log_confidence, scoring.scaled_confidence):
        assert np.isfinite(signal(p, np.array([0, 0]))).all()


@given(LOGITS, st.integers(1, 5))
def test_averaging_answers_is_averaging_their_logits(z, copies):
    noise = np.random.default_rng(0).normal(size=(copies, *z.shape))
    np.testing.assert_allclose(
        scoring.average_answers(softmax(z + noise)), softmax((z + noise).mean(axis=0)), atol=1e-9
    )


def test_averaging_leaves_out_what_is_missing():
    answers = np.array([[[0.8, 0.2]], [[np.nan, np.nan]]])
    np.testing.assert_allclose(scoring.average_answers(answers), [[0.8, 0.2]])


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=12))
def test_the_best_threshold_is_the_best_of_all(pairs):
    scores, member = np.array([float(s) for s, _ in pairs]), np.array([m for _, m in pairs])
    if member.all() or not member.any():
        return

    def advantage(threshold):
        said = scores >= threshold
        return said[member].mean() - said[~member].mean()

    best = max(advantage(threshold) for threshold in scores)
    assert advantage(scoring.best_threshold(scores, member)) == pytest.approx(best)


def simulated(k, n, shift=2.0, seed=0):
    """Scaled confidences: each row has a mean of its own, and models that saw it are `shift` above."""
    generator = np.random.default_rng(seed)
    base = 5 * generator.standard_normal(n)
    seen = generator.permuted(np.repeat([True, False], [k // 2, k - k // 2])[:, None].repeat(n, axis=1), axis=0)
    shadow = base + shift * seen + generator.standard_normal((k, n))
    member = np.arange(n) % 2 == 0
    return base + shift * member + generator.standard_normal(n), shadow, seen, member


def test_with_many_models_it_is_the_ratio_of_two_fitted_normals():
    x, shadow, seen, _ = simulated(80, 6)
    found = online_ratio(x, shadow, seen)
    for row in range(6):
        inside, outside = shadow[seen[:, row], row], shadow[~seen[:, row], row]
        expected = scipy.stats.norm.logpdf(x[row], inside.mean(), inside.std(ddof=1)) - scipy.stats.norm.logpdf(
            x[row], outside.mean(), outside.std(ddof=1)
        )
        assert found[row] == pytest.approx(expected)
        assert offline_ratio(x, shadow, seen)[row] == pytest.approx(
            scipy.stats.norm.logcdf(x[row], outside.mean(), outside.std(ddof=1))
        )


def test_few_models_share_one_variance():
    x, shadow, seen, _ = simulated(8, 400)
    outside = np.where(~seen, shadow, np.nan)
    pooled = np.sqrt(np.nansum((outside - np.nanmean(outside, axis=0)) ** 2) / (400 * 3))
    expected = scipy.stats.norm.logcdf(x, np.nanmean(outside, axis=0), pooled)
    np.testing.assert_allclose(offline_ratio(x, shadow, seen), expected)


def test_it_sees_through_rows_that_are_hard_or_easy_by_themselves():
    x, shadow, seen, member = simulated(16, 2000)
    for score in (online_ratio(x, shadow, seen), offline_ratio(x, shadow, seen)):
        ranks = scipy.stats.rankdata(score)
        auc = (ranks[member].sum() - 1000 * 1001 / 2) / 1000**2
        # 2,000 rows: the AUC's deviation is below 0.013, so that 0.75 is over 10 of them from 0.9.
        assert auc > 0.75
    own = scipy.stats.rankdata(x)
    assert (own[member].sum() - 1000 * 1001 / 2) / 1000**2 < 0.75


def test_a_row_that_too_few_models_saw_takes_the_mean_of_all():
    x, shadow, seen, _ = simulated(8, 50)
    seen[:, 0] = False
    assert np.isfinite(online_ratio(x, shadow, seen)).all()


def test_the_relative_confidence_ranks_as_rmia_does_with_many_records_of_the_population():
    """The share of records z with p(x|target)/p(x) >= p(z|target)/p(z), counted one by one."""
    generator = np.random.default_rng(0)
    own, shadow = np.log(generator.random(40)), np.log(generator.random((12, 40)))
    seen = generator.permuted(np.tile([True, False], 6)[:, None].repeat(40, axis=1), axis=0)
    mean = [(np.exp(one[yes]).mean() + np.exp(one[~yes]).mean()) / 2 for one, yes in zip(shadow.T, seen.T, strict=True)]
    ratio, of_population = np.exp(own) / mean, generator.random(20_000) * 4
    shares = np.array([(of_population <= one).mean() for one in ratio])
    scores = relative_confidence(own, shadow, seen)
    assert scores == pytest.approx(np.log(ratio))
    assert (np.diff(shares[np.argsort(scores)]) >= 0).all()


def test_what_cannot_be_fitted_is_refused():
    x, shadow, seen, _ = simulated(8, 50)
    with pytest.raises(ValueError, match="train more of them"):
        online_ratio(x, shadow, np.zeros_like(seen))


def test_a_distance_that_all_rows_share_is_learnt_from_all_of_them():
    """Rows whose movement follows from their confidence: the pooled ratio is the true one but for the middles' error.

    2,000 rows and 8 shadow models: the slope's standard error is below 2 %, and its own differences have one of .7.
    """
    generator = np.random.default_rng(3)
    base, seen = generator.normal(0, 2, 2000), generator.random((9, 2000)) < 0.5
    seen[0], seen[1] = True, False
    moved = 0.5 + 1 / (1 + np.exp(base))
    observed = base + np.where(seen, moved / 2, -moved / 2) + generator.normal(size=seen.shape)
    middle = np.mean(
        [np.nanmean(np.where(seen[:-1] == side, observed[:-1], np.nan), axis=0) for side in (0, 1)], axis=0
    )
    ratio = pooled_ratio(observed[-1], observed[:-1], seen[:-1])
    np.testing.assert_allclose(ratio, (observed[-1] - middle) * moved, rtol=0.35)
    truth, rest = ratio[seen[-1]], ratio[~seen[-1]]
    own = online_ratio(observed[-1], observed[:-1], seen[:-1])
    better = scipy.stats.mannwhitneyu(truth, rest).statistic / (len(truth) * len(rest))
    worse = scipy.stats.mannwhitneyu(own[seen[-1]], own[~seen[-1]]).statistic / (len(truth) * len(rest))
    assert better > worse + 0.01


def test_without_both_kinds_of_models_there_is_nothing_to_pool():
    with pytest.raises(ValueError, match="trained with it and others that were not"):
        pooled_ratio(np.zeros(3), np.zeros((4, 3)), np.ones((4, 3), dtype=bool))
