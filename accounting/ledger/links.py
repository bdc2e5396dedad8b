"""The ways to a store that speaks the Redis protocol: one server, the primary that Sentinels name, or a Cluster.

Promises: commands that are sent together travel on one connection, one after the other; nothing is sent twice,
except to a Cluster's other node after a node said that it did not run a command because the key is not its own;
a connection on which anything went wrong is not used again; every new connection is inspected before its use.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import redis.exceptions as refused
from hiredis import pack_command
from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot

from accounting.ledger.replies import Replies

Words = Sequence[str | bytes | int]
Exchange = Callable[[Words], Awaitable[Any]]
Inspect = Callable[[Exchange], Awaitable[None]]
"""Looks at a store over a new connection; whatever it raises makes the connection unusable."""

_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")
_REDIRECTIONS = 3


class Link(Protocol):
    """A way to a store."""

    async def send(self, key: str, commands: Sequence[Words]) -> list[Any]:
        """Send the commands to where `key` lives, on one connection; return their replies, errors as values.

        Raises TimeoutError if they are not there within the deadline, the wait for a free connection included.
        """

    async def visit(self) -> None:
        """Make sure that there is an inspected connection to every primary."""

    def abandon(self) -> None:
        """Close every connection at once, waiting for nobody; later commands open new ones."""

    async def close(self) -> None:
        """Close for good."""


def link_to(url: str, inspect: Inspect, *, deadline: float, connections: int) -> Link:
    """Return a way to the store at `url`; nothing is sent yet. Raises ValueError for an address that is none."""
    address(url)
    parts = urlsplit(url)
    options: dict[str, Any] = {
        "socket_timeout": None,  # every call has a deadline of its own
        "socket_connect_timeout": deadline,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "redis_connect_func": _greeting(inspect),
    }
    if parts.scheme == "redis+sentinel":
        service, _, db = parts.path.strip("/").partition("/")
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            _hosts(parts), sentinel_kwargs={"socket_timeout": deadline, "protocol": 2}
        )
        primary = sentinel.master_for(service, db=int(db or 0), **_credentials(parts), **options)
        return _Direct(primary.connection_pool, connections, deadline, sentinel.sentinels)
    if parts.scheme == "redis+cluster":
        return _Cluster(_hosts(parts), _credentials(parts), options, connections, deadline)
    return _Direct(ConnectionPool.from_url(url, **options), connections, deadline)


def address(url: str) -> str:
    """Return where `url` leads, without its password. Raises ValueError for an address that is none."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(
            "the ledger's address must start with redis://, rediss:// or unix://, or with redis+sentinel:// or "
            "redis+cluster://"
        )
    unknown = [name for name in parse_qs(parts.query) if name != "db" and not name.startswith("ssl_")]
    if unknown:
        raise ValueError(f"the ledger's address may set db and ssl_..., not {', '.join(sorted(unknown))}")
    if parts.scheme == "unix":
        return parts.path
    try:
        hosts = ", ".join(f"{host}:{port}" for host, port in _hosts(parts))
    except ValueError as error:
        raise ValueError("the ledger's address is not one that can be read: its port is no number") from error
    service = parts.path.strip("/")
    if parts.scheme == "redis+sentinel" and not service:
        raise ValueError("the Sentinels' address must name the service: redis+sentinel://host:port/service")
    return f"{service} by {hosts}" if parts.scheme == "redis+sentinel" else hosts


def _hosts(parts: SplitResult) -> list[tuple[str, int]]:
    port_if_none = 26379 if parts.scheme == "redis+sentinel" else 6379
    hosts = []
    for place in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{place}")
        hosts.append((one.hostname or "localhost", one.port or port_if_none))
    return hosts


def _credentials(parts: SplitResult) -> dict[str, Any]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    found = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


def _greeting(inspect: Inspect) -> Callable[[Connection], Awaitable[None]]:
    async def greet(connection: Connection) -> None:
        async def exchange(words: Words) -> Any:
            await connection.send_packed_command(pack_command(tuple[Any, ...](words)), check_health=False)
            return await connection.read_response()

        try:
            await connection.on_connect()
            await inspect(exchange)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    return greet


class _Direct:
    """One server, or whichever server the Sentinels name when a connection is made."""

    def __init__(
        self, pool: ConnectionPool, connections: int, deadline: float, sentinels: Sequence[Redis] = ()
    ) -> None:
        self._pool = pool
        self._deadline = deadline
        self._sentinels = sentinels
        self._free = asyncio.Semaphore(connections)
        # Which the pool still counts as in use: giving each back after each call is slow.
        self._idle: list[tuple[Any, Replies | None]] = []
        self._open: set[Replies] = set()

    async def send(self, key: str, commands: Sequence[Words]) -> list[Any]:
        del key
        packed = b"".join([pack_command(tuple[Any, ...](words)) for words in commands])
        began = time.monotonic()
        if self._free.locked():
            async with asyncio.timeout(self._deadline):
                await self._free.acquire()
        else:
            await self._free.acquire()
        try:
            connection, replies = await self._take(began + self._deadline)
            try:
                return await replies.exchange(packed, len(commands), began + self._deadline - time.monotonic())
            except BaseException as error:
                # A reply may still be on its way: nobody must take it for the next call's.
                replies.abort()
                broke = isinstance(error, refused.ConnectionError | OSError) and not isinstance(error, TimeoutError)
                if broke and replies in self._open:  # else it broke because it was abandoned
                    self.abandon()  # what became of this one has become of the others
                self._open.discard(replies)
                raise
            finally:
                self._idle.append((connection, replies))
        finally:
            self._free.release()

    async def _take(self, last: float) -> tuple[Any, Replies]:
        """Return a connection that is whole, the one that was last used if there is one, by `last` at the latest."""
        connection: Any = None
        if self._idle:
            connection, replies = self._idle.pop()
            if replies is not None:
                if replies.usable and connection.is_connected:
                    return connection, replies
                replies.abort()
                self._open.discard(replies)
        async with asyncio.timeout(last - time.monotonic()):
            if connection is None:
                connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            else:
                try:
                    await connection.disconnect(nowait=True)
                    await self._pool.ensure_connection(connection)
                except BaseException:
                    self._idle.append((connection, None))
                    raise
        replies = Replies(connection._writer.transport)
        self._open.add(replies)
        return connection, replies

    async def visit(self) -> None:
        await self.send("", [("PING",)])

    def abandon(self) -> None:
        # Not by the pool, which waits until the others hear of it: also for a peer that does not read.
        for replies in self._open:
            replies.abort()
        self._open.clear()

    async def close(self) -> None:
        await self._pool.aclose()
        for sentinel in self._sentinels:
            await sentinel.aclose()


class _Cluster:
    """A Cluster: each primary has a way of its own; who holds which slot is asked when it is not known."""

    def __init__(
        self,
        seeds: list[tuple[str, int]],
        credentials: dict[str, Any],
        options: dict[str, Any],
        connections: int,
        deadline: float,
    ) -> None:
        self._deadline = deadline
        self._seeds = seeds
        self._options = credentials | options
        self._connections = connections
        self._holders: list[tuple[range, tuple[str, int]]] = []
        self._asking = asyncio.Lock()
        self._nodes: dict[tuple[str, int], _Direct] = {}

    async def send(self, key: str, commands: Sequence[Words]) -> list[Any]:
        async with asyncio.timeout(self._deadline):
            return await self._send(key_slot(key.encode()), key, commands)

    async def _send(self, slot: int, key: str, commands: Sequence[Words]) -> list[Any]:
        replies: list[Any] = []
        for _ in range(_REDIRECTIONS):
            holders = [node for slots, node in await self._known_holders() if slot in slots]
            if not holders:
                self._holders = []
                raise refused.ConnectionError("no node of the cluster holds the lineage")
            try:
                replies = await self._node(holders[0]).send(key, commands)
            except BaseException:
                self._holders = []  # another may hold it next time
                raise
            if not isinstance(replies[0], refused.MovedError):
                break
            self._holders = []
        return replies

    async def visit(self) -> None:
        for node in {node for _, node in await self._known_holders()}:
            await self._node(node).visit()

    def abandon(self) -> None:
        for node in self._nodes.values():
            node.abandon()

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()

    def _node(self, place: tuple[str, int]) -> _Direct:
        if place not in self._nodes:
            pool = ConnectionPool(host=place[0], port=place[1], **self._options)
            self._nodes[place] = _Direct(pool, self._connections, self._deadline)
        return self._nodes[place]

    async def _known_holders(self) -> list[tuple[range, tuple[str, int]]]:
        async with self._asking:  # one asks, the others wait for what it hears
            if not self._holders:
                self._holders = await self._ask_holders()
            return self._holders

    async def _ask_holders(self) -> list[tuple[range, tuple[str, int]]]:
        last: Exception | None = None
        for host, port in dict.fromkeys([*self._seeds, *self._nodes]):
            options = self._options | {"redis_connect_func": None}  # any node may answer this, a replica too
            connection = Connection(host=host, port=port, **options)
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_packed_command(connection.pack_command("CLUSTER", "SLOTS"), check_health=False)
                reply = await connection.read_response()
                return [(range(first, end + 1), (at[0].decode() or host, at[1])) for first, end, at, *_ in reply]
            except (refused.RedisError, OSError, TimeoutError) as error:
                last = error
            finally:
                await connection.disconnect(nowait=True)
        raise refused.ConnectionError("no node of the cluster says who holds what") from last
