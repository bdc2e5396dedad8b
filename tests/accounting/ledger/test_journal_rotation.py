"""A journal that goes on in a new file loses nothing newer, whatever fails on the way and wherever it is cut short."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dpserve.accounting.ledger import Ledger, LedgerUnavailable
from dpserve.accounting.ledger.journal import Journal
from dpserve.accounting.ledger.verification import verify

from .conftest import asking, open_accounts, read_journals, releases

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


@pytest.mark.parametrize("step", ["open", "sync", "first rename", "second rename"])
async def test_a_disk_that_fills_up_while_a_new_file_is_begun_loses_no_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("dpserve.accounting.ledger.journal.LARGEST_FILE", 3000)
    home = tmp_path / "journals" / "lineage"
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(100), ann=releases(50))
        own = ledger.witness("lineage")._file  # type: ignore[attr-defined]
        owner, name, when = {
            "open": (os, "open", lambda path, *_: path == home / "0.new"),
            "sync": (os, "fsync", lambda file: file != own),
            "first rename": (Path, "replace", lambda path, _: path == home / "0.jsonl"),
            "second rename": (Path, "replace", lambda path, _: path == home / "0.new"),
        }[step]
        failed = _failing_once(monkeypatch, owner, name, when)
        number = 0
        while not failed:
            await ledger.charge(asking("lineage", "ann", str(number)))  # what was noted is written all the same
            number += 1
        (at_once,) = read_journals(tmp_path / "journals")
        assert [receipt.sequence for receipt in at_once.receipts] == list(range(1, number + 1))
        for more in range(3):
            await ledger.charge(asking("lineage", "ann", str(number + more)))
        receipts = await ledger.receipts("lineage")
    (journal,) = read_journals(tmp_path / "journals")
    assert {path.name for path in home.iterdir()} == {"0.jsonl", "0.before.jsonl", "0.lock"}
    assert list(journal.receipts) == receipts
    assert journal.writes == len(receipts) == number + 3


async def test_a_journal_keeps_the_file_before_the_present_one_and_forgets_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpserve.accounting.ledger.journal.LARGEST_FILE", 3000)
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(100), ann=releases(50))
        for number in range(20):
            await ledger.charge(asking("lineage", "ann", str(number)))
        (journal,) = read_journals(tmp_path / "journals")
        receipts = await ledger.receipts("lineage")
        assert await ledger.services_behind("lineage", [journal]) == 0
        assert (await verify(ledger, "lineage", [journal])).findings == ()
    assert 1 < len(journal.receipts) < 20
    assert list(journal.receipts) == receipts[-len(journal.receipts) :]
    assert sum(one.stat().st_size for one in (tmp_path / "journals" / "lineage").iterdir()) < 5000
    with_it = Journal.open(tmp_path / "journals", "lineage")
    assert (with_it.known.service, with_it.known.writes, with_it.known.newest) == (journal.service, 20, 20)
    with_it.close()


@pytest.mark.parametrize("crash", ["before the renames", "between the renames"])
async def test_a_journal_whose_new_file_a_crash_cut_short_goes_on(tmp_path: Path, crash: str) -> None:
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(100), ann=releases(50))
        for number in range(5):
            await ledger.charge(asking("lineage", "ann", str(number)))
    path = tmp_path / "journals" / "lineage" / "0.jsonl"
    (before,) = read_journals(tmp_path / "journals")
    path.with_suffix(".new").write_text('{"service":"torn')
    if crash == "between the renames":
        path.rename(path.with_suffix(".before.jsonl"))
    assert read_journals(tmp_path / "journals") == [before]
    journal = Journal.open(tmp_path / "journals", "lineage")
    assert (journal.known.service, journal.known.writes) == (before.service, before.writes)
    journal.note(before.writes + 1)
    journal.close()
    (after,) = read_journals(tmp_path / "journals")
    assert (after.service, after.writes, after.receipts) == (before.service, before.writes + 1, before.receipts)


def test_a_journal_is_synced_while_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    synced, real, files = threading.Event(), os.fdatasync, list[int]()

    def sync(file: int) -> None:
        files.append(os.fstat(file).st_ino)
        real(file)
        synced.set()

    monkeypatch.setattr("dpserve.accounting.ledger.journal.LARGEST_FILE", 300)
    journal = Journal.open(tmp_path, "lineage")
    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "dup", no_more)
    journal.note(1)
    assert synced.wait(30)
    monkeypatch.undo()
    journal.close()
    # Which of its files depends on whether the next one was begun by then.
    assert files[-1] in {each.stat().st_ino for each in (tmp_path / "lineage").iterdir()}


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
