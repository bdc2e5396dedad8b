"""Where commands print for people: nothing is cut, whoever reads it. And how far long work has come, on stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

_WITHOUT_A_TERMINAL = 400
"""Columns. A pipe, or `kubectl exec`, has no width that a table would have to fit into."""


def stdout_console() -> Console:
    """Return the console of stdout: as wide as the terminal or as COLUMNS says, and where there is neither, wide."""
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if narrow else Console(width=_WITHOUT_A_TERMINAL)


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
def shares(what: str) -> Iterator[Callable[[str, float], None]]:
    """Show on stderr, if it is a terminal, what is done now and which share of all; gives a function to say both."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda now, share: bar.update(task, description=f"{what}: {now}", completed=share)
