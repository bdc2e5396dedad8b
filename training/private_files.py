"""Files that their owner alone can read, from the moment they are there."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def owners_alone(path: str, flags: int) -> int:
    """Open a file with mode 0600, the `opener` of `open`: a new one from its creation, one that is there from now on.

    Raises OSError, also for a file of somebody else's that others may read.
    """
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(file).st_mode
        if stat.S_ISREG(found) and stat.S_IMODE(found) & 0o077:
            os.fchmod(file, 0o600)
    except OSError:
        os.close(file)
        raise
    return file


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file of its owner's alone that has all of this or stays as it was. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb", opener=owners_alone) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
