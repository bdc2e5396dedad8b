"""The ways to a store that speaks the Redis protocol: one server, or the primary that Sentinels name.

All of it is redis-py's asyncio client, told to send nothing twice: what became of a call that failed is for the caller
to find out.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, parse_qs, parse_qsl, unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedSSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

_log = logging.getLogger("dpserve")

LOST = (LostConnection, OSError, RuntimeError, AttributeError, TypeError)
"""Errors of a connection. By a RuntimeError uvloop tells that one was closed since it was taken; by an AttributeError
or a TypeError asyncio does, of Python 3.12 and 3.13 before it was mended there (gh-136234)."""
ERRORS = (RedisError, *LOST)
"""All that a call of the client's may raise."""

_PLAIN = ("redis", "redis+sentinel")
_TLS = ("rediss", "rediss+sentinel")
_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_TLS_OPTIONS = (*_FILES, "ssl_password", "ssl_check_hostname", "ssl_cert_reqs", "ssl_ciphers")
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}


def connections_to(url: str, deadline: float) -> "Connections":
    """Return connections to the store at `url`; nothing is sent yet.

    TLS goes to every server: those that Sentinels name, and the Sentinels themselves. A connection that is
    made, or made again, reads the files of certificates anew. Raises ValueError for an invalid address, or one that
    names a file that is not there.
    """
    address(url)
    parts = urlsplit(url)
    tls = _tls(parts)
    options: dict[str, Any] = {
        "socket_timeout": None,
        "socket_connect_timeout": deadline,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if _has_sentinels(parts):
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
        return Connections(_reading_anew(primary), [_reading_anew(each) for each in sentinel.sentinels], service)
    return Connections(_reading_anew(Redis.from_pool(ConnectionPool.from_url(url, **options))))


def has_sentinels(url: str) -> bool:
    """Return whether Sentinels name the server, and so may name another one later."""
    return _has_sentinels(urlsplit(url))


def address(url: str) -> str:
    """Return where `url` leads, without its passwords. Raises ValueError for an invalid address."""
    parts = urlsplit(url)
    if parts.scheme not in (*_PLAIN, *_TLS, "unix"):
        raise ValueError(
            "the ledger's address must start with redis://, rediss:// or unix://, or with redis+sentinel:// "
            "(rediss+sentinel:// for TLS)"
        )
    _refuse_unknown_options(parts)
    if parts.scheme == "unix":
        return parts.path
    try:
        hosts = ", ".join(f"{host}:{port}" for host, port in _hosts(parts))
    except ValueError as error:
        raise ValueError("the ledger's address is not one that can be read: its port is no number") from error
    return f"{_service(parts)[0]} by {hosts}" if _has_sentinels(parts) else hosts


def _has_sentinels(parts: SplitResult) -> bool:
    return parts.scheme.endswith("+sentinel")


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
    known += [*_SENTINEL_OPTIONS] if _has_sentinels(parts) else ["db"]
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
    port_if_none = 26379 if _has_sentinels(parts) else 6379
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


class Connections:
    """Connections to one server, or to whichever server the Sentinels name when a connection is made."""

    def __init__(self, client: Redis, sentinels: Sequence[Redis] = (), service: str = "") -> None:
        """Use this client; close those of the Sentinels, who watch the service of this name, with it."""
        self.client = client
        self._sentinels = sentinels
        self._service = service

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
        with _said_to_the_log():
            await self.client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close every connection."""
        for client in (self.client, *self._sentinels):
            with _said_to_the_log():
                await client.connection_pool.disconnect()
            with _said_to_the_log():
                await client.aclose()


@contextmanager
def _said_to_the_log() -> Iterator[None]:
    """Log an error in closing, and go on: what was done before stays done, and is what the caller hears of."""
    try:
        yield
    except ERRORS as error:
        _log.warning("a connection to the ledger's store did not close: %s", type(error).__name__)


async def _sees_enough(sentinel: Redis, service: str) -> bool:
    try:
        await sentinel.execute_command("SENTINEL CKQUORUM", service)  # type: ignore[no-untyped-call]
    except ERRORS:
        return False
    return True
