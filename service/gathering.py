"""When the next tick is held back for those who were just answered: most of them ask again at once.

Without it the first to come back would have a tick of their own, for which all others wait; ticks of one and of all
others then take turns, and cost nearly as much as two of all.

Promises: only who was answered in the last two ticks is ever held, and only after a crowd; a request of any other
client is not held and ends the hold, so that a lone one goes at once, whatever others do. Nobody is held for longer
than half of what a tick takes, nor than `LONGEST`; what is given up counts for nothing, and each answer is awaited
once. Where the answered do not come back (each of their requests is their last, or their next one is far away), few of
the ticks are held to see whether they do now.

A client that paces its requests on purpose can so delay those alone who ask again within about a tick, as it does
itself, and by no more than that half; it is a client, not a connection, that is known again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence

CROWD = 2
"""Requests of a tick that it takes: who was alone is not waited for, and waits for nobody."""

MOST_ROWS = 64
"""So many do not wait for more: what a tick costs is well shared by then."""

PAUSE = 0.001
"""Seconds in which somebody must come for the others to be waited for. An event loop's timers count milliseconds."""

LONGEST = 0.004
"""Seconds that a tick is held at most."""

SHARE = 0.5
"""Of what a tick takes: the longest that one is held. A hold saves one tick at best."""

_MOST_PASSED_OVER = 31
_ENOUGH = 0.75


class Gathering:
    """Says for how long a tick is held back; counts requests, by client."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Hold nothing until a crowd was answered."""
        self._clock = clock
        self._known: frozenset[Hashable] = frozenset()
        self._newest: frozenset[Hashable] = frozenset()
        self._awaited: Counter[Hashable] = Counter()
        self._expected = self._came = self._came_before = 0
        self._until = 0.0
        self._to_pass_over = self._passed_over = 0

    def begun(self, clients: Collection[Hashable]) -> None:
        """Note whose requests a tick answers."""
        self._known, self._newest = self._newest | frozenset(clients), frozenset(clients)

    def answered(self, clients: Sequence[Hashable], waiting: Collection[Hashable], seconds: float) -> None:
        """Note that the newest tick, of so many requests of these, was answered, and none is under way.

        waiting: whose requests wait already. seconds: what a tick takes.
        """
        self._expected = 0
        if len(clients) < CROWD or not self._known.issuperset(waiting):
            return
        if self._passed_over < self._to_pass_over:
            self._passed_over += 1
            return
        self._awaited = Counter(clients)
        self._expected = len(clients)
        self._came = self._came_before = 0
        self._until = self._clock() + min(LONGEST, SHARE * seconds)

    def came(self, client: Hashable) -> bool:
        """Note a request; return whether it is one of those that are awaited. A stranger's ends the hold."""
        if not self._expected:
            return False
        if self._awaited[client] > 0:
            self._awaited[client] -= 1
            self._came += 1
            return True
        if client not in self._known and self._clock() < self._until:
            self._expected = 0
        return False

    def left(self) -> None:
        """Note that a request that was awaited was given up. It is not awaited again."""
        self._came -= 1

    def seconds(self, rows: int) -> float:
        """Return after how long to look whether the next tick is still to be held, 0 if it is to begin."""
        if not self._expected:
            return 0.0
        left = self._until - self._clock()
        if self._came < self._expected and rows < MOST_ROWS and left > 0.0:
            return min(PAUSE, left)
        self._end(enough=rows >= MOST_ROWS or self._came >= _ENOUGH * self._expected)
        return 0.0

    def look(self) -> None:
        """Hold no longer if nobody came since it was last looked."""
        if self._expected and self._came <= self._came_before:
            self._end(enough=self._came >= _ENOUGH * self._expected)
        self._came_before = self._came

    def _end(self, *, enough: bool) -> None:
        """Hold no longer, and less often from now on if too few came; if they did, as often as a crowd is answered."""
        self._to_pass_over = 0 if enough else min(_MOST_PASSED_OVER, 2 * self._to_pass_over + 1)
        self._expected = self._passed_over = 0
