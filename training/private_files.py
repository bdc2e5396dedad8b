"""Files that are there whole or not at all; most of them can be read by their owner alone, from the first moment."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


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


@contextmanager
def drafted(path: Path, opener: Callable[[str, int], int] | None = owners_alone) -> Iterator[IO[bytes]]:
    """Give a file to write, which lies at `path`, on the disk, once the block has ended, or nowhere.

    opener: as `open` takes it; None lets read it whom the umask lets. Raises OSError that names a path.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path, draft):
            with open(draft, "wb", opener=opener) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file of its owner's alone that has all of this or stays as it was. Raises OSError that names a path."""
    with drafted(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_shown(path: Path, content: str | bytes) -> None:
    """Write as `write_whole` a file that others may read, as the umask says; what is no file, as a pipe, is written to.

    Raises OSError that names a path.
    """
    target = path.resolve()
    opened = target.open("wb") if target.exists() and not target.is_file() else drafted(target, opener=None)
    with naming(path), opened as file:
        file.write(content.encode() if isinstance(content, str) else content)
