import multiprocessing
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.training.errors import TrainingError
from dpserve.training.inputs.digest_files import in_others, sorted_once
from dpserve.training.inputs.lineage import (
    Overlap,
    RecordRegistry,
    advice,
    check_lineage_name,
    owner_key,
)
from dpserve.training.inputs.parsing import name_digests
from dpserve.training.inputs.records import Declaration, Records, Units
from tests.training.conftest import make_records, options_in


@pytest.fixture
def known(tmp_path):
    return RecordRegistry(tmp_path / "state")


def noted(known, lineage, records):
    """Note them, as a training does that ends well, and return where else they are."""
    with known.noted(lineage, known.digests(records)) as elsewhere:
        return elsewhere


def among(known, records):
    """Return the numbers of records and units that each lineage has."""
    return dict(known.among(known.digests(records)))


def test_a_set_with_one_record_less_is_recognised_in_any_order(known, records):
    noted(known, "patients", records)
    order = np.random.default_rng(1).permutation(len(records.source))[1:]
    neighbour = replace(records, source=tuple(records.source[index] for index in order))

    assert among(known, neighbour) == {"patients": (len(set(neighbour.source)), 0)}


def test_what_is_picked_from_the_source_does_not_matter(known, records):
    picked = replace(records, X=records.X[:9], y=records.y[:9])
    assert known.digests(picked).records.tobytes() == known.digests(records).records.tobytes()


def test_another_owner_recognises_nothing_and_what_is_kept_is_private(known, records, tmp_path):
    noted(known, "patients", records)
    other = RecordRegistry(tmp_path / "other")

    assert not known.among(other.digests(records))
    kept = list((tmp_path / "state" / "trained" / "patients").iterdir())
    assert len(kept) == 1
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*kept, kept[0].parent))


def test_one_record_more_or_fewer_stays_in_its_lineage(known, records):
    noted(known, "patients", records)
    assert noted(known, "patients", replace(records, source=records.source[1:])) == {}
    assert noted(known, "patients", replace(records, source=(*records.source, b"another"))) == {}
    sizes = sorted(path.stat().st_size for path in (known.folder / "patients").glob("*.records"))
    assert sizes == [16, 16 * len(set(records.source))]


def test_of_two_trainings_at_once_one_sees_the_other(known, records):
    """Both check before either ends: the second must not find the first's lineage empty."""
    digests = known.digests(records)
    with known.noted("first", digests) as by_first, known.noted("second", digests) as by_second:
        assert (dict(by_first), by_second.keys()) == ({}, {"first"})
        assert by_second["first"] == (len(digests.records), 0)
    assert known.among(digests).keys() == {"first", "second"}
    assert not list(known.folder.rglob("*note"))


def test_a_training_that_fails_leaves_no_note(known, records):
    with pytest.raises(RuntimeError), known.noted("patients", known.digests(records)):
        raise RuntimeError
    assert among(known, records) == {}
    assert not known.folder.exists()


def test_a_training_that_was_killed_leaves_its_note(known, records):
    training = known.noted("patients", known.digests(records))
    training.__enter__()
    assert RecordRegistry(known.folder.parent).among(known.digests(records)).keys() == {"patients"}
    training.__exit__(None, None, None)


def of_persons(records, column, names, *, of=None):
    octets = name_digests(names)
    return replace(records, units=Units(column, np.arange(len(records)) % len(names) if of is None else of, octets))


def test_digests_that_end_in_zeros_are_not_confused():
    mine, others = (np.array(each, dtype="S16") for each in ([b"a\0b", b"a"], [b"a"]))
    assert in_others(mine, others).tolist() == [False, True]
    assert sorted_once(np.concatenate([mine, others])).tolist() == [b"a", b"a\0b"]


def test_the_owners_key_is_made_once_and_kept_private(tmp_path):
    path = tmp_path / "state" / "lineage.key"
    key = owner_key(path)
    assert len(key) == 32
    assert owner_key(path) == key
    assert path.stat().st_mode & 0o077 == 0


def test_a_damaged_key_is_refused(tmp_path):
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(TrainingError, match="32 secret bytes"):
        owner_key(tmp_path / "key")


def test_names():
    assert check_lineage_name("patients-2026") == "patients-2026"
    for name in ("", "{tag}", "a b", "-a", "a" * 65, "..", ".a", "a/b"):
        with pytest.raises(TrainingError, match="a lineage is named"):
            check_lineage_name(name)


def test_what_was_noted_inside_a_training_that_fails_stays(known, records):
    def training():
        with known.noted("patients", known.digests(records)):
            noted(known, "patients", records)
            raise TrainingError

    with pytest.raises(TrainingError):
        training()
    assert list(among(known, records)) == ["patients"]


def noted_as(known, lineage, records):
    with known.noted(lineage, known.digests(records), records.unit):
        pass


@pytest.mark.parametrize("first", ["who", "age", None])
def test_a_lineage_keeps_the_privacy_unit_of_its_first_model(known, records, first):
    one, *others = (
        records if column is None else of_persons(records, column, ["ann", "bo"])
        for column in (first, *({"who", "age", None} - {first}))
    )
    noted_as(known, "patients", one)
    for other in others:
        with pytest.raises(TrainingError, match="patients"):
            noted_as(known, "patients", replace(other, source=(b"another",)))
    noted_as(known, "patients", replace(one, source=(b"another",)))
    noted_as(known, "others", others[0])


def test_of_two_trainings_of_different_units_at_once_the_second_is_refused(known, records):
    by_person = of_persons(records, "who", ["ann", "bo"])
    for one, other in ((by_person, records), (records, by_person)):
        with known.noted("patients", known.digests(one), one.unit), pytest.raises(TrainingError):
            noted_as(known, "patients", other)
        with pytest.raises(TrainingError):
            noted_as(known, "patients", other)
        for path in (known.folder / "patients").iterdir():
            path.unlink()


def test_a_training_that_fails_settles_no_privacy_unit(known, records):
    by_person = of_persons(records, "who", ["ann", "bo"])
    with pytest.raises(RuntimeError), known.noted("patients", known.digests(by_person), by_person.unit):
        raise RuntimeError
    assert not known.folder.exists()
    noted_as(known, "patients", records)


def test_a_training_that_was_killed_says_how_to_free_its_lineage(known, records):
    by_person = of_persons(records, "who", ["ann", "bo"])

    def die():
        with known.noted("patients", known.digests(by_person), by_person.unit):
            os._exit(9)

    killed = multiprocessing.get_context("fork").Process(target=die)
    killed.start()
    killed.join()
    assert killed.exitcode == 9
    with pytest.raises(TrainingError) as refused:
        noted_as(known, "patients", records)
    assert str(known.folder / "patients") in str(refused.value)
    shutil.rmtree(known.folder / "patients")
    noted_as(known, "patients", records)
    with pytest.raises(TrainingError) as refused:
        noted_as(known, "patients", by_person)
    assert str(known.folder) not in str(refused.value)


def test_a_training_that_was_killed_is_told_from_one_that_goes_on(known, records):
    """Its note counts, and becomes the lineage's own when another training of the lineage succeeds."""
    first, second, third = (
        replace(records, source=records.source[part]) for part in (slice(9), slice(5, 20), slice(2))
    )
    assert known.ended("patients") == []

    def die():
        with known.noted("patients", known.digests(first)):
            os._exit(9)

    killed = multiprocessing.get_context("fork").Process(target=die)
    killed.start()
    killed.join()
    with known.noted("patients", known.digests(second)):
        (token,) = known.ended("patients")
        assert known.among(known.digests(first))["patients"].records == len(set(first.source))
        assert known.among(known.digests(third), "patients") == {}
        assert list((known.folder / "patients").glob(f"{token}*-note"))
        assert str(known.folder / "patients" / token) in known.how_to_forget(["others", "patients"])
    assert known.ended("patients") == []
    assert known.how_to_forget(["patients"]) == ""
    assert not list(known.folder.rglob("*note"))
    assert among(known, records) == {"patients": (len(set(records.source[:20])), 0)}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sets(st.integers(0, 30), min_size=1), st.sets(st.integers(0, 8))),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=25, deadline=None)
def test_overlaps_are_those_of_sets(trainings):
    """Counts rows and units against sets of what each lineage was trained on."""
    kept: dict[str, tuple[set[int], set[int]]] = {}
    with TemporaryDirectory() as folder:
        known = RecordRegistry(Path(folder))
        for lineage, rows, names in trainings:
            made = small_table(sorted(rows), sorted(names))
            elsewhere = known.among(known.digests(made))
            for other, (own_rows, own_names) in kept.items():
                found = elsewhere.get(other, Overlap())
                assert found == (len(rows & own_rows), len(names & own_names))
            if lineage in kept and bool(kept[lineage][1]) != bool(names):
                continue  # a lineage has one unit
            noted_as(known, lineage, made)
            for own, new in zip(kept.setdefault(lineage, (set(), set())), (rows, names), strict=True):
                own |= new


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sets(st.integers(0, 11), min_size=1)), min_size=1, max_size=5),
    st.sets(st.integers(0, 11), min_size=1),
    st.sampled_from("abcd"),
)
@settings(max_examples=25, deadline=None)
def test_a_name_that_is_advised_is_not_refused_in_its_turn(trainings, rows, asked):
    with TemporaryDirectory() as folder:
        known = RecordRegistry(Path(folder))
        for lineage, others in trainings:
            noted_as(known, lineage, small_table(sorted(others), []))
        digests = known.digests(small_table(sorted(rows), []))
        advised = ""
        with suppress(TrainingError), known.noted(asked, digests) as elsewhere:
            if elsewhere:
                advised = advice(asked, elsewhere, here=known.has_any(digests, asked))
            raise TrainingError("refused, which takes the note back")
        for option, form in options_in(advised):
            if option == "lineage":
                assert known.among(digests, form) == {}


def test_a_lineage_that_is_forgotten_keeps_no_record_from_others(known, records):
    noted_as(known, "peolpe", records)
    noted_as(known, "others", replace(records, source=records.source[:3]))
    with known.noted("peolpe", known.digests(records)), pytest.raises(TrainingError):
        known.forget("peolpe")
    assert known.is_noted("peolpe")
    for _ in range(2):
        known.forget("peolpe")
        assert not known.is_noted("peolpe")
        assert among(known, records).keys() == {"others"}


def small_table(rows, names):
    """Records of two columns, whose rows number as `rows` say, with units if there are names."""
    X = np.array([[row % 4, row % 3] for row in rows], dtype=np.float64)
    declared = Declaration(("a", "b"), (0.0, 0.0), (4.0, 3.0), ("x", "y"))
    units = Units("who", np.arange(len(rows)) % len(names), name_digests(map(str, names))) if names else None
    return Records(X, np.zeros(len(rows), dtype=np.int64), declared, tuple(b"%d" % row for row in rows), units)


def test_a_unit_and_an_id_of_one_name_are_one_person(known, records):
    noted(known, "patients", of_persons(records, "who", ["ann", "bo"]))
    other = replace(make_records(seed=5, n=2), source=(b"a", b"b"), ids=name_digests(["bo", "cy"]))
    assert among(known, other) == {"patients": (0, 1)}


@pytest.mark.parametrize("name", ["0.records", ".lineage.unit"])
def test_records_stay_noted_where_their_digests_cannot_be_kept(known, records, name):
    """A training has written its bundle by then. A folder in a file's place fails as a full disk does."""
    by_person = of_persons(records, "who", ["ann", "bo"]) if name == ".lineage.unit" else records
    digests, folder = known.digests(by_person), known.folder / "patients"

    def training():
        with known.noted("patients", digests, by_person.unit):
            (folder / name).mkdir()

    with pytest.raises(IsADirectoryError):
        training()
    (folder / name).rmdir()
    (found,) = known.among(digests).values()
    assert found == (len(digests.records), len(digests.units))
    noted_as(known, "patients", by_person)
