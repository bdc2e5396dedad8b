"""Files that a command writes: each appears whole or not at all, and an error names it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.private_files import naming


class Draft:
    """A file that is not in its place yet."""

    def __init__(self, path: Path, target: Path) -> None:
        """path: where it is until then. target: its place, for errors."""
        self._path, self._target = path, target

    def write(self, content: bytes) -> None:
        """Write the whole content over the room that was taken for it. Raises OSError that names the file."""
        with naming(self._target, self._path), self._path.open("r+b") as file:
            file.write(content)
            file.truncate()


@contextmanager
def whole_file(target: Path, content: bytes = b"", *, room: int = 0) -> Iterator[Draft]:
    """Put the file in its place when what is done meanwhile has succeeded; else leave nothing.

    Gives where content that is not known yet is written. room: how many bytes it will have at most: they are taken from
    the disk at once, so that a full one is found before what is done meanwhile. Raises OSError that names the file.
    """
    if target.exists():
        raise FileExistsError(0, "there is a file already, and it stays as it is; name another with --out", str(target))
    path = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with naming(target, path):
            path.write_bytes(content.ljust(room))
        yield Draft(path, target)
        with naming(target, path):
            path.rename(target)
    finally:
        path.unlink(missing_ok=True)
