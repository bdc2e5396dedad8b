"""When the next tick is held back for those who were just answered: most of them ask again at once.

Without it the first to come back would have a tick of their own, for which all others wait; ticks of one and of all
others then take turns, and cost nearly as much as two of all.

Promises: nobody is held for longer than `LONGEST`, and nobody at all unless a crowd was answered just before, so that a
lone request goes at once; where the answered do not come back (each of their requests is their last, or their next one
is far away), few of the ticks are held to see whether they do now.
"""

from collections.abc import Callable

CROWD = 2
"""Requests of a tick that it takes: who was alone is not waited for, and waits for nobody."""

MOST_ROWS = 64
"""So many do not wait for more: what a tick costs is well shared by then."""

PAUSE = 0.001
"""Seconds in which somebody must come for the others to be waited for. An event loop's timers count milliseconds."""

LONGEST = 0.004
"""Seconds that a tick is held at most."""

_MOST_PASSED_OVER = 31
_ENOUGH = 0.75


class Gathering:
    """Says for how long a tick is held back; counts requests."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Hold nothing until a crowd was answered."""
        self._clock = clock
        self._expected = self._came = 0
        self._until = 0.0
        self._to_pass_over = self._passed_over = 0

    def answered(self, requests: int, waiting: int) -> None:
        """Note that a tick of so many was answered, and none is under way."""
        self._expected = 0
        if requests < CROWD:
            return
        if self._passed_over < self._to_pass_over:
            self._passed_over += 1
            return
        self._expected = requests + waiting
        self._came = waiting
        self._until = self._clock() + LONGEST

    def seconds(self, waiting: int, rows: int) -> float:
        """Return after how long to look whether the next tick is still to be held, 0 if it is to begin."""
        if not self._expected:
            return 0.0
        left = self._until - self._clock()
        if waiting < self._expected and rows < MOST_ROWS and left > 0.0:
            return min(PAUSE, left)
        self._end(self._expected if rows >= MOST_ROWS else waiting)
        return 0.0

    def look(self, waiting: int) -> None:
        """Hold no longer if nobody came since it was last looked."""
        if waiting <= self._came or self._clock() >= self._until:
            self._end(waiting)
        self._came = waiting

    def _end(self, waiting: int) -> None:
        """Hold no longer, and less often from now on if too few came; if they did, as often as a crowd is answered."""
        came = waiting >= _ENOUGH * self._expected
        self._to_pass_over = 0 if came else min(_MOST_PASSED_OVER, 2 * self._to_pass_over + 1)
        self._expected = self._passed_over = 0
