"""How often one address may show a credential that is not taken, for each such try makes the ledger look.

Who was taken before by its API key is not asked here, nor is a token that can be verified: whoever guesses locks out
those alone who share the address and show a key for the first time, and for a minute at most at a time. Counts are each
process's own, of a bounded number of addresses, and need no library: those at hand keep every address that ever came.
"""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus

from service.http.problems import Problem, ProblemType

SECONDS = 60.0
"""After its first failed try an address begins anew."""

_MOST_ADDRESSES = 10_000
_BITS_OF_A_SITE = 64


class FailedTries:
    """At most so many failed tries of one address in `SECONDS`."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """most: 1 or more. clock: seconds."""
        self._most = most
        self._clock = clock
        self._counted: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, peer: str) -> None:
        """Raise a 429 problem for an address that failed too often of late. peer: empty for one that has no address."""
        began, failed = self._of(_site(peer))
        if peer and failed >= self._most:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                ProblemType.TOO_MANY_REQUESTS,
                "too many credentials from this address were not taken; look at the key, and try again later",
                retry_after=max(1, int(began + SECONDS - self._clock()) + 1),
            )

    def note(self, peer: str) -> None:
        """Count a failed try."""
        site = _site(peer)
        began, failed = self._of(site)
        self._counted[site] = began, failed + 1
        if len(self._counted) > _MOST_ADDRESSES:
            self._counted.popitem(last=False)

    def _of(self, site: str) -> tuple[float, int]:
        now = self._clock()
        began, failed = self._counted.get(site, (now, 0))
        if now - began < SECONDS:
            return began, failed
        self._counted.pop(site, None)
        return now, 0


def _site(peer: str) -> str:
    """Return what is counted as one address: of IPv6 the network, for whoever has one address there has all."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if address.version == 4:
        return peer
    return str(ipaddress.ip_network((address, _BITS_OF_A_SITE), strict=False))
