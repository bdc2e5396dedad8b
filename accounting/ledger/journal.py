"""A service's own memory of what the store acknowledged to it: the witness against a store that comes back older.

A journal is one file of JSON lines for one service and one lineage: who it is, then every receipt the service got
and how many of its writes the store had acknowledged by then.

Promises: a write is in the journal before anything is answered on its strength, so it outlives the service's
sudden death; it is on the disk about a second later, so that both the store and the journal's last second must be
lost at once for a loss to go unseen; two services never share a journal; a line that was torn by a crash is
dropped, and any other damage is an error.
"""

import fcntl
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from accounting.ledger.errors import LedgerUnavailable
from accounting.ledger.values import Receipt, checked_name
from accounting.losses import Cost

LARGEST_FILE = 64 * 1024 * 1024
"""Bytes after which a journal goes on in a new file; the one before it is kept, older ones are not."""

_BETWEEN_SYNCS = 1.0
_SUFFIX, _FORMER = ".jsonl", ".jsonl.1"


@dataclass(frozen=True)
class Acknowledged:
    """Whose a journal is, and how many of that service's writes were acknowledged to it."""

    service: str
    lineage: str
    writes: int


@dataclass(frozen=True)
class JournalContents(Acknowledged):
    """All that a journal says: its receipts, too, in order."""

    receipts: tuple[Receipt, ...]


class Journal:
    """The journal that this process writes, from `open` to `close`."""

    def __init__(self, path: Path, file: int, service: str, lineage: str, writes: int) -> None:
        """Use `open`. `file` is open for appending, and locked."""
        self.service = service
        self.writes = writes
        self._path = path
        self._file = file
        self._lineage = lineage
        self._size = os.fstat(file).st_size
        self._lock = threading.Lock()
        self._failure: OSError | None = None
        self._written = threading.Event()
        self._closing = threading.Event()
        self._syncing = threading.Thread(target=self._sync, name="dpserve-journal", daemon=True)
        self._syncing.start()

    @classmethod
    def open(cls, folder: Path, lineage: str) -> "Journal":
        """Go on with a journal of the lineage that no process has open, or begin one.

        Raises LedgerUnavailable if the folder cannot be used.
        """
        home = journal_folder(folder, lineage)
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = 0
            while (file := _locked(path := home / f"{number}{_SUFFIX}")) is None:
                number += 1
            found = _acknowledged(path)
            service, writes = (found.service, found.writes) if found else (secrets.token_hex(16), 0)
            journal = cls(path, file, service, lineage, writes)
            journal.mend()
        except OSError as error:
            raise _unusable(folder, error) from error
        return journal

    def mend(self) -> None:
        """Cut a torn last line off; give a new journal its first line."""
        with self._path.open("rb") as file:
            kept = sum(map(len, _whole_lines(file)))
        os.ftruncate(self._file, kept)
        self._size = kept
        if not kept:
            self._append([self._title()])
        # What was read of it is relied on from now on, and so is that it will be found.
        os.fsync(self._file)
        _sync_folder(self._path.parent)
        _sync_folder(self._path.parent.parent)

    def note(self, writes: int, receipts: Sequence[Receipt] = ()) -> None:
        """Write down receipts and how many of this service's writes the store has acknowledged.

        Raises LedgerUnavailable if they cannot be: then nothing may be answered on their strength.
        """
        with self._lock:
            if self._failure is not None:
                raise _unusable(self._path.parent, self._failure)
            self.writes = max(self.writes, writes)
            lines = [{"writes": self.writes, "receipt": describe_receipt(receipt)} for receipt in receipts]
            try:
                self._append(lines or [{"writes": self.writes}])
                if self._size > LARGEST_FILE:
                    self._go_on_in_a_new_file()
            except OSError as error:
                raise _unusable(self._path.parent, error) from error
        self._written.set()

    def close(self) -> None:
        """Put everything on the disk and leave the journal to others."""
        self._written.set()
        self._closing.set()
        self._syncing.join()
        os.close(self._file)

    def _append(self, lines: Iterable[dict[str, Any]]) -> None:
        data = b"".join(map(_line, lines))
        if os.write(self._file, data) != len(data):
            os.ftruncate(self._file, self._size)
            raise OSError("the disk is full")
        self._size += len(data)

    def _title(self) -> dict[str, Any]:
        return {"service": self.service, "lineage": self._lineage, "writes": self.writes}

    def _go_on_in_a_new_file(self) -> None:
        """Leave the file to history. Until the new one is in its place, whole, this journal goes on in the old one."""
        fresh, spare = self._path.with_suffix(".new"), self._path.with_suffix(".former")
        for stale in (fresh, spare):
            stale.unlink(missing_ok=True)
        title = _line(self._title())
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.write(file, title) != len(title):
                raise OSError("the disk is full")
            os.fsync(file)
            os.fsync(self._file)
            # The path names a whole journal at every instant: nobody finds it free, and no crash leaves it so.
            spare.hardlink_to(self._path)
            spare.replace(self._path.with_suffix(_FORMER))
            fresh.replace(self._path)
        except OSError:
            os.close(file)
            fresh.unlink(missing_ok=True)
            raise
        former, self._file, self._size = self._file, file, len(title)
        os.close(former)
        spare.unlink(missing_ok=True)  # which is still there where a crash had left both names to one file
        _sync_folder(self._path.parent)

    def _sync(self) -> None:
        while True:
            self._written.wait()
            self._written.clear()
            with self._lock:
                file = os.dup(self._file)
            try:
                os.fdatasync(file)
            except OSError as error:
                self._failure = error  # whoever notes next hears of it
                return
            finally:
                os.close(file)
            if self._closing.wait(_BETWEEN_SYNCS) and not self._written.is_set():
                return


def journal_folder(folder: Path, lineage: str) -> Path:
    """Return where the journals of a lineage lie within the folder of all journals."""
    checked_name(lineage, "lineage")
    return folder / lineage


def read_journals(folder: Path) -> list[JournalContents]:
    """Return every journal below `folder`. Raises ValueError for a file that is none."""
    found = map(read_journal, _paths(folder))
    return [contents for contents in found if contents is not None]


def read_acknowledged(folder: Path) -> list[Acknowledged]:
    """Return of every journal below `folder` all but its receipts, which are looked at as by `read_journals`."""
    found = map(_acknowledged, _paths(folder))
    return [contents for contents in found if contents is not None]


def read_journal(path: Path) -> JournalContents | None:
    """Return what a journal says, its former file included; None for one with nothing in it yet.

    Raises ValueError for a file that is no journal, or one with a receipt that was altered.
    """
    receipts: list[Receipt] = []
    found = _acknowledged(path, receipts.append)
    return None if found is None else JournalContents(found.service, found.lineage, found.writes, tuple(receipts))


def _acknowledged(path: Path, each: Callable[[Receipt], None] = lambda _: None) -> Acknowledged | None:
    """Read a journal from its first line to its last, as `read_journal` does, and keep none of its receipts.

    each: is given every receipt that is right.
    """
    found: Acknowledged | None = None
    for line in _lines(path):
        try:
            receipt, writes = receipt_from(line["receipt"]) if "receipt" in line else None, int(line["writes"])
            found = found or Acknowledged(str(line["service"]), str(line["lineage"]), writes)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a journal: {error}") from error
        if writes > found.writes:
            found = replace(found, writes=writes)
        if receipt is not None:
            _check(receipt, path)
            each(receipt)
    return found


def _check(receipt: Receipt, path: Path) -> None:
    if receipt.hash != receipt.hash_from_contents():
        raise ValueError(f"{path}: receipt {receipt.sequence} was altered")
    if not receipt.pays_for_its_step:
        raise ValueError(f"{path}: receipt {receipt.sequence} names a step that it does not pay for")


def _paths(folder: Path) -> list[Path]:
    # One whose newer file is gone is a journal too.
    return sorted({*folder.rglob(f"*{_SUFFIX}"), *(path.with_suffix("") for path in folder.rglob(f"*{_FORMER}"))})


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    former = path.with_suffix(_FORMER)
    one_file = former.exists() and path.exists() and former.samefile(path)
    with ExitStack() as opened:
        # All before the first is read: their owner may go on in a new file meanwhile.
        files = [
            (one, opened.enter_context(one.open("rb")))
            for one in ((path,) if one_file else (former, path))
            if one.exists()
        ]
        for one, file in files:
            for line in _whole_lines(file):
                yield _parsed(one, line)


def describe_receipt(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as plain values that JSON can hold; hashes in hexadecimal."""
    return {
        "sequence": receipt.sequence,
        "lineage": receipt.lineage,
        "client": receipt.client,
        "model": receipt.model,
        "mechanism": receipt.mechanism,
        "cost": str(receipt.cost),
        "price": receipt.price,
        "rows": receipt.rows,
        "total": receipt.total,
        "time": receipt.time,
        "previous": receipt.previous.hex(),
        "hash": receipt.hash.hex(),
        "held": receipt.held.hex(),
        "after": receipt.after.hex(),
        "shared": receipt.shared,
    }


def receipt_from(described: dict[str, Any]) -> Receipt:
    """Return the receipt that `describe_receipt` described. Raises KeyError, TypeError or ValueError."""
    return Receipt(
        sequence=int(described["sequence"]),
        lineage=str(described["lineage"]),
        client=str(described["client"]),
        model=str(described["model"]),
        mechanism=str(described["mechanism"]),
        cost=_cost(described["cost"]),
        price=int(described["price"]),
        rows=int(described["rows"]),
        total=int(described["total"]),
        time=float(described["time"]),
        previous=bytes.fromhex(described["previous"]),
        hash=bytes.fromhex(described["hash"]),
        held=bytes.fromhex(described.get("held", "")),
        after=bytes.fromhex(described.get("after", "")),
        shared=bool(described.get("shared", False)),
    )


@lru_cache(maxsize=1024)
def _cost(text: str) -> Cost:
    """Return a receipt's cost: a service has few prices, and its journal many receipts."""
    return Cost.parse(text)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _whole_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    # After a torn line comes nothing, or the rest of it, which its writer is still at.
    return takewhile(lambda line: line.endswith(b"\n"), file)


def _parsed(path: Path, line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path} is not a journal: {error}") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{path} is not a journal")  # noqa: TRY004 - it is the file's content that is wrong
    return parsed


def _locked(path: Path) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    if not path.exists() or os.fstat(file).st_ino != path.stat().st_ino:  # its owner went on in a new file
        os.close(file)
        return None
    return file


def _unusable(folder: Path, error: OSError) -> LedgerUnavailable:
    return LedgerUnavailable(f"the ledger's journal in {folder} cannot be written: {error.strerror or error}")
