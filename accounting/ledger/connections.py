"""The ways to a store that speaks the Redis protocol: one server, the primary that Sentinels name, or a Cluster.

All of it is redis-py's asyncio client, told to send nothing twice: what became of a call that failed is for the caller
to find out.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisClusterException

_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")


def connections_to(url: str, deadline: float) -> "OneServer | Cluster":
    """Return connections to the store at `url`; nothing is sent yet. Raises ValueError for an invalid address."""
    address(url)
    parts = urlsplit(url)
    options: dict[str, Any] = {
        "socket_timeout": deadline,
        "socket_connect_timeout": deadline,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if parts.scheme == "redis+sentinel":
        service, _, db = parts.path.strip("/").partition("/")
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            _hosts(parts), sentinel_kwargs={"socket_timeout": deadline, "protocol": 2}
        )
        primary = sentinel.master_for(service, db=int(db or 0), **_credentials(parts), **options)
        return OneServer(primary, sentinel.sentinels)
    if parts.scheme == "redis+cluster":
        return Cluster(_hosts(parts), _credentials(parts) | options)
    return OneServer(Redis.from_pool(ConnectionPool.from_url(url, **options)))


def address(url: str) -> str:
    """Return where `url` leads, without its password. Raises ValueError for an invalid address."""
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
    credentials = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in credentials.items() if value}


class OneServer:
    """One server, or whichever server the Sentinels name when a connection is made."""

    def __init__(self, client: Redis, sentinels: Sequence[Redis] = ()) -> None:
        """Use this client; close those of the Sentinels with it."""
        self._client = client
        self._sentinels = sentinels

    async def client_for(self, key: str) -> Redis:
        """Return the client of the server that has `key`."""
        del key
        return self._client

    async def primaries(self) -> Sequence[Redis]:
        """Return the client of every primary."""
        return (self._client,)

    async def renew(self) -> None:
        """Forget where what lies, and close connections that nobody uses: another server may have it now."""
        await self._client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close every connection."""
        for client in (self._client, *self._sentinels):
            await client.connection_pool.disconnect()
            await client.aclose()


class Cluster:
    """A Cluster: redis-py's client of it says which server has a key, and each server has a client of its own."""

    def __init__(self, hosts: Sequence[tuple[str, int]], options: dict[str, Any]) -> None:
        """Ask these servers, and connect to all with these options."""
        self._options = options
        self._cluster = RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in hosts], **options)
        self._clients: dict[tuple[str, int], Redis] = {}

    async def client_for(self, key: str) -> Redis:
        """Return the client of the server that has `key`."""
        await self._initialize()
        node = self._cluster.get_node_from_key(key)
        if node is None:
            raise ConnectionError("no node of the cluster holds the lineage")
        return self._client(node)

    async def primaries(self) -> Sequence[Redis]:
        """Return the client of every primary."""
        await self._initialize()
        return [self._client(node) for node in self._cluster.get_primaries()]

    async def renew(self) -> None:
        """Forget where what lies, and close connections that nobody uses: another server may have it now."""
        await self._cluster.aclose()  # the next call initializes it again
        for client in self._clients.values():
            await client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close every connection."""
        await self._cluster.aclose()
        for client in self._clients.values():
            await client.connection_pool.disconnect()
            await client.aclose()

    async def _initialize(self) -> None:
        try:
            await self._cluster.initialize()
        except RedisClusterException as error:  # which is no RedisError
            raise NotConnected(str(error)) from error

    def _client(self, node: ClusterNode) -> Redis:
        place = (node.host, int(node.port))
        if place not in self._clients:
            self._clients[place] = Redis(host=place[0], port=place[1], **self._options)
        return self._clients[place]
