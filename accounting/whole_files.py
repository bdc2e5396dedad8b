"""Files and folders that are there whole or not at all, on the disk, and by default readable by their owner alone.

Everything that this project writes and that must not be found half written is written here: beside its place, synced,
then moved there, and the folder is synced, too. Whatever ends in between leaves what was there before. Of several that
write one file at once each has a draft of its own: what is there in the end is the whole of what one of them wrote.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

Opener = Callable[[str, int], int]

_CANNOT_SYNC = {errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOTSUP}
"""Errors of a folder that cannot be synced: by its file system, or as its owner may not read it."""
_HAS_NO_LINKS = {errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


def owners_alone(path: str, flags: int) -> int:
    """Open a file with mode 0600, the `opener` of `open`: a new one from its creation, one that is there from now on.

    Raises OSError, also for a file of somebody else's that others may read.
    """
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o077:
            os.fchmod(file, 0o600)
    except OSError:
        os.close(file)
        raise
    return file


@contextmanager
def naming(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Let an error that names no file, as that of a full disk, or its draft, name this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(draft)):
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where its file system can say so. Raises OSError."""
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def move(draft: Path, path: Path) -> None:
    """Give a synced file its name, durably, in place of what had it before. Raises OSError."""
    draft.replace(path)
    sync_folder(path.parent)


def _draft_of(path: Path) -> Path:
    """Return a name beside a path that nobody else has: of a process, by its number, two containers have the same."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def _move_to_free(draft: Path, path: Path) -> None:
    """Give a synced file a name that is free, durably. Raises FileExistsError for one that is not, and OSError.

    On a file system without hard links, which alone make this one step, of several that do so at once the last stays.
    """
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in _HAS_NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        draft.replace(path)
    sync_folder(path.parent)


@contextmanager
def drafted(path: Path, opener: Opener | None = owners_alone, *, is_new: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write, which lies at `path`, on the disk, once the block has ended, or nowhere.

    opener: as `open` takes it; None lets read it whom the umask lets. is_new: a file that is there by then stays as it
    is, and FileExistsError is raised. Raises OSError that names the path; what the block raises may name none.
    """
    draft = _draft_of(path)
    try:
        with naming(path, draft):
            file = open(draft, "xb", opener=opener)  # noqa: SIM115 - it is closed below
        try:
            yield file
            with naming(path, draft):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with naming(path, draft):
                file.close()
        with naming(path, draft):
            (_move_to_free if is_new else move)(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()


def write_whole(path: Path, content: str | bytes, *, is_new: bool = False) -> None:
    """Write a file of its owner's alone that has all of this or stays as it was. Raises OSError that names a path.

    is_new: raise FileExistsError for one that is there.
    """
    with naming(path), drafted(path, is_new=is_new) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_shown(path: Path, content: str | bytes) -> None:
    """Write as `write_whole` a file that others may read, as the umask says; what is no file, as a pipe, is written to.

    Raises OSError that names a path.
    """
    target = path.resolve()
    opened = target.open("wb") if target.exists() and not target.is_file() else drafted(target, opener=None)
    with naming(path), opened as file, naming(target):
        file.write(content.encode() if isinstance(content, str) else content)


def write_new_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new folder, all of its owner's alone. Raises OSError."""
    draft = _draft_of(folder)
    draft.mkdir(parents=True, mode=0o700)
    try:
        for name, content in files.items():
            with open(draft / name, "wb", opener=owners_alone) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(draft)
        draft.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
