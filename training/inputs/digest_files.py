"""Files of sorted digests: they are looked up where they lie, and neither read as a whole nor sorted again."""

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Mask
from dpserve.accounting.whole_files import drafted, move, naming, write_whole
from dpserve.training.errors import TrainingError

NOTE = "-note"
"""End of a file's suffix while the training whose digests it has goes on, or when it was killed."""
AT_ONCE = 2**20
"""Digests looked at at once."""

Digests = NDArray[Any]
Paths = Mapping[str, tuple[Path, ...]]
"""The files of a folder by suffix."""


def mapped(path: Path, dtype: np.dtype[Any]) -> Digests:
    """Return a file's digests, mapped into memory. Raises OSError, and TrainingError for a part of one."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size % dtype.itemsize:
            raise TrainingError(f"{path} should hold digests of {dtype.itemsize} bytes, and is damaged")
        return np.memmap(file, dtype, "r") if size else np.empty(0, dtype)


def in_others(mine: Digests, others: Digests) -> Mask:
    """Return which of `mine`, in any order, are among others, which are sorted."""
    inside = np.zeros(len(mine), dtype=np.bool_)
    for start in range(0, len(mine) if len(others) else 0, AT_ONCE):
        part = mine[start : start + AT_ONCE]
        places = np.searchsorted(others, part)
        np.minimum(places, len(others) - 1, out=places)
        inside[start : start + AT_ONCE] = others[places] == part
    return inside


def sorted_once(digests: Digests) -> Digests:
    """Return digests sorted, each once."""
    ordered = np.sort(digests)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def files_in(folder: Path) -> Paths:
    """Return the files of a folder that are not hidden."""
    files: dict[str, tuple[Path, ...]] = {}
    for path in sorted(folder.glob("[!.]*")):
        files[path.suffix] = (*files.get(path.suffix, ()), path)
    return files


def unchanged(folder: Path, look: Callable[[Paths], Any]) -> Any:
    """Return what is found in the files of a folder, all of one moment: it is looked for again while they change."""
    while True:
        paths = files_in(folder)
        with suppress(FileNotFoundError):  # a training ended, and its notes became files of the lineage
            files = look(paths)
            if files_in(folder) == paths:
                return files


def keep(note: Path, dtype: np.dtype[Any]) -> None:
    """Make a note's digests a lineage's own: what no file of the lineage with this suffix has yet."""
    kept = note.with_suffix(note.suffix.removesuffix(NOTE))
    try:
        digests = mapped(note, dtype)
    except FileNotFoundError:
        return
    known = np.zeros(len(digests), dtype=np.bool_)
    for path in files_in(note.parent).get(kept.suffix, ()):
        known |= in_others(digests, mapped(path, dtype))
    if known.any() or not len(known):
        if not known.all():
            write_whole(kept, digests[~known].tobytes())
        note.unlink()
    else:
        move(note, kept)


def write_locked(path: Path, content: bytes) -> int:
    """Write a file of its owner's alone; return what `os.close` takes, until when it is locked. Raises OSError."""
    with naming(path), drafted(path) as file:
        lock = os.dup(file.fileno())
        try:
            with suppress(OSError):  # where files cannot be locked, no training is taken for ended
                fcntl.flock(lock, fcntl.LOCK_EX)
            file.write(content)
            file.flush()
        except BaseException:
            os.close(lock)
            raise
    return lock


def is_ended(path: Path) -> bool:
    """Return whether the process that wrote a file by `write_locked` has ended."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
