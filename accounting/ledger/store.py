"""The store that holds the ledger: one way to call it, with a deadline, and to doubt its reply.

Promises: a call ends within the deadline; nothing below retries it, so that an outcome that is not known is reported as
not known; a reply is taken only for the call it answers; a write is durable, on as many replicas as were asked for,
before its reply is taken; no function of the library decides anything before this store has looked at the settings of
the server since it started, and settings that change while a server runs are noticed within a second; whatever else
happens is a `LedgerUnavailable` of one line that never shows the URL's password.
"""

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import msgspec
import redis.exceptions as refused
from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError

from dpserve.accounting.ledger.connections import ERRORS, LOST, address, connections_to, has_sentinels
from dpserve.accounting.ledger.errors import (
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
    LineageForgotten,
    StoreBehind,
    TooFewDisks,
    UnsafeStore,
    WrongFormat,
)
from dpserve.accounting.messages import Message

FORMAT = "1"
"""The way of writing a lineage."""

FORGOTTEN = "forgotten"
"""The format of a lineage that the owner had forgotten: every function of every version refuses it."""

DEADLINE = 5.0
"""Seconds that a call may take, the wait for a free connection included."""

_LATE = 100
"""Milliseconds by which a server that has nothing else to do ends a WAITAOF late, by its default `hz 10`."""

LEAST_VERSION = (7, 2)
"""Oldest version of a server: the first that waits for a disk (`WAITAOF`). Valkey says which Redis it is like."""

LOOK_AGAIN = 0.5
"""Seconds after which a server's settings are looked at again before the next call."""

RIGHTS = "~dpserve:* +@read +@write +@scripting +@connection +time +waitaof -@dangerous +config|get +info +role"
"""The rights that an ACL must grant to the ledger's user."""

_SENT = ("SADD", "SMEMBERS", "HSET", "HMGET")
"""The commands on the ledger's keys that are sent beside those that the library calls."""

_PARTS = ("library", "owner", "call", "charge", "recovery")
_OURS = "DPSERVE"
"""Prefix of the library's own errors."""

_NONCE_BYTES = 8
_TRIES = 4
_PAUSE = 0.1
_PASSING = (*LOST, refused.BusyLoadingError)
"""Errors that may pass in a moment: a server starts, or starts again."""

_REWRITING = (
    "the ledger's store is rewriting its append-only file, which may hold nothing yet; wait until `INFO persistence` "
    "says `aof_rewrite_in_progress:0`"
)

Command = Sequence[str | bytes | int]
Arguments = Mapping[str, Any]
"""A function's arguments by name: texts, whole numbers, `binary`, lists and mappings of these."""


def binary(data: bytes) -> msgspec.Raw:
    """Return bytes as the store's MessagePack knows them: as a text (str 32), which there may hold any bytes."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


@dataclass(frozen=True)
class FunctionLibrary:
    """The ledger's function library by its source, in which `@NAME@` stands for the library's name.

    The name follows from the source: another release's library lies beside this one, and takes nothing away from a
    service that runs with it.
    """

    source: str

    @cached_property
    def name(self) -> str:
        """The library's name in the store."""
        return f"dpserve_{hashlib.sha256(self.source.encode()).hexdigest()[:16]}"

    @cached_property
    def code(self) -> str:
        """The source as the store loads it."""
        return self.source.replace("@NAME@", self.name)

    @property
    def commands(self) -> tuple[str, ...]:
        """The store's commands that the library calls, each with its subcommand if it has one."""
        called = re.findall(r"redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?", self.source)
        sliced = re.findall(r"in_slices\(([^,\n(]*),", self.source)
        words = {" ".join(filter(None, each)) for each in called}
        return tuple(sorted(words.union(*(re.findall("'([A-Z]+)'", each) for each in sliced))))


@cache
def our_library() -> FunctionLibrary:
    """Return the library that this package was written with."""
    folder = files("dpserve.accounting.ledger")
    return FunctionLibrary("".join(folder.joinpath(f"{part}.lua").read_text() for part in _PARTS))


Asker = tuple[str, int]
"""Who calls: a service by its id, with how many of its writes were acknowledged to it; or the owner."""

OWNER: Asker = ("", 0)


@dataclass(frozen=True)
class StoreUse:
    """A store's fullness: bytes of memory used and allowed, and of the append-only file.

    memory_limit: that of the machine where the server has none. writes: whether the newest write and rewrite of every
    file succeeded. replicas: how many follow the primary that has the fewest.
    """

    memory: int
    memory_limit: int
    file: int
    writes: bool
    replicas: int


async def _compare_nothing(lineage: str, mark: str) -> None:
    del lineage, mark


class _StoreChanged(LedgerUnavailable):
    """The store's mark is another one than that by which the lineage was being compared."""


class Store:
    """A store that speaks the Redis protocol: Valkey, or Redis 7.2 or later.

    `url` is `redis://[user:password@]host:port/db`, `rediss://...`, `unix:///path/to/socket?db=0`,
    `redis+sentinel://host:port,host:port/service`; `rediss+...` for TLS.
    Raises ValueError for any other. Nothing is sent before the first call.
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
        self.compare: Callable[[str, str], Awaitable[None]] = _compare_nothing
        """Compares a lineage with what others know of it, by calls with this mark; see `call`."""
        self._check = check
        self._replicas = replicas
        self._waits = replicas > 0 and not rehearsal
        """Whether each write waits with WAITAOF for the disks that it is to be on."""
        self._promotes = has_sentinels(url)
        self._connections = connections_to(url, deadline)
        self._free = asyncio.Semaphore(connections)
        self._ready: set[Redis] = set()
        self._looked: dict[Redis, float] = {}
        """Until when each server's settings are taken to be as they were looked at, by `time.monotonic`."""
        self._looking = asyncio.Lock()
        self._marks: dict[str, str] = {}
        self._comparing = asyncio.Lock()

    async def close(self) -> None:
        """Close every connection."""
        await self._connections.close()

    async def verify(self) -> None:
        """See to it that the store keeps what it acknowledges and runs our function library, on every primary.

        A store that cannot be reached, or is not ready yet, is tried again until the deadline. Raises UnsafeStore with
        a line for each thing to change; with `rehearsal` the settings are not looked at.
        """
        if self._promotes and self._replicas == 0 and not self.rehearsal:
            raise UnsafeStore(
                (
                    Message(
                        "Sentinels may promote a replica that lacks what was acknowledged; set "
                        "{ledger_replicas:1} or more"
                    ),
                )
            )

        last = time.monotonic() + self.deadline - _PAUSE
        while True:
            try:
                await self._within_deadline(self._look(self._connections.client))
            except LedgerUnavailable as error:
                denied = isinstance(error.__cause__, refused.AuthenticationError)
                passing = str(error) == _REWRITING or (isinstance(error.__cause__, _PASSING) and not denied)
                if not passing or time.monotonic() > last:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return

    async def command(self, *words: str | bytes | int, durably: bool = False) -> Any:
        """Send one command and return its raw reply; `durably` waits for the disks."""
        self._check()
        return await self._within_deadline(self._command(words, durably=durably))

    async def use(self) -> StoreUse:
        """Return how full the store is. Raises LedgerUnavailable."""
        self._check()
        found: StoreUse = await self._within_deadline(self._use())
        return found

    async def _use(self) -> StoreUse:
        client = self._connections.client
        memory, persistence = await client.info("memory"), await client.info("persistence")
        replication = await client.info("replication")
        replicas = [value for name, value in replication.items() if re.fullmatch(r"slave\d+", name)]
        states = (persistence.get(name, "ok") for name in ("aof_last_write_status", "aof_last_bgrewrite_status"))
        return StoreUse(
            memory=int(memory["used_memory"]),
            memory_limit=int(memory["maxmemory"]) or int(memory["total_system_memory"]),
            file=int(persistence.get("aof_current_size", 0)),
            writes=all(state == "ok" for state in states),
            replicas=sum(replica["state"] == "online" for replica in replicas),
        )

    @property
    def replicas_needed(self) -> int:
        """On how many replicas a write must be before it counts."""
        return self._replicas

    async def can_promote(self) -> bool | None:
        """Return whether Sentinels would make a replica the primary; None where there are none."""
        try:
            async with asyncio.timeout(self.deadline):
                return await self._connections.can_promote()
        except TimeoutError:
            return False

    async def call(
        self,
        lineage: str,
        function: str,
        keys: Sequence[str | bytes],
        arguments: Arguments,
        *,
        asker: Asker = OWNER,
        durably: bool = True,
        mark: str = "",
    ) -> tuple[list[Any], int]:
        """Call one function of the ledger's library on a lineage.

        Returns what it replied, and how many of the asker's writes the store now has. `keys` open with the lineage's
        services. A function that only reads need not be `durably` done. Raises StoreBehind if the store has fewer of
        the asker's writes than it acknowledged.

        A store that has started, or a lineage that has begun, since it was last compared answers with another mark and
        decides nothing: then the settings are looked at and the lineage is compared, by calls with that `mark`, before
        the call is sent again.
        """
        # A connection whose reader was cancelled may have a reply left over; the nonce tells it from this call's.
        nonce = secrets.token_hex(_NONCE_BYTES)
        library = our_library()
        for tries_left in reversed(range(_TRIES)):
            self._check()
            sent = {
                "nonce": nonce,
                "mark": mark or self._marks.get(lineage, ""),
                "service": asker[0],
                "acknowledged": asker[1],
                **arguments,
            }
            packed = msgspec.msgpack.encode(sent)
            words = ("FCALL", f"{library.name}_{function}", len(keys), *keys, packed)
            try:
                reply = await self._within_deadline(self._command(words, durably=durably))
                break
            except TooFewDisks as short:
                short.reply, _ = await self._checked(short.reply, nonce)
                raise
            except LedgerUnavailable as error:
                word, _, line = str(error.__cause__).partition(" ")
                if tries_left and not mark and word == "DPSERVEUNSEEN":
                    with suppress(_StoreChanged):  # once more, by the mark that the next reply tells
                        await self._compare(lineage, line)
                elif tries_left and "Function not found" in str(error.__cause__):  # somebody removed the library
                    self._ready.clear()
                    self._looked.clear()
                elif word.startswith(_OURS):
                    raise said_by_library(lineage, word.removeprefix(_OURS), line) from error
                else:
                    raise
        return await self._checked(reply, nonce)

    async def _checked(self, reply: Any, nonce: str) -> tuple[list[Any], int]:
        """Return what a reply says, if it is this call's: somebody else's charge must never be taken for this one's."""
        if not isinstance(reply, list) or len(reply) < 2 or reply[0] != nonce.encode():
            await self._connections.renew()
            raise LedgerUnavailable("the ledger's store replied to another call than the one it was sent")
        return reply[2:], int(reply[1])

    def mark(self, lineage: str) -> str:
        """Return what changes whenever the server starts or the lineage begins; empty before the first call."""
        return self._marks.get(lineage, "")

    def forget(self, lineage: str) -> None:
        """Compare the lineage with what others know of it before the next call."""
        self._marks.pop(lineage, None)

    async def _compare(self, lineage: str, mark: str) -> None:
        async with self._comparing:
            before = self._marks.get(lineage, "")
            if before != mark:
                # Another server may have other settings, though it is reached at the same address.
                self._looked.clear()
                if before.partition("/")[0] != mark.partition("/")[0]:  # a server has started
                    self._ready.clear()
                await self.compare(lineage, mark)
                self._marks[lineage] = mark

    async def _command(self, words: Command, *, durably: bool) -> Any:
        client = self._connections.client
        if time.monotonic() > self._looked.get(client, 0.0):
            await self._look(client)
        async with self._free:
            if not (durably and self._waits):
                return await client.execute_command(*words)  # type: ignore[no-untyped-call]
            async with client.pipeline(transaction=False) as pipeline:  # all of it on one connection, as WAITAOF needs
                pipeline.execute_command(*words)
                for timeout in self._waits_for():
                    pipeline.execute_command("WAITAOF", 1, self._replicas, timeout)
                replies = await pipeline.execute(raise_on_error=False)  # which would say it in words of its own
        for reply in replies:
            if isinstance(reply, refused.RedisError):
                raise reply
        own, theirs = replies[-1]
        if own < 1 or theirs < self._replicas:
            raise TooFewDisks(own, theirs, self._replicas, replies[0])
        return replies[0]

    async def _within_deadline(self, work: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self.deadline):
                return await work
        except (refused.ReadOnlyError, refused.MovedError, *LOST) as error:
            # The store that answers next may be another one: nothing that was looked at before is relied on.
            self._looked.clear()
            await self._connections.renew()  # another server may be the primary now
            raise self._unavailable(error) from error
        except ERRORS as error:
            raise self._unavailable(error) from error

    def _waits_for(self) -> list[int]:
        """Return the milliseconds of one WAITAOF after the other, the last of which ends before the deadline.

        A replica is asked once for each of them how far its disk is, and says so otherwise once a second only. When
        it is asked right after the write it has not synced it yet; the later ones end at once when it has. The server
        looks ten times a second whether one is over: all that lateness has its room before the deadline.
        """
        all_of_it = max(1, int(900 * self.deadline))  # 0 would be for ever
        if self._replicas == 0:
            return [all_of_it]
        short = [timeout for timeout in (3, 6, 12, 25, 50, 100, 200) if timeout < all_of_it / 8]
        late = min(_LATE, all_of_it // (2 * len(short) + 2))
        return [*short, all_of_it - sum(short) - late * len(short)]

    async def _look(self, client: Redis) -> None:
        """Look at the server's role and settings; at one that is not ready, install the library and ask what it is."""
        async with self._looking:
            if time.monotonic() <= self._looked.get(client, 0.0):
                return  # somebody else did
            failures: list[str] = [] if self.rehearsal else [*await self._unsafe_settings(client)]
            role = await client.role()
            if _text(role[0]) != "master":
                failures.append("the ledger's store is a replica; give the address of its primary")
            elif role[2] and self._replicas == 0 and not self.rehearsal:
                failures.append(
                    Message(
                        "the ledger's store has replicas, one of which may be promoted without what was "
                        "acknowledged; set {ledger_replicas:1} or more"
                    )
                )
            # Nothing is installed at a store that will be refused.
            if client not in self._ready and not failures:
                failures += await self._prepare(client)
            if failures:
                self._ready.discard(client)
                raise UnsafeStore(tuple(failures))
            self._ready.add(client)
            self._looked[client] = time.monotonic() + LOOK_AGAIN

    async def _prepare(self, client: Redis) -> list[str]:
        """Install the library; return why the server cannot be used. It knows the library's commands from then on."""
        version = str((await client.info("server"))["redis_version"])
        if tuple(map(int, version.split(".")[:2])) < LEAST_VERSION:
            return [f"the ledger's store is Redis {version}; it needs Redis or Valkey 7.2 or later"]
        if not self.rehearsal:
            persistence = await client.info("persistence")
            # A file that was only just asked for, with CONFIG SET, holds nothing before its first rewrite ends. The
            # server does not say whether the rewrite under way is the first.
            if persistence["aof_rewrite_in_progress"] or persistence["aof_rewrite_scheduled"]:
                return [_REWRITING]
        await self._install_library(client)
        used = (*our_library().commands, *_SENT, *(("WAITAOF",) if self._waits else ()))
        denied = await client.execute_command(  # type: ignore[no-untyped-call]
            "FCALL", f"{our_library().name}_denied", 0, *dict.fromkeys(used)
        )
        lacking = ", ".join(command.decode() for command in denied)
        return [f"the ledger's user lacks the right to {lacking}; give it an ACL with `{RIGHTS}`"] if denied else []

    async def _unsafe_settings(self, client: Redis) -> list[str]:
        names = ("appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite")
        try:
            settings = {_text(name): _text(value) for name, value in (await client.config_get(*names)).items()}
        except refused.ResponseError as error:
            raise UnsafeStore(
                ("the ledger's store does not show its settings; permit `CONFIG GET` to the ledger's user",)
            ) from error
        # With everysec the disk is at most a second behind, and WAITAOF waits for it; with no, it may never come.
        # Once is for good.
        self._waits = self._waits or settings.get("appendfsync") == "everysec"
        accepted = {
            "appendonly": ("yes",),
            "appendfsync": ("always", "everysec"),
            "maxmemory-policy": ("noeviction",),
            # While the file is rewritten, `yes` acknowledges charges that no disk has seen.
            "no-appendfsync-on-rewrite": ("no",),
        }
        return [
            f"the ledger's store has `{name} {settings.get(name, '')}`; set `{name} {values[0]}`"
            for name, values in accepted.items()
            if settings.get(name) not in values
        ]

    async def _install_library(self, client: Redis) -> None:
        if await self._library_there(client) is None:
            try:
                await client.execute_command("FUNCTION", "LOAD", our_library().code)  # type: ignore[no-untyped-call]
            except refused.ResponseError as error:
                if "already exists" not in str(error):  # another program loaded it in this moment
                    raise

    async def _library_there(self, client: Redis) -> str | None:
        """Return the source of the library that the server has, if any. Raises UnsafeStore for an altered one."""
        ours = our_library()
        listed = await client.execute_command(  # type: ignore[no-untyped-call]
            "FUNCTION", "LIST", "LIBRARYNAME", ours.name, "WITHCODE"
        )
        theirs = _code(listed)
        if theirs not in (None, ours.code):
            altered = "the ledger's store holds an altered copy of dpserve's function library"
            raise UnsafeStore((f"{altered}; remove it with `FUNCTION DELETE {ours.name}`",))
        return theirs

    def _unavailable(self, error: Exception) -> LedgerUnavailable:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, TimeoutError | refused.TimeoutError):
            return LedgerUnavailable(f"the ledger's store did not answer within {self.deadline:g} s")
        if isinstance(error, refused.AuthenticationError | refused.NoPermissionError):
            return LedgerUnavailable(f"the ledger's store denies access: {text}")
        if isinstance(error, refused.ReadOnlyError):
            return LedgerUnavailable("the ledger's store is a read-only replica")
        if isinstance(error, MasterNotFoundError):  # whose text describes every client object, with a reason after it
            reasons = dict.fromkeys(re.findall(r"> - ([^<>]+?)(?:, <|$)", str(error)))
            return LedgerUnavailable(f"no Sentinel names a primary: {'; '.join((self.address, *reasons))}")
        if isinstance(error, refused.BusyLoadingError):
            return LedgerUnavailable("the ledger's store is still loading its data")
        if isinstance(error, refused.ResponseError):
            return LedgerUnavailable(f"the ledger's store reports: {text}")
        return LedgerUnavailable(f"the ledger's store at {self.address} cannot be reached: {text}")


def said_by_library(lineage: str, word: str, line: str) -> LedgerError:
    """Return what one of the library's own errors means."""
    match word:
        case "BEHIND":
            writes, acknowledged = line.split()
            return StoreBehind(lineage, acknowledged, writes)
        case "DAMAGED":
            return LedgerDamaged(lineage, line)
        case "FORMAT" if line == FORGOTTEN:
            return LineageForgotten(lineage)
        case "FORMAT":
            return WrongFormat(lineage, line, FORMAT)
        case "MALFORMED":
            return LedgerUnavailable(f"the ledger's store cannot read the call: {line}")
        case "UNSEEN":
            return _StoreChanged("the ledger's store was started again, or the lineage begun, while it was looked at")
    return LedgerUnavailable(f"the ledger's store reports: {line}")


def _code(listed: Sequence[Any]) -> str | None:
    if not listed:
        return None
    described = listed[0]
    code: bytes = dict(zip(described[::2], described[1::2], strict=True))[b"library_code"]
    return code.decode()


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
