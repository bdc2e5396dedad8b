"""A journal that forgets its older half loses nothing else, whatever fails on the way and wherever it is cut short."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from accounting.ledger import Ledger, LedgerUnavailable
from accounting.ledger.journal import Journal, read_journals

from .conftest import asking, open_accounts, releases

pytestmark = pytest.mark.anyio

_FULL = OSError(errno.ENOSPC, "No space left on device")


def _failing_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, when: Callable[..., bool]) -> list[int]:
    real, failed = getattr(owner, name), list[int]()

    def fails(*given: object, **named: object) -> object:
        if not failed and when(*given):
            failed.append(1)
            raise _FULL
        return real(*given, **named)

    monkeypatch.setattr(owner, name, fails)
    return failed


@pytest.mark.parametrize("step", ["open", "copy", "sync", "rename"])
async def test_a_disk_that_fills_up_while_the_older_half_is_forgotten_loses_no_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("accounting.ledger.journal.LARGEST_FILE", 1500)
    home = tmp_path / "journals" / "lineage"
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(100), ann=releases(50))
        own = ledger._witness("lineage")._file  # type: ignore[attr-defined]
        owner, name, when = {
            "open": (os, "open", lambda path, *_: path == home / "0.new"),
            "copy": (shutil, "copyfileobj", lambda *_: True),
            "sync": (os, "fsync", lambda file: file != own),
            "rename": (Path, "replace", lambda path, _: path == home / "0.new"),
        }[step]
        failed = _failing_once(monkeypatch, owner, name, when)
        for number in range(9):
            await ledger.charge(asking("lineage", "ann", str(number)))  # what was noted is written all the same
        assert failed
        receipts = await ledger.receipts("lineage")
        (journal,) = read_journals(tmp_path / "journals")
        assert {path.name for path in home.iterdir()} == {"0.jsonl", "0.lock"}
        assert journal.receipts[-1] == receipts[-1]
        numbers = [receipt.sequence for receipt in journal.receipts]
        assert numbers == list(range(numbers[0], 10))
        assert numbers[0] > 1
        assert journal.writes == 9


async def test_a_journal_whose_older_half_was_half_forgotten_by_a_crash_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(100), ann=releases(50))
        for number in range(5):
            await ledger.charge(asking("lineage", "ann", str(number)))
    path = tmp_path / "journals" / "lineage" / "0.jsonl"
    (before,) = read_journals(tmp_path / "journals")
    path.with_suffix(".new").write_text('{"service":"torn')
    assert read_journals(tmp_path / "journals") == [before]
    monkeypatch.setattr("accounting.ledger.journal.LARGEST_FILE", 1)
    journal = Journal.open(tmp_path / "journals", "lineage")
    assert (journal.known.service, journal.known.writes) == (before.service, before.writes)
    journal.note(before.writes + 1)
    journal.close()
    (after,) = read_journals(tmp_path / "journals")
    assert (after.service, after.writes) == (before.service, before.writes + 1)
    assert {one.name for one in path.parent.iterdir()} == {"0.jsonl", "0.lock"}


def test_a_journal_is_synced_while_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    synced, real, files = threading.Event(), os.fdatasync, list[int]()

    def sync(file: int) -> None:
        files.append(os.fstat(file).st_ino)
        real(file)
        synced.set()

    monkeypatch.setattr("accounting.ledger.journal.LARGEST_FILE", 300)
    journal = Journal.open(tmp_path, "lineage")
    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "dup", no_more)
    journal.note(1)
    assert synced.wait(30)
    monkeypatch.undo()
    journal.close()
    assert files[-1] == (tmp_path / "lineage" / "0.jsonl").stat().st_ino


def test_a_journal_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise _FULL

    threads, files = threading.active_count(), len(os.listdir("/dev/fd"))  # noqa: PTH208 - descriptors, not files
    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", full)
        for _ in range(3):
            with pytest.raises(LedgerUnavailable, match="No space left"):
                Journal.open(tmp_path, "lineage")
    assert (threading.active_count(), len(os.listdir("/dev/fd"))) == (threads, files)  # noqa: PTH208
    (tmp_path / "lineage" / "0.jsonl").write_text("none\n")
    with pytest.raises(ValueError, match="is not a journal"):
        Journal.open(tmp_path, "lineage")
    assert (threading.active_count(), len(os.listdir("/dev/fd"))) == (threads, files)  # noqa: PTH208
