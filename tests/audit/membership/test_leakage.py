"""Attacks on answers without a claim: what memorises is shown to, and what saw no member shows nothing."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from dpserve.audit.leakage_report import leakage_report
from dpserve.audit.membership.candidates import Candidates, Labelled
from dpserve.audit.membership.leakage import measure_leakage, own_null_of_others
from dpserve.audit.membership.plan import TooFewSamples
from dpserve.audit.reports import ACQUITTED, INCONCLUSIVE

ALARM = 1e-7
"""The confidence is 1 less this, so that a sound model is shown to leak with a probability of 1e-7 at most."""


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch):
    monkeypatch.setattr("dpserve.audit.membership.leakage._TREES", 20)
    monkeypatch.setattr("dpserve.audit.membership.leakage._REGRESSION_TREES", 30)


def records(count, seed):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(count, 6))
    return Labelled(X, ((X[:, 0] + generator.normal(size=count)) > 0).astype(np.int64))


@pytest.fixture(scope="module")
def candidates():
    return Candidates(records(120, 1), records(120, 2))


def asking(model, records):
    return model.fit(records.X, records.y).predict_proba


def test_a_model_that_memorises_is_shown_to(candidates):
    ask = asking(RandomForestClassifier(20, bootstrap=False, random_state=0), candidates.members)
    leakage = measure_leakage(ask, candidates, confidence=1 - ALARM)
    assert leakage.best.low > 0.2
    assert leakage.pairs.epsilon > 0.5
    assert leakage.decided == 120
    report = leakage_report(leakage, "http://model")
    assert (report.kind, report.exit_status) == ("measured", ACQUITTED)


def test_a_model_of_other_records_shows_nothing(candidates):
    ask = asking(RandomForestClassifier(20, bootstrap=False, random_state=0), records(120, 10))
    leakage = measure_leakage(ask, candidates, confidence=1 - ALARM)
    assert leakage.pairs.epsilon == 0
    assert leakage.best.low <= 0


def test_the_lower_bound_stays_below_a_known_epsilon(candidates):
    """Each answer says of its row whether it is a member, with odds e^1: replacing a record costs epsilon 1, twice."""
    members = {row.tobytes() for row in candidates.members.X}
    generator = np.random.default_rng(0)

    def ask(rows):
        sure = np.array([row.tobytes() in members for row in rows]) ^ (
            generator.random(len(rows)) > 1 / (1 + np.exp(-1))
        )
        y = (rows[:, 0] > 0).astype(np.int64)
        return np.where(np.eye(2)[y] == 1, np.where(sure, 0.9, 0.6)[:, None], np.where(sure, 0.1, 0.4)[:, None])

    leakage = measure_leakage(ask, candidates, confidence=1 - ALARM)
    assert leakage.pairs.epsilon <= 2


def test_no_score_depends_on_who_is_a_member(candidates):
    ask = asking(LogisticRegression(), candidates.members)
    swapped = Candidates(candidates.others, candidates.members)
    one, other = (measure_leakage(ask, each) for each in (candidates, swapped))
    for first, second in zip(one.attacks, other.attacks, strict=True):
        np.testing.assert_array_equal(np.sort(first.members), np.sort(second.others))


def test_quantile_regression_sees_members_whom_the_loss_does_not_show():
    """Rows with a signal differ in how sure the model is of them far more than training on one moves it.

    Areas of 400 members and 400 others have deviations below 0.021: 0.15 are five of those of a difference.
    """
    generator = np.random.default_rng(0)
    X = generator.uniform(-1, 1, size=(800, 2))
    y = generator.integers(2, size=800)
    trained = np.arange(800) < 400
    confidence = 3 * X[:, 0] * (2 * y - 1) + 0.8 * trained + 0.2 * generator.standard_normal(800)
    chance = 1 / (1 + np.exp(-confidence))
    of_row = {row.tobytes(): one for row, one in zip(X, np.where(y == 1, chance, 1 - chance), strict=True)}

    def ask(rows):
        p = np.array([of_row[row.tobytes()] for row in rows])
        return np.column_stack([1 - p, p])

    leakage = measure_leakage(ask, Candidates(Labelled(X[:400], y[:400]), Labelled(X[400:], y[400:])))
    areas = {attack.attack: attack.auc for attack in leakage.attacks}
    assert areas["quantile regression"] > areas["loss"] + 0.15
    exposed, by_chance = leakage.exposure.shares(0.05)
    assert exposed > 0.2
    # Ranks among 399: 20 of 400 others have a rate of at most 5 %, by construction.
    assert by_chance == pytest.approx(0.05, abs=0.005)
    assert leakage.exposure.allowed is None


def test_a_rate_by_rank_leaves_the_record_itself_out():
    score, member = np.array([3.0, 1.0, 2.0, 2.5]), np.array([False, False, False, True])
    null = own_null_of_others(score, member)
    assert null.rates.tolist() == [1 / 3, 1.0, 2 / 3, 2 / 4]
    assert null.compared.tolist() == [2, 2, 2, 3]


def test_rows_of_both_sides_are_left_out(candidates):
    both = candidates.others + candidates.members[:10]
    leakage = measure_leakage(asking(LogisticRegression(), candidates.members), Candidates(candidates.members, both))
    assert leakage.decided == 110


def test_members_that_differ_by_themselves_are_inconclusive(candidates):
    other = Labelled(candidates.others.X + 3, candidates.others.y)
    leakage = measure_leakage(asking(LogisticRegression(), candidates.members), Candidates(candidates.members, other))
    assert leakage_report(leakage, "http://model").exit_status == INCONCLUSIVE


def test_too_few_candidates_are_refused_before_anything_is_asked(candidates):
    few = Candidates(candidates.members[:4], candidates.others[:4])
    with pytest.raises(TooFewSamples):
        measure_leakage(pytest.fail, few)
