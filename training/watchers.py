"""Who watches a training: takes its progress, and what its owner should hear of."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

TRAINING, SETS = "training", "sets"
"""The phase of a training before its first step, or all of it where it has none; that of prediction sets."""

OnShare = Callable[[str, float], None]
"""Takes a phase of a training, and which share of it is done."""


_LAST_SHARE = 0.99
"""The largest share until the last phase has ended."""


class Timeline:
    """The share of a training's time that is over, from the seconds that each of its phases is expected to take.

    When a tenth of a phase is done it counts as what it is measured to take, and those behind it as so many times as
    long as was expected of them as all before them took. The share is 0 until anything is expected, never falls, and is
    1 at the end of the last phase.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin. clock: in seconds."""
        self._clock, self._began = clock, clock()
        self._left: dict[str, float] = {}
        self._phase, self._phase_began, self._whole, self._expected = "", self._began, 0.0, 0.0
        self._taken, self._promised, self._shown, self._is_over = 0.0, 0.0, 0.0, False
        """Seconds that phases took which are done, and those that were expected of them; the share
        shown last, and whether all is over."""

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Take the seconds of the phases that are to come, in their order."""
        self._left = dict(seconds)

    def report(self, phase: str, done: float) -> None:
        """Take the share of a phase that is done: of this one, or of one behind it; others have passed then.

        A phase of which nothing is expected is none.
        """
        now = self._clock()
        if phase in self._left:
            names = [*self._left]
            self._taken, self._promised = self._taken + self._expected, self._promised + self._whole
            self._phase, self._phase_began, self._whole = phase, now, self._left[phase]
            self._left = {name: self._left[name] for name in names[names.index(phase) + 1 :]}
            self._expected = self._pace(0.0, 0.0) * self._whole
        self._is_over = phase == self._phase and done >= 1 and not self._left
        if phase == self._phase and done > 0:
            measured = min(1.0, 10 * done)
            self._expected = self._pace(0.0, 0.0) * self._whole * (1 - measured)
            self._expected += measured * (now - self._phase_began) / done

    def _pace(self, taken: float, promised: float) -> float:
        """Return how many times as long as expected everything took that is done, and something more."""
        promised += self._promised
        return (self._taken + taken) / promised if promised else 1.0

    @property
    def share(self) -> float:
        """The share that is over now."""
        if self._phase or self._left:
            now = self._clock()
            left = self._pace(self._expected, self._whole) * sum(self._left.values())
            left += max(0.0, self._expected - (now - self._phase_began))
            share = (now - self._began) / (now - self._began + left) if left else 1.0
            self._shown = max(self._shown, share if self._is_over else min(share, _LAST_SHARE))
        return self._shown


class Watcher(Protocol):
    """Who watches a training: takes its progress, and what its owner should hear of."""

    def timed(self) -> AbstractContextManager[Any]:
        """Watch how the time of a training passes."""

    def expect(self, seconds: Callable[[], Mapping[str, float]], /) -> None:
        """Take a function that returns the seconds of the phases that are to come, in their order.

        They take a moment to find.
        """

    def report(self, phase: str, done: float, /) -> None:
        """Take a phase, and which share of it is done."""

    def shares(self, what: str, /) -> AbstractContextManager[Any]:
        """Give a function that takes what is done now, before it is known what is trained, and which share of all."""

    def hear(self, event: Event, /) -> None:
        """Take an event, as soon as it is known."""


class Unwatched:
    """Takes nothing."""

    def timed(self) -> AbstractContextManager[Any]:
        """Do nothing."""
        return nullcontext()

    def expect(self, seconds: Callable[[], Mapping[str, float]], /) -> None:
        """Do nothing."""

    def report(self, phase: str, done: float, /) -> None:
        """Do nothing."""

    def shares(self, what: str, /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del what
        return nullcontext(lambda _, __: None)

    def hear(self, event: Event, /) -> None:
        """Do nothing."""


class Timed(Unwatched):
    """Keeps which share of a training's time is over."""

    def __init__(self) -> None:
        """Begin."""
        self.timeline = Timeline()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Begin anew."""
        self.timeline = Timeline()
        yield

    def expect(self, seconds: Callable[[], Mapping[str, float]], /) -> None:
        """Find them."""
        self.timeline.expect(seconds())

    def report(self, phase: str, done: float, /) -> None:
        """Take them."""
        self.timeline.report(phase, done)
