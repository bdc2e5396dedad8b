"""The plan says what a budget affords before anything is asked."""

import numpy as np
import pytest

from dpserve.audit.membership.candidates import Labelled
from dpserve.audit.membership.plan import TooFewSamples, fewest, half_width, largest_epsilon, make_plan
from dpserve.audit.membership.scoring import order_of


def some(n):
    return Labelled(np.arange(n, dtype=np.float64)[:, None], np.zeros(n, dtype=np.int64))


def test_the_poorest_key_decides():
    plan = make_plan(
        some(500), some(300), [{"queries_left": 1000}, {"queries_left": 240}], copies=3, confidence=0.95, seed=0
    )
    assert plan.of_each == 40
    assert plan.queries == 240
    first, second = plan.sentences()
    assert "240 rows of each key" in first
    assert "40 of 500 members" in first
    assert "+-0.253" in second


def test_repeated_rows_are_not_asked_about():
    members = some(80) + some(30) + some(30)
    plan = make_plan(members, some(60), [{"queries_left": None}], copies=1, confidence=0.95, seed=0)
    assert plan.of_each == 50
    assert plan.offered == (50, 60)
    assert plan.members.min() >= 30
    assert plan.members.max() < 80
    assert len(np.unique(members.X[plan.members])) == 50
    with pytest.raises(TooFewSamples, check=lambda error: error.offered == 0):
        make_plan(some(80) + some(80), some(60), [{"queries_left": None}], copies=1, confidence=0.95, seed=0)


def account(own, left):
    """A key whose own account pays for `own` rows at rho = 0.1, of which the lineage's lets `left` through."""
    return {"queries_left": left, "currency": "rho", "price": {"rho": 0.1}, "remaining": {"rho": own * 0.1}}


def test_keys_share_what_the_lineage_has_left():
    """Each of three keys could pay for 100 rows and sees that the lineage pays for 90: 30 each, 15 of each kind."""
    plan = make_plan(some(99), some(99), [account(100, 90)] * 3, copies=1, confidence=0.95, seed=0)
    assert (plan.of_each, plan.left, plan.shared) == (15, 90, 90)
    assert plan.queries * plan.keys == 90
    assert "the lineage pays for 90 rows of all keys together" in plan.sentences()[0]


def test_an_interruption_does_not_change_what_is_left():
    before = make_plan(some(99), some(99), [account(100, 90)] * 2, copies=1, confidence=0.95, seed=0)
    after = make_plan(
        some(99),
        some(99),
        [account(80, 60), account(90, 60)],
        copies=1,
        confidence=0.95,
        seed=0,
        answered=[20, 10],
        settled=before.of_each,
    )
    assert (after.of_each, after.left, after.shared) == (before.of_each, before.left, before.shared) == (22, 90, 90)


def test_what_the_keys_cannot_see_of_the_lineage_is_said():
    """Accounts that end before the lineage's do not show how much it has."""
    plan = make_plan(some(99), some(99), [account(40, 40)] * 2, copies=1, confidence=0.95, seed=0)
    assert (plan.of_each, plan.shared) == (20, None)
    assert "does not show, and may end it earlier" in plan.sentences()[0]
    alone = make_plan(some(99), some(99), [account(40, 40)], copies=1, confidence=0.95, seed=0)
    assert "lineage" not in alone.sentences()[0]


def test_answers_that_cost_nothing_are_all_asked_for():
    plan = make_plan(some(50), some(30), [{"queries_left": None}], copies=1, confidence=0.9, seed=0, most=20)
    assert plan.of_each == 20
    assert len(set(plan.members.tolist())) == 20
    assert "cost nothing" in plan.sentences()[0]


def test_an_interrupted_attack_keeps_its_candidates():
    before = make_plan(some(99), some(99), [{"queries_left": 100}], copies=1, confidence=0.95, seed=1)
    after = make_plan(some(99), some(99), [{"queries_left": 40}], copies=1, confidence=0.95, seed=1, answered=[60])
    np.testing.assert_array_equal(before.members, after.members)
    np.testing.assert_array_equal(before.others, after.others)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_too_few_samples_say_how_many_are_needed(confidence):
    needed = fewest(confidence)
    assert make_plan(some(needed), some(needed), [{"queries_left": None}], copies=1, confidence=confidence, seed=0)
    with pytest.raises(TooFewSamples, check=lambda error: (error.needed, error.offered) == (needed, needed - 1)):
        make_plan(some(needed - 1), some(99), [{"queries_left": None}], copies=1, confidence=confidence, seed=0)
    with pytest.raises(TooFewSamples, check=lambda error: error.affordable == 1):
        make_plan(some(99), some(99), [{"queries_left": 2}], copies=1, confidence=confidence, seed=0)


def test_more_samples_show_more():
    sizes = [10, 100, 1000]
    assert sorted(sizes, key=lambda n: largest_epsilon(n, 0.95)) == sizes
    assert sorted(sizes, key=lambda n: half_width(n, 0.95), reverse=True) == sizes


def test_the_order_of_scores_does_not_follow_the_plan():
    """Over 1,000 seeds the first planned member and the first in the order are independent and uniform: chi-squared
    with 24 degrees of freedom is above 80 with probability below 1e-6.
    """
    counts = np.zeros((5, 5))
    for seed in range(1000):
        plan = make_plan(some(5), some(5), [{"queries_left": None}], copies=1, confidence=0.5, seed=seed)
        counts[plan.members[0], order_of(5, seed)[0]] += 1
    assert ((counts - 40) ** 2 / 40).sum() < 80


def test_a_confidence_of_one_is_refused():
    with pytest.raises(ValueError, match="confidence"):
        make_plan(some(9), some(9), [{"queries_left": None}], copies=1, confidence=1.0, seed=0)
