"""Trainings keep what replay asks of them, with every kind, unit, block and option; planted faults are convicted."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dpserve.audit.replay import (
    NeighbouringRecords,
    Outcome,
    audit_training,
    known_before,
    neighbours_to_try,
    replay,
    shown_unpaid,
    together,
    trained_by,
)
from dpserve.mechanisms.tapes import Law, release
from dpserve.training.errors import DataError, MissingExtra, TrainingError, WrongOption
from dpserve.training.feature_choice import QuantileFeatures
from dpserve.training.fit import Request
from dpserve.training.inputs.records import check_records
from dpserve.training.kinds.class_sums.kind import ClassSums
from dpserve.training.kinds.head.kind import Head
from dpserve.training.kinds.published.kind import Published
from dpserve.training.kinds.registry import trainable_kinds
from research.planted_faults import FAULTS, made_records
from tests.audit.combinations import covering, factors_of, is_possible, neighbours_of, records_of, requested
from tests.training.onnx_models import perceptron

ENCODER = Path("encoder.onnx")
KINDS = {name: kind for name, kind in trainable_kinds().items() if type(kind).__module__.startswith("dpserve.")}


def cases_of(kind, strength, seen=None):
    return covering(factors_of(kind, ENCODER), lambda case: is_possible(kind, case), strength, seen)


def few_cases():
    """Cases that hold every value of every option of every kind."""
    seen = set()
    return [(name, case) for name, kind in KINDS.items() for case in cases_of(kind, 1, seen)]


def found_by(kind, case, folder, monkeypatch):
    (folder / ENCODER).write_bytes(perceptron())
    monkeypatch.chdir(folder)
    records = records_of(case)
    train = trained_by(requested(kind, case), folder, known_before(records))
    return together([shown_unpaid(train, records), replay(train, neighbours_of(case))])


@pytest.mark.parametrize(("name", "case"), few_cases())
def test_a_training_keeps_what_replay_asks(tmp_path, monkeypatch, name, case):
    found = found_by(KINDS[name], case, tmp_path, monkeypatch)
    assert found.broken == ()
    assert found.refused == ()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("name", KINDS)
def test_it_keeps_it_with_every_two_values_together(tmp_path, monkeypatch, name, part):
    for number, case in enumerate(islice(cases_of(KINDS[name], 2), part, None, 8)):
        (folder := tmp_path / str(number)).mkdir()
        found = found_by(KINDS[name], case, folder, monkeypatch)
        assert (found.broken, found.refused) == ((), ()), case


@pytest.mark.parametrize("name", KINDS)
def test_few_cases_hold_every_option_of_a_kind(name):
    """So that a new option has a value that can be trained with."""
    options = KINDS[name].options.model_fields
    held = {(key, value) for kind, case in few_cases() if kind == name for key, value in case.items()}
    for option, values in factors_of(KINDS[name], ENCODER).items():
        if option.removeprefix(f"{name} ") in options:
            assert {(option, value) for value in values} <= held


def test_every_two_values_that_go_together_are_in_a_case():
    factors = {"a": (0, 1, 2), "b": (0, 1), "c": (0, 1, 2)}
    cases = list(covering(factors, lambda case: not (case.get("a") == 1 and case.get("c") == 2), 2))
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        held = {(case[one], case[other]) for case in cases}
        assert len(held) == len(factors[one]) * len(factors[other]) - ({one, other} == {"a", "c"})
    assert len(cases) < 11


def test_neighbours_are_those_that_differ_most():
    made = made_records()
    made = replace(made, y=np.where(np.arange(len(made)) == 7, 1, 0))
    pairs = neighbours_to_try(made, 10)
    removed = [pair for pair in pairs if pair.record.startswith("record")]
    assert [pair.record for pair in removed][:3:2] == ["record 4", "record 8"]
    rarest, twin, lowest, other, _ = [pair.make() for pair in pairs if pair not in removed]
    assert (rarest.X[-1].tolist(), rarest.y[-1]) == ([1.0] * 4, 2)
    assert lowest.X[-1].tolist() == [0.0] * 4
    for again in (twin, other):
        assert (again.X[-1] == again.X[3]).all()
        assert again.source[-1] == again.source[3]
    assert twin.y[-1] == twin.y[3] != other.y[-1]
    assert len({pair.record for pair in pairs}) == 10
    assert len(neighbours_to_try(made, 1000)) == len(made) + 5


@pytest.mark.parametrize("people", [0, 10])
def test_neighbours_differ_by_one_record_or_unit_with_what_belongs_to_it(people):
    made = made_records(people=people)
    blocks = replace(made.declaration, blocks=("one", "two"))
    of = made.units.of if people else np.arange(len(made))
    made = replace(made, declaration=blocks, block_places=np.where(of == 2, 1, 0), ids=np.array(made.source.octets))
    pairs = neighbours_to_try(made, 10)
    assert {"record 3", "unit 3"} & {pair.record for pair in pairs[:5]}  # alone in its block
    for pair in pairs:
        more, fewer = pair.both()
        for records in (more, fewer):
            assert len(records.source) == len(records) == len(records.block_places) == len(records.ids)
        of = more.units.of if people else np.arange(len(more))
        kept = of < of.max()
        assert (more.X[kept] == fewer.X).all()
        assert [*fewer.source] == [each for each, is_kept in zip(more.source, kept, strict=True) if is_kept]
        assert len(np.unique(more.block_places[~kept])) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.5])
def test_a_value_is_refused_in_the_same_words_whatever_else_is_there(value):
    """So that what the owner hears of one record, or who sees that training failed, tells of no other."""
    said = set()
    for seed in range(3):
        X = np.random.default_rng(seed).uniform(size=(10 + seed, 4))
        X[5, 2] = value
        with pytest.raises(DataError) as refused:
            check_records(X, ["x"] * len(X), made_records().declaration, source=())
        said.add(str(refused.value))
    assert len(said) == 1


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.broken])
def test_a_planted_fault_is_convicted(tmp_path, name):
    fault = FAULTS[name]
    made = made_records(fault.records, fault.people)
    with fault.planted():
        found = audit_training(trained_by(fault.request(), tmp_path, known_before(made)), made, trials=1)
    assert {each.what for each in found.broken} & fault.broken, found


def test_the_claims_of_the_published_method_are_refuted_by_two_real_neighbours(tmp_path):
    """A weight moves further than Eq. 18 says; each claim, and so the noise, tells how many records there are."""
    made, request = made_records(3000), Request(name="p", lineage="p", kind=Published(epochs=1, hidden=(256,)))
    found = replay(trained_by(request, tmp_path, known_before(made)), neighbours_to_try(made, 1)[0])
    claims = ("all weights (Theorem 4)", "a weight (Eq. 18)", "a logit (Corollary 1)")
    assert {each.where for each in found.broken} >= {claims[1], *(f"the bound of {claim}" for claim in claims)}
    moved, most = found.moved[claims[1]]
    assert moved > 1.5 * most


def test_a_training_that_is_refused_is_said_and_not_compared(tmp_path):
    request = Request(name="h", lineage="h", kind=Head(objective="convexified", alpha=0.01, least_records=90))
    train = trained_by(request, tmp_path, known_before(made_records()))
    found = replay(train, NeighbouringRecords("record 90", made_records))
    assert [said.startswith("with or without record 90: there are fewer") for said in found.refused] == [True]


@pytest.mark.parametrize("error", [WrongOption("steps", "is wrong"), MissingExtra("not there")])
def test_what_no_record_decides_is_raised(error):
    def train(records, tape):
        raise error

    with pytest.raises(type(error)):
        audit_training(train, made_records(), trials=1)


def _trains_on(movements):
    """A training that releases one number for each, moved so far where there are records but the last."""

    def train(records, tape):
        for moved in movements:
            if moved is None:
                if len(records) % 2:
                    raise TrainingError("refused")
                continue
            values = np.zeros(1) if len(records) % 2 == 0 else np.array([moved])
            release(Law("made", 1.0, (), whole=True), values, tape, lambda _: np.zeros(1))
        return Outcome({}, {})

    return train


@pytest.mark.parametrize("movements", [(np.nan,), (1.5,), (1.5, None), (np.nan, 0.5)])
def test_a_movement_that_is_too_large_or_no_number_is_convicted(movements):
    """So it is where training refuses the neighbour afterwards."""
    pair = NeighbouringRecords("record 90", made_records)
    assert {each.what for each in replay(_trains_on(movements), pair).broken} == {"movement"}


def test_a_movement_is_named_by_the_release_of_the_certificate(tmp_path):
    request = Request(name="m", lineage="m", kind=ClassSums(), price=10**12, n=90, features=QuantileFeatures())
    pair = neighbours_to_try(made_records(), 1)[0]
    moved = replay(trained_by(request, tmp_path, known_before(made_records())), pair).moved
    assert {name.split(":")[0] for name in moved} >= {"quantiles", "centre", "sums", "calibration"}
