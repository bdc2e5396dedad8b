"""The command line: `dpserve --help`.

Every foreseen error is one clear line on stderr and exit status 1; wrong usage is exit status 2, a conviction 3.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpserve.commands.command import Group


@dataclass(frozen=True)
class _Command:
    """Where a command is, and what the list of all commands says about it: the list imports none of them."""

    module: str
    attribute: str
    summary: str


_GROUPS = {
    "Look": {
        "demo": _Command("demonstration", "demo", "Train, serve and ask until refused, in a minute; nothing is kept."),
    },
    "Train": {
        "plan": _Command("planning", "plan", "Say what a budget buys: what to run, what it gives and what it costs."),
        "schema": _Command("schema", "app", "Declare a table in a file, without looking at its values."),
        "train": _Command("training", "train", "Train a model on private records and write a certified bundle."),
        "inspect": _Command("bundles", "inspect", "Derive every number of a bundle's certificate again."),
        "evaluate": _Command("bundles", "evaluate", "Measure how good a pay-once model is on held-out records."),
        "train-published": _Command("training", "train_published", "Train as Lu et al. 2022 do: unproven, to compare."),
    },
    "Serve": {
        "serve": _Command("serving", "serve", "Answer over HTTP: every answer private, and charged to a budget."),
        "clients": _Command("accounts", "clients", "Give clients keys and budgets: who may ask, and for how much."),
        "groups": _Command("accounts", "groups", "Limit what the clients of one team may learn together."),
        "lineage": _Command("accounts", "lineages", "Limit what all clients of one set of records may learn together."),
        "export": _Command("bundles", "export", "Write a pay-once model into a file that other servers read."),
        "explain": _Command("explaining", "explain", "Explain what was spent, by five analyses and in plain words."),
        "ledger": _Command("ledger", "app", "Check, copy and mend the ledger."),
        "config": _Command("serving", "config", "Show the settings of the service, and where each comes from."),
    },
    "Attack and audit": {
        "attack": _Command(
            "attacking", "attack", "Find out who was trained on: ask an endpoint as an adversary would."
        ),
        "audit": _Command("auditing", "app", "Bound from below what a mechanism or a service leaks."),
    },
}
_COMMANDS = {name: command for group in _GROUPS.values() for name, command in group.items()}


class _Commands(TyperGroup):
    """The commands, each imported when it is used: a service should not wait for what training needs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order in which they are needed."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        entry = _COMMANDS[cmd_name]
        entry_command = getattr(import_module(f"dpserve.commands.{entry.module}"), entry.attribute)
        if not isinstance(entry_command, typer.Typer):
            alone = Group(no_args_is_help=False)
            alone.command(cmd_name)(entry_command)
            entry_command = alone
        command = typer.main.get_command(entry_command)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is called; of one that is not there, say which was probably meant."""
        close = get_close_matches(args[0], _COMMANDS, 1) if args[0] not in _COMMANDS else []
        if close:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in the groups in which they are used."""
        del ctx
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.summary) for name, command in commands.items()])


app = Group(name="dpserve", cls=_Commands, add_completion=True)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"dpserve {version('dpserve')}")
        raise typer.Exit


@app.callback(epilog="Begin with 'dpserve demo'. 'dpserve COMMAND --help' says what a command takes.")
def _dpserve(
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="DPSERVE_CONFIG",
            metavar="PATH",
            help="A TOML file with the options of 'serve'; flags and DPSERVE_ variables override it.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Serve a model trained on private records: every answer private, and charged to a budget."""
    del version
    if config is not None:
        from dpserve.configuration import choose_file

        choose_file(config)
    from dpserve.configuration import OTHER_VARIABLES, PREFIX, refuse_misspelt_variables

    if any(name.startswith(PREFIX) and name not in OTHER_VARIABLES for name in os.environ):
        from dpserve.settings import ServeSettings

        refuse_misspelt_variables(ServeSettings.model_fields)


def main() -> None:
    """Run the command line."""
    with one_line_errors():
        app()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Say a foreseen error in one line, and exit."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("dpserve: stopped\n")
        sys.exit(130)
    except Exception as error:
        if not _is_foreseen(error):
            raise
        sys.stderr.write("".join(f"dpserve: {line}\n" for line in _message(error).splitlines()))
        sys.exit(_status(error))


def _status(error: Exception) -> int:
    from dpserve.training.errors import ClaimRefuted

    return 3 if isinstance(error, ClaimRefuted) else 1


def _is_foreseen(error: Exception) -> bool:
    from dpserve.accounting.ledger import LedgerError
    from dpserve.commands.errors import CommandError
    from dpserve.service.errors import CannotServe
    from dpserve.training.errors import TrainingError

    return isinstance(error, TrainingError | LedgerError | CommandError | CannotServe | ValueError | OSError)


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    from dpserve.accounting.messages import spelled
    from dpserve.wording import as_flag

    return spelled(error, as_flag)
