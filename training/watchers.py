"""Who watches a training: takes its progress, and what its owner should hear of."""

import time
from collections.abc import Callable, Mapping
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


class Timeline:
    """The share of a training's time that is over, from the seconds that each of its phases is expected to take.

    When a tenth of a phase is done it counts as what it is measured to take, and phases behind it as so many times as
    long as was expected of them. The share never falls, and is 1 at the end of the last phase.
    """

    def __init__(
        self, expected: Mapping[str, float], began: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the phases' expected seconds, in their order. began: the training, by the clock; None for now."""
        self._left, self._clock, now = dict(expected), clock, clock()
        self._began = now if began is None else began
        self._phase, self._phase_began, self._whole, self._expected, self._pace = "", now, 0.0, 0.0, 1.0
        self._shown = 0.0

    def report(self, phase: str, done: float) -> None:
        """Take the share of a phase that is done: of this one, or of one behind it. Others have passed then."""
        now = self._clock()
        if phase != self._phase:
            names = [*self._left]
            self._phase, self._phase_began, self._whole = phase, now, self._left[phase]
            self._left = {name: self._left[name] for name in names[names.index(phase) + 1 :]}
        measured = min(1.0, 10 * done)
        self._expected = self._pace * self._whole * (1 - measured)
        if done > 0:
            self._expected += measured * (now - self._phase_began) / done
            self._pace = self._expected / self._whole if self._whole else self._pace

    @property
    def share(self) -> float:
        """The share that is over now."""
        now = self._clock()
        left = self._pace * sum(self._left.values()) + max(0.0, self._expected - (now - self._phase_began))
        elapsed = now - self._began
        self._shown = max(self._shown, elapsed / (elapsed + left) if left else 1.0)
        return self._shown


class Watcher(Protocol):
    """Who watches a training: takes its progress, and what its owner should hear of."""

    def minimising(self, goal: float, /) -> AbstractContextManager[Any]:
        """Give a function that takes the gradient norm. goal: the norm to reach."""

    def steps_with_progress(self, steps: int, what: str = "training", /) -> AbstractContextManager[Any]:
        """Give a function that takes how many of the steps are done."""

    def phases(self, expected: Callable[[], Mapping[str, float]], /) -> AbstractContextManager[Any]:
        """Give a function that takes a phase, and the share of it that is done.

        expected: returns each one's seconds, in order, which take a moment to find.
        """

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

    def phases(self, expected: Callable[[], Mapping[str, float]], /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del expected
        return nullcontext(lambda _, __: None)

    def shares(self, what: str, /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del what
        return nullcontext(lambda _, __: None)

    def hear(self, event: Event, /) -> None:
        """Do nothing."""
