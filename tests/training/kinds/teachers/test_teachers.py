"""Teachers: one record moves one of them, bit for bit, and their mean by at most what is certified.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mechanisms.gaussian import Gaussian
from tests.seeded import Seeded
from tests.training.conftest import identity, make_records
from training.errors import BundleError, DataError, TrainingError
from training.features.maps import Fourier
from training.kinds.loading import load_model
from training.kinds.teachers.bundle import GRID, Teachers, grid_answers, save_teachers
from training.kinds.teachers.certificate import TEMPERATURE, mean_sensitivity
from training.kinds.teachers.networks import Schedule
from training.kinds.teachers.train import TeachersRecipe, check_disjoint, parts_of, train_teachers

FALSE_ALARM = 1e-6
KEY = bytes(range(32))
QUICK = Schedule(steps=30, batch=8, learning_rate=0.05)


def recipe_for(records, **choices):
    return TeachersRecipe(
        "small", identity(records, bias=0.25), **({"teachers": 5, "hidden": (6,), "schedule": QUICK} | choices)
    )


def trained(records, key=KEY, **choices) -> Teachers:
    return train_teachers(records, recipe_for(records, **choices), "lineage", key)


def without(records, index):
    return replace(records, X=np.delete(records.X, index, 0), y=np.delete(records.y, index))


@pytest.mark.parametrize("hidden", [(), (6,), (5, 4)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_record_changes_its_own_teacher_and_no_other_in_any_bit(hidden, activation):
    records = make_records(n=40)
    schedule = replace(QUICK, activation=activation)
    whole = trained(records, hidden=hidden, schedule=schedule)
    parts = parts_of(records, KEY, 5)
    for index in (0, 17, 39):
        part = trained(without(records, index), hidden=hidden, schedule=schedule)
        own = next(teacher for teacher, rows in enumerate(parts) if index in rows)
        for (weights, biases), (others, other_biases) in zip(whole.layers, part.layers, strict=True):
            same = [teacher for teacher in range(5) if teacher != own]
            np.testing.assert_array_equal(weights[same], others[same])
            np.testing.assert_array_equal(biases[same], other_biases[same])
            assert not np.array_equal(weights[own], others[own])


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    teachers=st.integers(2, 6),
    rule=st.sampled_from(["votes", "probabilities"]),
    rate=st.sampled_from([0.01, 1.0]),
)
def test_no_neighbour_moves_the_mean_by_more_than_certified(seed, n, teachers, rule, rate):
    records = make_records(seed=seed, n=n)
    schedule = Schedule(steps=8, batch=4, learning_rate=rate)
    choices = {"teachers": teachers, "rule": rule, "schedule": schedule}
    generator = np.random.default_rng(seed)
    X = generator.uniform(-1, 2, (20, 4))
    whole = trained(records, **choices)
    part = trained(without(records, generator.integers(n)), **choices)
    moved = np.linalg.norm(whole.logits(whole.features(X)) - part.logits(part.features(X)), axis=1)
    assert np.all(moved <= whole.logit_sensitivity(whole.features(X)))


def test_the_sensitivity_is_reached_by_a_vote_that_changes_sides():
    """So that the test above could fail."""
    said = grid_answers(np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]]), "votes")
    apart = TEMPERATURE * np.linalg.norm(said[0] - said[1]) / GRID / 7
    assert 0.999999 * mean_sensitivity(7, 3) < apart <= mean_sensitivity(7, 3)


@given(
    said=st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=2),
    rule=st.sampled_from(["votes", "probabilities"]),
    broken=st.sampled_from([None, math.nan, math.inf, -1.0, 2.0]),
)
def test_whatever_a_network_says_is_within_the_simplex(said, rule, broken):
    values = np.array(said)
    if broken is not None:
        values[0, 1] = broken
    answers = grid_answers(values, rule)
    assert np.all(answers >= 0)
    assert np.all(answers.sum(axis=1) <= GRID)
    difference = (answers[0] - answers[1]).tolist()
    assert sum(step * step for step in difference) <= 2 * GRID**2


def test_a_part_depends_on_the_record_alone():
    records = make_records(n=300)
    parts = parts_of(records, KEY, 7)
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))
    of = {int(row): teacher for teacher, rows in enumerate(parts) for row in rows}
    order = np.random.default_rng(0).permutation(300)
    shuffled = replace(records, X=records.X[order], y=records.y[order])
    again = parts_of(shuffled, KEY, 7)
    for teacher, rows in enumerate(again):
        assert all(of[int(order[row])] == teacher for row in rows)
        np.testing.assert_array_equal(shuffled.X[rows], records.X[parts[teacher]])
    twice = replace(records, X=np.r_[records.X, records.X + 0.0], y=np.r_[records.y, records.y])
    doubled = parts_of(twice, KEY, 7)
    assert all(
        {int(row) % 300 for row in rows} == set(part.tolist()) for rows, part in zip(doubled, parts, strict=True)
    )
    other = parts_of(records, bytes(32), 7)
    assert any(not np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_signed_zeros_are_one_record():
    records = make_records(n=2)
    same = replace(records, X=np.array([[0.0] * 4, [-0.0] * 4]), y=np.zeros(2, np.int64))
    assert sorted(len(rows) for rows in parts_of(same, KEY, 50))[-1] == 2


def test_parts_are_about_equal():
    """Their sizes are multinomial; false alarm 1e-6."""
    sizes = np.array([len(rows) for rows in parts_of(make_records(n=4000), KEY, 20)])
    assert stats.chisquare(sizes).pvalue > FALSE_ALARM


def test_parts_that_overlap_are_refused():
    check_disjoint((np.array([0, 2]), np.array([1]), np.array([], dtype=np.int64)))
    with pytest.raises(DataError, match="record 2 is in the parts of the teachers 0 and 2"):
        check_disjoint((np.array([0, 2]), np.array([1]), np.array([2])))


def test_a_teacher_without_records_says_the_same_of_everything():
    records = make_records(n=2)
    model = trained(records, teachers=40)
    assert model.taught.sum() <= 2
    empty = int(np.flatnonzero(~model.taught)[0])
    said = model.answers(empty, model.features(np.random.default_rng(0).uniform(size=(5, 4))))
    assert np.all(said == GRID // 3)


def test_a_bundle_round_trips(tmp_path):
    records = make_records(n=60)
    feature_map = Fourier(
        lower=records.declaration.lower,
        upper=records.declaration.upper,
        clip_norm=1.0,
        bias=0.0,
        random_features=8,
        bandwidth=0.5,
        seed=0,
    )
    recipe = replace(recipe_for(records), feature_map=feature_map)
    model = train_teachers(records, recipe, "lineage", KEY)
    saved = save_teachers(tmp_path / "bundle", model)
    loaded = load_model(tmp_path / "bundle")
    assert isinstance(loaded, Teachers)
    assert loaded.certificate == saved
    X = np.random.default_rng(0).uniform(size=(9, 4))
    np.testing.assert_array_equal(loaded.logits(loaded.features(X)), model.logits(model.features(X)))
    assert {"lineage", "weights_sha256"}.isdisjoint(saved.public())


@pytest.mark.parametrize("change", [{"teachers": 50}, {"logit_sensitivity": 0.1}, {"temperature": 1.0}])
def test_a_certificate_that_claims_less_is_refused(change):
    certificate = trained(make_records(n=10)).certificate
    certificate.verify()
    with pytest.raises(BundleError, match="does not hold"):
        certificate.model_copy(update=change).verify()


def test_what_cannot_be_is_refused():
    with pytest.raises(TrainingError, match="these teachers are not possible"):
        trained(make_records(n=10), teachers=1)
    with pytest.raises(TrainingError, match="these teachers are not possible"):
        trained(make_records(n=10), rule="shouts")
    for wrong in ({"steps": 0}, {"learning_rate": 0.0}, {"activation": "sign"}):
        with pytest.raises(ValueError, match=r"must be|is tanh or relu"):
            Schedule(**wrong)


def test_they_learn_together():
    records = make_records(n=600, classes=2)
    records = replace(records, y=(records.X[:, 0] > records.X[:, 1]).astype(np.int64))
    model = trained(records, teachers=10, schedule=replace(QUICK, steps=200))
    X = np.random.default_rng(1).uniform(size=(300, 4))
    right = model.logits(model.features(X)).argmax(axis=1) == (X[:, 0] > X[:, 1])
    assert right.mean() > 0.85


def test_who_asks_learns_what_a_row_costs():
    """Two worlds whose one teacher changes sides, through the mechanism; false alarms 1e-6.

    A sensitivity certified a third as large (the planted fault) is convicted.
    """
    said = grid_answers(np.array([[0.9, 0.1], [0.1, 0.9]]), "votes") * (TEMPERATURE / GRID / 4)
    rows, claimed = 4000, 2.0
    mechanism = Gaussian(1 / claimed)

    def exceeds(sensitivity):
        hits, alarms = (
            int(
                (
                    ratio(mechanism.release(np.tile(said[which], (rows, 1)), np.full(rows, sensitivity), Seeded(which)))
                    > 0
                ).sum()
            )
            for which in (0, 1)
        )
        power = stats.binomtest(hits, rows).proportion_ci(1 - FALSE_ALARM).low
        level = stats.binomtest(alarms, rows).proportion_ci(1 - FALSE_ALARM).high
        return power > stats.norm.sf(stats.norm.isf(level) - claimed)

    assert not exceeds(mean_sensitivity(4, 2))
    assert exceeds(mean_sensitivity(4, 2) / 3)


def ratio(answers):
    with np.errstate(divide="ignore"):
        return np.log(answers[:, 0]) - np.log(answers[:, 1])
