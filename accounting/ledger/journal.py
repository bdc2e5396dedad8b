"""A service's record of its own chain of receipts and of what the store acknowledged to it.

A journal is the witness against a store that comes back older: JSON lines for one service and one lineage, in a file
and the one before it. A file's title says who the service is and what was acknowledged to it; each line behind it what
was acknowledged then, and the receipts of that call.

Promises: a write is in the journal before anything is answered on its strength, so it outlives the service's
sudden death; it is on the disk about a second later, so that both the store and the journal's last second must be
lost at once for a loss to go unseen; a journal that could not be written lets nothing be charged until it is; two
services never share a journal; a line that was torn by a crash is dropped, and any other damage is an error.
"""

import errno
import fcntl
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from dpserve.accounting.ledger.errors import NO_LOCKS, LedgerUnavailable
from dpserve.accounting.ledger.receipts import Receipt, first_link, link_after
from dpserve.accounting.ledger.values import checked_lineage
from dpserve.accounting.whole_files import sync_folder, write_whole

LARGEST_FILE = 128 * 1024 * 1024
"""Bytes of a journal's two files together. One that has half of them becomes the one before, which is forgotten."""

FORGETFUL = "~"
"""Prefix of the id of a service that keeps no journal."""

_FORMAT = 6
_BETWEEN_SYNCS = 1.0
_SUFFIX = ".jsonl"
_FORGOTTEN = "forgotten"
"""The file beside a lineage's journals that says that the owner had it forgotten."""
_CLOSED = -1


class _Entry(Struct, frozen=True, kw_only=True):
    """The part of every line that says what was acknowledged to a service.

    `writes` is how many writes, `link` the end of its chain and `newest` the lineage's number of its newest receipt.
    `unit` is the privacy unit under which it charges: a column, empty for one record, None before it knows of any.
    """

    writes: int
    link: bytes
    newest: int
    unit: str | None


class Acknowledged(_Entry, frozen=True, kw_only=True):
    """The service of a journal, and what was acknowledged to it; as a line, a journal's title."""

    service: str
    lineage: str

    @property
    def charged_unit(self) -> str | None:
        """The privacy unit of what the service charged; None where it charged nothing, or knows of none."""
        return self.unit if self.writes else None

    def next_state(self, writes: int, receipts: Sequence[Receipt]) -> "Acknowledged":
        """Return what is acknowledged once these receipts and so many writes are, too."""
        return replace(
            self,
            writes=max(self.writes, writes),
            link=link_after(self.link, receipts),
            newest=receipts[-1].sequence if receipts else self.newest,
        )


class _Title(Acknowledged, frozen=True, kw_only=True):
    format: int


class _Call(_Entry, frozen=True, kw_only=True):
    """A line for the call that wrote these receipts."""

    receipts: tuple[Receipt, ...]


class Witness:
    """The memory that one service has of its own chain in one lineage, as long as it lives."""

    def __init__(self, acknowledged: Acknowledged) -> None:
        """Know what was acknowledged before."""
        self.known = acknowledged
        self.covered = b""
        """The state that the newest charge which wrote left, as the store said it: see `call.lua`. In memory alone."""

    @classmethod
    def fresh(cls, lineage: str) -> "Witness":
        """Return one of a service that is new, and is forgotten when this process ends."""
        return cls(_newcomer(FORGETFUL + secrets.token_hex(16), lineage))

    def check(self) -> None:
        """Raise LedgerUnavailable if what comes next could not be written down."""

    def note(self, writes: int, receipts: Sequence[Receipt] = ()) -> None:
        """Take down what the store acknowledged: receipts, in order, and how many writes of this service it has.

        Raises LedgerUnavailable if they cannot be written down: then nothing may be answered on their strength, and
        nothing more be charged before they are (`check`).
        """
        # In memory first: if the disk refuses, `check` still knows what must be written before the next charge.
        self.known = self.known.next_state(writes, receipts)
        self._keep(receipts)

    def settle(self, unit: str) -> None:
        """Take down under which privacy unit this service charges from now on. Raises as `note` does."""
        if self.known.unit != unit:
            self.known = replace(self.known, unit=unit)
            self._keep(())

    def _keep(self, receipts: Sequence[Receipt]) -> None:
        """Write down what is known, with the receipts of the newest call."""

    def close(self) -> None:
        """Leave it to others."""


def _newcomer(service: str, lineage: str) -> Acknowledged:
    return Acknowledged(
        service=service, lineage=lineage, writes=0, link=first_link(lineage, service), newest=0, unit=None
    )


class Journal(Witness):
    """The journal that this process writes, from `open` to `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        """Use `open`. `lock` is the locked file that makes the journal this process's own."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._path, self._before = path, path.with_suffix(f".before{_SUFFIX}")
            # A crash may have come between a file that was full and its title's being there.
            before = _read_journal(self._before) if self._before.exists() else None
            super().__init__(_read_journal(path) or before or _newcomer(secrets.token_hex(16), path.parent.name))
            self._full: list[int] = []
            self._lock = lock
            self._unwritten = b""
            self._failure: OSError | None = None
            self._mend()
        except BaseException:
            os.close(self._file)
            raise
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
            for one in (folder, home):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = 0
            # Each process of a service has a chain, and so a journal, of its own; the lowest free number is one that a
            # process left, whose chain goes on.
            while (lock := _lock(home / f"{number}.lock")) is None:
                number += 1
            try:
                return cls(home / f"{number}{_SUFFIX}", lock)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise _unusable(folder, error) from error

    def _mend(self) -> None:
        """Cut a torn last line off; give a new journal its title."""
        with self._path.open("rb") as file:
            self._size = sum(map(len, _whole_lines(file)))
        os.ftruncate(self._file, self._size)
        if not self._size:
            self._append(_title(self.known))
        # What was read of it is relied on from now on, and so is that it will be found.
        os.fsync(self._file)
        sync_folder(self._path.parent)
        sync_folder(self._path.parent.parent)

    def check(self) -> None:
        """Write what could not be written before. Raises LedgerUnavailable if it still cannot be."""
        if self._failure is not None:
            raise _unusable(self._path.parent, self._failure)
        if self._unwritten:
            self._write(b"")
            self._written.set()

    def _keep(self, receipts: Sequence[Receipt]) -> None:
        known = self.known
        call = _Call(
            writes=known.writes, link=known.link, newest=known.newest, unit=known.unit, receipts=tuple(receipts)
        )
        self._write(msgspec.json.encode(call) + b"\n")
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
        for each in (*self._full, file, self._lock):
            os.close(each)

    def _write(self, data: bytes) -> None:
        self._unwritten += data
        try:
            self._append(self._unwritten)
        except OSError as error:
            raise _unusable(self._path.parent, error) from error
        self._unwritten = b""
        # A full file and its predecessor may both exist: together they keep within LARGEST_FILE.
        if self._size > LARGEST_FILE // 2:
            with suppress(OSError):  # what was noted is written all the same, and the next note tries again
                self._begin_file()

    def _append(self, data: bytes) -> None:
        written = os.write(self._file, data)
        if written != len(data):
            # Half a line would run into the next one, which would then be cut off with it.
            os.ftruncate(self._file, self._size)
            raise OSError("the disk is full")
        self._size += len(data)

    def _begin_file(self) -> None:
        """Go on in a new file, whose title is what was acknowledged so far: as quickly however full this one is."""
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            title = _title(self.known)
            os.write(file, title)
            os.fsync(file)
            with suppress(FileNotFoundError):  # it was renamed before, and what followed failed
                # A crash between the two renames leaves this one, which `__init__` reads.
                self._path.replace(self._before)
            fresh.replace(self._path)
        except OSError:
            os.close(file)
            fresh.unlink(missing_ok=True)
            raise
        self._full.append(self._file)  # whose newest second is not on the disk yet
        self._file, self._size = file, len(title)
        sync_folder(self._path.parent)

    def _sync(self) -> None:
        while True:
            self._written.wait()
            self._written.clear()
            try:
                while self._full:
                    os.fdatasync(self._full[0])
                    os.close(self._full.pop(0))
                os.fdatasync(self._file)
            except OSError as error:
                self._failure = error  # the next note raises it
                return
            if self._closing.wait(_BETWEEN_SYNCS) and not self._written.is_set():
                return


def journal_folder(folder: Path, lineage: str) -> Path:
    """Return where the journals of a lineage lie within the folder of all journals."""
    checked_lineage(lineage)
    return folder / lineage


def is_forgotten(folder: Path, lineage: str) -> bool:
    """Tell whether the owner had a lineage forgotten on this machine. folder: of all journals."""
    return (journal_folder(folder, lineage) / _FORGOTTEN).exists()


def mark_forgotten(folder: Path, lineage: str) -> None:
    """Write down, durably, that the owner had a lineage forgotten. Raises LedgerUnavailable."""
    home = journal_folder(folder, lineage)
    try:
        for one in (folder, home):
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(home / _FORGOTTEN, b"")
        sync_folder(folder)
    except OSError as error:
        raise _unusable(folder, error) from error


class JournalFiles:
    """A journal whose receipts are read from its files anew each time, and never held."""

    def __init__(self, acknowledged: Acknowledged, paths: Sequence[Path]) -> None:
        """Know what was acknowledged to the service, and the files, oldest first."""
        self.acknowledged = acknowledged
        self.service = acknowledged.service
        self.lineage = acknowledged.lineage
        self.writes, self.link, self.newest = acknowledged.writes, acknowledged.link, acknowledged.newest
        self.charged_unit = acknowledged.charged_unit
        self._paths = paths

    @property
    def receipts(self) -> Iterator[Receipt]:
        """Yield the receipts up to what was acknowledged, in order. Raises ValueError for one that was altered."""
        for path in self._paths:
            for acknowledged, receipts in _calls(path):
                if acknowledged.writes > self.acknowledged.writes:
                    return  # its service went on
                yield from receipts


def open_journals(folder: Path) -> list[JournalFiles]:
    """Return every journal below a folder, or that of one file. Raises ValueError for a file that is no journal."""
    paths = sorted(folder.rglob(f"*{_SUFFIX}")) if folder.is_dir() or not folder.exists() else [folder]
    files = [(acknowledged, path) for path in paths if (acknowledged := _read_journal(path)) is not None]
    journals: dict[str, tuple[Acknowledged, list[Path]]] = {}
    for acknowledged, path in sorted(files, key=lambda file: file[0].writes):  # a file, then the one that went on
        _, before = journals.get(acknowledged.service, (acknowledged, []))
        journals[acknowledged.service] = acknowledged, [*before, path]
    return [JournalFiles(*journal) for journal in journals.values()]


def read_acknowledged(folder: Path) -> list[Acknowledged]:
    """Return of every journal below `folder` what was acknowledged last, without looking at its receipts."""
    journals = map(_read_journal, sorted(folder.rglob(f"*{_SUFFIX}")))
    return [contents for contents in journals if contents is not None]


def _calls(path: Path) -> Iterator[tuple[Acknowledged, Sequence[Receipt]]]:
    """Yield what was acknowledged after each line of a journal's file, and the receipts of the line.

    Raises ValueError for a file that is no journal, or one with a receipt that was altered.
    """
    acknowledged: Acknowledged | None = None
    with path.open("rb") as file:
        for line in _whole_lines(file):
            receipts = tuple[Receipt, ...]()
            try:
                if acknowledged is None:
                    acknowledged = _read_title(line)
                else:
                    call = msgspec.json.decode(line, type=_Call)
                    receipts = call.receipts
                    acknowledged = replace(acknowledged.next_state(call.writes, receipts), unit=call.unit)
                    if (acknowledged.writes, acknowledged.link, acknowledged.newest) != (
                        call.writes,
                        call.link,
                        call.newest,
                    ):
                        raise ValueError(f"its receipts are not those of write {call.writes}")
            except ValueError as error:
                raise _no_journal(path, error) from error
            yield acknowledged, receipts


def _read_journal(path: Path) -> Acknowledged | None:
    """Read a journal's title and its last line, which says what was acknowledged last."""
    with path.open("rb") as file:
        lines = _whole_lines(file)
        title = last = next(lines, None)
        for line in lines:
            last = line
    try:
        acknowledged = _read_title(title) if title else None
        return (
            acknowledged if acknowledged is None or last is title or last is None else _next_state(acknowledged, last)
        )
    except ValueError as error:
        raise _no_journal(path, error) from error


def _read_title(line: bytes) -> Acknowledged:
    if msgspec.json.decode(line, type=dict).get("format") != _FORMAT:
        raise ValueError("it is of another release of dpserve, in another format: move it away, or use that release")
    return msgspec.json.decode(line, type=Acknowledged)


def _next_state(acknowledged: Acknowledged, line: bytes) -> Acknowledged:
    return replace(acknowledged, **asdict(msgspec.json.decode(line, type=_Entry)))


def _no_journal(path: Path, error: ValueError) -> ValueError:
    return ValueError(f"{path} is not a journal, or was altered: {error}")


def _title(acknowledged: Acknowledged) -> bytes:
    return msgspec.json.encode(_Title(**asdict(acknowledged), format=_FORMAT)) + b"\n"


def _whole_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    # After a torn line comes nothing, or the rest of it, which its writer is still at.
    return takewhile(lambda line: line.endswith(b"\n"), file)


def _lock(path: Path) -> int | None:
    """Return what keeps a file locked, or None where another process has it. Raises OSError where locks do nothing."""
    if (file := _try_lock(path)) is None:
        return None
    if (second := _try_lock(path)) is not None:
        os.close(second)
        os.close(file)
        raise OSError(errno.ENOLCK, NO_LOCKS)
    return file


def _try_lock(path: Path) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file


def _unusable(folder: Path, error: OSError) -> LedgerUnavailable:
    return LedgerUnavailable(f"the ledger's journal in {folder} cannot be written: {error.strerror or error}")
