"""What the audits' commands share: options, how a report is asked for, and which options do not go together."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

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
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        help="Draw all noise from this seed, for a result that repeats. [default: the operating system's randomness, "
        "as a service]",
        show_default=False,
    ),
]
ExperimentSeed = Annotated[int, typer.Option("--seed", min=0, help="Everything follows from it.")]
SURE = 1 - 1e-9
"""The confidence of a conviction, where none is asked for."""

_SHOWN: dict[str, tuple[Any, Any]] = {
    "as_json": (Annotated[bool, typer.Option("--json", help="Print everything as JSON.")], False),
    "html": (Annotated[Path | None, typer.Option("--html", help="Write the whole report into FILE.html.")], None),
    "png": (Annotated[Path | None, typer.Option("--png", help="Draw the picture into FILE.png.")], None),
}


def reported(command: Callable[..., Report]) -> Callable[..., None]:
    """Add --json, --html and --png to a command that returns a report: it is shown, and ends with its exit status."""

    @functools.wraps(command)
    def shown(*arguments: Any, as_json: bool, html: Path | None, png: Path | None, **options: Any) -> None:
        from dpserve.commands.audit_output import show

        show(f"audit-{command.__name__}", command(*arguments, **options), as_json=as_json, html=html, png=png)

    signature = inspect.signature(command)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _SHOWN.items()
    ]
    shown.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *more], return_annotation=None
    )
    shown.__annotations__ = {
        **{name: one.annotation for name, one in signature.parameters.items()},
        **{name: annotation for name, (annotation, _) in _SHOWN.items()},
        "return": None,
    }
    del shown.__wrapped__
    return shown


def refuse(context: typer.Context, where: str, *parameters: str) -> None:
    """Refuse options that were given on the command line and would be ignored. where: as "with --table"."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in parameters and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it has no effect {where}: leave it out", param_hint=parameter.opts[0])
