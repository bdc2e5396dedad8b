"""`dpserve config`, and how a command takes its defaults from the configuration."""

import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer
from rich.table import Table

from dpserve import configuration
from dpserve.commands.console import stdout_console
from dpserve.commands.help import Command, Group
from dpserve.settings import ServeSettings

app = Group()


@app.callback()
def _config() -> None:
    """What the service is told by flags, environment and file."""


class Configured(Command):
    """The command `serve`: its parameters are the settings, which may stand in the environment or in the file, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the flags; what they leave open comes from the configuration. Asked for help, it is not read."""
        kept: dict[str, configuration.Setting] = {}
        said: dict[str, Any] = {}
        if not ctx.resilient_parsing and "--help" not in args:
            said, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            kept = configuration.without_other_budgets(
                configuration.settings(ServeSettings), {name for name, value in said.items() if value is not None}
            )
            ctx.meta["settings"] = kept
            ctx.default_map = {name: setting.value for name, setting in kept.items()}
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            name = error.param.name if error.param is not None else None
            if name not in kept or said.get(name) is not None:
                raise
            source = kept[name].source.replace("environment ", "the environment's ")
            raise configuration.ConfigurationError(f"{source}: {configuration.key(name)}: {error.message}") from None


def taking(settings: type[ServeSettings], act: Callable[[ServeSettings], None]) -> Callable[..., None]:
    """Return a function for Typer that has the settings for parameters, and acts on them."""

    def command(**given: Any) -> None:
        act(settings(**given))

    hints = get_type_hints(settings, include_extras=True)
    command.__doc__ = act.__doc__
    command.__annotations__ = {name: hints[name] for name in settings.model_fields} | {"return": None}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else field.default,
                annotation=hints[name],
            )
            for name, field in settings.model_fields.items()
        ]
    )
    return command


@app.command("show", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what `dpserve serve` would be told, and by whom: no key or password is printed.

    Flags of `serve` that are given here count, as in: dpserve config show --port 9000
    """
    root: Any = ctx.find_root().command
    command = root.get_command(ctx, "serve")
    for parameter in command.params:
        parameter.required = False
    inner = command.make_context("serve", list(ctx.args), parent=ctx.find_root())
    rows = [_row(inner, parameter.name) for parameter in command.params if parameter.expose_value]
    path = configuration.file_path()
    if as_json:
        typer.echo(json.dumps({"file": str(path), "read": path.exists(), "settings": rows}, indent=2))
        return
    console = stdout_console()
    console.print(
        f"file: {path}{'' if path.exists() else ' (not there)'}", highlight=False, soft_wrap=True, markup=False
    )
    table = Table("setting", "value", "source")
    for row in rows:
        value = "" if row["value"] is None else str(row["value"])
        source = "file" if row["source"] == str(path) else row["source"]
        table.add_row(row["setting"], value, source, style=None if row["source"] != "default" else "dim")
    console.print(table, highlight=False, markup=False)


def _row(ctx: Any, name: str) -> dict[str, Any]:
    source = ctx.get_parameter_source(name).name
    found = ctx.meta["settings"].get(name)
    if source == "COMMANDLINE":
        said = "flag"
    elif found is not None:
        said = found.source
    else:
        said = "default"
    return {
        "setting": configuration.key(name),
        "value": configuration.shown(name, ctx.params[name]),
        "source": said,
    }
