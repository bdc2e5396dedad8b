"""Files of sorted digests, against sets and counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.training.errors import TrainingError
from dpserve.training.inputs import digest_files
from dpserve.training.inputs.digest_files import files_in, in_others, is_ended, keep, mapped, sorted_once

SMALL = st.lists(st.integers(0, 40), max_size=60)
DTYPES = pytest.mark.parametrize("dtype", [np.dtype(np.uint64), np.dtype("S16")], ids=str)


def to_digests(numbers, dtype):
    if dtype.kind == "u":
        return np.array(numbers, dtype=dtype)
    return np.array([b"%04d\0x" % number for number in numbers], dtype=dtype)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(digest_files, "AT_ONCE", 7)


@DTYPES
@given(mine=SMALL, others=SMALL)
@settings(max_examples=100, deadline=None)
def test_membership_and_order_are_those_of_sets(dtype, mine, others):
    left, right = to_digests(mine, dtype), np.sort(to_digests(others, dtype))
    assert in_others(left, right).tolist() == [each in others for each in mine]
    assert sorted_once(left).tolist() == to_digests(sorted(set(mine)), dtype).tolist()


@DTYPES
@given(tables=st.lists(SMALL, max_size=4))
@settings(max_examples=50, deadline=None)
def test_what_is_kept_is_each_tables_new_digests(tmp_path_factory, dtype, tables):
    folder, seen = tmp_path_factory.mktemp("kept"), set()
    for place, table in enumerate(tables):
        note = folder / f"{place}.records-note"
        note.write_bytes(np.sort(to_digests(table, dtype)).tobytes())
        keep(note, dtype)
        new = sorted(each for each in table if each not in seen)
        kept = folder / f"{place}.records"
        assert (mapped(kept, dtype).tolist() if kept.exists() else []) == to_digests(new, dtype).tolist()
        seen |= set(table)
    assert files_in(folder).keys() <= {".records"}


def test_a_part_of_a_digest_is_refused(tmp_path):
    path = tmp_path / "1.records"
    path.write_bytes(b"short")
    with pytest.raises(TrainingError, match="is damaged"):
        mapped(path, np.dtype("S16"))


def test_a_file_that_is_gone_is_not_taken_for_an_ended_trainings(tmp_path):
    assert not is_ended(tmp_path / "none")
