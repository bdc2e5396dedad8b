"""What the programs of research share: how one is started, its options, and how a report is shown."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import research
from audit import reports
from audit.pieces import ResultStore
from audit.reports import Report
from dpserve.cli import errors_said
from dpserve.commands import reporting

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", envvar="DPSERVE_DATA_DIR", help="Where the data set's files are.")
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the whole report into FILE.html.")]
Png = Annotated[Path | None, typer.Option("--png", help="Draw the picture into FILE.png.")]


def program() -> typer.Typer:
    """Return a command line without commands."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def run(app: typer.Typer) -> None:
    """Run a command line; print a foreseen error as one line."""
    with errors_said():
        app()


def stored(resume: Path | None) -> AbstractContextManager[ResultStore]:
    """Give the store of finished pieces, bound to the code of audits and of research."""
    return reporting.stored(resume, research)


def show(report: Report, *, as_json: bool, html: Path | None, png: Path | None) -> None:
    """Print the report, write its files, and exit with its status: 3 if the claim was refuted."""
    reports.write(report, html_file=html, png_file=png)
    if as_json:
        typer.echo(reports.as_json(report))
    else:
        reports.print_text(report, Console())
    sys.exit(report.exit_status)
