"""Turns at what takes long and is computed of rows before anything is charged: a deep network, n-grams of texts."""

import math
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeVar

from dpserve.service.errors import DeadlinePassed, InvalidRows
from dpserve.service.places import Places

_MOST_REQUESTS = 64
"""Requests that are encoded at the same time, a quarter of them of one client."""
_SECONDS = 2.0
"""Seconds that encoding may take of one request."""
_SECONDS_UNTIL_KNOWN = _SECONDS / 4
"""Seconds after which the pace of a request says how long all of it takes."""

Result = TypeVar("Result")


class Encoding:
    """Encodes requests: a part of one client's, then a part of another's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, as deadlines have them."""
        self._requests, self._turns = Places(_MOST_REQUESTS), Places(1)
        self._clock = clock

    async def in_parts(
        self,
        client: Hashable,
        rows: int,
        sizes: Sequence[int],
        compute: Callable[[int], Awaitable[Result]],
        deadline: float = math.inf,
        *,
        limited: bool = True,
    ) -> list[Result]:
        """Return what `compute` makes of each part, which it gets by its place.

        rows: of the request. sizes: how much there is to do for each part, in any unit. deadline: by the clock. Raises
        Overloaded and DeadlinePassed, and where it is `limited` InvalidRows once it is seen to take too long, as a
        single row never does.
        """
        total = sum(sizes)
        async with self._requests.at_once(client):
            seconds, done, results = 0.0, 0, list[Result]()
            for place, size in enumerate(sizes):
                async with self._turns.in_turn(client):
                    began = self._clock()
                    if began >= deadline:
                        raise DeadlinePassed
                    results.append(await compute(place))
                    seconds += self._clock() - began
                done += size
                if limited and rows > 1 and done < total and seconds > _SECONDS_UNTIL_KNOWN:
                    expected = seconds * total / done
                    if expected > _SECONDS:
                        raise InvalidRows(
                            f"to encode these {rows} rows takes about {expected:.1f} seconds here, and a request may "
                            f"take {_SECONDS:g}: send fewer at a time"
                        )
            return results
