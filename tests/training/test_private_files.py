"""Files that their owner alone can read."""

import os
import resource
import signal
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest

from audit.pieces import ResultStore
from training.private_files import owners_alone, write_whole


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


@pytest.mark.usefixtures("no_umask")
def test_what_cannot_be_written_whole_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "there"
    write_whole(path, "before")
    assert (path.read_text(), mode(path)) == ("before", 0o600)
    with limited_to(100), pytest.raises(OSError, match="File too large"):
        write_whole(path, "x" * 10_000)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@contextmanager
def limited_to(octets):
    """No file of this process grows beyond that."""
    limits, former = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (octets, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)


def test_a_file_that_does_not_fit_is_named_and_leaves_nothing(tmp_path):
    """A limit on files' sizes refuses the write as a full disk does, with an error that names no file."""
    path = tmp_path / "secret"
    write_whole(path, b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, hard))
    try:
        with pytest.raises(OSError, match="secret") as refused:
            write_whole(path, b"x" * 2**20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
