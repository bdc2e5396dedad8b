"""Files that are there whole or not at all, and that their owner alone can read."""

import ast
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpserve.accounting.whole_files import owners_alone, write_new_folder, write_shown, write_whole
from dpserve.audit.pieces import ResultStore
from dpserve.training.inputs.lineage import owner_key
from tests.full_disk import limited_to

ROOT = Path(__file__).parents[2]


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


def test_a_new_file_does_not_replace_one_that_is_there(tmp_path):
    path = tmp_path / "key"
    write_whole(path, "first", is_new=True)
    with pytest.raises(FileExistsError) as refused:
        write_whole(path, "second", is_new=True)
    assert (refused.value.filename, path.read_text()) == (str(path), "first")
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_written_is_on_the_disk_and_then_its_name(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def noted(file):
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    for is_new in (True, False):
        write_whole(tmp_path / "file", "content", is_new=is_new)
        draft, folder = synced
        assert (draft.startswith(f"{tmp_path}/.file."), folder) == (True, str(tmp_path))
        synced.clear()
    write_new_folder(tmp_path / "folder", {"one": b"content"})
    (one, draft, folder) = synced
    assert (one, draft.startswith(f"{tmp_path}/.folder."), folder) == (f"{draft}/one", True, str(tmp_path))
    assert mode(tmp_path / "folder") == 0o700
    assert mode(tmp_path / "folder" / "one") == 0o600


KILLED = """
import os, signal, sys
from pathlib import Path
from dpserve.accounting import whole_files
from dpserve.training.inputs.lineage import owner_key

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def opened(path, flags, open_it=whole_files.owners_alone):
    open_it(path, flags)
    killed()

if sys.argv[2] == "before the write":
    whole_files.drafted.__wrapped__.__defaults__ = (opened,)
else:
    os.fsync = killed
owner_key(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("when", ["before the write", "before the sync"])
def test_a_process_that_is_killed_while_it_makes_a_key_leaves_no_short_one(tmp_path, when):
    path = tmp_path / "state" / "lineage.key"
    done = subprocess.run([sys.executable, "-c", KILLED, path, when], cwd=ROOT, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    assert len(list(path.parent.iterdir())) == 1  # the draft
    key = owner_key(path)
    assert len(key) == 32
    assert owner_key(path) == path.read_bytes() == key
    assert mode(path) == 0o600


@pytest.mark.parametrize("round_", range(2))
def test_of_several_that_make_a_key_at_once_all_get_the_same(tmp_path, round_):
    """Threads, which share the number of their process as two containers may."""
    path, starting = tmp_path / f"{round_}.key", threading.Barrier(8)

    def made(_):
        starting.wait()
        return owner_key(path)

    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(made, range(8)))
    assert keys == {path.read_bytes()}


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path, monkeypatch):
    """A bundle is written after the charge: nothing that lies there by any process's number may refuse it."""
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_new_folder(tmp_path / "bundle", {"weights": b"1"})
    monkeypatch.undo()
    write_new_folder(tmp_path / "bundle", {"weights": b"2"})
    assert (tmp_path / "bundle" / "weights").read_bytes() == b"2"


def test_a_file_system_without_links_or_syncs_of_folders_loses_nothing(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, "no hard links")

    def unsynced(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "no syncs of folders")

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(os, "fsync", unsynced)
    write_whole(tmp_path / "file", "content", is_new=True)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", "other", is_new=True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["content"]


ROTATION = ("accounting/ledger/journal.py", "_begin_file")
"""A journal's file is written on for days, and takes another name when it is full: no file that is written whole."""


def test_every_file_that_is_whole_or_not_at_all_is_written_here():
    found = set()
    for package in ("accounting", "mechanisms", "training", "service", "audit", "dpserve"):
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    found |= {(name, function.name) for node in ast.walk(function) if moves_a_file(node)}
    assert {(name, function) for name, function in found if name != "accounting/whole_files.py"} == {ROTATION}


def moves_a_file(node):
    """Whether a call gives a file a name: `os.link` and the like, and `replace` and `rename` of a path."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
        return False
    if node.func.attr in ("link", "hardlink_to", "renames", "NamedTemporaryFile"):
        return True
    if node.func.attr not in ("rename", "replace", "move"):
        return False
    receiver = ast.unparse(node.func.value)
    if receiver in ("self", "models"):  # `Models.replace`
        return False
    return len(node.args) == (2 if receiver in ("os", "shutil") else 1)
