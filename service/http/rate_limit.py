"""Limits on the requests of a client, whatever it asks for, and on the invalid credentials of an address.

Every request of a client that was identified counts, replays and refusals included, so that the limit says nothing
about what was asked or answered. It is known before anything is read, and apart from the privacy budget.
"""

import ipaddress
import time

from limits import RateLimitItem, RateLimitItemPerMinute, WindowStats, parse
from limits.aio.storage import MemoryStorage, Storage
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from limits.storage import storage_from_string

from dpserve.accounting.messages import Message
from dpserve.service.errors import CannotServe
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.urls import error_without_secrets, without_secrets

PREFIX = "dpserve:rate"
"""Prefix of every name in a shared store: the ledger's user there may touch `dpserve:*` alone."""

_BITS_OF_A_SITE = 64


class RateLimit:
    """At most so many requests of each client in any window of a length."""

    def __init__(self, limit: RateLimitItem, storage: Storage) -> None:
        """Count in `storage`."""
        self._limit = limit
        self._storage = storage
        self._limiter = MovingWindowRateLimiter(storage)

    async def check(self, lineage: str, client: str) -> None:
        """Count a request of a lineage's client.

        Raises a 429 problem that says when to ask again, 503 if the counts cannot be reached.
        """
        try:
            if await self._limiter.hit(self._limit, lineage, client):
                return
            window = await self._limiter.get_window_stats(self._limit, lineage, client)
        except Exception as error:
            raise Problem(
                ProblemType.RATE_UNKNOWN, "requests cannot be counted, so none is answered; nothing was charged"
            ) from error
        raise _too_many(f"a client may send {self._limit}; nothing was charged for this request", window)

    async def close(self) -> None:
        """Close the connections to where it counts."""
        bridge = getattr(self._storage, "bridge", None)  # which only a storage in a Redis has
        if bridge is not None:
            await bridge.get_connection().aclose()


def rate_limit(text: str, storage: str | None = None) -> RateLimit:
    """Return the limit that `text` means, as 100/minute or 5 per 10 seconds.

    storage: a URL where several processes count together, as redis://host:6379/1; without one each counts for itself.
    Raises CannotServe for what is no limit or no storage.
    """
    try:
        limit = parse(text)
        where: object = MemoryStorage()
        if storage:
            where = storage_from_string(f"async+{storage}", implementation="redispy", key_prefix=PREFIX)
    except Exception as error:
        counted, why = "", str(error)
        if storage:
            counted, why = f" counted at {without_secrets(storage)!r}", error_without_secrets(error, storage)
        raise CannotServe(
            Message(
                "the rate limit {!r}{} cannot be used ({}); say {rate_limit:100/minute}, and "
                "{rate_limit_store:redis://host:6379/1} to count in one place",
                text,
                counted,
                why,
            )
        ) from error
    if limit.amount < 1 or not isinstance(where, Storage):
        raise CannotServe("a rate limit must let at least one request through")
    return RateLimit(limit, where)


class FailedTries:
    """At most so many failed tries of one address in a minute: each makes the ledger look.

    Whoever was taken before by its API key is not asked here, nor is a token that can be verified: whoever guesses
    locks out those alone who share the address and show a key for the first time, and for a minute at most at a time.
    Each process counts for itself.
    """

    def __init__(self, most: int) -> None:
        """most: 1 or more."""
        self._limit = RateLimitItemPerMinute(most)
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    async def check(self, peer: str) -> None:
        """Raise a 429 problem for an address that failed too often of late. peer: empty for one without an address."""
        if peer and not await self._limiter.test(self._limit, _site(peer)):
            detail = "too many invalid credentials came from this address; check the key, and try again later"
            raise _too_many(detail, await self._limiter.get_window_stats(self._limit, _site(peer)))

    async def count(self, peer: str) -> None:
        """Count a failed try."""
        await self._limiter.hit(self._limit, _site(peer))


def _site(peer: str) -> str:
    """Return what is counted as one address: of IPv6 the network, for whoever has one address there has all."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    return peer if address.version == 4 else str(ipaddress.ip_network((address, _BITS_OF_A_SITE), strict=False))


def _too_many(detail: str, window: WindowStats) -> Problem:
    wait = max(1, int(window.reset_time - time.time()) + 1)
    return Problem(ProblemType.TOO_MANY_REQUESTS, detail, retry_after=wait)
