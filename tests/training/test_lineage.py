from dataclasses import replace

import numpy as np
import pytest

from training.data.parsing import name_digests
from training.data.records import Units
from training.errors import TrainingError
from training.lineage import KnownRecords, check_lineage_name, overlap, owner_key


@pytest.fixture
def known(tmp_path):
    return KnownRecords(tmp_path / "state")


def noted(known, lineage, records):
    """Note them, as a training does that ends well, and return where else they are."""
    with known.noted(lineage, known.digests(records)) as elsewhere:
        return elsewhere


def among(known, records):
    return known.among(known.digests(records))


def test_a_set_with_one_record_less_is_recognised_in_any_order(known, records):
    noted(known, "patients", records)
    order = np.random.default_rng(1).permutation(len(records.source))[1:]
    neighbour = replace(records, source=tuple(records.source[index] for index in order))

    assert among(known, neighbour) == {"patients": (len(set(neighbour.source)), 0)}


def test_what_is_picked_from_the_source_does_not_matter(known, records):
    picked = replace(records, X=records.X[:9, :2], y=records.y[:9])
    assert known.digests(picked).records.tobytes() == known.digests(records).records.tobytes()


def test_records_are_counted_in_each_lineage_once(known, records):
    rows = list(dict.fromkeys(records.source))
    parts = [replace(records, source=tuple(part)) for part in (rows[:10], rows[5:12], rows[20:])]
    noted(known, "first", parts[0])
    noted(known, "first", parts[1])
    noted(known, "second", parts[1])

    assert among(known, parts[0]) == {"first": (10, 0), "second": (5, 0)}
    assert among(known, parts[2]) == {}


def test_another_owner_recognises_nothing_and_what_is_kept_is_private(known, records, tmp_path):
    noted(known, "patients", records)
    other = KnownRecords(tmp_path / "other")

    assert not known.among(other.digests(records))
    (kept,) = (tmp_path / "state" / "trained" / "patients").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert kept.parent.stat().st_mode & 0o077 == 0


def test_one_record_more_or_fewer_stays_in_its_lineage(known, records):
    noted(known, "patients", records)
    assert noted(known, "patients", replace(records, source=records.source[1:])) == {}
    assert noted(known, "patients", replace(records, source=(*records.source, b"another"))) == {}
    sizes = sorted(path.stat().st_size for path in (known.folder / "patients").iterdir())
    assert sizes == [16, 16 * len(set(records.source))]


def test_of_two_trainings_at_once_one_sees_the_other(known, records):
    """Both check before either ends: the second must not find the first's lineage empty."""
    digests = known.digests(records)
    with known.noted("first", digests) as by_first, known.noted("second", digests) as by_second:
        assert (dict(by_first), dict(by_second)) == ({}, {"first": (len(digests.records), 0)})
    assert known.among(digests).keys() == {"first", "second"}
    assert not list(known.folder.rglob("*.note"))


def test_a_training_that_fails_leaves_no_note(known, records):
    with pytest.raises(RuntimeError), known.noted("patients", known.digests(records)):
        raise RuntimeError
    assert among(known, records) == {}
    assert not known.folder.exists()


def test_a_training_that_was_killed_leaves_its_note(known, records):
    training = known.noted("patients", known.digests(records))
    training.__enter__()
    assert KnownRecords(known.folder.parent).among(known.digests(records)).keys() == {"patients"}
    training.__exit__(None, None, None)


def of_persons(records, column, names, *, of=None):
    octets = name_digests(names)
    return replace(records, units=Units(column, np.arange(len(records)) % len(names) if of is None else of, octets))


def test_another_record_of_a_known_person_is_noticed_whatever_the_column_is_called(known, records):
    noted(known, "patients", of_persons(records, "who", ["ann", "bo", "cy"]))
    other = of_persons(replace(records, source=(b"another",)), "person", ["bo"])
    assert among(known, other) == {"patients": (0, 1)}
    assert among(known, replace(other, units=None)) == {}


def test_an_overlap_counts_records_and_units_apart(known, records):
    one, other = (of_persons(records, "who", names) for names in (["ann", "bo"], ["bo", "cy", "di"]))
    noted(known, "patients", replace(one, source=records.source[:7]))
    digests = known.digests(other)
    said = overlap("others", digests, known.among(digests))
    count = len(digests.records)
    assert f"Of the {count} records and 3 units of the lineage 'others', 7 records and 1 unit are in" in said
    assert "Units are known by their names" in said
    alone = known.digests(records)
    said = overlap("others", alone, known.among(alone))
    assert f"Of the {count} records of the lineage 'others', 7 records are in the lineage 'patients' as well" in said


def test_what_an_earlier_version_noted_still_counts(known, records):
    digests = known.digests(records)
    folder = known.folder / "patients"
    folder.mkdir(parents=True)
    content = digests.records.tobytes()
    (folder / ("0" * 32)).write_text("\n".join(content[at : at + 16].hex() for at in range(0, 64, 16)))
    assert known.among(digests) == {"patients": (4, 0)}


def test_digests_that_end_in_zeros_are_not_confused(known, monkeypatch, records):
    monkeypatch.setattr("training.lineage.hmac.digest", lambda key, row, kind: row.ljust(32, b"\0"))
    one, other = (replace(records, source=(row,)) for row in (b"a\0b", b"a"))
    noted(known, "patients", one)
    assert not among(known, other)
    assert among(known, one) == {"patients": (1, 0)}


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
