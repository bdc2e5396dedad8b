"""The command line: `dpserve --help`.

Every foreseen error is one clear line on stderr and exit status 1; wrong usage is exit status 2.
"""

import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

_COMMANDS = {
    "train": ("bundles", "train"),
    "inspect": ("bundles", "inspect"),
    "plan": ("planning", "plan"),
    "serve": ("serving", "serve"),
    "explain": ("explaining", "explain"),
    "clients": ("clients", "app"),
    "lineage": ("lineages", "app"),
    "ledger": ("ledger", "app"),
    "attack": ("attacking", "attack"),
    "audit": ("auditing", "app"),
    "demo": ("demonstration", "demo"),
    "reproduce": ("reproducing", "app"),
    "train-published": ("bundles", "train_published"),
}
"""Each command's module in `dpserve.commands`, and what it is called there."""


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
        module, attribute = _COMMANDS[cmd_name]
        found = getattr(import_module(f"dpserve.commands.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
            alone.command(cmd_name)(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="dpserve",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _dpserve() -> None:
    """Serve a model trained on private records: every answer private, and charged to a budget."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if not _is_foreseen(error):
            raise
        sys.stderr.write("".join(f"dpserve: {line}\n" for line in _said(error).splitlines()))
        sys.exit(1)


def _is_foreseen(error: Exception) -> bool:
    from accounting.ledger import LedgerError
    from service.errors import CannotServe
    from training.errors import TrainingError

    return isinstance(error, TrainingError | LedgerError | CannotServe | ValueError | OSError)


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)
