"""Code that the programs of research share: to start one, and its options."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

import research
from dpserve.audit.pieces import ResultStore
from dpserve.audit.reports import Report
from dpserve.cli import one_line_errors
from dpserve.commands import reporting
from dpserve.commands.command import Group
from dpserve.training.options import option
from research import printing

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", envvar="DPSERVE_DATA_DIR", help="Where the data set's files are.")
]


class Repeatable(reporting.Resumable):
    """An experiment that follows from a seed."""

    seed: int = option(0, "Everything follows from it.", ge=0)


class ReportOptions(reporting.ReportOptions):
    """Options for showing a report of research: tables that fit the terminal, and CSV where piped."""

    def print_report(self, report: Report) -> None:
        """Print the report as text, as CSV or as JSON."""
        if self.as_json:
            super().print_report(report)
        else:
            printing.print_report(report)


def program() -> Group:
    """Return a command line without commands."""
    return Group(no_args_is_help=False)


def run(app: typer.Typer) -> None:
    """Run a command line; print a foreseen error as one line."""
    with one_line_errors():
        app()


def finished_pieces(resume: Path | None) -> AbstractContextManager[ResultStore]:
    """Give the store of finished pieces, bound to the code of audits and of research."""
    return reporting.stored(resume, research)
