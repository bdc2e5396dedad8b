"""How every `dpserve audit` shows its report, where it keeps finished pieces, and with what it exits."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import typer
from rich.console import Console

from audit import reports
from audit.pieces import ResultStore, code_digest
from audit.reports import Report
from dpserve.commands import options
from service.admin import verdicts


def show(name: str, report: Report, *, as_json: bool, html: Path | None, png: Path | None) -> None:
    """Print the report, write its files, and exit with its status: 3 if the claim was refuted.

    As JSON it is also kept for the owner's page, as the verdict `name`.
    """
    reports.write(report, html_file=html, png_file=png)
    print_verdict(name, report, as_json=as_json)
    sys.exit(report.exit_status)


def print_verdict(name: str, report: Report, *, as_json: bool) -> None:
    """Print the report, and keep it as the verdict `name` if that is as JSON.

    Where whoever reads it stops before its end, as `head` does, the rest is dropped: what follows, the exit status
    above all, does not depend on it.
    """
    try:
        if as_json:
            typer.echo(reports.as_json(report))
        else:
            reports.print_text(report, _Unexcused())
        sys.stdout.flush()
    except BrokenPipeError:
        # What is in the buffer is flushed once more at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if as_json:
        _keep_verdict(name, report)


class _Unexcused(Console):
    """Raises BrokenPipeError instead of ending the process with status 1."""

    def on_broken_pipe(self) -> None:
        raise


def _keep_verdict(name: str, report: Report) -> None:
    """Keep the report as the newest of its command, `attack` or `audit-...`. Say on stderr what keeps it from that."""
    pictures = [(shown.title, shown.caption, shown.png) for shown in report.pictures]
    folder = options.state_folder() / verdicts.FOLDER
    try:
        verdicts.keep(folder, name, json.loads(reports.as_json(report)), pictures, time=time.time())
    except OSError as error:
        typer.echo(f"dpserve: the verdict is not kept for the owner's page: {error}", err=True)


@contextmanager
def stored(resume: Path | None, *others: ModuleType) -> Iterator[ResultStore]:
    """Give the store of finished pieces: in `resume`, or in a folder that goes afterwards.

    Pieces are bound to the code, of the other packages too: what another version kept is computed again.
    """
    with TemporaryDirectory() if resume is None else nullcontext(str(resume)) as folder:
        yield ResultStore(Path(folder), {"code": code_digest(*others)})
