"""The ways to a store that speaks the Redis protocol: one server, the primary that Sentinels name, or a Cluster.

All of it is redis-py's asyncio client, told to send nothing twice: what became of a call that failed is for the caller
to find out.
"""

import asyncio
import os
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qs, parse_qsl, unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedSSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisClusterException, RedisError

_PLAIN = ("redis", "redis+sentinel", "redis+cluster")
_TLS = ("rediss", "rediss+sentinel", "rediss+cluster")
_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_TLS_OPTIONS = (*_FILES, "ssl_password", "ssl_check_hostname", "ssl_cert_reqs", "ssl_ciphers")
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}


def connections_to(url: str, deadline: float) -> "OneServer | Cluster":
    """Return connections to the store at `url`; nothing is sent yet.

    TLS goes to every server: those that Sentinels or a Cluster name, and the Sentinels themselves. A connection that is
    made, or made again, reads the files of certificates anew. Raises ValueError for an invalid address, or one that
    names a file that is not there.
    """
    address(url)
    parts = urlsplit(url)
    tls = _tls(parts)
    options: dict[str, Any] = {
        "socket_timeout": deadline,
        "socket_connect_timeout": deadline,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if _kind(parts) == "sentinel":
        service, db = _service(parts)
        given = dict(parse_qsl(parts.query))
        own = {name: given[option] for option, name in _SENTINEL_OPTIONS.items() if option in given}
        seconds = deadline / (len(_hosts(parts)) + 2)  # where some do not answer, others are asked within the deadline
        soon = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            _hosts(parts),
            sentinel_kwargs=options | soon | tls | own,
        )
        primary = sentinel.master_for(service, db=db, **_credentials(parts), **options, **tls)
        return OneServer(_reading_anew(primary), [_reading_anew(each) for each in sentinel.sentinels], service)
    if _kind(parts) == "cluster":
        return Cluster(_hosts(parts), _credentials(parts) | options | tls)
    return OneServer(_reading_anew(Redis.from_pool(ConnectionPool.from_url(url, **options))))


def has_sentinels(url: str) -> bool:
    """Return whether Sentinels name the server, and so may name another one later."""
    return _kind(urlsplit(url)) == "sentinel"


def address(url: str) -> str:
    """Return where `url` leads, without its passwords. Raises ValueError for an invalid address."""
    parts = urlsplit(url)
    if parts.scheme not in (*_PLAIN, *_TLS, "unix"):
        raise ValueError(
            "the ledger's address must start with redis://, rediss:// or unix://, or with redis+sentinel:// or "
            "redis+cluster:// (rediss+sentinel:// or rediss+cluster:// for TLS)"
        )
    _refuse_unknown_options(parts)
    if parts.scheme == "unix":
        return parts.path
    try:
        hosts = ", ".join(f"{host}:{port}" for host, port in _hosts(parts))
    except ValueError as error:
        raise ValueError("the ledger's address is not one that can be read: its port is no number") from error
    if _kind(parts) == "cluster" and parts.path.strip("/"):
        raise ValueError("a Cluster has no numbered databases: its address must end after the last port")
    return f"{_service(parts)[0]} by {hosts}" if _kind(parts) == "sentinel" else hosts


def _kind(parts: SplitResult) -> str:
    return parts.scheme.partition("+")[2]


def _refuse_unknown_options(parts: SplitResult) -> None:
    given = list(parse_qs(parts.query, keep_blank_values=True))
    tls = [name for name in given if name.startswith("ssl_")]
    if tls and parts.scheme not in _TLS:
        remedy = "there is no TLS on a socket"
        if parts.scheme in _PLAIN:
            remedy = f"start it with {parts.scheme.replace('redis', 'rediss')}:// for TLS"
        raise ValueError(
            f"the ledger's address sets {', '.join(tls)}, and {parts.scheme}:// is not encrypted: {remedy}"
        )
    known = [*_TLS_OPTIONS] if parts.scheme in _TLS else []
    known += {"sentinel": [*_SENTINEL_OPTIONS], "cluster": []}.get(_kind(parts), ["db"])
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"the ledger's address may set {', '.join(known) or 'nothing'}, not {', '.join(unknown)}")


def _tls(parts: SplitResult) -> dict[str, Any]:
    if parts.scheme not in _TLS:
        return {}
    given = dict(parse_qsl(parts.query))
    for name in _FILES:
        if name in given and not os.access(given[name], os.R_OK):
            raise ValueError(f"the ledger's address sets {name}={given[name]}, which cannot be read")
    if given.get("ssl_cert_reqs", "required") not in ("required", "none"):
        raise ValueError("the ledger's address must set ssl_cert_reqs to required, or to none to trust any server")
    pool = ConnectionPool.from_url(f"rediss://?{parts.query}")  # which turns texts into what a client takes
    return {"ssl": True} | {name: pool.connection_kwargs[name] for name in _TLS_OPTIONS if name in given}


def _service(parts: SplitResult) -> tuple[str, int]:
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError(f"the Sentinels' address must name the service: {parts.scheme}://host:port/service")
    if db and not db.isdecimal():
        raise ValueError(f"the Sentinels' address names the database {db}, which is no number")
    return service, int(db or 0)


def _hosts(parts: SplitResult) -> list[tuple[str, int]]:
    port_if_none = 26379 if _kind(parts) == "sentinel" else 6379
    hosts = []
    for place in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{place}")
        hosts.append((one.hostname or "localhost", one.port or port_if_none))
    return hosts


def _credentials(parts: SplitResult) -> dict[str, Any]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    credentials = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in credentials.items() if value}


class _FilesReadAnew:
    """Settings of TLS that are read from their files whenever a connection is made: they may have been renewed."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def get(self) -> ssl.SSLContext:
        self._settings.context = None  # what was read before
        context: ssl.SSLContext = self._settings.get()
        return context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)


class _TlsConnection(SSLConnection):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context: Any = _FilesReadAnew(self.ssl_context)


class _SentinelsTlsConnection(SentinelManagedSSLConnection):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self.ssl_context: Any = _FilesReadAnew(self.ssl_context)


_READING_ANEW = {SSLConnection: _TlsConnection, SentinelManagedSSLConnection: _SentinelsTlsConnection}


def _reading_anew(client: Redis) -> Redis:
    """Have the client's connections, if they speak TLS, read certificates whenever one is made; return the client."""
    pool = client.connection_pool
    pool.connection_class = _READING_ANEW.get(pool.connection_class, pool.connection_class)
    return client


class OneServer:
    """One server, or whichever server the Sentinels name when a connection is made."""

    def __init__(self, client: Redis, sentinels: Sequence[Redis] = (), service: str = "") -> None:
        """Use this client; close those of the Sentinels, who watch the service of this name, with it."""
        self._client = client
        self._sentinels = sentinels
        self._service = service

    async def client_for(self, key: str) -> Redis:
        """Return the client of the server that has `key`."""
        del key
        return self._client

    async def primaries(self) -> Sequence[Redis]:
        """Return the client of every primary."""
        return (self._client,)

    async def can_promote(self) -> bool | None:
        """Return whether a Sentinel sees enough others to make a replica the primary; None without Sentinels."""
        if not self._sentinels:
            return None

        asked = [asyncio.create_task(_sees_enough(each, self._service)) for each in self._sentinels]
        try:
            for answer in asyncio.as_completed(asked):
                if await answer:
                    return True
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)  # each closes the connection that it leaves
        return False

    async def renew(self) -> None:
        """Forget where what lies, and close connections that nobody uses: another server may have it now."""
        await self._client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close every connection."""
        for client in (self._client, *self._sentinels):
            await client.connection_pool.disconnect()
            await client.aclose()


async def _sees_enough(sentinel: Redis, service: str) -> bool:
    try:
        await sentinel.execute_command("SENTINEL CKQUORUM", service)  # type: ignore[no-untyped-call]
    except (RedisError, OSError):
        return False
    return True


class Cluster:
    """A Cluster: redis-py's client of it says which server has a key, and each server has a client of its own."""

    def __init__(self, hosts: Sequence[tuple[str, int]], options: dict[str, Any]) -> None:
        """Ask these servers, and connect to all with these options."""
        self._options = options
        self._cluster = RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in hosts], **options)
        self._clients: dict[tuple[str, int], Redis] = {}
        if "ssl" in options:
            self._cluster.connection_kwargs["connection_class"] = _TlsConnection
            for node in self._cluster.nodes_manager.startup_nodes.values():
                node.connection_class = _TlsConnection

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

    async def can_promote(self) -> bool | None:
        """Return None: the servers of a Cluster promote each other."""
        return None

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
            self._clients[place] = _reading_anew(Redis(host=place[0], port=place[1], **self._options))
        return self._clients[place]
