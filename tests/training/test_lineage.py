from dataclasses import replace

import numpy as np
import pytest

from training.errors import TrainingError
from training.lineage import KnownRecords, check_lineage_name, owner_key


@pytest.fixture
def known(tmp_path):
    return KnownRecords(tmp_path / "state")


def test_a_set_with_one_record_less_is_recognised_in_any_order(known, records):
    known.remember("patients", known.digests(records))
    order = np.random.default_rng(1).permutation(len(records.source))[1:]
    neighbour = replace(records, source=tuple(records.source[index] for index in order))

    assert known.among(known.digests(neighbour)) == {"patients": len(set(neighbour.source))}


def test_what_is_picked_from_the_source_does_not_matter(known, records):
    picked = replace(records, X=records.X[:9, :2], y=records.y[:9])
    assert known.digests(picked) == known.digests(records)


def test_records_are_counted_in_each_lineage_once(known, records):
    rows = list(dict.fromkeys(records.source))
    parts = [replace(records, source=tuple(part)) for part in (rows[:10], rows[5:12], rows[20:])]
    known.remember("first", known.digests(parts[0]))
    known.remember("first", known.digests(parts[1]))
    known.remember("second", known.digests(parts[1]))

    assert known.among(known.digests(parts[0])) == {"first": 10, "second": 5}
    assert known.among(known.digests(parts[2])) == {}


def test_another_owner_recognises_nothing_and_what_is_kept_is_private(known, records, tmp_path):
    known.remember("patients", known.digests(records))
    other = KnownRecords(tmp_path / "other")

    assert not known.among(other.digests(records))
    (kept,) = (tmp_path / "state" / "trained" / "patients").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert kept.parent.stat().st_mode & 0o077 == 0


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
