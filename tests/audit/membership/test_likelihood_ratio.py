"""LiRA against scipy's normal law, and on simulated shadow models."""

import numpy as np
import pytest
import scipy.stats

from audit.membership.scoring import offline_ratio, online_ratio


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


def test_what_cannot_be_fitted_is_refused():
    x, shadow, seen, _ = simulated(8, 50)
    with pytest.raises(ValueError, match="train more of them"):
        online_ratio(x, shadow, np.zeros_like(seen))
    with pytest.raises(ValueError, match="do not fit"):
        offline_ratio(x[1:], shadow, seen)
