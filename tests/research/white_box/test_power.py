"""The power of an audit is what its conviction says it is, and audits that are sized for a fault convict it."""

import numpy as np
import pytest
import scipy.stats

from dpserve.accounting.conversions import gaussian_mu
from dpserve.audit import estimators
from dpserve.audit.estimators import Errors
from research.white_box.bounds import largest_ratio, most_errors, power

MU = gaussian_mu(1.27, 1e-5)
SURE = 1 - 1e-9 / 3


@pytest.mark.parametrize(
    ("mu", "count", "confidence"), [(MU, 400, 0.95), (1.0, 150, 0.999), (MU, 3000, SURE), (2, 20, SURE)]
)
def test_the_claim_falls_at_exactly_so_many_errors(mu, count, confidence):
    most = most_errors(mu, count, confidence)

    def bound(errors):
        return estimators.gdp_of_pooled_errors(
            Errors(min(errors, count), count, max(0, errors - count), count), confidence
        )

    assert bound(most + 1) <= mu
    if most >= 0:
        assert bound(most) > mu


def test_power_is_the_share_of_audits_that_convict():
    """2,000 audits of 500 observations each way: within five standard errors, 6e-7 two-sided."""
    ratio, count, confidence = 0.6, 500, 0.99
    expected = power(MU, ratio, count, confidence)
    rng = np.random.default_rng(0)
    shift = MU / ratio
    convicted = 0
    for _ in range(2000):
        inside, outside = rng.normal(shift, 1, count), rng.normal(0, 1, count)
        convicted += estimators.pooled_gdp(inside, outside, confidence, threshold=shift / 2).value > MU
    assert 0.05 < expected < 0.95
    assert abs(convicted / 2000 - expected) < 5 * np.sqrt(expected * (1 - expected) / 2000)


def test_sound_noise_is_convicted_no_more_often_than_allowed():
    assert power(MU, 1.0, 5000, 0.95) <= 0.05
    assert scipy.stats.binom.cdf(most_errors(MU, 5000, SURE), 10_000, scipy.stats.norm.cdf(-MU / 2)) <= 1 - SURE


def test_what_cannot_be_seen_is_said():
    assert largest_ratio(0.01, 3, SURE) is None
    with pytest.raises(ValueError, match="ratio"):
        power(MU, 1.5, 100, SURE)


def test_the_largest_ratio_is_convicted_with_the_power_asked_for():
    ratio = largest_ratio(MU, 5000, SURE)
    assert power(MU, ratio, 5000, SURE) >= 0.99 > power(MU, ratio + 1e-3, 5000, SURE)
