"""Files that a command writes: each appears whole or not at all, and an error names it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dpserve.accounting.whole_files import drafted, naming


class Draft:
    """A file that is not in its place yet."""

    def __init__(self, file: BinaryIO, target: Path) -> None:
        """target: its place, for errors."""
        self._file, self._target = file, target

    def write(self, content: bytes) -> None:
        """Write the whole content over the room that was taken for it. Raises OSError that names the file."""
        with naming(self._target):
            self._file.seek(0)
            self._file.write(content)
            self._file.truncate()
            self._file.flush()


@contextmanager
def whole_file(target: Path, content: bytes = b"", *, room: int = 0) -> Iterator[Draft]:
    """Put the file in its place when what is done meanwhile has succeeded; else leave nothing.

    Gives where content that is not known yet is written. room: how many bytes it will have at most: they are taken from
    the disk at once, so that a full one is found before what is done meanwhile. Raises OSError that names the file.
    """
    if target.exists():
        raise FileExistsError(0, "there is a file already, and it stays as it is; name another with --out", str(target))
    with drafted(target, opener=None, is_new=True) as file:
        draft = Draft(file, target)
        draft.write(content.ljust(room))
        yield draft
