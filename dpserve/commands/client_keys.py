"""`dpserve clients add-key`, `rotate-key`, `remove-key`: with what a client may ask, for how long, and for what."""

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from accounting.ledger import ApiKey, Ledger, checked_scopes, expiry, is_key_id, key_digest, new_api_key
from dpserve.commands import completing, options
from dpserve.commands.lineages import chosen_lineage
from service.errors import CannotServe

Name = Annotated[str, typer.Argument(help="The client's name.", autocompletion=completing.clients)]
Lineage = Annotated[
    str | None,
    typer.Option(
        "--lineage",
        help="The lineage, or a bundle of it; needed when the ledger has several.",
        autocompletion=completing.lineages,
    ),
]
Expires = Annotated[
    str | None,
    typer.Option("--expires-in", help="How long the key lasts, as 90d, 12h, 30m or 45s. [default: for ever]"),
]
ScopesOption = Annotated[
    list[str] | None,
    typer.Option("--scope", help="What the key may do: predict, budget-read; repeatable. [default: both]"),
]
KeyId = Annotated[str, typer.Argument(help="The key's id, as 'dpserve clients show' lists it.")]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, option: str) -> int:
    """Return a duration, as 90d, 12h, 30m or 45s, in seconds. Raises BadParameter, naming the option."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration: say 90d, 12h, 30m or 45s", param_hint=option)
    return int(found[1]) * _UNITS[found[2]]


def key_of(secret: str, expires_in: str | None, scopes: Sequence[str] | None) -> ApiKey:
    """Return what the ledger keeps of a key with these terms. Raises BadParameter and ValueError for nonsense."""
    life = None if expires_in is None else seconds_of(expires_in, "--expires-in")
    chosen = checked_scopes(scopes) if scopes else ApiKey(key_digest(secret)).scopes
    return ApiKey(key_digest(secret), expiry(life, now=time.time()), chosen)


def print_key(secret: str, what: str) -> None:
    """Print a key on stdout, and on stderr what it is."""
    typer.echo(f"{what}, shown this once:", err=True)
    typer.echo(secret)


def table_of_keys(keys: Sequence[ApiKey]) -> Table:
    """Return a client's keys as a table; what it shows opens nothing."""
    table = Table("key", "scopes", "expires")
    now = time.time()
    for key in keys:
        ends = "never"
        if key.expires is not None:
            ends = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(key.expires)) + (" (over)" if key.ended(now) else "")
        table.add_row(key.id, ", ".join(key.scopes), ends)
    return table


def add_key(
    name: Name,
    expires_in: Expires = None,
    scope: ScopesOption = None,
    lineage: Lineage = None,
    ledger: options.Ledger_ = None,
) -> None:
    """Give a client a further API key, as for a dashboard that only reads the budget."""
    secret = new_api_key()
    key = key_of(secret, expires_in, scope)

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            await opened.add_key(await chosen_lineage(opened, lineage), name, key)

    asyncio.run(apply())
    print_key(secret, f"A further API key of {name}, {key.id}")


def rotate_key(
    name: Name,
    overlap: Annotated[
        str, typer.Option(help="How long the former keys stay valid beside the new one, as 1h. [default: not at all]")
    ] = "0s",
    key_id: Annotated[
        str | None, typer.Option("--key", help="Replace only the key of this id, whose scopes the new one gets.")
    ] = None,
    expires_in: Expires = None,
    scope: ScopesOption = None,
    lineage: Lineage = None,
    ledger: options.Ledger_ = None,
) -> None:
    """Give a client a new API key; the former ones are refused from now on, or after --overlap."""
    secret, seconds = new_api_key(), seconds_of(overlap, "--overlap")
    key = key_of(secret, expires_in, scope)

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            chosen = await chosen_lineage(opened, lineage)
            new, replaced = key, None
            if key_id is not None:
                former = await _find(opened, chosen, name, key_id)
                replaced = former.digest
                new = key if scope else ApiKey(key.digest, key.expires, former.scopes)
            await opened.rotate_key(chosen, name, new, replaced=replaced, overlap=seconds)

    asyncio.run(apply())
    print_key(secret, f"The new API key of {name}, {key.id}")


def remove_key(name: Name, key_id: KeyId, lineage: Lineage = None, ledger: options.Ledger_ = None) -> None:
    """Take one API key away from a client, at once; its others stay."""

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            chosen = await chosen_lineage(opened, lineage)
            await opened.remove_key(chosen, name, (await _find(opened, chosen, name, key_id)).digest)

    asyncio.run(apply())
    typer.echo(f"the key {key_id} of {name} opens nothing any more")


async def _find(ledger: Ledger, lineage: str, name: str, key_id: str) -> ApiKey:
    keys = (await ledger.client(lineage, name)).api_keys
    if is_key_id(key_id):
        for key in keys:
            if key.id == key_id:
                return key
    raise CannotServe(f"{name} has no API key {key_id!r}; it has {', '.join(key.id for key in keys) or 'none'}")
