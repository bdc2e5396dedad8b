"""The keys of the owner's port: the admin key, and one that reads metrics alone."""

import logging
import os
from contextlib import suppress
from pathlib import Path

from dpserve.accounting.ledger import new_api_key
from dpserve.accounting.whole_files import write_whole
from dpserve.service.admin.app import LONGEST_KEY
from dpserve.service.errors import CannotServe

_log = logging.getLogger("dpserve")

KEY_VARIABLE = "DPSERVE_ADMIN_KEY"
METRICS_VARIABLE = "DPSERVE_METRICS_KEY"
KEY_FILE = "admin.key"
_SHORTEST_KEY = 20
_ADVICE = '"import secrets; print(secrets.token_urlsafe(32))"'


def admin_key(folder: Path) -> str:
    """Return the owner's admin key: DPSERVE_ADMIN_KEY, or the one in this folder, made if there is none.

    A key in a file that others may read or write is no longer secret: a new one replaces it. On a volume that
    was restored there is nobody who could do so. Raises CannotServe for a key that could be guessed or is never taken,
    OSError where none can be written.
    """
    given = os.environ.get(KEY_VARIABLE)
    if given is not None:
        return _checked(given, KEY_VARIABLE)
    path = folder / KEY_FILE
    try:
        mode, key = path.stat().st_mode, path.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return _new_key(path)
    if mode & 0o077:
        path.unlink()
        _log.warning("others than its owner could read or write %s: the admin key there is a new one", path)
        return _new_key(path)
    return _checked(key, str(path))


def metrics_key() -> str | None:
    """Return the key that reads /metrics and nothing else, or None. Raises CannotServe as `admin_key` does."""
    given = os.environ.get(METRICS_VARIABLE)
    return _checked(given, METRICS_VARIABLE) if given else None


def _checked(key: str, where: str) -> str:
    """Return a key that the owner's port takes and nobody guesses. where: what holds it, for the error."""
    # A header carries no other characters for sure, and a blank at an end is lost in it.
    if not _SHORTEST_KEY <= len(key) <= LONGEST_KEY or not all("!" <= each <= "~" for each in key):
        raise CannotServe(
            f"{where} must have {_SHORTEST_KEY} characters or more, {LONGEST_KEY} at most, and be letters, digits and "
            f"signs of ASCII without blanks; 'python3 -c {_ADVICE}' makes a good one"
        )
    return key


def _new_key(path: Path) -> str:
    """Write a new key that only its owner may read. Of several processes that do so at once, one writes it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another process was first
        write_whole(path, new_api_key() + "\n", is_new=True)
    return path.read_text("utf-8").strip()


def where_the_key_is(folder: Path) -> str:
    """Return where the owner finds the key, in words. folder: as for `admin_key`."""
    return f"the environment's {KEY_VARIABLE}" if KEY_VARIABLE in os.environ else str(folder / KEY_FILE)
