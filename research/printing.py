"""Printing for every program of research: tables that fit the terminal with nothing cut off, and CSV where piped.

A table that is too wide goes on below, with the columns that name its rows repeated. Where stdout is no terminal and no
COLUMNS is set, stdout holds the tables alone, as CSV, and everything else goes to stderr.
"""

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpserve.audit.reports import Report, ReportTable
from dpserve.commands.reporting import excusing_a_closed_pipe

_WHOLE = 24
"""Characters. A shorter cell stands in one line; longer ones go on in the next, at spaces."""

_GAP = 2


class _Unexcused(Console):
    """Raises BrokenPipeError instead of ending the process with status 1."""

    def on_broken_pipe(self) -> None:
        raise


def is_piped() -> bool:
    """Return whether tables are printed as CSV."""
    return not sys.stdout.isatty() and "COLUMNS" not in os.environ


def print_report(report: Report) -> None:
    """Print everything of a report but its pictures."""
    warnings = [f"warning: {warning}" for warning in report.warnings]
    notes = [f"- {note}" for note in report.notes]
    print_tables(report.tables, before=(report.title, report.verdict, *warnings), after=notes)


def print_tables(tables: Sequence[ReportTable], *, before: Sequence[str] = (), after: Sequence[str] = ()) -> None:
    """Print tables, with lines of text before and after them."""
    with excusing_a_closed_pipe():
        if is_piped():
            for line in (*before, *(table.note for table in tables if table.note), *after):
                typer.echo(line, err=True)
            typer.echo(as_csv(tables), nl=False)
        else:
            console = _Unexcused(markup=False, emoji=False, highlight=False)
            for line in before:
                console.print(line)
            for table in tables:
                print_table(table, console)
            for line in after:
                console.print(line)


def as_csv(tables: Sequence[ReportTable]) -> str:
    """Return tables as CSV. Several are blocks with an empty line between, whose first column is the table's title."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for place, table in enumerate(tables):
        titled = [table.title] if len(tables) > 1 else []
        if place:
            writer.writerow([])
        writer.writerow(["table"] * len(titled) + list(table.columns))
        writer.writerows([*titled, *(cell.replace("\n", " ") for cell in row)] for row in table.rows)
    return file.getvalue()


def print_table(table: ReportTable, console: Console) -> None:
    """Print a table, in as many parts as its columns need at the console's width."""
    least = [_least_width(table, column) for column in range(len(table.columns))]
    keys = _keys(table)
    for part, columns in enumerate(_parts(least, keys, console.width)):
        title = table.title if part == 0 else f"{table.title}, further columns"
        shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        left = console.width - _GAP * len(columns) - sum(least[column] for column in columns)
        for column in columns:
            texts = [table.columns[column], *(row[column] for row in table.rows)]
            more = min(max(map(len, texts)) - least[column], max(left, 0))
            left -= more
            right = column >= keys and all(_is_figure(text) for text in texts[1:])
            width = min(least[column] + more, console.width - _GAP)
            shown.add_column(Text(texts[0]), width=width, overflow="fold", justify="right" if right else "left")
        for row in table.rows:
            shown.add_row(*(Text(row[column]) for column in columns))
        console.print()
        console.print(title, style="italic")
        console.print(shown)
    if table.note:
        console.print(table.note)


def _keys(table: ReportTable) -> int:
    """Return how many first columns tell the rows apart; 1 where none do."""
    counts = range(1, len(table.columns))
    return next((count for count in counts if len({row[:count] for row in table.rows}) == len(table.rows)), 1)


def _least_width(table: ReportTable, column: int) -> int:
    words = table.columns[column].split()
    for row in table.rows:
        words += [row[column]] if len(row[column]) <= _WHOLE else row[column].split()
    return max(map(len, words), default=1)


def _parts(least: Sequence[int], keys: int, width: int) -> Iterator[list[int]]:
    """Yield the columns of each part: the keys, and as many others as fit."""
    repeated = list(range(keys))
    if sum(least[key] + _GAP for key in repeated) > width * 2 // 3:
        repeated = [0]
    taken = used = sum(least[key] + _GAP for key in repeated)
    part: list[int] = []
    for column in range(len(repeated), len(least)):
        if part and used + least[column] + _GAP > width:
            yield repeated + part
            part, used = [], taken
        part.append(column)
        used += least[column] + _GAP
    yield repeated + part


def _is_figure(text: str) -> bool:
    return not text or text[0] in "+-0123456789"
