"""Drafts of models that nobody has paid for yet: in the state folder, and gone when their training has ended."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpserve.training.inputs.digest_files import is_ended, write_locked

_LOCK = ".lock"


@contextmanager
def draft_folder(state: Path) -> Iterator[Path]:
    """Give an empty folder of its owner's alone below the state folder, which is taken away at the end.

    What killed trainings left is taken away first: a lock says which have ended. Raises OSError.
    """
    drafts = state / "drafts"
    drafts.mkdir(parents=True, exist_ok=True, mode=0o700)
    for lock in drafts.glob(f"[!.]*{_LOCK}"):
        if is_ended(lock):
            _take_away(lock)
    # The lock is there before the folder, so that no folder is without one.
    lock = drafts / f"{uuid.uuid4().hex}{_LOCK}"
    held = write_locked(lock, b"")
    try:
        folder = lock.with_suffix("")
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        _take_away(lock)
        os.close(held)


def _take_away(lock: Path) -> None:
    """Take a training's drafts away, and then its lock."""
    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    lock.unlink(missing_ok=True)
