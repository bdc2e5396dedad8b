"""The link to the store that holds the ledger: one way to call it, with a deadline, and to doubt its reply.

Promises: a call ends within the deadline; nothing below retries it, so that an outcome that is not known is
reported as not known; a reply is taken only for the call it answers; a write is durable, on as many replicas as
were asked for, before its reply is taken; the store's settings were looked at on every connection that is used;
whatever else happens is a `LedgerUnavailable` of one line that never shows the URL's password.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import redis.exceptions as refused

from accounting.ledger.errors import (
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
    StoreBehind,
    UnsafeStore,
    WrongFunctionVersion,
)
from accounting.ledger.links import Exchange, Words, address, link_to

FORMAT = 1
"""The newest way of writing a lineage that the library knows."""

DEADLINE = 5.0
"""Seconds that a call may take, the wait for a free connection included."""

_PARTS = ("library", "sha256", "receipts", "rows", "keys", "charges", "accounts", "recovery", "holdings")
_NONCE_BYTES = 8

_TRIED = "dpserve:{trial}:written"
_TRIED_TOO = f"{_TRIED}:renamed"
_TRIAL: tuple[Words, ...] = (
    ("HSET", _TRIED, "field", "value"),
    ("HDEL", _TRIED, "field"),
    ("SADD", _TRIED, "member"),
    ("UNLINK", _TRIED),
    ("XADD", _TRIED, "*", "field", "value"),
    ("RENAME", _TRIED, _TRIED_TOO),
    ("UNLINK", _TRIED_TOO),
)
"""Every command that the library writes with, on keys of no lineage, which are gone after it."""


@dataclass(frozen=True)
class FunctionLibrary:
    """The ledger's function library: its source and the version that it states.

    A store holds several versions side by side, under different names: whoever loads a newer one takes nothing away
    from a service that runs with an older.
    """

    code: str
    version: int

    @property
    def name(self) -> str:
        """The library's name in the store."""
        return f"dpserve_{self.version}"

    @classmethod
    def parse(cls, code: str) -> "FunctionLibrary":
        """Read the version from the line of the source that states it."""
        stated = re.search(r"^local VERSION = '(\d+)'$", code, re.MULTILINE)
        return cls(code, int(stated[1]) if stated else 0)


@cache
def our_library() -> FunctionLibrary:
    """Return the library that this package was written with."""
    folder = files("accounting.ledger")
    return FunctionLibrary.parse("".join(folder.joinpath(f"{part}.lua").read_text() for part in _PARTS))


@dataclass(frozen=True, slots=True)
class Asker:
    """Who calls: a service by its journal's id, with the writes that were acknowledged to it; or the owner."""

    service: str = ""
    acknowledged: int = 0


OWNER = Asker()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a function replied, and how many of the asking service's writes the store now has."""

    values: list[Any]
    writes: int


class Store:
    """A store that speaks the Redis protocol: Redis or Valkey, 7.2 or later.

    `url` is `redis://[user:password@]host:port/db`, `rediss://...`, `unix:///path/to/socket?db=0`,
    `redis+sentinel://host:port,host:port/service` or `redis+cluster://host:port,host:port`. Raises ValueError for
    any other. Nothing is sent before the first call.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline: float = DEADLINE,
        connections: int = 32,
        replicas: int = 0,
        rehearsal: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Give each call `deadline` seconds, and share at most `connections` connections among the calls.

        A write counts as done once it is on the store's disk and on those of `replicas` replicas. `rehearsal`
        asks neither, and accepts settings that lose what was acknowledged. `check` is called before each call and
        raises LedgerUnavailable if it must not be made.
        """
        if replicas < 0:
            raise ValueError(f"the number of replicas must not be negative, and {replicas} is")
        self.deadline = deadline
        self.rehearsal = rehearsal
        self.address = address(url)
        self._check = check
        self._replicas = replicas
        self._must_wait = replicas > 0
        self._inspected: set[bytes] = set()
        self._promotes = url.startswith("redis+sentinel://")
        self._link = link_to(url, self._inspect, deadline=deadline, connections=connections)

    async def close(self) -> None:
        """Close every connection."""
        await self._link.close()

    @property
    def waits(self) -> bool:
        """Whether each write waits with WAITAOF for the disks that it is to be on."""
        return self._must_wait and not self.rehearsal

    async def verify(self) -> None:
        """See to it that the store keeps what it acknowledges and runs our function library, on every primary.

        Raises UnsafeStore with a line for each setting to change; with `rehearsal` the settings are not looked
        at. Raises WrongFunctionVersion if the store's library is newer than ours, or altered.
        """
        if self._promotes and self._replicas == 0 and not self.rehearsal:
            raise UnsafeStore(
                ("Sentinels may promote a replica that lacks what was acknowledged; set `--ledger-replicas 1` or more",)
            )
        try:
            async with asyncio.timeout(self.deadline):
                await self._link.visit()
        except (refused.RedisError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def command(self, key: str, *words: str | bytes | int, durably: bool = False) -> Any:
        """Send one command to where `key` lives and return its raw reply; `durably` waits for the disks."""
        self._check()
        commands: list[Words] = [words]
        waits = durably and self.waits
        if waits:
            commands += [("WAITAOF", 1, self._replicas, timeout) for timeout in self._waits_for()]
        try:
            replies = await self._link.send(key, commands)
            for reply in replies:
                if isinstance(reply, refused.RedisError):
                    raise reply
        except refused.ReadOnlyError as error:
            self._link.abandon()  # the primary is another one now
            raise self._unavailable(error) from error
        except (refused.RedisError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error
        if waits:
            own, theirs = replies[-1]
            if own < 1 or theirs < self._replicas:
                raise LedgerUnavailable(
                    f"the ledger's store has the write on {own} disk of its own and on {theirs} of "
                    f"{self._replicas} replicas'"
                )
        return replies[0]

    def _waits_for(self) -> list[int]:
        """Return the milliseconds of one WAITAOF after the other, the last of which ends before the deadline.

        A replica is asked once for each of them how far its disk is, and says so otherwise once a second only. When
        it is asked right after the write it has not synced it yet; the later ones end at once when it has.
        """
        all_of_it = max(1, int(900 * self.deadline))  # 0 would be for ever
        if self._replicas == 0:
            return [all_of_it]
        short = [timeout for timeout in (3, 6, 12, 25, 50, 100, 200) if timeout < all_of_it / 8]
        return [*short, all_of_it - sum(short)]

    async def call(
        self,
        lineage: str,
        function: str,
        keys: Sequence[str | bytes],
        arguments: Sequence[str | bytes | int],
        *,
        asker: Asker = OWNER,
        durably: bool = True,
    ) -> Reply:
        """Call one function of the ledger's library on a lineage and return what it replied.

        `keys` open with the lineage's services. A function that only reads need not be `durably` done. Raises
        StoreBehind if the store has fewer of the asker's writes than it acknowledged.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        library = our_library()
        words = [str(library.version), nonce, asker.service, asker.acknowledged, *arguments]
        try:
            reply = await self.command(
                str(keys[0]), "FCALL", f"{library.name}_{function}", len(keys), *keys, *words, durably=durably
            )
        except LedgerUnavailable as error:
            said = str(error.__cause__)
            if said.startswith("Function not found"):  # somebody removed the library: look again, and load it
                self._inspected.clear()
                self._link.abandon()
            told = _told(lineage, said)
            if told is None:
                raise  # `from error` would make it its own cause
            raise told from error
        if not isinstance(reply, list) or len(reply) < 2 or reply[0] != nonce:
            self._link.abandon()
            raise LedgerUnavailable("the ledger's store replied to another call than the one it was sent")
        return Reply(reply[2:], int(reply[1]))

    async def _inspect(self, exchange: Exchange) -> None:
        """Look at the store behind a new connection."""
        try:
            failures = await self._unsafe_settings(exchange) if not self.rehearsal else []
            if (await exchange(("ROLE",)))[0] != b"master":
                failures.append("the ledger's store is a replica; give the address of its primary")
            if failures:
                raise UnsafeStore(tuple(failures))
            run = _field(await exchange(("INFO", "server")), b"run_id")
            if run not in self._inspected:
                await self._install_library(exchange)
                await _try_to_write(exchange)
                self._inspected.add(run)
        except refused.BusyLoadingError as error:
            raise self._unavailable(error) from error

    async def _unsafe_settings(self, exchange: Exchange) -> list[str]:
        names = ("appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite")
        try:
            found = _settings(await exchange(("CONFIG", "GET", *names)))
        except refused.ResponseError as error:
            raise UnsafeStore(
                ("the ledger's store does not show its settings; permit `CONFIG GET` to the ledger's user",)
            ) from error
        # With everysec the disk is at most a second behind, and WAITAOF waits for it; with no, it may never come.
        # Once for one server of a cluster is for all of them, and for good.
        self._must_wait = self._must_wait or found.get("appendfsync") == "everysec"
        accepted = {
            "appendonly": ("yes",),
            "appendfsync": ("always", "everysec"),
            "maxmemory-policy": ("noeviction",),
            # While the file is rewritten, `yes` acknowledges charges that no disk has seen.
            "no-appendfsync-on-rewrite": ("no",),
        }
        return [
            f"the ledger's store has `{name} {found.get(name, '')}`; set `{name} {values[0]}`"
            for name, values in accepted.items()
            if found.get(name) not in values
        ]

    async def _install_library(self, exchange: Exchange) -> None:
        ours = our_library()
        theirs = _code(await exchange(("FUNCTION", "LIST", "LIBRARYNAME", ours.name, "WITHCODE")))
        if theirs is None:
            try:
                await exchange(("FUNCTION", "LOAD", ours.code))
            except refused.ResponseError as error:
                if "already exists" not in str(error):  # another program loaded it in this moment
                    raise
        elif theirs != ours.code:
            raise WrongFunctionVersion(f"version {ours.version}", f"version {ours.version}, altered")

    def _unavailable(self, error: Exception) -> LedgerError:
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
            return LedgerUnavailable(f"the ledger's store reports: {text}")
        return LedgerUnavailable(f"the ledger's store at {self.address} cannot be reached: {text}")


def _told(lineage: str, said: str) -> LedgerUnavailable | None:
    """Return what one of the library's own errors means, None for any other."""
    word, _, line = said.partition(" ")
    match word:
        case "DPSERVEBEHIND":
            writes, acknowledged = line.split()
            return StoreBehind(lineage, int(writes), int(acknowledged))
        case "DPSERVEDAMAGED":
            return LedgerDamaged(lineage, line)
        case "DPSERVENEWER":
            return WrongFunctionVersion(f"for format {FORMAT}", f"for format {line}")
        case "DPSERVEMALFORMED":
            return LedgerUnavailable(f"the ledger's store cannot read the call: {line}")
        case "DPSERVEFAILED":
            return LedgerUnavailable(f"the ledger's store reports: {line}")
    return None


async def _try_to_write(exchange: Exchange) -> None:
    """Write and remove a key with each command that writes, and raise UnsafeStore if the user may not.

    A node of a cluster that has not the key looks at the rights first too, and then says where it is.
    """
    denied = []
    for words in _TRIAL:
        try:
            await exchange(words)
        except refused.NoPermissionError as error:
            denied.append(str(error))
        except refused.ResponseError:
            continue  # that there is no memory left or that the key is another node's is no matter of rights
    if denied:
        raise UnsafeStore(
            (
                f"the ledger's user may not write to the store ({denied[0]}); give it an ACL with `~dpserve:*`, "
                "`+@read`, `+@write` and `+@scripting`",
            )
        )


def _code(listed: Sequence[Any]) -> str | None:
    if not listed:
        return None
    described = listed[0]
    code: bytes = dict(zip(described[::2], described[1::2], strict=True))[b"library_code"]
    return code.decode()


def _field(info: bytes, name: bytes) -> bytes:
    for line in info.splitlines():
        if line.startswith(name + b":"):
            return line.partition(b":")[2]
    return b""


def _settings(reply: Sequence[bytes]) -> dict[str, str]:
    words = [word.decode() for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
