"""Where commands print for people: nothing is cut, whoever reads it."""

import os
import sys

from rich.console import Console
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
