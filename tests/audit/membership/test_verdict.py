"""Verdicts on scores whose law is known."""

import numpy as np
import pytest
import scipy.stats

from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.audit.estimators import Errors
from dpserve.audit.membership.claims import claim_of_releases
from dpserve.audit.membership.scoring import Scores
from dpserve.audit.membership.verdict import CORNER, LOWER_BOUND, PAIRS, advantage_interval, rate_at, verdict

TIGHT = claim_of_releases(Cost((GaussianLoss(0.1),)), 1, 1e-6)
LOOSE = claim_of_releases(Cost((GaussianLoss(3.0),)), 1, 1e-6)
WHOLE = claim_of_releases(Cost((GaussianLoss(2.0),)), 100, 1e-6)
"""The claim about all answers together: too large for guesses to refute."""


def gaussian_scores(mu, n, seed, name="simulated"):
    generator = np.random.default_rng(seed)
    return Scores(name, generator.standard_normal(n) + mu, generator.standard_normal(n))


def test_an_attack_that_is_always_right_convicts_a_small_claim_and_not_a_large_one():
    scores = [Scores("right", np.ones(400), np.zeros(400))]
    convicted = verdict(scores, TIGHT, TIGHT, 0.95)
    assert convicted.convicted
    assert convicted.best.advantage == convicted.best.auc == convicted.best.precision == 1
    assert convicted.best.true_positive_rates == (None, 1.0)
    assert not verdict(scores, LOOSE, WHOLE, 0.95).convicted


def test_the_gaussian_mechanism_for_replacement_is_never_convicted():
    """Scores as if two steps of the claim were attained: each of 100 verdicts at 0.9999 errs with probability 1e-4, so
    that three or more convictions have probability below 2e-7.
    """
    convictions = sum(verdict([gaussian_scores(0.2, 300, seed)], TIGHT, TIGHT, 0.9999).convicted for seed in range(100))
    assert convictions <= 2


def test_a_curve_is_crossed_long_before_an_epsilon_at_a_small_delta_is_exceeded():
    """The claim is mu = 0.3 for two steps, and mu = 2 is the truth: some 4 deviations beyond the curve at confidence
    0.95, while epsilon at delta = 1e-6 would need far more scores.
    """
    claim = claim_of_releases(Cost((GaussianLoss(0.15),)), 1, 1e-6)
    loose = claim_of_releases(Cost((GaussianLoss(0.9),)), 1, 1e-6)
    judged = verdict([gaussian_scores(2.0, 300, 0)], loose, WHOLE, 0.95)
    assert judged.best.epsilon <= judged.claimed_epsilon
    assert not judged.convicted
    judged = verdict([gaussian_scores(4.0, 300, 0)], loose, WHOLE, 0.95)
    assert judged.best.epsilon <= judged.claimed_epsilon
    assert judged.best.corner.exceeds_claim
    assert judged.convicted
    assert not judged.convicted_exactly
    judged = verdict([gaussian_scores(2.0, 300, 0)], claim, WHOLE, 0.95)
    assert judged.best.corner.true_positive_rate > judged.best.corner.allowed + 0.2


def test_guesses_convict_a_claim_about_all_answers_together():
    """300 of 300 right show epsilon = 4.3; what is claimed of one decision alone would allow it."""
    judged = verdict([Scores("right", np.ones(400), np.zeros(400))], LOOSE, TIGHT, 0.95)
    assert judged.best.epsilon <= judged.claimed_epsilon
    assert not judged.best.corner.exceeds_claim
    assert judged.convicted_exactly
    assert judged.convicted


def test_a_bound_that_no_attack_would_exceed_is_named():
    """Named are those that do not convict where all decisions are right; of few scores a threshold may be a bad one."""
    for decision in (TIGHT, LOOSE):
        for total in (TIGHT, LOOSE, WHOLE):
            for count in (12, 40, 400):
                judged = verdict([Scores("right", np.ones(count), np.zeros(count))], decision, total, 0.95)
                if count == 400:
                    assert set(judged.convictions) | set(judged.powerless) == {LOWER_BOUND, CORNER, PAIRS}
                assert not set(judged.convictions) & set(judged.powerless)
                guessing = verdict([gaussian_scores(0.0, count, 0)], decision, total, 0.95)
                assert guessing.powerless == judged.powerless


def test_the_interval_holds_the_truth():
    """The truth is Phi(t) - Phi(t - 1) at the threshold t: 100 intervals at 0.9999, as above."""
    outside = 0
    for seed in range(100):
        one = verdict([gaussian_scores(1.0, 200, seed)], TIGHT, TIGHT, 0.9999).best
        truth = scipy.stats.norm.cdf(one.threshold) - scipy.stats.norm.cdf(one.threshold - 1)
        outside += not one.low <= truth <= one.high
        assert one.low <= one.advantage <= one.high
    assert outside <= 2


def test_nothing_is_counted_where_thresholds_and_the_attack_are_chosen():
    lucky = Scores("lucky", np.r_[np.ones(25), np.zeros(75)], np.zeros(100))
    steady = Scores("steady", np.r_[np.zeros(25), np.ones(75)], np.zeros(100))
    judged = verdict([lucky, steady], TIGHT, TIGHT, 0.95)
    assert judged.best.attack == "lucky"
    assert judged.best.advantage == 0
    assert judged.best.errors == Errors(0.0, 75.0, 75.0, 75.0)
    assert judged.best.auc == 0.5


def test_an_attack_that_guesses_shows_no_more_than_the_false_positive_rate_that_is_asked_for():
    """One member among 120 others, all alike: above the threshold in 1 of 121 draws, P(Binomial(20000, 1/121) > 240) <
    1e-7. Counted among the others, as one false alarm of 120, it would be in 2 of 121: P(Binomial(20000, 2/121) <= 240)
    < 1e-7.
    """
    generator = np.random.default_rng(0)
    draws = generator.standard_normal((20_000, 121))
    assert sum(rate_at(0.01, scores[:1], scores[1:]) for scores in draws) <= 240
    second = np.sort(draws[:, 1:], axis=1)[:, -2]
    assert (draws[:, 0] > second).sum() > 240


def test_a_low_rate_takes_enough_others():
    members = np.array([1.0, 2.0, 2.0, 3.0])
    assert rate_at(0.01, members, np.zeros(98)) is None
    assert rate_at(0.01, members, np.r_[np.zeros(98), 2.0]) == 0.25
    assert rate_at(0.03, members, np.r_[np.zeros(97), 2.0, 2.0]) == 1.0


def test_an_interval_of_few_is_wide_and_stays_within_what_rates_can_be():
    low, high = advantage_interval(Errors(0, 3, 0, 3), 0.95)
    assert -1 <= low < 0
    assert high == pytest.approx(1)
