"""When each stage of a request began and ended, where it is traced. A stage has a name and two times, nothing else."""

from contextvars import ContextVar
from time import time_ns


class Timeline:
    """The stages of one request, each with when it began and ended in nanoseconds since the epoch."""

    def __init__(self) -> None:
        """Begin without a stage."""
        self.stages: list[tuple[str, int, int]] = []
        self._began = 0

    def begin(self) -> None:
        """Begin a stage now."""
        self._began = time_ns()

    def end(self, name: str) -> None:
        """End the stage that began last, and begin the next one."""
        now = time_ns()
        self.stages.append((name, self._began, now))
        self._began = now


timeline: ContextVar[Timeline | None] = ContextVar("timeline", default=None)
"""The timeline of the request that is being answered; None where it is not traced."""
