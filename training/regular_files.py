"""Files that others may have put there: opened without waiting, regular files alone, read up to a size."""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_FILE = 2**32
"""Bytes of a bundle's file."""
_AT_ONCE = 2**20


def open_regular(path: Path, most: int = LARGEST_FILE) -> BinaryIO:
    """Open a file to be read. Raises OSError for a pipe, a device, a folder, or a file of more than `most` bytes."""
    # Without O_NONBLOCK a pipe that nobody writes to is waited for.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        state = os.fstat(number)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if state.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_regular(path: Path, most: int = LARGEST_FILE) -> bytes:
    """Return what a file holds. Raises OSError as `open_regular` does."""
    with open_regular(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # no more, if it grows


def sha256_of(path: Path, most: int = LARGEST_FILE) -> str:
    """Return a file's SHA-256, part by part: a file without content takes no memory. Raises OSError."""
    digest = hashlib.sha256()
    with open_regular(path, most) as file:
        while part := file.read(_AT_ONCE):
            digest.update(part)
    return digest.hexdigest()
