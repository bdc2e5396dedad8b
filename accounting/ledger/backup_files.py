"""A backup as one file, or as one object of an object store, compressed by Zstandard.

Promises: the file is there whole or not at all; memory is bounded, whatever the size of the ledger; bytes that were cut
short or altered are an error by the time the last line is read.
"""

import errno
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

import pyarrow as pa
import pyarrow.fs as pa_fs

from dpserve.accounting.ledger.backups import backup
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.ledger import Ledger
from dpserve.accounting.ledger.verification import Watcher, unwatched
from dpserve.accounting.whole_files import drafted


async def write_backup(ledger: Ledger, place: str, lineages: Sequence[str], *, watch: Watcher = unwatched) -> None:
    """Write a backup of these lineages.

    place: a file, which is replaced, or a URL (file://, s3://, gs://, hdfs://; fsspec+PROTOCOL:// by the package
    fsspec) of an object that is not there yet. Raises CannotRecover as `backup` does, OSError, and ValueError for a URL
    that cannot be one; then there is no file, or the one that was there.
    """
    with _created(place) as sink, _compressing(sink) as file:
        async for line in backup(ledger, lineages, watch=watch):
            file.write(line)


def _located(place: str) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path there. Raises ValueError for a URL that cannot be one."""
    files, path = pa_fs.FileSystem.from_uri(place if "://" in place else str(Path(place).absolute()))
    return files, path


@contextmanager
def _created(place: str) -> Iterator[BinaryIO]:
    """Give a file to write, which is there when the context ends, and is removed if that fails."""
    files, path = _located(place)
    if isinstance(files, pa_fs.LocalFileSystem):
        with _created_here(Path(path)) as file:
            yield file
        return
    if files.get_file_info(path).type != pa_fs.FileType.NotFound:
        raise FileExistsError(errno.EEXIST, "it is there already, and stays as it is; name another", place)
    files.create_dir(path.rpartition("/")[0], recursive=True)
    try:
        with files.open_output_stream(path, compression=None) as stream:
            yield stream
    except BaseException:
        with suppress(OSError):
            files.delete_file(path)
        raise


@contextmanager
def _created_here(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write that is there whole or not at all, readable by its owner alone."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file", str(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with drafted(path) as file:
        yield file


@contextmanager
def _compressing(sink: BinaryIO) -> Iterator[TextIO]:
    """Give a file of lines that are written into `sink`, which is left open."""
    with (
        pa.CompressedOutputStream(pa.PythonFile(_Unclosed(sink), mode="w"), "zstd") as stream,
        io.TextIOWrapper(stream, "utf-8", newline="\n") as file,
    ):
        yield file


class _Unclosed:
    """A file whose `close` does nothing: a stream that is closed closes the one below it."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        pass


class BackupFile:
    """The lines of a backup, read anew for each iteration."""

    def __init__(self, place: str, *, watch: Watcher = unwatched) -> None:
        """Read a file or a URL.

        Raises OSError where there is no such file, and ValueError for a URL that cannot be one.
        """
        self._files, self._path = _located(place)
        found = self._files.get_file_info(self._path)
        if found.type == pa_fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
        if found.type == pa_fs.FileType.Directory:
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file", place)
        self._size, self._watch = found.size, watch

    def __iter__(self) -> Iterator[str]:
        """Yield the lines. Raises CannotRecover for what is no backup, or was cut short or altered."""
        with self._files.open_input_stream(self._path, compression=None) as file:
            watched = pa.PythonFile(_Watched(file, self._path, self._watch, self._size), mode="r")
            with pa.CompressedInputStream(watched, "zstd") as stream:
                lines = io.TextIOWrapper(stream, "utf-8", errors="replace", newline="\n")
                while line := _line(lines):
                    yield line


def _line(lines: TextIO) -> str:
    try:
        return lines.readline()
    except (OSError, pa.ArrowException) as error:
        raise CannotRecover(f"it is no backup, or was cut short or altered: {error}") from error


class _Watched:
    """A source of which it is watched how much was read."""

    closed = False

    def __init__(self, source: BinaryIO, name: str, watch: Watcher, total: int) -> None:
        self._source, self._name, self._watch, self._total = source, name.rpartition("/")[2], watch, total
        self._size = 0

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._source.read(size))
        self._size += len(data)
        if self._total:
            self._watch(f"reading {self._name}", min(1.0, self._size / self._total))
        return data

    def close(self) -> None:
        pass
