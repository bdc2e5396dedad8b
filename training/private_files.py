"""Files that their owner alone can read, from the moment they are there."""

import os
import stat
from collections.abc import Iterator
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
def drafted(path: Path) -> Iterator[IO[bytes]]:
    """Give a file of its owner's alone to write, which lies at `path` once the block has ended, or nowhere.

    Raises OSError that names a path.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb", opener=owners_alone) as file:
            yield file
        draft.replace(path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # as of a full disk
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        with suppress(OSError):
            draft.unlink()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file of its owner's alone that has all of this or stays as it was. Raises OSError that names a path."""
    with drafted(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
