"""`dpserve serve` and `dpserve config`: the service, and where each of its settings comes from."""

import json
from typing import Any

import typer

from dpserve import configuration
from dpserve.commands import options
from dpserve.commands.command import Group
from dpserve.service.telemetry import logs
from dpserve.serving import ConfiguredService, take_grpc_port
from dpserve.settings import ServeSettings

config = Group("Show the settings of the service, and where each comes from.")


def serve(settings: ServeSettings) -> None:
    """Answer requests over HTTP, each answer private and charged; from a pay-once model, paid for once.

    --epsilon and --delta (or --rho) open the lineage's account: what all clients together may ever learn. They are
    needed the first time, and refused if they differ from what the account has.
    """
    checked = settings.checked()
    logs.configure(checked.log_format)
    taken = take_grpc_port(checked)
    ConfiguredService(checked, None if taken is None else taken.getsockname()[1]).run(taken)


@config.command("show", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(*, ctx: typer.Context, as_json: bool = options.JSON) -> None:
    """Show the settings of `dpserve serve` and where each comes from. No key or password is printed.

    Flags of `serve` that are given here count, as in: dpserve config show --port 9000
    """
    root: Any = ctx.find_root().command
    flags = root.get_command(ctx, "serve").make_context("serve", list(ctx.args), parent=ctx.find_root()).params
    settings = ServeSettings.of_words(flags)
    path = configuration.file_path()
    rows = [
        {
            "setting": configuration.key(name),
            "value": configuration.redact(getattr(settings, name)),
            "source": source,
        }
        for name, source in settings.sources(flags).items()
    ]
    if as_json:
        typer.echo(json.dumps({"file": str(path), "read": path.exists(), "settings": rows}, indent=2))
        return
    # A service should not wait for what prints tables.
    from rich.table import Table

    from dpserve.commands.console import stdout_console

    console = stdout_console()
    console.print(f"file: {path}{'' if path.exists() else ' (not there)'}", highlight=False, soft_wrap=True)
    table = Table("setting", "value", "source")
    for row in rows:
        value = "" if row["value"] is None else str(row["value"])
        source = "file" if row["source"] == str(path) else str(row["source"])
        table.add_row(str(row["setting"]), value, source, style=None if row["source"] != "default" else "dim")
    console.print(table, highlight=False)
