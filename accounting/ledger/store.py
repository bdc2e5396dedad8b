"""The link to the store that holds the ledger: one way to call it, with a deadline, and to doubt its reply.

Promises: a call ends within the deadline; it is sent at most once (nothing below retries, so that an outcome
that is not known is reported as not known); a reply is taken only for the call it answers; whatever else
happens is a `LedgerUnavailable` of one line that never shows the URL's password.
"""

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import redis.exceptions as refused
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from accounting.ledger.errors import LedgerUnavailable, UnsafeStore, WrongFunctionVersion

DEADLINE = 5.0
"""Seconds that a call may take, the wait for a free connection included."""

_SCHEMES = ("redis", "rediss", "unix")
_NONCE_BYTES = 8


@dataclass(frozen=True)
class FunctionLibrary:
    """The ledger's function library: its source and the version that it states."""

    code: str
    version: int

    @classmethod
    def parse(cls, code: str) -> "FunctionLibrary":
        """Read the version from the line of the source that states it."""
        stated = re.search(r"^local VERSION = '(\d+)'$", code, re.MULTILINE)
        return cls(code, int(stated[1]) if stated else 0)


@cache
def our_library() -> FunctionLibrary:
    """Return the library that this package was written with."""
    return FunctionLibrary.parse(files("accounting.ledger").joinpath("function.lua").read_text())


class Store:
    """A store that speaks the Redis protocol: Redis or Valkey, 7.2 or later.

    `url` is `redis://[user:password@]host:port/db`, `rediss://...` or `unix:///path/to/socket?db=0`. Raises
    ValueError for any other. Nothing is sent before the first call.
    """

    def __init__(self, url: str, *, deadline: float = DEADLINE, connections: int = 32) -> None:
        """Give each call `deadline` seconds, and share at most `connections` connections among the calls."""
        self.deadline = deadline
        self.address = _address(url)
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=deadline,
            socket_timeout=deadline,
            socket_connect_timeout=deadline,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._redis = Redis.from_pool(pool)

    async def close(self) -> None:
        """Close every connection."""
        await self._redis.aclose()

    async def command(self, *words: str | bytes | int) -> Any:
        """Send one command and return its raw reply."""
        try:
            async with asyncio.timeout(self.deadline):
                return await self._redis.execute_command(*words)  # type: ignore[no-untyped-call]
        except (refused.RedisError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def call(
        self, function: str, keys: Sequence[str | bytes], arguments: Sequence[str | bytes | int]
    ) -> list[Any]:
        """Call one function of the ledger's library and return what it replied."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        version = str(our_library().version)
        reply = cast(
            list[Any],
            await self.command("FCALL", f"dpserve_{function}", len(keys), *keys, version, nonce, *arguments),
        )
        if not reply or reply[0] != nonce:
            await self._redis.connection_pool.disconnect()
            raise LedgerUnavailable("the ledger's store replied to another call than the one it was sent")
        return reply[1:]

    async def verify(self, *, rehearsal: bool) -> None:
        """See to it that the store keeps what it acknowledges and runs our function library.

        Raises UnsafeStore with a line for each setting to change; with `rehearsal` the settings are not looked
        at. Raises WrongFunctionVersion if the store's library is newer than ours, or altered.
        """
        failures = await self._unsafe_settings() if not rehearsal else []
        if (await self.command("ROLE"))[0] != b"master":
            failures.append("the ledger's store is a replica; give the address of its primary")
        if failures:
            raise UnsafeStore(tuple(failures))
        await self._install_library()

    async def _unsafe_settings(self) -> list[str]:
        required = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
        try:
            reply = await self.command("CONFIG", "GET", *required)
        except LedgerUnavailable as error:
            if isinstance(error.__cause__, refused.ResponseError):
                raise UnsafeStore(
                    ("the ledger's store does not show its settings; permit `CONFIG GET` to the ledger's user",)
                ) from error
            raise
        found = _settings(reply)
        return [
            f"the ledger's store has `{name} {found.get(name, '')}`; set `{name} {value}`"
            for name, value in required.items()
            if found.get(name) != value
        ]

    async def _install_library(self) -> None:
        ours = our_library()
        theirs = await self._loaded_library()
        if theirs is None or theirs.version < ours.version:
            await self.command("FUNCTION", "LOAD", "REPLACE", ours.code)
        elif theirs.version > ours.version:
            raise WrongFunctionVersion(str(ours.version), str(theirs.version))
        elif theirs.code != ours.code:
            raise WrongFunctionVersion(str(ours.version), f"{theirs.version}, altered,")

    async def _loaded_library(self) -> FunctionLibrary | None:
        libraries = await self.command("FUNCTION", "LIST", "LIBRARYNAME", "dpserve", "WITHCODE")
        if not libraries:
            return None
        described = libraries[0]
        fields = dict(zip(described[::2], described[1::2], strict=True))
        return FunctionLibrary.parse(fields[b"library_code"].decode())

    def _unavailable(self, error: Exception) -> LedgerUnavailable:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, TimeoutError | refused.TimeoutError):
            return LedgerUnavailable(f"the ledger's store did not answer within {self.deadline:g} s")
        if isinstance(error, refused.AuthenticationError | refused.NoPermissionError):
            return LedgerUnavailable(f"the ledger's store denies access: {text}")
        if isinstance(error, refused.ReadOnlyError):
            return LedgerUnavailable("the ledger's store is a read-only replica")
        if isinstance(error, refused.BusyLoadingError):
            return LedgerUnavailable("the ledger's store is still loading its data")
        if isinstance(error, refused.ResponseError):
            if text.startswith("DPSERVEVERSION "):
                return WrongFunctionVersion(str(our_library().version), text.split()[1])
            return LedgerUnavailable(f"the ledger's store reports: {text}")
        return LedgerUnavailable(f"the ledger's store at {self.address} cannot be reached: {text}")


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError("the ledger's address must start with redis://, rediss:// or unix://")
    unknown = [name for name in parse_qs(parts.query) if name != "db" and not name.startswith("ssl_")]
    if unknown:
        raise ValueError(f"the ledger's address may set db and ssl_..., not {', '.join(sorted(unknown))}")
    if parts.scheme == "unix":
        return parts.path
    try:
        return f"{parts.hostname}:{parts.port or 6379}"
    except ValueError as error:
        raise ValueError("the ledger's address is not one that can be read: its port is no number") from error


def _settings(reply: object) -> dict[str, str]:
    if isinstance(reply, dict):
        return {str(name): str(value) for name, value in reply.items()}
    words = [word.decode() for word in cast(list[bytes], reply)]
    return dict(zip(words[::2], words[1::2], strict=True))
