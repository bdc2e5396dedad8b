"""How often a client may ask, whatever it asks for: apart from the privacy budget, and known before anything is read.

Every request of a client that was identified counts, replays and refusals included, so that the limit says nothing
about what was asked or answered.
"""

import time
from http import HTTPStatus

from limits import RateLimitItem, parse
from limits.aio.storage import Storage
from limits.aio.strategies import MovingWindowRateLimiter
from limits.storage import storage_from_string

from service.errors import CannotServe
from service.http.problems import Problem, ProblemType
from service.urls import error_without_secrets, without_secrets

PREFIX = "dpserve:rate"
"""Of every name in a shared store: the ledger's user there may touch `dpserve:*` alone."""

IN_THIS_PROCESS = "async+memory://"


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
                HTTPStatus.SERVICE_UNAVAILABLE,
                ProblemType.RATE_UNKNOWN,
                "requests cannot be counted, so none is answered; nothing was charged",
            ) from error
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            ProblemType.TOO_MANY_REQUESTS,
            f"a client may send {self._limit}; nothing was charged for this request",
            retry_after=max(1, int(window.reset_time - time.time()) + 1),
        )

    async def close(self) -> None:
        """Close the connections to where it counts."""
        bridge = getattr(self._storage, "bridge", None)  # which only a storage in a Redis has
        if bridge is not None:
            await bridge.get_connection().aclose()


def rate_limit(said: str, storage: str | None = None) -> RateLimit:
    """Return the limit that `said` means, as 100/minute or 5 per 10 seconds.

    storage: a URL where several processes count together, as redis://host:6379/1; without one each counts for itself.
    Raises CannotServe for what is no limit or no storage.
    """
    try:
        limit = parse(said)
        where = _shared(storage) if storage else storage_from_string(IN_THIS_PROCESS)
    except Exception as error:
        counted, why = "", str(error)
        if storage:
            counted, why = f" counted at {without_secrets(storage)!r}", error_without_secrets(error, storage)
        raise CannotServe(
            f"the rate limit {said!r}{counted} cannot be used ({why}); say "
            "--rate-limit 100/minute, and --rate-limit-store redis://host:6379/1 to count in one place"
        ) from error
    if limit.amount < 1 or not isinstance(where, Storage):
        raise CannotServe("a rate limit must let at least one request through")
    return RateLimit(limit, where)


def _shared(url: str) -> object:
    return storage_from_string(f"async+{url}", implementation="redispy", key_prefix=PREFIX)
