"""Printing for people, with nothing cut off, and progress on stderr."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from dpserve.accounting.whole_files import write_shown
from dpserve.training.watchers import Timed, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SECONDS_BETWEEN_LINES = 30.0
_USUAL_WIDTH = 80
_WITHOUT_A_TERMINAL = 400
"""Columns. A pipe, or `kubectl exec`, has no width that a table would have to fit into."""


def stdout_console() -> Console:
    """Return the console of stdout: as wide as the terminal or as COLUMNS says, and where there is neither, wide.

    It prints text as it is: brackets and colons in a client's id are neither markup nor an emoji.
    """
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if narrow else _WITHOUT_A_TERMINAL, markup=False, emoji=False)


def narrow_console() -> Console:
    """Return the console of stdout, at most as wide as a terminal is by default: 80 columns."""
    console = stdout_console()
    console.width = min(console.width, _USUAL_WIDTH)
    return console


def whole(*headings: str) -> Table:
    """Return a table with these headings whose figures go on in the next line, where rich would cut them."""
    return Table(*(Column(heading, overflow="fold") for heading in headings))


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr, if it is a terminal, how much of `total` is done; gives a function to say how much more is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)


@contextmanager
def shares(what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str, float], None]]:
    """Show on stderr what is done now and which share of all; gives a function to say both.

    A terminal has a bar; a file or a pipe a line every half minute, and none of what ends before. clock: in seconds.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _in_lines(what, clock)
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda now, share: bar.update(task, description=_joined(what, now), completed=share)


def _joined(what: str, now: str) -> str:
    return f"{what}: {now}" if now else what


def _in_lines(what: str, clock: Callable[[], float]) -> Callable[[str, float], None]:
    last = clock()

    def say(now: str, share: float) -> None:
        nonlocal last
        if (time_now := clock()) - last >= _SECONDS_BETWEEN_LINES:
            last = time_now
            sys.stderr.write(f"{_joined(what, now)}, {share:.0%}\n")
            sys.stderr.flush()

    return say


class _Timed(Progress):
    """A bar that goes on by itself, as its timeline says."""

    def __init__(self, timeline: Timeline) -> None:
        columns = (TextColumn("training"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        console, piped = Console(stderr=True), not sys.stdout.isatty()
        super().__init__(*columns, console=console, transient=True, redirect_stdout=not piped)
        self._timeline = timeline
        self.add_task("training", total=None)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar as it is now."""
        for task in self.tasks:
            share = self._timeline.share
            task.completed, task.total = share, 1.0 if share else None  # it pulses until that is known
        yield from super().get_renderables()


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """Give an empty figure, of so many inches, that is written into this file. Raises ValueError and OSError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    yield figure
    drawn = BytesIO()
    try:
        figure.savefig(drawn, format=path.suffix[1:] or None)
    except ValueError as error:  # of a kind of file that is not known
        raise ValueError(f"cannot write the plot {path}: {error}") from error
    write_shown(path, drawn.getvalue())


@contextmanager
def figure(path: Path) -> Iterator["Axes"]:
    """Give the axes of a figure that is written into this file. Raises ValueError and OSError."""
    with picture(path, 6.4, 4.0) as drawn:
        yield drawn.add_subplot()


class Terminal(Timed):
    """Shows a training's progress on stderr: a `dpserve.training.fit.Watcher` but for what it hears."""

    _bar: Progress | None = None

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Show on stderr, if it is a terminal, which share of the training's time is over."""
        with super().timed():
            if not Console(stderr=True).is_terminal:
                yield
                return
            with _Timed(self.timeline) as self._bar:
                yield

    def expect(self, seconds: Callable[[], Mapping[str, float]], /) -> None:
        """Find them, where they are shown."""
        if self._bar is not None:
            super().expect(seconds)

    @contextmanager
    def shares(self, what: str, /) -> Iterator[Callable[[str, float], None]]:
        """Show in place of the bar what is done now."""
        if self._bar is not None:
            self._bar.stop()
        with shares(what) as report:
            yield report
        if self._bar is not None:
            self._bar.start()
