"""Trainings keep what replay asks of them, with every kind, unit and option; planted faults are convicted."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dpserve.audit import replay as audited
from dpserve.audit.replay import Recording, audit_training, differences, replay, trained_by, units_to_try
from dpserve.training import holding_back
from dpserve.training.feature_choice import AutoFeatures, FourierFeatures, IdentityFeatures, QuantileFeatures
from dpserve.training.fit import Request
from dpserve.training.fitting import histograms
from dpserve.training.fitting.network import Network
from dpserve.training.inputs.records import Declaration, Records, Units
from dpserve.training.kinds import registry
from dpserve.training.kinds.class_sums import steps as class_sums
from dpserve.training.kinds.class_sums.kind import ClassSums
from dpserve.training.kinds.dpsgd import steps as dpsgd
from dpserve.training.kinds.dpsgd.kind import DPSGD
from dpserve.training.kinds.head.kind import Head
from dpserve.training.kinds.kind import Job
from dpserve.training.kinds.weights.kind import Weights

PRICE = 5 * 10**11
DECLARATION = Declaration(tuple("abcd"), (0.0,) * 4, (1.0,) * 4, ("x", "y", "z"))
KINDS = {
    "class-sums": ClassSums(),
    "class-sums, canaries": ClassSums(canaries=64),
    "dpsgd": DPSGD(steps=20),
    "dpsgd, canaries": DPSGD(steps=20, canaries=64),
    "dpsgd, hidden": DPSGD(steps=20, hidden="4"),
    "weights": Weights(),
    "weights, canaries": Weights(canaries=64),
}
FEATURES = (AutoFeatures(), IdentityFeatures(), FourierFeatures(seed=3), QuantileFeatures())


def records(count=90, people=0):
    """Records of three classes. people: their units; 0 for none."""
    generator = np.random.default_rng(count)
    X = generator.uniform(size=(count, 4))
    X[3], X[4] = 1.0, X[5]  # one at all bounds, and two alike
    y = np.minimum((X[:, 0] * 3).astype(np.int64), 2)
    units = None
    if people:
        _, of = np.unique(generator.integers(people, size=count), return_inverse=True)
        units = Units("person", of)
    return Records(X, y, DECLARATION, [row.tobytes() for row in X], units)


def one_alone():
    """Records of which one is alone in its class, and one class has none."""
    few = records(40)
    y = np.zeros_like(few.y)
    y[7] = 1
    return replace(few, y=y)


def asked(kind, **more):
    """A request for a training, as an owner of 90 records makes it."""
    bought = {} if type(kind) is Head else {"price": PRICE, "n": 90}
    return Request(name="audited", lineage="audited", kind=kind, **(bought | {"prediction_sets": "off"} | more))


ALL = list(product(KINDS, FEATURES, ("off", "all", "class"), (0, 30)))
CHOSEN = {number for number in range(len(ALL)) if number % 13 == (number // 24) % 5}
"""A tenth of all: each kind with each way of holding back, with and without units."""
CASES = [pytest.param(*case, marks=() if number in CHOSEN else pytest.mark.slow) for number, case in enumerate(ALL)]


@pytest.mark.parametrize(("name", "features", "sets", "people"), CASES)
def test_a_training_keeps_what_replay_asks(tmp_path, name, features, sets, people):
    train = trained_by(asked(KINDS[name], features=features, prediction_sets=sets), tmp_path)
    assert audit_training(train, records(people=people), trials=1).broken == ()


@pytest.mark.parametrize("name", KINDS)
def test_it_keeps_it_with_records_that_are_odd(tmp_path, name):
    train = trained_by(asked(KINDS[name]), tmp_path)
    assert replay(train, one_alone(), 7).broken == ()
    alike = replace(records(12), X=np.tile(records(12).X[:1], (12, 1)))
    assert replay(train, alike, 0).broken == ()


@pytest.mark.parametrize("people", [0, 30])
def test_a_heads_weights_move_by_no_more_than_its_certificate_says(tmp_path, people):
    train = trained_by(asked(Head()), tmp_path)
    assert audit_training(train, records(people=people), trials=2).broken == ()


@pytest.mark.parametrize("name", ["class-sums", "dpsgd", "dpsgd, hidden", "weights"])
@pytest.mark.parametrize("features", [AutoFeatures(), QuantileFeatures()])
@pytest.mark.parametrize("n", [pytest.param(90, marks=pytest.mark.slow), 2000])
def test_strangers_are_shown_what_was_declared_and_nothing_that_was_released(tmp_path, name, features, n):
    """So not the number of cuts either, in whatever follows from it: it tells about how many records there are."""
    train = trained_by(asked(KINDS[name], features=features, prediction_sets="all", price=3 * 10**12, n=n), tmp_path)
    few, many = (train(records(count), Recording(count)) for count in (60, 1000))
    assert [*differences(replace(few, holders={}), replace(many, holders={}))] == []
    assert [*differences(few, many)]


def test_the_records_that_move_most_are_left_out_first():
    assert units_to_try(records(), 3, 0)[0] == 3
    assert units_to_try(one_alone(), 3, 0)[2] == 7
    people = records(people=30)
    assert np.bincount(people.units.of).argmax() in units_to_try(people, 2, 0)
    assert sorted(units_to_try(people, 100, 0)) == [*range(int(people.units.of.max()) + 1)]


def _wrap(monkeypatch, owner, name, make):
    """Put `make` of what is there in its place."""
    monkeypatch.setattr(owner, name, make(getattr(owner, name)))


def _count_for_job(monkeypatch):
    declared = Job.terms.fget
    monkeypatch.setattr(Job, "terms", property(lambda job: replace(declared(job), n=len(job.records))))


def _sets_where_some_class_is_rare(monkeypatch):
    def make(original):
        def fit(records, request, *rest, **more):
            return original(
                records, request.replaced(prediction_sets="all" if len(records) % 2 else "off"), *rest, **more
            )

        return fit

    _wrap(monkeypatch, audited, "fit", make)


def _both_parts(monkeypatch):
    def hold_back(records, one_in, randomness):
        _, held = original(records, one_in, randomness)
        return records, held

    original = holding_back.hold_back
    monkeypatch.setattr(holding_back, "hold_back", hold_back)


def _name_of_a_sum(monkeypatch):
    def make(original):
        return lambda options, job, kind=None: original(options, replace(job, name=f"m{job.records.X.sum():.6f}"), kind)

    _wrap(monkeypatch, registry, "train_and_save", make)


def _exact_cuts(monkeypatch):
    class Exact:
        def release(self, values, randomness):
            del randomness
            return values

    monkeypatch.setattr(histograms, "vector_for", lambda *given: Exact())


def _clipped_too_late(monkeypatch):
    def make(original):
        return lambda network, parameters, inputs, labels, clip_norm, *more: original(
            network, parameters, inputs, labels, 4 * clip_norm, *more
        )

    _wrap(monkeypatch, Network, "clipped_sum", make)


def _rows_that_are_too_long(monkeypatch):
    _wrap(monkeypatch, class_sums, "sums_of", lambda original: lambda *given: 1.5 * original(*given))


def _one_more_centre(monkeypatch):
    def make(original):
        def run(step, state, release, randomness):
            if len(state.records) % 2:
                original(step, state, release, randomness)
            return original(step, state, release, randomness)

        return run

    _wrap(monkeypatch, class_sums.Centre, "run", make)


def _calibration_by_the_exact_count(monkeypatch):
    def make(original):
        def with_calibration(state, calibration):
            return original(state, replace(calibration, scale=calibration.scale * (1 + len(state.records) * 2.0**-40)))

        return with_calibration

    _wrap(monkeypatch, class_sums.Training, "with_calibration", make)


def _centre_by_the_exact_count(monkeypatch):
    def make(original):
        def run(step, state, release, randomness):
            after = original(step, state, release, randomness)
            return replace(after, model=replace(after.model, centre=after.model.centre / len(state.records)))

        return run

    _wrap(monkeypatch, dpsgd.Centre, "run", make)


def _units_ignored(monkeypatch):
    monkeypatch.setattr(Units, "weights", lambda units: np.ones(len(units.of)))


def _certified_to_move_less(monkeypatch):
    """Judged by what it says, as a certificate that was derived wrongly would be."""
    _wrap(
        monkeypatch,
        audited,
        "outcome",
        lambda original: lambda *given: replace(made := original(*given), sensitivity=(made.sensitivity or 0.0) / 50),
    )


FAULTS = {
    "units are ignored": (_units_ignored, "class-sums", {"people": 10}, {"movement"}),
    "a count is read off the records": (_count_for_job, "dpsgd", {}, {"strangers", "sequence"}),
    "a rule looks at the records": (_sets_where_some_class_is_rare, "class-sums", {"sets": "auto"}, {"sequence"}),
    "a record is in both parts": (_both_parts, "class-sums", {"sets": "all"}, {"parts"}),
    "a public field is computed from records": (_name_of_a_sum, "weights", {}, {"strangers"}),
    "cuts are at exact quantiles": (_exact_cuts, "weights", {"features": QuantileFeatures()}, {"strangers", "holders"}),
    "gradients are clipped too late": (_clipped_too_late, "dpsgd", {}, {"movement"}),
    "rows are longer than the sensitivity": (
        _rows_that_are_too_long,
        "class-sums",
        {"features": IdentityFeatures()},
        {"movement"},
    ),
    "there is a release more for some records": (_one_more_centre, "class-sums", {}, {"sequence"}),
    "calibration knows the exact count": (_calibration_by_the_exact_count, "class-sums", {}, {"holders"}),
    "a head is certified to move less": (_certified_to_move_less, "head", {}, {"movement"}),
    "the centre is divided by the exact count": (_centre_by_the_exact_count, "dpsgd", {}, {"holders"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_convicted(tmp_path, monkeypatch, fault):
    plant, name, given, convicted = FAULTS[fault]
    kind = (KINDS | {"head": Head()})[name]
    request = asked(kind, prediction_sets=given.get("sets", "off"), features=given.get("features", AutoFeatures()))
    whose = records(people=given.get("people", 0))
    train = trained_by(request, tmp_path)
    assert audit_training(train, whose, trials=2).broken == ()
    plant(monkeypatch)
    found = audit_training(train, whose, trials=3).broken
    assert {each.what for each in found} & convicted, found
