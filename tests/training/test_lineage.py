from dataclasses import replace

import numpy as np
import pytest

from training.errors import TrainingError
from training.lineage import check_lineage_name, lineage_of, owner_key


def test_the_same_source_has_one_lineage_in_any_order(records):
    order = np.random.default_rng(1).permutation(len(records))
    shuffled = replace(records, source=tuple(records.source[index] for index in order))
    assert lineage_of(shuffled, b"k" * 32) == lineage_of(records, b"k" * 32)


def test_what_is_picked_from_the_source_does_not_matter(records):
    picked = replace(records, X=records.X[:9, :2], y=records.y[:9])
    assert lineage_of(picked, b"k" * 32) == lineage_of(records, b"k" * 32)


def test_other_sources_and_other_keys_do(records):
    fewer = replace(records, source=records.source[1:])
    twice = replace(records, source=(*records.source, records.source[0]))
    names = {lineage_of(each, b"k" * 32) for each in (records, fewer, twice)}
    assert len(names | {lineage_of(records, b"j" * 32)}) == 4


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
    for name in ("", "{tag}", "a b", "-a", "a" * 65):
        with pytest.raises(TrainingError, match="a lineage is named"):
            check_lineage_name(name)
