"""`dpserve clients`: who may ask, and for how much."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from accounting.budgets import Budget
from accounting.ledger import (
    ApiKey,
    ClientAccount,
    Ledger,
    Receipt,
    checked_scopes,
    expiry,
    is_key_id,
    key_digest,
    new_api_key,
)
from accounting.picorho import to_rho
from dpserve.commands import completing, options
from dpserve.commands.console import stdout_console, whole
from dpserve.commands.help import Group
from dpserve.commands.lineages import FIGURES, chosen_lineage, exact, figures_of
from service.errors import CannotServe

app = Group("Who may ask, and for how much.")

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


@app.command("add")
def add(
    name: Name,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    rho: options.Rho = None,
    mu: options.Mu = None,
    posterior_belief: options.PosteriorBelief = None,
    advantage: options.Advantage = None,
    accepts: options.AcceptsWhatIsNeeded = None,
    expires_in: Expires = None,
    scope: ScopesOption = None,
    lineage: Lineage = None,
    ledger: options.Ledger_ = None,
) -> None:
    """Give a client a budget, and print its API key: once, for only a digest is kept."""
    words = options.BudgetWords(
        epsilon=epsilon, rho=rho, mu=mu, posterior_belief=posterior_belief, advantage=advantage, delta=delta
    )
    words.budget(accepts or "gaussian")  # so that nonsense is refused before the ledger is opened
    secret = new_api_key()
    key = key_of(secret, expires_in, scope)

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            chosen = await chosen_lineage(opened, lineage)
            whole = (await opened.lineage(chosen)).budget
            budget = words.budget(accepts or whole.accepts)
            _check_within_lineage(name, budget, whole)
            await opened.add_client(chosen, name, budget, key, time=time.time())

    asyncio.run(apply())
    print_key(secret, f"The API key of {name}")


@app.command("list")
def list_(
    lineage: Lineage = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is spent, exactly, as JSON.")] = False,
    ledger: options.Ledger_ = None,
) -> None:
    """List the clients of a lineage with their budgets."""

    async def read() -> list[ClientAccount]:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            return await opened.clients(await chosen_lineage(opened, lineage))

    accounts = asyncio.run(read())
    if as_json:
        typer.echo(json.dumps([{"client": each.client, "revoked": each.revoked} | exact(each) for each in accounts]))
        return
    table = whole("client", *FIGURES, "status")
    for account in accounts:
        table.add_row(account.client, *figures_of(account), "revoked" if account.revoked else "active")
    stdout_console().print(table, highlight=False)


@app.command("show")
def show(name: Name, lineage: Lineage = None, ledger: options.Ledger_ = None) -> None:
    """Show one client: its budget, what it spent on what, and its newest receipts."""

    async def read() -> tuple[ClientAccount, list[Receipt]]:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            chosen = await chosen_lineage(opened, lineage)
            return await opened.client(chosen, name), await opened.client_receipts(
                chosen, name, count=10, newest_first=True
            )

    account, receipts = asyncio.run(read())
    budget = account.budget
    out = stdout_console()
    out.print(
        f"{account.client} of lineage {account.lineage} is {'revoked' if account.revoked else 'active'}\n"
        f"rho spent: {to_rho(account.spent):.6g} of {to_rho(budget.picorho):.6g}; epsilon spent: "
        f"{budget.epsilon_at(account.spent):.4g} of {budget.epsilon_at(budget.picorho):.4g} at delta = "
        f"{budget.delta:g}; accepts: {budget.accepts}",
        highlight=False,
    )
    for cost, releases in account.tally.items():
        out.print(f"{releases} releases at {cost}", highlight=False)
    if account.api_keys:
        out.print(table_of_keys(account.api_keys), highlight=False)
    table = whole("receipt", "time", "model", "mechanism", "rows", "rho")
    for receipt in receipts:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(receipt.time))
        model = receipt.model if len(receipt.model) <= 16 else receipt.model[:15] + "…"
        row = (str(receipt.number), when, model, receipt.mechanism, str(receipt.rows))
        table.add_row(*row, f"{to_rho(receipt.total):.6g}")
    out.print(table, highlight=False)


@app.command("set-budget")
def set_budget(
    name: Name,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    rho: options.Rho = None,
    mu: options.Mu = None,
    posterior_belief: options.PosteriorBelief = None,
    advantage: options.Advantage = None,
    accepts: options.AcceptsOption = "gaussian",
    lineage: Lineage = None,
    ledger: options.Ledger_ = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before raising a budget.")] = False,
) -> None:
    """Change a client's budget. What is spent stays spent; a budget below it only refuses further questions."""
    words = options.BudgetWords(
        epsilon=epsilon, rho=rho, mu=mu, posterior_belief=posterior_belief, advantage=advantage, delta=delta
    )
    budget = words.budget(accepts)

    async def apply() -> str:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            chosen = await chosen_lineage(opened, lineage)
            _check_within_lineage(name, budget, (await opened.lineage(chosen)).budget)
            before = (await opened.client(chosen, name)).budget.picorho
            if (
                budget.picorho > before
                and not yes
                and not typer.confirm(
                    f"Raise the budget of {name} from rho = {to_rho(before):.6g} to {to_rho(budget.picorho):.6g}?"
                )
            ):
                return "nothing was changed"
            await opened.set_client_budget(chosen, name, budget)
            return f"{name} may now spend rho = {to_rho(budget.picorho):.6g}"

    typer.echo(asyncio.run(apply()))


def _check_within_lineage(name: str, budget: Budget, lineage: Budget) -> None:
    """Raise CannotServe if a client would get more than its lineage, which pays for every answer too, has in all."""
    if budget.picorho > lineage.picorho:
        raise CannotServe(
            f"{name} would get rho = {to_rho(budget.picorho):.6g}, and the lineage, which pays for every answer too, "
            f"has rho = {to_rho(lineage.picorho):.6g} in all: give less, or raise the lineage's budget with 'dpserve "
            "lineage set-budget' first"
        )


@app.command("revoke")
def revoke(name: Name, lineage: Lineage = None, ledger: options.Ledger_ = None) -> None:
    """Refuse a client from now on. What it spent stays spent."""

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            await opened.revoke(await chosen_lineage(opened, lineage), name)

    asyncio.run(apply())
    typer.echo(f"{name} is revoked")


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


@app.command("add-key")
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


@app.command("rotate-key")
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


@app.command("remove-key")
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
