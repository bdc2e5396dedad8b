"""How every command shows its help: plain text, the options that most people need first, the others under titles."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand
from typer.models import CommandFunctionType


class Command(TyperCommand):
    """A command whose options stand in sections: those without a panel first, then each panel by its title."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a panel, and the panels in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                title = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(typer.Typer):
    """A group of commands with this help."""

    def __init__(self, help: str | None = None, **more: Any) -> None:  # noqa: A002 - as Typer calls it
        """Take what `typer.Typer` takes. help: one line on what the commands are for."""
        shown: dict[str, Any] = {
            "no_args_is_help": True,
            "rich_markup_mode": None,
            "pretty_exceptions_enable": False,
            "add_completion": False,
        }
        super().__init__(**(shown if help is None else shown | {"help": help}) | more)

    def command(  # type: ignore[override]
        self, name: str | None = None, *, cls: type[TyperCommand] = Command, **more: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Add a command, shown as `Command` shows it. more: as `typer.Typer.command` takes it."""
        return super().command(name, cls=cls, **more)
