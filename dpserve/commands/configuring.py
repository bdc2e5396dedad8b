"""`dpserve config`: the settings of the service, and where each comes from."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from dpserve import configuration
from dpserve.commands.command import Group
from dpserve.commands.console import stdout_console
from dpserve.settings import ServeSettings

app = Group()


@app.callback()
def _config() -> None:
    """The settings of the service: flags, environment and file."""


@app.command("show", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the settings of `dpserve serve` and where each comes from. No key or password is printed.

    Flags of `serve` that are given here count, as in: dpserve config show --port 9000
    """
    root: Any = ctx.find_root().command
    flags = root.get_command(ctx, "serve").make_context("serve", list(ctx.args), parent=ctx.find_root()).params
    settings = ServeSettings.of_command_line(flags)
    path = configuration.file_path()
    rows = [
        {
            "setting": configuration.key(name),
            "value": configuration.shown(name, getattr(settings, name)),
            "source": source,
        }
        for name, source in settings.sources(flags).items()
    ]
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
        source = "file" if row["source"] == str(path) else str(row["source"])
        table.add_row(str(row["setting"]), value, source, style=None if row["source"] != "default" else "dim")
    console.print(table, highlight=False, markup=False)
