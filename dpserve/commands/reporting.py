"""What attacks and audits share: options, how a report is asked for and shown, finished pieces, and what is checked."""

import functools
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpserve.commands import options

if TYPE_CHECKING:
    from audit.pieces import ResultStore
    from audit.reports import Report

Confidence = Annotated[float, typer.Option("--confidence", help="Of the lower bounds that are shown.")]
ConvictionConfidence = Annotated[
    float,
    typer.Option(
        "--conviction-confidence", help="A sound mechanism is convicted with at most 1 less this. [default: 1 - 1e-9]"
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", help="Keep finished pieces in this folder, and go on from those that are there."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Everything follows from it.")]

SURE = 1 - 1e-9
"""The confidence of a conviction, where none is asked for."""

_SHOWN: dict[str, tuple[Any, Any]] = {
    "as_json": (Annotated[bool, typer.Option("--json", help="Print everything as JSON.")], False),
    "html": (Annotated[Path | None, typer.Option("--html", help="Write the whole report into FILE.html.")], None),
    "png": (Annotated[Path | None, typer.Option("--png", help="Draw the picture into FILE.png.")], None),
}


def reported(name: str) -> Callable[[Callable[..., "Report"]], Callable[..., None]]:
    """Add --json, --html and --png to a command that returns a report: it is shown, and ends with its exit status.

    What writing needs is checked before the command works. As JSON the report is also kept for the owner's page, as
    the verdict `name`.
    """

    def decorated(command: Callable[..., "Report"]) -> Callable[..., None]:
        @functools.wraps(command)
        def shown(*arguments: Any, as_json: bool, html: Path | None, png: Path | None, **given: Any) -> None:
            from audit import reports

            reports.check_files(html, png)
            report = command(*arguments, **given)
            reports.write(report, html_file=html, png_file=png)
            _print(name, report, as_json=as_json)
            sys.exit(report.exit_status)

        signature = inspect.signature(command)
        more = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for option, (annotation, default) in _SHOWN.items()
        ]
        parameters = [*signature.parameters.values(), *more]
        shown.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=None
        )
        shown.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
        del shown.__wrapped__
        return shown

    return decorated


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
    from audit.pieces import ResultStore, code_digest

    with TemporaryDirectory() if resume is None else nullcontext(str(resume)) as folder:
        yield ResultStore(Path(folder), {"code": code_digest(*others)})


def _print(name: str, report: "Report", *, as_json: bool) -> None:
    """Print the report, and keep it as the verdict `name` if that is as JSON.

    Where whoever reads it stops before its end, as `head` does, the rest is dropped: what follows, the exit status
    above all, does not depend on it.
    """
    from rich.console import Console

    from audit import reports

    class Unexcused(Console):
        """Raises BrokenPipeError instead of ending the process with status 1."""

        def on_broken_pipe(self) -> None:
            raise

    try:
        if as_json:
            typer.echo(reports.as_json(report))
        else:
            reports.print_text(report, Unexcused())
        sys.stdout.flush()
    except BrokenPipeError:
        # What is in the buffer is flushed once more at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if as_json:
        _keep_verdict(name, report)


def _keep_verdict(name: str, report: "Report") -> None:
    """Keep the report as the newest of its command, `attack` or `audit-...`. Say on stderr what keeps it from that."""
    from audit import reports
    from service.admin import verdicts

    drawn = report.pictures if find_spec("matplotlib") is not None else ()
    pictures = [(shown.title, shown.caption, shown.png) for shown in drawn]
    folder = options.state_folder() / verdicts.FOLDER
    try:
        verdicts.keep(folder, name, json.loads(reports.as_json(report)), pictures, time=time.time())
    except OSError as error:
        typer.echo(f"dpserve: the verdict is not kept for the owner's page: {error}", err=True)
