"""What the shell offers as values: bundles, lineages, clients, mechanisms. What fails offers nothing."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import typer

from accounting.ledger import Ledger

_PATIENCE = 5.0
"""Seconds that a shell waits for the ledger."""


def bundles(incomplete: str) -> list[str]:
    """Return the folders that hold a bundle, and those that may lead to one."""
    from training.sealing import CERTIFICATE_FILE

    folder, _, start = incomplete.rpartition("/")
    within = Path(folder + "/" if incomplete.startswith("/") or folder else ".").expanduser()
    found = []
    with suppress(OSError):
        for path in sorted(within.iterdir()):
            if path.is_dir() and path.name.startswith(start) and not path.name.startswith("."):
                whole = f"{folder}/{path.name}" if folder or incomplete.startswith("/") else path.name
                found.append(whole if (path / CERTIFICATE_FILE).exists() else f"{whole}/")
    return found


def mechanisms(incomplete: str) -> list[str]:
    """Return the names of the mechanisms."""
    from mechanisms import mechanism

    return [name for name in mechanism.names() if name.startswith(incomplete)]


def releases(incomplete: str) -> list[str]:
    """Return the kinds of release that `train` makes."""
    from dpserve.commands.releases import RELEASES

    return [name for name in RELEASES if name.startswith(incomplete)]


def forms(incomplete: str) -> list[str]:
    """Return the forms that `export` writes."""
    from training.export.files import FORMS

    return [name for name in FORMS if name.startswith(incomplete)]


def features(incomplete: str) -> list[str]:
    """Return the feature maps that `train` makes."""
    return [name for name in ("auto", "identity", "bins", "hog", "fourier", "relu") if name.startswith(incomplete)]


def lineages(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the ledger's lineages."""
    return [name for name in _from_ledger(ctx, lambda ledger: ledger.lineage_names()) if name.startswith(incomplete)]


def clients(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the clients of the lineage that was named, or of all."""

    async def names(ledger: Ledger) -> list[str]:
        named = ctx.params.get("lineage")
        found = [named] if named else await ledger.lineage_names()
        return sorted({account.client for each in found for account in await ledger.clients(each)})

    return [name for name in _from_ledger(ctx, names) if name.startswith(incomplete)]


def _from_ledger(ctx: typer.Context, read: Callable[[Ledger], Awaitable[list[str]]]) -> list[str]:
    from dpserve.commands.options import ledger_location

    async def ask(location: str) -> list[str]:
        async with asyncio.timeout(_PATIENCE), Ledger.open(location) as ledger:
            return await read(ledger)

    try:
        location = ledger_location(ctx.params.get("ledger") or os.environ.get("DPSERVE_LEDGER"))
        if "://" not in location and not Path(location).exists():
            return []  # and looking makes none
        return asyncio.run(ask(location))
    except Exception:  # noqa: BLE001 - whatever it is, the shell has no place to say it
        return []
