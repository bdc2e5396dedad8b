"""Code that attacks and audits share: options, showing and keeping reports, finished pieces, and checks."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import typer

from dpserve.accounting import domains
from dpserve.training.options import Options, option

if TYPE_CHECKING:
    from dpserve.audit.pieces import ResultStore
    from dpserve.audit.reports import Report


class Resumable(Options):
    """Where an audit keeps what it has."""

    resume: Path | None = option(None, "Keep finished pieces in this folder, and go on from those that are there.")


class ConvictionOption(Options):
    """The confidence of a conviction."""

    conviction_confidence: float = option(
        1 - 1e-9, "A sound mechanism is convicted with at most 1 less this.", default_text="1 - 1e-9"
    )

    @classmethod
    def of_words(cls, given: Mapping[str, Any]) -> Self:
        """Return the options. Raises ValueError for what is no confidence, before anything is asked."""
        options = super().of_words(given)
        for name, confidence in options.model_dump().items():
            domains.require_between(f"the {name.replace('_', ' ')}", confidence, 0, 1)
        return options


class Confidences(ConvictionOption):
    """The confidences of a report's bounds and of a conviction."""

    confidence: float = option(0.95, "Of the lower bounds that are shown.")


class ReportOptions(Options):
    """Options for showing a report. Its files are checked to be writable before the command works."""

    as_json: bool = option(False, "Print everything as JSON.", "--json")
    png: Path | None = option(None, "Draw the picture into FILE.png.")

    @classmethod
    def of_words(cls, given: Mapping[str, Any]) -> Self:
        """Return the options. Raises MissingExtra or OSError for files that cannot be written."""
        options = super().of_words(given)
        if options.png is not None:
            from dpserve.audit import reports

            reports.check_files(options.png)
        return options

    def show(self, report: "Report") -> NoReturn:
        """Show the report, write its picture and exit with its status."""
        from dpserve.audit import reports

        if self.png is not None:
            reports.write_picture(report, self.png)
        self.print_report(report)
        sys.exit(report.exit_status)

    def print_report(self, report: "Report") -> None:
        """Print the report as text, or as JSON."""
        _print(report, as_json=self.as_json)


def refuse(context: typer.Context, where: str, *parameters: str) -> None:
    """Refuse options that were given on the command line and would be ignored. where: as "with --table"."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in parameters and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it has no effect {where}: leave it out", param_hint=parameter.opts[0])


@contextmanager
def stored(resume: Path | None, *others: ModuleType) -> "Iterator[ResultStore]":
    """Give the store of finished pieces: in `resume`, or in a folder that goes afterwards.

    Pieces are bound to the code, of the other packages too: what another version kept is computed again.
    """
    from dpserve.audit.pieces import ResultStore, code_digest

    with TemporaryDirectory() if resume is None else nullcontext(str(resume)) as folder:
        yield ResultStore(Path(folder), {"code": code_digest(*others)})


@contextmanager
def excusing_a_closed_pipe() -> Iterator[None]:
    """Let the reader of stdout stop before its end, as `head` does: the rest is dropped.

    What follows, the exit status above all, does not depend on it.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is in the buffer is flushed once more at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _print(report: "Report", *, as_json: bool) -> None:
    """Print the report."""
    from rich.console import Console

    from dpserve.audit import reports

    class Unexcused(Console):
        """Raises BrokenPipeError instead of ending the process with status 1."""

        def on_broken_pipe(self) -> None:
            raise

    with excusing_a_closed_pipe():
        if as_json:
            typer.echo(reports.as_json(report))
        else:
            reports.print_text(report, Unexcused())
