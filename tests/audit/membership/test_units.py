"""The attack by privacy units: a sound model is not convicted of records that are guessed right together."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpserve.audit import reports
from dpserve.audit.in_process import BundleEndpoint, rehearsal_key
from dpserve.audit.membership.attack import Attack, AttackChoices
from dpserve.audit.membership.candidates import Candidates, Labelled, difference, repeated
from dpserve.audit.membership.plan import TooFewSamples, make_plan
from dpserve.audit.membership.scoring import scores_of
from dpserve.audit.membership.shadow_models import Draws, HeadRecipe, Pool, train_heads, train_shadow_models
from dpserve.audit.presentation import attack_report
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.training.features.maps import Identity
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.solver import minimise
from dpserve.training.inputs.records import Declaration, Records, Units
from dpserve.training.inputs.sums import of_rows
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from tests.audit.membership.conftest import CLASSES, DECLARATION, FEATURES, draw

QUICK = AttackChoices(shadow_models=4, seed=1)
SURE = replace(QUICK, confidence=1 - 1e-6)
"""A sound model is convicted with at most this doubt, 1e-6."""
MU = 0.5
FREE = {"queries_left": None}


def of_sizes(sizes, seed, first=0):
    """Units with so many records of their own."""
    records = draw(sum(sizes), seed)
    return Labelled(records.X, records.y, first + np.repeat(np.arange(len(sizes)), sizes))


class OneNumberForEachUnit:
    """A model that was paid for once: of each unit it tells MU for a member and 0 for another, plus noise.

    Whatever row of the unit is asked, this number is the log-odds of its label. With the noise of a standard normal
    law it is MU-GDP for units, and of a unit with 100 rows all 100 answers are one.
    """

    account_lasts = False

    def __init__(self, candidates, noise=1.0, unit="person"):
        everyone = candidates.everyone
        inside = np.isin(everyone.units, candidates.members.units)
        drawn = np.random.default_rng(7).standard_normal(everyone.count)
        told = MU * inside + noise * drawn[everyone.of]
        self._odds = dict(zip((row.tobytes() for row in everyone.X), zip(everyone.y, told, strict=True), strict=True))
        self._unit = {} if unit is None else {"unit": unit}

    def name(self):
        return "made"

    def model(self):
        feature_map = Identity(lower=DECLARATION.lower, upper=DECLARATION.upper, clip_norm=1.0, bias=0.1)
        return self._unit | {
            "name": "made",
            "model_id": "0",
            "status": "proven",
            "classes": list(DECLARATION.classes),
            "feature_names": list(DECLARATION.feature_names),
            "feature_map": feature_map.model_dump(mode="json"),
            "largest_batch": 1000,
            "cost": f"gaussian:{MU}",
        }

    def budget(self):
        spent = {"rho": MU**2 / 2, "epsilon": 2.0}
        bound = {"now": 0.2, "when_spent": 0.2}
        return {
            "queries_left": None, "spent": spent, "currency": "rho", "accepts": "gaussian", "delta": 1e-6,
            "status": "proven",
            "membership_advantage_bound": bound,
        }  # fmt: skip

    def answers(self, rows):
        found = np.zeros((len(rows), CLASSES))
        for place, row in enumerate(rows):
            label, odds = self._odds.get(row.tobytes(), (0, 0.0))
            found[place, label] = odds
        return softmax(found)


MANY_OF_ONE = Candidates(of_sizes([100] + [1] * 59, 1), of_sizes([1] * 60, 2, first=1000))
"""A unit with 100 records among the members, and units of one record."""


def test_a_sound_model_is_not_convicted_of_a_units_hundred_records():
    outcome = Attack([OneNumberForEachUnit(MANY_OF_ONE)], MANY_OF_ONE, SURE).run()
    assert outcome.decided == (60, 60)
    assert not outcome.convicted
    assert outcome.releases == 100
    assert outcome.verdict.decision.rho == pytest.approx(MU**2 / 2)  # whatever is asked


def test_counted_as_a_hundred_members_they_would_convict_it():
    """Why units are what is counted: the same noise, and one unit's records against those of a hundred others."""
    one, others = of_sizes([100], 1), of_sizes([1] * 100, 2, first=1000)
    as_records = Candidates(*(replace(part, units=None) for part in (one, others)))
    endpoint = OneNumberForEachUnit(Candidates(one, others), unit=None)
    assert Attack([endpoint], as_records, QUICK).run().convicted
    with pytest.raises(TooFewSamples):
        Attack([OneNumberForEachUnit(Candidates(one, others))], Candidates(one, others), QUICK).run()


def test_a_model_without_noise_is_convicted_by_units():
    page = attack_report(Attack([OneNumberForEachUnit(MANY_OF_ONE, noise=0.0)], MANY_OF_ONE, QUICK).run())
    assert page.exit_status == 3
    assert "on units, each all records of one 'person'" in page.verdict
    assert "for replacing one unit" in page.tables[0].note


SIZES = [1, 2, 3] * 20
WIDE = 100


def remembered(seed, first=0):
    """Persons of 1 to 3 records whose labels are chance, in so many features that a head can know them by heart."""
    generator, n = np.random.default_rng(seed), sum(SIZES)
    X = generator.integers(0, 2, (n, WIDE)).astype(np.float64)
    return Labelled(X, generator.integers(CLASSES, size=n), first + np.repeat(np.arange(60), SIZES))


@pytest.fixture(scope="module")
def by_person():
    """A certified head that protects persons, and the persons."""
    found = Candidates(remembered(1), remembered(2, first=1000))
    members = found.members
    declaration = Declaration(
        tuple(f"x{i}" for i in range(WIDE)), (0.0,) * WIDE, (1.0,) * WIDE, ("red", "green", "blue")
    )
    records = Records(members.X, members.y, declaration, (), Units("person", members.of))
    feature_map = Identity(lower=declaration.lower, upper=declaration.upper, clip_norm=1.0, bias=0.1)
    return train_head(records, Recipe("colours", feature_map, 0.01), "colours-lineage"), found


def test_a_certified_head_is_held_to_the_answers_about_all_rows_of_a_unit(by_person):
    head, candidates = by_person
    endpoint = BundleEndpoint(head, Gaussian(10.0), rehearsal_key(0))
    outcome = Attack([endpoint], candidates, SURE).run()
    assert (outcome.decided, outcome.releases, endpoint.paid - outcome.noise.rows) == ((60, 60), 3, 240)
    assert outcome.verdict.decision.rho == pytest.approx(3 * 0.005)
    assert outcome.verdict.total.rho == pytest.approx(240 * 0.005)
    assert not outcome.convicted
    assert not outcome.difference.distinguishable
    assert json.loads(reports.as_json(attack_report(outcome)))["model"]["unit"] == "person"


def test_a_certified_head_whose_noise_is_missing_is_convicted(by_person):
    class Exact(Gaussian):
        def release(self, logits, sensitivity, randomness):
            return softmax(logits)

    head, candidates = by_person
    outcome = Attack([BundleEndpoint(head, Exact(10.0), rehearsal_key(0))], candidates, QUICK).run()
    assert outcome.convicted


def test_fewer_rows_of_each_cost_less_and_are_held_to_less(by_person):
    head, candidates = by_person
    endpoint = BundleEndpoint(head, Gaussian(10.0), rehearsal_key(0))
    outcome = Attack([endpoint], candidates, replace(QUICK, rows_of_each=1)).run()
    assert (outcome.decided, outcome.releases, endpoint.paid - outcome.noise.rows) == ((60, 60), 1, 120)


def test_units_that_are_inside_and_outside_are_refused(by_person):
    head, candidates = by_person
    endpoint = BundleEndpoint(head, Gaussian(10.0), rehearsal_key(0))
    split_by_record = Candidates(candidates.members[::2], candidates.members[1::2] + candidates.others)
    with pytest.raises(ValueError, match="40 values of 'person' are among the members and the non-members"):
        Attack([endpoint], split_by_record, QUICK).run()
    bare = replace(candidates.members, units=None)
    with pytest.raises(ValueError, match="the members do not say whose each record is"):
        Attack([endpoint], replace(candidates, members=bare), QUICK).run()
    assert endpoint.paid == 0


def test_records_are_not_grouped_for_a_model_that_protects_single_ones(head, by_person):
    with pytest.raises(ValueError, match="protects single records, and the members are units"):
        Attack([BundleEndpoint(head, Gaussian(10.0), rehearsal_key(0))], by_person[1], QUICK).run()


def test_a_plan_has_whole_units_for_what_the_budget_pays_for():
    """The plan is the longest that 100 rows pay for, copies counted, and every unit (of 1 to 3 rows) is whole."""
    members, others = of_sizes(SIZES, 1), of_sizes(SIZES, 2, first=1000)
    plan = make_plan(members, others, [{"queries_left": 100}], copies=1, confidence=0.95, seed=3)
    for part, rows in ((members, plan.members), (others, plan.others)):
        units = part.units[rows]
        assert len(np.unique(units)) == 1 + np.count_nonzero(np.diff(units)) == plan.of_each
        assert np.isin(part.units, units).sum() == len(rows)
    assert 94 < plan.queries <= 100
    assert f"{plan.of_each} of 60 non-members, who have {plan.queries} rows" in plan.sentences()[0]
    whole = make_plan(members, others, [FREE], copies=1, confidence=0.95, seed=3)
    np.testing.assert_array_equal(whole.members[: len(plan.members)], plan.members)
    twice = make_plan(members, others, [{"queries_left": 200}], copies=2, confidence=0.95, seed=3)
    assert twice.of_each == plan.of_each


def test_rows_that_two_units_have_are_asked_about_neither():
    X = np.arange(6.0)[:, None][[0, 1, 1, 2, 0, 3, 4]]
    records = Labelled(X, np.zeros(7, dtype=np.int64), np.array([1, 1, 1, 1, 2, 2, 3]))
    assert repeated(records).tolist() == [True, False, True, False, True, False, False]


def test_units_whose_rows_resemble_each_other_are_no_difference_of_the_kinds():
    """Each unit's 20 rows lie close together, with one label: ten comparisons warn thrice with p < 1.2e-7."""
    warned = 0
    for seed in range(10):
        parts = []
        for kind in range(2):
            generator = np.random.default_rng([seed, kind])
            centres, labels = generator.random((60, FEATURES)), generator.integers(3, size=60)
            X = np.repeat(centres, 20, axis=0) + 0.01 * generator.random((1200, FEATURES))
            parts.append(Labelled(X, np.repeat(labels, 20), np.repeat(np.arange(60), 20)))
        warned += difference(*parts).distinguishable
    assert warned <= 2


def test_a_difference_of_units_is_found_by_their_numbers_of_rows():
    assert difference(of_sizes([2] * 100, 1), of_sizes([3] * 100, 2)).distinguishable


def test_a_units_score_is_the_mean_of_its_rows():
    generator = np.random.default_rng(0)
    answers, y = generator.dirichlet([1, 1, 1], 12), np.arange(12) % 3
    of, member = np.repeat(np.arange(4), 3), np.repeat([True, False, True, False], 3)
    shadow, seen = generator.dirichlet([1, 1, 1], (6, 12)), generator.random((6, 12)) < 0.5
    by_row = np.log(answers[np.arange(12), y])
    whole, rows = (
        {one.attack: one for one in scores_of(answers, y, member, shadow, seen, 0, of=whose, own_law=by_row)}
        for whose in (of, None)
    )
    assert [len(whole["own law"].members), len(whole["own law"].others)] == [2, 2]
    means = by_row.reshape(4, 3).mean(axis=1)
    np.testing.assert_allclose(sorted(whole["own law"].members), sorted(means[::2]))
    assert len(rows["own law"].members) == 6


@pytest.fixture(scope="module")
def pool():
    generator = np.random.default_rng(0)
    of = np.repeat(np.arange(30), [1, 2, 6] * 10)
    y = generator.integers(3, size=90)
    X = (0.15 * generator.random((90, 5)) + 0.2 * np.eye(3, 5)[y]).astype(np.float32)
    mixed = generator.permutation(90)
    return Pool(X[mixed], y[mixed], of[mixed])


def test_shadow_models_have_units_whole_or_not_at_all(pool):
    trained = train_shadow_models(pool, HeadRecipe(3, 1.0), Draws(4, 10, seed=3), device="cpu")
    for one in trained.members:
        assert len(np.unique(pool.of[one])) == 10
        assert np.isin(pool.of, pool.of[one]).sum() == one.sum()


def test_shadow_heads_weigh_a_units_records_as_the_target_does(pool):
    recipe = HeadRecipe(3, 0.1)
    trained = train_shadow_models(pool, recipe, Draws(3, 12, seed=4), device="cpu")
    for inside, logits in zip(trained.members, trained.logits, strict=True):
        weights = Units("person", np.unique(pool.of[inside], return_inverse=True)[1]).weights()
        objective = RegularisedCrossEntropy(
            of_rows(pool.X[inside].astype(np.float64), pool.y[inside], weights), 3, 5, 0.1
        )
        exact = minimise(objective, 1e-9)
        # A gradient of tau leaves tau / Lambda: 12 * 1e-4 / 0.1, for features of norm below 1.
        np.testing.assert_allclose(logits, pool.X @ exact.T, atol=0.013)


def test_heads_without_weights_are_those_of_weight_one(pool):
    rows = np.stack([np.arange(20), np.arange(20, 40)])
    ones = np.ones((2, 20), dtype=np.float32)
    recipe = HeadRecipe(3, 0.5)
    np.testing.assert_allclose(
        train_heads(pool.X, pool.y, rows, recipe, weights=ones), train_heads(pool.X, pool.y, rows, recipe), atol=1e-5
    )
