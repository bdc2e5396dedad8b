"""A limit on the invalid credentials of an address."""

import ipaddress
import time
from typing import TYPE_CHECKING

from dpserve.service.http.problems import Problem, ProblemType

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.aio.strategies import RateLimiter

_BITS_OF_A_SITE = 64


class FailedTries:
    """At most so many failed tries of one address in a minute: each makes the ledger look.

    Whoever was taken before by its API key is not asked here, nor is a token that can be verified: whoever guesses
    locks out those alone who share the address and show a key for the first time, and for a minute at most at a time.
    Each process counts for itself.
    """

    def __init__(self, most: int) -> None:
        """most: 1 or more."""
        self._most = most
        self._counted: tuple[RateLimiter, RateLimitItem] | None = None

    async def check(self, peer: str) -> None:
        """Raise a 429 problem for an address that failed too often of late. peer: empty for one without an address."""
        if self._counted is None or not peer:
            return
        limiter, limit = self._counted
        if not await limiter.test(limit, _site(peer)):
            detail = "too many invalid credentials came from this address; check the key, and try again later"
            window = await limiter.get_window_stats(limit, _site(peer))
            wait = max(1, int(window.reset_time - time.time()) + 1)
            raise Problem(ProblemType.TOO_MANY_REQUESTS, detail, retry_after=wait)

    async def count(self, peer: str) -> None:
        """Count a failed try."""
        if self._counted is None:
            self._counted = _counting(self._most)
        limiter, limit = self._counted
        await limiter.hit(limit, _site(peer))


def _counting(most: int) -> "tuple[RateLimiter, RateLimitItem]":
    # Not before there is a try to count: the library brings every store that it could count in.
    from limits import RateLimitItemPerMinute
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    return FixedWindowRateLimiter(MemoryStorage()), RateLimitItemPerMinute(most)


def _site(peer: str) -> str:
    """Return what is counted as one address: of IPv6 the network, for whoever has one address there has all."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    return peer if address.version == 4 else str(ipaddress.ip_network((address, _BITS_OF_A_SITE), strict=False))
