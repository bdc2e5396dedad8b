"""The owner's port of `dpserve serve`: where it listens, and the key that opens it."""

import logging
import os
import socket
from pathlib import Path

from accounting.ledger import key_digest, new_api_key
from dpserve.commands import options
from dpserve.settings import ServeSettings
from service.admin.app import LONGEST_KEY
from service.admin.server import AdminPort
from service.admin.verdicts import FOLDER
from service.errors import CannotServe
from service.listener import bind
from training.private_files import owners_alone

_log = logging.getLogger("dpserve")

KEY_VARIABLE = "DPSERVE_ADMIN_KEY"
METRICS_VARIABLE = "DPSERVE_METRICS_KEY"
KEY_FILE = "admin.key"
_SHORTEST_KEY = 20
_ADVICE = '"import secrets; print(secrets.token_urlsafe(32))"'


def open_port(settings: ServeSettings, service_port: int) -> AdminPort | None:
    """Listen on the owner's port, if there is to be one. Raises CannotServe and OSError."""
    if not settings.admin:
        return None
    key, metrics = admin_key(), metrics_key()
    if key == metrics:
        raise CannotServe(f"{METRICS_VARIABLE} must not be the admin key: it is for those who may read /metrics alone")
    return AdminPort(
        _listening(settings, service_port),
        key_digest(key),
        options.state_folder() / FOLDER,
        metrics_digest=None if metrics is None else key_digest(metrics),
    )


def _listening(settings: ServeSettings, service_port: int) -> socket.socket:
    if settings.admin_port is not None:
        return bind(settings.admin_host, settings.admin_port, "admin-port")
    following = service_port + 1 if 0 < service_port < 65535 else 0
    try:
        return bind(settings.admin_host, following, "admin-port")
    except CannotServe:
        return bind(settings.admin_host, 0, "admin-port")  # nobody asked for that very port


def admin_key() -> str:
    """Return the owner's admin key: DPSERVE_ADMIN_KEY, or the one in the state folder, made if there is none.

    A key in a file that others may read or write is no longer secret: a new one replaces it. On a volume that
    was restored there is nobody who could do so. Raises CannotServe for a key that could be guessed or is never taken,
    OSError where none can be written.
    """
    given = os.environ.get(KEY_VARIABLE)
    if given is not None:
        return _checked(given, KEY_VARIABLE)
    path = key_path()
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


def key_path() -> Path:
    """Return where the admin key is kept when the environment names none."""
    return options.state_folder() / KEY_FILE


def _new_key(path: Path) -> str:
    """Write a new key that only its owner may read. Of several processes that do so at once, one writes it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with open(part, "x", opener=owners_alone) as file:
        file.write(new_api_key() + "\n")
    try:
        os.link(part, path)  # fails where another process was first
    except FileExistsError:
        pass
    finally:
        part.unlink()
    return path.read_text("utf-8").strip()


def where_the_key_is() -> str:
    """Return where the owner finds the key, in words."""
    return f"the environment's {KEY_VARIABLE}" if KEY_VARIABLE in os.environ else str(key_path())
