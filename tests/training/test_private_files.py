"""Files that their owner alone can read."""

import os
import stat
from pathlib import Path

import pytest

from training.private_files import owners_alone
from training.reproduction.store import ResultStore


@pytest.fixture
def no_umask():
    former = os.umask(0)
    yield
    os.umask(former)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("no_umask")
def test_a_new_file_and_one_that_was_open_to_others_are_closed_to_them(tmp_path):
    there = tmp_path / "there"
    there.touch(mode=0o666)
    for path in (there, tmp_path / "new"):
        with open(path, "a", opener=owners_alone) as file:
            assert mode(path) == 0o600
            file.write("x")
    with open(os.devnull, "w", opener=owners_alone) as file:
        file.write("x")
    assert mode(Path(os.devnull)) == 0o666


@pytest.mark.usefixtures("no_umask")
def test_what_an_audit_keeps_to_go_on_is_its_owners_alone(tmp_path):
    ResultStore(tmp_path).result({"name": "scores"}, lambda: {"scores": [0.5]})
    (path,) = tmp_path.iterdir()
    assert mode(path) == 0o600
