"""How many connections each worker of a service has, where all workers see it: who has more leaves the next to another.

Workers accept from one socket, and whoever is idle when many connect takes most of them, for as long as these last.

Promises: the counts are hints that cost a moment at most (`service.http.accepting`), so that a worker that hangs with
its count standing keeps nobody waiting for long. The supervisor strikes out the count of one that died.
"""

import mmap

_ACCEPTS_NOBODY = 2**62


class OpenConnections:
    """Memory that a process shares with the workers that it forks: a count for each of them."""

    def __init__(self, workers: int) -> None:
        """Know of no worker yet that accepts."""
        self._counts = memoryview(mmap.mmap(-1, 8 * workers)).cast("q")
        for number in range(workers):
            self._counts[number] = _ACCEPTS_NOBODY

    def of(self, number: int) -> "Place":
        """Return what worker `number` needs."""
        return Place(self._counts, number)


class Place:
    """One worker's count among the others'."""

    def __init__(self, counts: "memoryview[int]", number: int) -> None:
        """Use `OpenConnections.of`."""
        self._counts = counts
        self._number = number

    def has(self, count: int) -> None:
        """Let the others know how many connections this worker has."""
        self._counts[self._number] = count

    def closes(self) -> None:
        """Let the others know that this worker accepts nobody more."""
        self._counts[self._number] = _ACCEPTS_NOBODY

    def fewest_elsewhere(self) -> int:
        """Return how many connections the worker has that has fewest, of the others; a great many if none accepts."""
        return min(
            (count for number, count in enumerate(self._counts) if number != self._number), default=_ACCEPTS_NOBODY
        )
