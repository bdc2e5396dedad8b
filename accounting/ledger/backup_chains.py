"""Backups in a folder or an object store: one file, or a chain of files of which each holds what came since the last.

A chain is files and a list of them, `chain-TIME-ID.json`, which is replaced after each file is there whole. It names
the files in order with the SHA-256 of their bytes, and says where the next one goes on; it holds names of lineages, ids
of services and digests, and nothing of clients or sums: it is readable where the files are encrypted.

Promises: a file is in the list only when all of it is written; a file that is missing, cut short, altered, or in
another's place is an error of `restore` before anything is written. What the list does not show is that its newest
files were taken out together with their names: whoever may write to the place can do that, and the journals tell.
"""

import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow.fs as pa_fs
from msgspec import Struct

from accounting.ledger.backup_streams import read_lines, writing
from accounting.ledger.backups import Backup, Extent, Link
from accounting.ledger.errors import CannotRecover
from accounting.ledger.ledger import Ledger
from accounting.ledger.verification import Watcher, unwatched

KEPT = 4
"""Chains that a place keeps."""

_FORMAT = "dpserve ledger backup chain 1"
_PIECE = 1 << 18
_TIME = "%Y%m%dT%H%M%SZ"


class _File(Struct, frozen=True):
    """A file of a chain: its name, its size and the SHA-256 of its bytes, and the digest that its lines end with."""

    name: str
    size: int
    sha256: str
    end: str


class _List(Struct, frozen=True):
    """The list of a chain's files, oldest first, and what the next one must follow."""

    format: str
    chain: str
    began: str
    files: tuple[_File, ...] = ()
    extents: dict[str, Extent] = {}

    @property
    def name(self) -> str:
        return f"chain-{self.began}-{self.chain}.json"


@dataclass(frozen=True)
class Written:
    """The file that was written: its name, bytes, number in its chain, and how many receipts the chain holds."""

    name: str
    size: int
    number: int
    receipts: int


def is_chain(place: str) -> bool:
    """Return whether a place holds a chain, and not one file: a URL, a folder, or a path that ends with a slash."""
    return "://" in place or place.endswith("/") or Path(place).is_dir()


class Place:
    """A folder, or a folder of an object store."""

    def __init__(self, place: str) -> None:
        """Open a local folder, or a URL (file://, s3://, gs://, hdfs://; fsspec+PROTOCOL:// by the package fsspec).

        Raises ValueError for a URL that cannot be one.
        """
        self._files, path = pa_fs.FileSystem.from_uri(place if "://" in place else str(Path(place).absolute()))
        self.path = path.rstrip("/")
        self._scheme = place.partition("://")[0]
        self._is_local = isinstance(self._files, pa_fs.LocalFileSystem)

    @property
    def name(self) -> str:
        """The place as it can be named again, without any password: a path, or a URL."""
        return self.path if self._is_local else f"{self._scheme}://{self.path.lstrip('/')}"

    def names(self) -> list[str]:
        """Return the names of the files in it, in order."""
        found = self._files.get_file_info(pa_fs.FileSelector(self.path, allow_not_found=True))
        return sorted(one.base_name for one in found if one.is_file)

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        with self.open(name) as file:
            return bytes(file.read())

    def open(self, name: str) -> BinaryIO:
        """Open a file to be read."""
        return cast(BinaryIO, self._files.open_input_stream(f"{self.path}/{name}", compression=None))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{self.path}/{name}")

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Give a file to write, which is there when the context ends, and is removed if that fails."""
        path = f"{self.path}/{name}"
        if self._is_local:
            with created(Path(path)) as file:
                yield file
            return
        self._files.create_dir(self.path, recursive=True)
        try:
            with self._files.open_output_stream(path, compression=None) as stream:
                yield stream
        except BaseException:
            with suppress(OSError):
                self.remove(name)
            raise


@contextmanager
def created(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write that is there whole or not at all, readable by its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        partial.unlink(missing_ok=True)


class Summed:
    """A sink that knows how many bytes went through it, and their SHA-256."""

    def __init__(self, sink: BinaryIO) -> None:
        """Write to a sink."""
        self._sink, self._sha256, self.size = sink, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write bytes."""
        self._sink.write(data)
        self._sha256.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: the sink is its owner's."""

    @property
    def sha256(self) -> str:
        """The digest, in hexadecimal."""
        return self._sha256.hexdigest()


async def write_file(
    ledger: Ledger,
    path: Path,
    lineages: Sequence[str],
    *,
    keys: Sequence[Any] = (),
    watch: Watcher = unwatched,
) -> None:
    """Write a backup of these lineages to one file. keys: the recipients to encrypt it for, if any.

    Raises CannotRecover as `backup` does, and OSError; then there is no file, or the one that was there.
    """
    with created(path) as file:
        await _write(Backup(ledger, lineages, watch=watch), file, keys)


async def _write(backup: Backup, sink: BinaryIO, keys: Sequence[Any]) -> Summed:
    return await write_lines(backup.lines(), sink, keys)


async def write_lines(lines: AsyncIterator[str], sink: BinaryIO, keys: Sequence[Any]) -> Summed:
    """Write lines, compressed and encrypted for any `recipients`, and return the size and digest of their bytes."""
    summed = Summed(sink)
    with writing(cast(BinaryIO, summed), keys) as writer:
        async for line in lines:
            writer.write(line)
    return summed


async def add_to_chain(
    ledger: Ledger,
    place: Place,
    lineages: Sequence[str],
    *,
    keys: Sequence[Any] = (),
    full: bool = False,
    full_after: float | None = None,
    kept: int = KEPT,
    now: datetime | None = None,
    watch: Watcher = unwatched,
) -> Written:
    """Write what came since the newest file of a place's newest chain, or begin a chain where there is none.

    full: begin a chain in any case; full_after: if the newest one began so many seconds ago. kept:
    how many chains stay when one more is begun. Raises CannotRecover as `Backup` does, and OSError.
    """
    now = now or datetime.now(UTC)
    names = place.names()
    lists = [name for name in names if _is_list(name)]
    newest = _read_list(place, lists[-1]) if lists else None
    if newest is not None and (full or (full_after is not None and _age(newest, now) >= full_after)):
        newest = None
    if newest is None:
        newest = _List(_FORMAT, secrets.token_hex(4), now.strftime(_TIME))
    number = len(newest.files) + 1
    previous = newest.files[-1].end if newest.files else ""
    link = Link(newest.chain, number, previous)
    backup = Backup(ledger, lineages, link=link, extents=newest.extents, watch=watch)
    # No file takes another's name, so that of two who write at once the one whose list stays has all its files.
    ending = ".zst.age" if keys else ".zst"
    name = f"{newest.chain}-{number:06}-{secrets.token_hex(4)}{ending}"
    with place.create(name) as file:
        summed = await _write(backup, file, keys)
    written = _File(name, summed.size, summed.sha256, backup.digest)
    after = msgspec.structs.replace(newest, files=(*newest.files, written), extents=newest.extents | backup.extents)
    with place.create(after.name) as file:
        file.write(msgspec.json.encode(after))
    if number == 1:
        for old in [one for one in lists if one != after.name][: max(0, len(lists) + 1 - kept)]:
            _remove_chain(place, old, names)
    receipts = sum(extents.receipts for extents in after.extents.values())
    return Written(name, summed.size, number, receipts)


def _is_list(name: str) -> bool:
    return name.startswith("chain-") and name.endswith(".json")


def _age(one: _List, now: datetime) -> float:
    return (now - datetime.strptime(one.began, _TIME).replace(tzinfo=UTC)).total_seconds()


def _remove_chain(place: Place, name: str, names: Sequence[str]) -> None:
    """Remove a chain: its list first, without which its files are of no use."""
    chain = name.removesuffix(".json").rpartition("-")[2]
    place.remove(name)
    for one in names:
        if one.startswith(f"{chain}-"):
            place.remove(one)


def _read_list(place: Place, name: str) -> _List:
    try:
        found = msgspec.json.decode(place.read(name), type=_List)
    except msgspec.MsgspecError as error:
        raise CannotRecover(f"{name} is no list of a chain of backups, or was altered: {error}") from error
    if found.format != _FORMAT or found.name != name:
        raise CannotRecover(f"{name} is no list of a chain of backups in the format {_FORMAT!r}")
    return found


class FileLines:
    """The lines of one file of a backup, read anew for each iteration."""

    def __init__(
        self,
        open_file: Callable[[], BinaryIO],
        name: str,
        size: int,
        *,
        sha256: str = "",
        keys: Sequence[Any] = (),
        whole: str = "the chain of backups",
        option: str = "identity",
        watch: Watcher = unwatched,
    ) -> None:
        """Read what `open_file` opens. size, sha256: of its bytes, if they are known; keys: those that decrypt it.

        whole: what it is a part of, in words. option: by which keys are given.
        """
        self._option = option
        self._whole = whole
        self._open, self._name, self._size, self._sha256 = open_file, name, size, sha256
        self._keys, self._watch = keys, watch

    def __iter__(self) -> Iterator[str]:
        """Yield the lines. Raises CannotRecover, where the file is not there or not as it is listed, too."""
        try:
            file = self._open()
        except FileNotFoundError as error:
            raise CannotRecover(f"{self._name} is missing from {self._whole}") from error
        with file:
            source = _SummedSource(file, self._name, self._watch, self._size)
            yield from read_lines(cast(BinaryIO, source), self._keys, self._option)
            while source.read(_PIECE):
                continue
        if self._sha256 and (source.size, source.sha256) != (self._size, self._sha256):
            raise CannotRecover(f"{self._name} is not the file that {self._whole} lists: it was altered")


class _SummedSource:
    """A source that knows how many bytes were read, and their SHA-256."""

    def __init__(self, source: BinaryIO, name: str, watch: Watcher, total: int) -> None:
        self._source, self._name, self._watch, self._total = source, name, watch, total
        self._sha256, self.size = hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._source.read(size))
        self._sha256.update(data)
        self.size += len(data)
        if self._total:
            self._watch(f"reading {self._name}", min(1.0, self.size / self._total))
        return data

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


def links_of_chain(
    place: Place, *, chain: str = "", keys: Sequence[Any] = (), watch: Watcher = unwatched
) -> list[FileLines]:
    """Return the lines of each file of a place's newest chain, or of the one of this id, for `restore`.

    Raises CannotRecover for a place without one.
    """
    lists = [name for name in place.names() if _is_list(name) and name.endswith(f"{chain}.json")]
    if not lists:
        raise CannotRecover(f"there is no chain of backups {chain} in {place.path}".replace("  ", " "))
    newest = _read_list(place, lists[-1])
    if not newest.files:
        raise CannotRecover(f"{newest.name} lists no files")

    def opener(name: str) -> Callable[[], BinaryIO]:
        return lambda: place.open(name)

    return [
        FileLines(opener(one.name), one.name, one.size, sha256=one.sha256, keys=keys, watch=watch)
        for one in newest.files
    ]


def lines_of_file(path: Path, *, keys: Sequence[Any] = (), watch: Watcher = unwatched) -> FileLines:
    """Return the lines of one file, for `restore`. Raises OSError if it cannot be read."""
    return FileLines(lambda: path.open("rb"), path.name, path.stat().st_size, keys=keys, watch=watch)
