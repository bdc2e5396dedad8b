"""What a service knows of its own chain of receipts, and its memory of what the store acknowledged to it.

A journal is the witness against a store that comes back older: one file of JSON lines for one service and one lineage.
Who it is, then for each call the receipts that the service got, and behind these how many of its writes the store had
acknowledged by then, and the link of its chain.

Promises: a write is in the journal before anything is answered on its strength, so it outlives the service's
sudden death; it is on the disk about a second later, so that both the store and the journal's last second must be
lost at once for a loss to go unseen; a journal that could not be written lets nothing be charged until it is; two
services never share a journal; a line that was torn by a crash is dropped, and any other damage is an error.
"""

import fcntl
import json
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from accounting.ledger import chain
from accounting.ledger.errors import LedgerUnavailable
from accounting.ledger.values import Receipt, checked_lineage, terms_of
from accounting.losses import Cost

LARGEST_FILE = 64 * 1024 * 1024
"""Bytes after which a journal goes on in a new file; the one before it is kept, older ones are not."""

_FORMAT = 2
_BETWEEN_SYNCS = 1.0
_SUFFIX, _FORMER = ".jsonl", ".jsonl.1"
_TAIL = 1 << 16
_CLOSED = -1
_MEASURE = b'{"writes":'


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """Whose a journal is, and what was acknowledged to that service.

    `writes` is how many writes, `link` the end of its chain and `newest` the lineage's number of its newest receipt.
    """

    service: str
    lineage: str
    writes: int
    link: bytes
    newest: int


@dataclass(frozen=True, kw_only=True)
class JournalContents(Acknowledged):
    """All that a journal says: its receipts, too, in order."""

    receipts: tuple[Receipt, ...]


class Witness:
    """What one service knows of its own chain in one lineage, as long as it lives."""

    def __init__(self, known: Acknowledged) -> None:
        """Know what was acknowledged before."""
        self.known = known

    @classmethod
    def fresh(cls, lineage: str) -> "Witness":
        """Return one of a service that is new, and is forgotten when this process ends."""
        return cls(_newcomer(FORGETFUL + secrets.token_hex(16), lineage))

    def check(self) -> None:
        """Raise LedgerUnavailable if what comes next could not be written down."""

    def note(self, writes: int, receipts: Sequence[Receipt] = ()) -> None:
        """Take down what the store acknowledged: receipts, in order, and how many writes of this service it has."""
        self.known = self._after(writes, receipts)

    def close(self) -> None:
        """Leave it to others."""

    def _after(self, writes: int, receipts: Sequence[Receipt]) -> Acknowledged:
        known = self.known
        return replace(
            known,
            writes=max(known.writes, writes),
            link=_link_after(known.link, receipts),
            newest=receipts[-1].sequence if receipts else known.newest,
        )


def _link_after(link: bytes, receipts: Sequence[Receipt]) -> bytes:
    """Return the link after the receipts of one call or more."""
    call: list[bytes] = []
    for receipt in receipts:
        if receipt.link:
            link, call = chain.next_link(link, call), []
        call.append(receipt.linked)
    return chain.next_link(link, call)


FORGETFUL = "~"
"""What the id of a service that keeps no journal begins with."""


def _newcomer(service: str, lineage: str) -> Acknowledged:
    return Acknowledged(service=service, lineage=lineage, writes=0, link=chain.first_link(lineage, service), newest=0)


class Journal(Witness):
    """The journal that this process writes, from `open` to `close`."""

    def __init__(self, path: Path, file: int, known: Acknowledged) -> None:
        """Use `open`. `file` is open for appending, and locked."""
        super().__init__(known)
        self._path = path
        self._file = file
        self._size = os.fstat(file).st_size
        self._unwritten = b""
        self._failure: OSError | None = None
        self._written = threading.Event()
        self._closing = threading.Event()
        self._syncing = threading.Thread(target=self._sync, name="dpserve-journal", daemon=True)

    @classmethod
    def open(cls, folder: Path, lineage: str) -> "Journal":
        """Go on with a journal of the lineage that no process has open, or begin one.

        Raises LedgerUnavailable if the folder cannot be used.
        """
        home = journal_folder(folder, lineage)
        try:
            for one in (folder, home):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = 0
            while (file := _locked(path := home / f"{number}{_SUFFIX}")) is None:
                number += 1
            try:
                journal = cls(path, file, _acknowledged(path) or _newcomer(secrets.token_hex(16), lineage))
                journal.mend()
            except BaseException:
                os.close(file)
                raise
            journal.start()
        except OSError as error:
            raise _unusable(folder, error) from error
        return journal

    def start(self) -> None:
        """Put what is written on the disk from now on."""
        self._syncing.start()

    def mend(self) -> None:
        """Cut a torn last line off; give a new journal its first line."""
        with self._path.open("rb") as file:
            kept = sum(map(len, _whole_lines(file)))
        os.ftruncate(self._file, kept)
        self._size = kept
        if not kept:
            self._append(_title(self.known))
        # What was read of it is relied on from now on, and so is that it will be found.
        os.fsync(self._file)
        _sync_folder(self._path.parent)
        _sync_folder(self._path.parent.parent)

    def check(self) -> None:
        """Write what could not be written before. Raises LedgerUnavailable if it still cannot be."""
        if self._failure is not None:
            raise _unusable(self._path.parent, self._failure)
        if self._unwritten:
            self._write(b"")
            self._written.set()

    def note(self, writes: int, receipts: Sequence[Receipt] = ()) -> None:
        """Write down receipts and how many of this service's writes the store has acknowledged.

        Raises LedgerUnavailable if they cannot be: then nothing may be answered on their strength, and nothing more be
        charged before they are (`check`).
        """
        super().note(writes, receipts)
        lines = _line({"receipts": [describe_receipt(receipt) for receipt in receipts]}) if receipts else b""
        known = self.known
        self._write(lines + _line({"writes": known.writes, "link": known.link.hex(), "newest": known.newest}))
        if self._failure is not None:
            raise _unusable(self._path.parent, self._failure)
        self._written.set()

    def close(self) -> None:
        """Put everything on the disk and leave the journal to others: from now on nothing can be written down."""
        if self._file == _CLOSED:
            return
        self._written.set()
        self._closing.set()
        self._syncing.join()
        file, self._file = self._file, _CLOSED  # whose number another file may have next
        self._failure = OSError("it is closed")
        os.close(file)

    def _write(self, data: bytes) -> None:
        self._unwritten += data
        try:
            self._append(self._unwritten)
        except OSError as error:
            raise _unusable(self._path.parent, error) from error
        self._unwritten = b""
        if self._size > LARGEST_FILE:
            with suppress(OSError):  # what was noted is written all the same, and the next note tries again
                self._go_on_in_a_new_file()

    def _append(self, data: bytes) -> None:
        written = os.write(self._file, data)
        if written != len(data):
            os.ftruncate(self._file, self._size)
            raise OSError("the disk is full")
        self._size += len(data)

    def _go_on_in_a_new_file(self) -> None:
        """Leave the file to history. Until the new one is in its place, whole, this journal goes on in the old one."""
        fresh, spare = self._path.with_suffix(".new"), self._path.with_suffix(".former")
        for stale in (fresh, spare):
            stale.unlink(missing_ok=True)
        title = _title(self.known)
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
        os.dup2(file, self._file, inheritable=False)  # a sync that is under way stays with the former file
        os.close(file)
        self._size = len(title)
        spare.unlink(missing_ok=True)  # which is still there where a crash had left both names to one file
        _sync_folder(self._path.parent)

    def _sync(self) -> None:
        while True:
            self._written.wait()
            self._written.clear()
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self._failure = error  # whoever notes next hears of it
                return
            if self._closing.wait(_BETWEEN_SYNCS) and not self._written.is_set():
                return


def journal_folder(folder: Path, lineage: str) -> Path:
    """Return where the journals of a lineage lie within the folder of all journals."""
    checked_lineage(lineage)
    return folder / lineage


def read_journals(folder: Path) -> list[JournalContents]:
    """Return every journal below `folder`. Raises ValueError for a file that is none."""
    found = map(read_journal, _paths(folder))
    return [contents for contents in found if contents is not None]


def read_acknowledged(folder: Path) -> list[Acknowledged]:
    """Return of every journal below `folder` what was acknowledged last, without looking at its receipts."""
    found = map(_acknowledged, _paths(folder))
    return [contents for contents in found if contents is not None]


def read_journal(path: Path) -> JournalContents | None:
    """Return what a journal says, its former file included; None for one with nothing in it yet.

    Raises ValueError for a file that is no journal, or one with a receipt that was altered.
    """
    found: Acknowledged | None = None
    receipts, call = list[Receipt](), list[Receipt]()
    for line in _lines(path):
        try:
            if "receipts" in line:
                call = [_checked(described, path) for described in line["receipts"]]
                receipts += call
                continue
            before, found = found, _read_line(line, found)
            if before is not None and "service" not in line and found.link != _link_after(before.link, call):
                raise ValueError(f"{path}: what was acknowledged as write {found.writes} was altered")
            call = []
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a journal: {error!r}") from error
    if found is None and receipts:
        raise ValueError(f"{path} is not a journal: it does not begin with a title")
    return None if found is None else JournalContents(**vars(found), receipts=tuple(receipts))


def _acknowledged(path: Path) -> Acknowledged | None:
    """Read a journal's first line, and the last one that says how many writes were acknowledged."""
    for file in (path, path.with_suffix(_FORMER)):  # where it is cut short between two files, the former is whole
        try:
            if file.exists() and (found := _acknowledged_in(file)) is not None:
                return found
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a journal: {error!r}") from error
    return None


def _acknowledged_in(path: Path) -> Acknowledged | None:
    with path.open("rb") as file:
        first = next(_whole_lines(file), None)
        if first is None:
            return None
        size = file.seek(0, os.SEEK_END)
        file.seek(max(len(first), size - _TAIL))
        newest = _last_measure(file.read())
        if newest is None and size > _TAIL:  # there is one line with many receipts, or none
            file.seek(len(first))
            newest = _last_measure(file.read())
    title = _read_line(_parsed(path, first), None)
    return _read_line(_parsed(path, newest), title) if newest else title


def _last_measure(data: bytes) -> bytes | None:
    whole = data[: data.rfind(b"\n") + 1]
    at = whole.rfind(b"\n" + _MEASURE)
    if at >= 0:
        return whole[at + 1 :].split(b"\n", 1)[0]
    return whole.split(b"\n", 1)[0] if whole.startswith(_MEASURE) else None


def _read_line(line: dict[str, Any], title: Acknowledged | None) -> Acknowledged:
    """Read a title, which begins a file, or what was acknowledged later."""
    if "service" in line and line.get("format") != _FORMAT:
        raise ValueError("is of another release of dpserve, in another format: move it away, or use that release")
    if title is None or "service" in line:
        title = Acknowledged(service=str(line["service"]), lineage=str(line["lineage"]), writes=0, link=b"", newest=0)
    return Acknowledged(
        service=title.service,
        lineage=title.lineage,
        writes=int(line["writes"]),
        link=bytes.fromhex(line["link"]),
        newest=int(line["newest"]),
    )


def _checked(described: dict[str, Any], path: Path) -> Receipt:
    receipt = receipt_from(described)
    if receipt.hash.hex() != described["hash"]:
        raise ValueError(f"{path}: receipt {receipt.sequence} was altered")
    if not receipt.pays_for_its_step:
        raise ValueError(f"{path}: receipt {receipt.sequence} names a step that it does not pay for")
    return receipt


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
    """Return a receipt as plain values that JSON can hold; digests in hexadecimal."""
    return {
        "sequence": receipt.sequence,
        "number": receipt.number,
        "lineage": receipt.lineage,
        "client": receipt.client,
        "model": receipt.model,
        "mechanism": receipt.mechanism,
        "cost": str(receipt.cost),
        "price": receipt.price,
        "times": receipt.terms.times,
        "after": receipt.terms.after.hex(),
        "microseconds": receipt.microseconds,
        "questions": b"".join(receipt.questions).hex(),
        "lineage_questions": receipt.lineage_questions,
        "service": receipt.service,
        "link": receipt.link.hex(),
        "hash": receipt.hash.hex(),
    }


def receipt_from(described: dict[str, Any]) -> Receipt:
    """Return the receipt that `describe_receipt` described. Raises KeyError, TypeError or ValueError."""
    questions = bytes.fromhex(described["questions"])
    return Receipt(
        lineage=str(described["lineage"]),
        client=str(described["client"]),
        sequence=int(described["sequence"]),
        number=int(described["number"]),
        terms=terms_of(
            str(described["model"]),
            str(described["mechanism"]),
            _cost(described["cost"]),
            int(described["times"]),
            bytes.fromhex(described["after"]),
        ),
        price=int(described["price"]),
        microseconds=int(described["microseconds"]),
        questions=tuple(questions[at : at + 16] for at in range(0, len(questions), 16)),
        lineage_questions=int(described["lineage_questions"]),
        service=str(described["service"]),
        link=bytes.fromhex(described["link"]),
    )


def _title(known: Acknowledged) -> bytes:
    return _line(
        {
            "format": _FORMAT,
            "service": known.service,
            "lineage": known.lineage,
            "writes": known.writes,
            "link": known.link.hex(),
            "newest": known.newest,
        }
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
