"""Who watches a training: takes its progress, and what its owner should hear of."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Warned:
    """A warning for the owner, and nobody else: what no budget, or a second one, covers."""

    message: str


@dataclass(frozen=True)
class Planned:
    """The planner's recommendation for a budget. reason, warnings: sentences without an end."""

    reason: str
    warnings: tuple[str, ...]


Event = Warned | Planned


class Watcher(Protocol):
    """Who watches a training: takes its progress, and what its owner should hear of."""

    def minimising(self, goal: float, /) -> AbstractContextManager[Any]:
        """Give a function that takes the gradient norm. goal: the norm to reach."""

    def steps_with_progress(self, steps: int, what: str = "training", /) -> AbstractContextManager[Any]:
        """Give a function that takes how many of the steps are done."""

    def shares(self, what: str, /) -> AbstractContextManager[Any]:
        """Give a function that takes what is done now, and which share of all."""

    def hear(self, event: Event, /) -> None:
        """Take an event, as soon as it is known."""


class Unwatched:
    """Takes nothing."""

    def minimising(self, goal: float, /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del goal
        return nullcontext(lambda _: None)

    def steps_with_progress(self, steps: int, what: str = "", /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del steps, what
        return nullcontext(lambda _: None)

    def shares(self, what: str, /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del what
        return nullcontext(lambda _, __: None)

    def hear(self, event: Event, /) -> None:
        """Do nothing."""
