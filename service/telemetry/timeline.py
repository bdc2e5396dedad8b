"""When each stage of a request began and ended, where it is traced. A stage has a name and two times, nothing else."""

from collections.abc import Iterable
from contextvars import ContextVar
from time import time_ns


class Timeline:
    """The stages of one request, each with when it began and ended in nanoseconds since the epoch."""

    def __init__(self) -> None:
        """Begin without a stage."""
        self.stages: list[tuple[str, int, int]] = []
        self._waiting = 0

    @classmethod
    def waiting(cls) -> "Timeline | None":
        """Return the current request's, if it is traced, which waits for a batch from now on."""
        found = timeline.get()
        if found is not None:
            found._waiting = time_ns()
        return found

    def begin(self, now: int) -> None:
        """Say that the batch has begun."""
        self.stages.append(("batch wait", self._waiting, now))


timeline: ContextVar[Timeline | None] = ContextVar("timeline", default=None)
"""Timeline of the request that is being answered."""


class Stages:
    """Notes the stages of a batch, one after the other, for each of its requests that is traced."""

    def __init__(self, timelines: Iterable[Timeline | None]) -> None:
        """Begin the first stage."""
        self._timelines = [each for each in timelines if each is not None]
        self._began = 0
        if self._timelines:
            self._began = time_ns()
            for each in self._timelines:
                each.begin(self._began)

    @classmethod
    def of_request(cls) -> "Stages":
        """Begin a stage of the current request alone."""
        found = timeline.get()
        if found is None:
            return _UNTRACED
        stages = cls(())
        stages._timelines, stages._began = [found], time_ns()
        return stages

    def end(self, name: str) -> None:
        """End a stage, and begin the next one."""
        if self._timelines:
            now = time_ns()
            for each in self._timelines:
                each.stages.append((name, self._began, now))
            self._began = now


_UNTRACED = Stages(())
