"""The form of what an attack or an audit found: one description, shown as text, as JSON and as a picture.

A report is a value. What it says is decided before it is built (`dpserve.audit.presentation`); this module only shows
it."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dpserve.accounting.disclosure import Disclosed, Private
from dpserve.accounting.whole_files import write_shown
from dpserve.training.errors import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACQUITTED, CONVICTED, INCONCLUSIVE = 0, 3, 4
"""Exit statuses: 3 when what was found contradicts what is claimed, 4 when it says nothing about the claim."""

_KINDS = {
    "convicted": ("Convicted", CONVICTED, "red"),
    "inconclusive": ("Inconclusive", INCONCLUSIVE, "yellow"),
    "acquitted": ("Not refuted", ACQUITTED, "green"),
    "measured": ("Measured", ACQUITTED, "cyan"),
}
"""Findings of a report: the word before the finding, the exit status, the colour."""


_SHOWN = ("title", "verdict", "convicted", "inconclusive", "warnings", "notes")
"""The fields of every report, in JSON."""


@dataclass(frozen=True)
class ReportTable(Disclosed):
    """A titled table of text. rows: one text for each column."""

    title: Private[str]
    columns: Private[tuple[str, ...]]
    rows: Private[tuple[tuple[str, ...], ...]]
    note: Private[str] = ""

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the columns."""
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row of {self.title!r} must have {len(self.columns)} texts")

    @classmethod
    def from_rows(
        cls, title: str, columns: Sequence[str], rows: Iterable[Sequence[str | float | None]], note: str = ""
    ) -> "ReportTable":
        """Return a table whose figures are written by `number`, whole numbers as they are."""
        texts = tuple(tuple(map(_cell, row)) for row in rows)
        return cls(title, tuple(columns), texts, note)


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, drawn when its bytes are asked for. draw: onto an empty figure of so many inches, width and height."""

    draw: Callable[["Figure"], None]
    inches: tuple[float, float] = (6.4, 4.0)

    @classmethod
    def with_axes(
        cls,
        labels: tuple[str, str],
        draw: Callable[["Axes"], None],
        inches: tuple[float, float] = (6.4, 4.0),
    ) -> "Picture":
        """Return a figure with one set of axes, their labels (x, y), and a legend. draw: onto the axes."""

        def draw_axes(figure: "Figure") -> None:
            axes = figure.add_subplot()
            draw(axes)
            axes.set_xlabel(labels[0])
            axes.set_ylabel(labels[1])
            axes.legend(fontsize="small")

        return cls(draw_axes, inches)

    @cached_property
    def png(self) -> bytes:
        """The file. Raises MissingExtra without matplotlib."""
        with extra("plots", "a picture"):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        figure = Figure(figsize=self.inches, layout="constrained")
        FigureCanvasAgg(figure)
        self.draw(figure)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
        return file.getvalue()


def check_writable(*files: Path | None) -> None:
    """Raise OSError for a file that cannot be written: before the work. One that is there stays. None is no file."""
    for file in filter(None, files):
        there = file.exists()
        file.open("ab").close()
        if not there:
            file.unlink()


def check_files(*files: Path | None) -> None:
    """Raise MissingExtra where no picture can be drawn, and what `check_writable` does."""
    check_writable(*files)
    if any(files):
        with extra("plots", "a picture"):
            import matplotlib.figure  # noqa: F401


@dataclass(frozen=True)
class Report(Disclosed):
    """The result of an audit: the finding, in one sentence without its full stop, and everything else.

    convicted: whether it contradicts the claim. inconclusive: whether a premise does not hold, so that it says nothing
    about the claim. content: everything, for JSON: dataclasses, arrays, and what JSON has. without_claim: whether
    nothing was claimed that could be refuted.
    """

    title: Private[str]
    finding: Private[str]
    convicted: Private[bool]
    content: Private[Mapping[str, Any]]
    tables: Private[tuple[ReportTable, ...]] = ()
    picture: Private[Picture | None] = None
    warnings: Private[tuple[str, ...]] = ()
    notes: Private[tuple[str, ...]] = ()
    inconclusive: Private[bool] = False
    without_claim: Private[bool] = False

    def __post_init__(self) -> None:
        """Refuse a finding that convicts and says nothing, or convicts of nothing."""
        if self.convicted and (self.inconclusive or self.without_claim):
            raise ValueError("a report that convicts is not inconclusive, and refutes a claim")

    @property
    def verdict(self) -> str:
        """The finding after the word for its kind."""
        return f"{_KINDS[self.kind][0]}: {self.finding}."

    @property
    def kind(self) -> str:
        """The finding in one word: "convicted", "inconclusive", "measured" or "acquitted"."""
        if self.convicted:
            return "convicted"
        if self.inconclusive:
            return "inconclusive"
        return "measured" if self.without_claim else "acquitted"

    @property
    def exit_status(self) -> int:
        """Exit status of a command that made this report."""
        return _KINDS[self.kind][1]


def print_text(report: Report, console: Console) -> None:
    """Print everything but the picture."""

    def line(text: str, style: str | None = None) -> None:
        console.print(text, style=style, highlight=False, markup=False)

    line(report.title, "bold")
    line(report.verdict, _KINDS[report.kind][2])
    for warning in report.warnings:
        line(f"warning: {warning}", "yellow")
    for table in report.tables:
        shown = RichTable(*table.columns, title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for row in table.rows:
            shown.add_row(*map(Text, row))
        console.print(shown, highlight=False)
        if table.note:
            line(table.note)
    for note in report.notes:
        line(f"- {note}")


def as_json(report: Report) -> str:
    """Return everything but the picture as JSON. A number that JSON does not have becomes null."""
    shown = {name: getattr(report, name) for name in _SHOWN} | dict(report.content)
    return to_json(shown, indent=1, inf_nan_mode="null", fallback=lambda array: array.tolist()).decode()


def write_picture(report: Report, file: Path) -> None:
    """Write the picture. Raises OSError, and ValueError where there is none."""
    if report.picture is None:
        raise ValueError(f"there is no picture in this report to write to {file}")
    write_shown(file, report.picture.png)


def number(value: float | None, digits: int = 4) -> str:
    """A figure with so many significant digits; a dash for none."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def interval(low: float, high: float, digits: int = 3) -> str:
    """The ends of a confidence interval."""
    return f"[{number(low, digits)}, {number(high, digits)}]"


def _cell(value: str | float | None) -> str:
    return str(value) if isinstance(value, str | int) else number(value)
