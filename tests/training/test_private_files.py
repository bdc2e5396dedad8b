"""Files that their owner alone can read."""

import os
import stat
from pathlib import Path

import pytest

from audit.pieces import ResultStore
from tests.full_disk import limited_to
from training.private_files import owners_alone, write_shown, write_whole


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


def test_a_file_that_does_not_fit_is_named_and_leaves_nothing(tmp_path):
    path = tmp_path / "secret"
    write_whole(path, b"before")
    with limited_to(2**12), pytest.raises(OSError, match="secret") as refused:
        write_whole(path, b"x" * 2**20)
    assert refused.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_has_no_place_is_named_and_its_draft_is_not(tmp_path):
    (tmp_path / "a folder").mkdir()
    for path in (tmp_path / "missing" / "secret", tmp_path / "a folder"):
        for write in (write_whole, write_shown):
            with pytest.raises(OSError, match=path.name) as refused:
                write(path, b"content")
            assert (refused.value.filename, refused.value.filename2) == (str(path), None)
    assert [each.name for each in tmp_path.iterdir()] == ["a folder"]


def test_a_file_that_is_shown_is_whole_and_goes_where_its_name_leads(tmp_path, no_umask):
    kept, link = tmp_path / "kept", tmp_path / "link"
    kept.write_text("before")
    link.symlink_to(kept)
    write_shown(link, "after")
    assert (link.is_symlink(), kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == (True, "after", 0o666)
    with limited_to(100), pytest.raises(OSError, match="kept") as refused:
        write_shown(link, "x" * 10_000)
    assert (refused.value.filename, kept.read_text()) == (str(kept), "after")
    assert sorted(tmp_path.iterdir()) == [kept, link]


def test_what_is_shown_in_a_pipe_is_written_to_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_shown(pipe, "said")
        assert os.read(reading, 100) == b"said"
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
