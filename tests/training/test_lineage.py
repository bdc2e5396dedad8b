from dataclasses import replace

import numpy as np
import pytest

from training.data.records import Units
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
    assert known.digests(picked).tobytes() == known.digests(records).tobytes()


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


def test_records_of_another_lineage_are_refused_by_its_name(known, records):
    known.remember("patients", known.digests(records))
    one = known.digests(replace(records, source=records.source[:1]))
    known.check("patients", one)
    with pytest.raises(TrainingError, match=r"1 are in the lineage 'patients'.*--lineage patients.*is-accepted"):
        known.check("others", one)


def test_one_record_more_or_fewer_stays_in_its_lineage(known, records):
    known.remember("patients", known.digests(records))
    fewer = known.digests(replace(records, source=records.source[1:]))
    more = known.digests(replace(records, source=(*records.source, b"another")))
    known.check("patients", fewer)
    known.check("patients", more)
    known.remember("patients", more)
    sizes = sorted(path.stat().st_size for path in (known._trained / "patients").iterdir())
    assert sizes == [16, 16 * len(set(records.source))]


def test_another_record_of_a_known_person_is_noticed(known, records):
    names = np.arange(3 * 16, dtype=np.uint8).reshape(3, 16)
    own = replace(records, units=Units("who", np.arange(len(records)) % 3, names))
    known.remember("patients", known.digests(own))
    other = replace(own, source=(b"another",), units=Units("who", np.zeros(len(records), dtype=np.int64), names[1:2]))
    assert known.among(known.digests(other)) == {"patients": 1}
    assert not known.among(known.digests(replace(other, units=None)))


def test_what_an_earlier_version_noted_still_counts(known, records):
    digests = known.digests(records)
    folder = known._trained / "patients"
    folder.mkdir(parents=True)
    (folder / ("0" * 32)).write_text("\n".join(digests.tobytes()[at : at + 16].hex() for at in range(0, 64, 16)))
    assert known.among(digests) == {"patients": 4}


def test_digests_that_end_in_zeros_are_not_confused(known, monkeypatch, records):
    monkeypatch.setattr("training.lineage.hmac.digest", lambda key, row, kind: row.ljust(32, b"\0"))
    one, other = (known.digests(replace(records, source=(row,))) for row in (b"a\0b", b"a"))
    known.remember("patients", one)
    assert not known.among(other)
    assert known.among(one) == {"patients": 1}


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
