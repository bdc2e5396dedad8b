"""The owner's port of `dpserve serve`: where it listens, and the key that opens it."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.ledger import key_digest, new_api_key
from dpserve.commands import options
from service.admin.server import AdminPort
from service.admin.verdicts import FOLDER
from service.errors import CannotServe
from service.run import bind

KEY_VARIABLE = "DPSERVE_ADMIN_KEY"
KEY_FILE = "admin.key"
_SHORTEST_KEY = 20


@dataclass(frozen=True)
class Listen:
    """A host and a port to listen on; port 0 picks a free one."""

    host: str
    port: int


@dataclass(frozen=True)
class AdminOptions:
    """What the command line says of the owner's port. port: None for the one after the service's."""

    host: str
    port: int | None
    enabled: bool

    def open(self, service_port: int, live_audit: Callable[[], dict[str, Any]] | None) -> AdminPort | None:
        """Listen on the owner's port, if there is to be one. Raises CannotServe and OSError."""
        if not self.enabled:
            return None
        digest = key_digest(admin_key())
        return AdminPort(self._listening(service_port), digest, options.state_folder() / FOLDER, live_audit)

    def _listening(self, service_port: int) -> socket.socket:
        if self.port is not None:
            return bind(Listen(self.host, self.port), "admin-port")
        following = service_port + 1 if 0 < service_port < 65535 else 0
        try:
            return bind(Listen(self.host, following), "admin-port")
        except CannotServe:
            return bind(Listen(self.host, 0), "admin-port")  # nobody asked for that very port


def admin_key() -> str:
    """Return the owner's admin key: DPSERVE_ADMIN_KEY, or the one in the state folder, made if there is none.

    Raises CannotServe for a key that could be guessed, OSError where none can be written.
    """
    given = os.environ.get(KEY_VARIABLE)
    if given is not None:
        if len(given) < _SHORTEST_KEY or given.strip() != given:
            raise CannotServe(
                f"{KEY_VARIABLE} must have {_SHORTEST_KEY} characters or more and no blanks at its ends; 'python3 -c "
                '"import secrets; print(secrets.token_urlsafe(32))"\' makes a good one'
            )
        return given
    path = key_path()
    try:
        return path.read_text("utf-8").strip()
    except FileNotFoundError:
        return _new_key(path)


def key_path() -> Path:
    """Return where the admin key is kept when the environment names none."""
    return options.state_folder() / KEY_FILE


def _new_key(path: Path) -> str:
    """Write a new key that only its owner may read. Of several processes that do so at once, one writes it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with open(part, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
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
