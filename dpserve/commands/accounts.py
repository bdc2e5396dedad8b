"""`dpserve clients` and `dpserve lineage`: who may ask and for how much, and what all clients may learn together."""

import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from accounting.budgets import Budget
from accounting.ledger import (
    Account,
    ApiKey,
    ClientAccount,
    Ledger,
    LineageAccount,
    Receipt,
    UnknownLineage,
    checked_scopes,
    expiry,
    is_key_id,
    key_digest,
    new_api_key,
)
from accounting.picorho import to_rho
from dpserve.commands import options
from dpserve.commands.command import Group, Options, option
from dpserve.commands.console import stdout_console, whole
from dpserve.commands.options import AccountBudget, LedgerOption
from service.errors import CannotServe
from training.loading import load_model
from training.sealing import CERTIFICATE_FILE

clients = Group("Who may ask, and for how much.")
lineages = Group("What all clients of one set of records may learn together.")

_Result = TypeVar("_Result")
_FIGURES = ("epsilon spent", "of", "at delta", "rho spent", "of", "releases")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Name = Annotated[str, typer.Argument(help="The client's name.", autocompletion=options.client_names)]
KeyId = Annotated[str, typer.Argument(help="The key's id, as 'dpserve clients show' lists it.")]
Json = Annotated[bool, typer.Option("--json", help="Print what is spent, exactly, as JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before raising a budget.")]


class LineageOption(LedgerOption):
    """A lineage of a ledger."""

    lineage: str | None = option(
        None, "The lineage, or a bundle of it; needed when the ledger has several.", complete=options.lineage_names
    )

    def run_on(self, act: Callable[[Ledger, str], Awaitable[_Result]]) -> _Result:
        """Open the ledger, act on it and the lineage, and return the result."""

        async def chosen(ledger: Ledger) -> _Result:
            return await act(ledger, await chosen_lineage(ledger, self.lineage))

        return self.run(chosen)


class KeyOptions(Options):
    """The terms of an API key."""

    expires_in: str | None = option(None, "How long the key lasts, as 90d, 12h, 30m or 45s.", default_text="for ever")
    scope: list[str] | None = option(
        None, "What the key may do: predict, budget-read; repeatable.", default_text="both"
    )

    def key(self, secret: str) -> ApiKey:
        """Return what the ledger keeps of a key. Raises BadParameter and ValueError for terms that cannot be."""
        life = None if self.expires_in is None else _seconds(self.expires_in, "--expires-in")
        scopes = checked_scopes(self.scope) if self.scope else ApiKey(key_digest(secret)).scopes
        return ApiKey(key_digest(secret), expiry(life, now=time.time()), scopes)


def lineage_named(given: str) -> str:
    """Return the lineage that a bundle belongs to, or the name itself."""
    return load_model(Path(given)).certificate.lineage if (Path(given) / CERTIFICATE_FILE).exists() else given


async def chosen_lineage(ledger: Ledger, given: str | None) -> str:
    """Return the lineage given by name or bundle, or else the only one that the ledger has."""
    if given is not None:
        return lineage_named(given)
    names = [account.lineage for account in await ledger.lineages()]
    if not names:
        raise CannotServe(
            "the ledger has no lineage yet: open one with 'dpserve lineage set-budget BUNDLE --epsilon E --delta D'"
        )
    if len(names) > 1:
        raise CannotServe(f"the ledger has several lineages; name one with --lineage: {', '.join(names)}")
    return names[0]


@lineages.command("show")
def show_lineages(ledger: LedgerOption, as_json: Json = False) -> None:
    """List the lineages with their budgets."""

    async def read(opened: Ledger) -> list[LineageAccount]:
        return await opened.lineages()

    accounts = ledger.run(read)
    if as_json:
        typer.echo(json.dumps([_exact(each) for each in accounts]))
        return
    table = whole("lineage", *_FIGURES, "accepts")
    for account in accounts:
        table.add_row(account.lineage, *_figures(account), account.budget.accepts)
    stdout_console().print(table, highlight=False)


@lineages.command("set-budget")
def set_lineage_budget(
    lineage: Annotated[
        str, typer.Argument(help="The lineage's name, or a bundle of it.", autocompletion=options.lineage_names)
    ],
    given: AccountBudget,
    ledger: LedgerOption,
    yes: Yes = False,
) -> None:
    """Open a lineage's account, or change its budget. What is spent stays spent."""
    given.budget(given.accepts or "gaussian")  # nonsense is refused before the ledger is opened
    name = lineage_named(lineage)

    async def apply(opened: Ledger) -> str:
        try:
            account = await opened.lineage(name)
        except UnknownLineage:
            if not (Path(lineage) / CERTIFICATE_FILE).exists():
                raise CannotServe(
                    f"the ledger has no lineage {name!r}, and there is no bundle of that name to open one for"
                ) from None
            await opened.open_lineage(name, given.budget(given.accepts or "gaussian"), time=time.time())
            return f"opened the lineage {name}"
        budget = given.budget(given.accepts or account.budget.accepts)
        if not _may_raise(f"the lineage {name}", account.budget, budget, yes=yes):
            return "nothing was changed"
        await opened.set_lineage_budget(name, budget)
        return f"the lineage {name} may now spend rho = {to_rho(budget.picorho):.6g}"

    typer.echo(ledger.run(apply))


@clients.command("add")
def add(name: Name, given: AccountBudget, key: KeyOptions, lineage: LineageOption) -> None:
    """Give a client a budget, and print its API key: once, for only a digest is kept."""
    given.budget(given.accepts or "gaussian")  # nonsense is refused before the ledger is opened
    secret = new_api_key()
    kept = key.key(secret)

    async def apply(opened: Ledger, chosen: str) -> None:
        all_clients = (await opened.lineage(chosen)).budget
        budget = given.budget(given.accepts or all_clients.accepts)
        _check_within_lineage(name, budget, all_clients)
        await opened.add_client(chosen, name, budget, kept, time=time.time())

    lineage.run_on(apply)
    _print_key(secret, f"The API key of {name}")


@clients.command("list")
def list_(lineage: LineageOption, as_json: Json = False) -> None:
    """List the clients of a lineage with their budgets."""

    async def read(opened: Ledger, chosen: str) -> list[ClientAccount]:
        return await opened.clients(chosen)

    accounts = lineage.run_on(read)
    if as_json:
        typer.echo(json.dumps([{"client": each.client, "revoked": each.revoked} | _exact(each) for each in accounts]))
        return
    table = whole("client", *_FIGURES, "status")
    for account in accounts:
        table.add_row(account.client, *_figures(account), "revoked" if account.revoked else "active")
    stdout_console().print(table, highlight=False)


@clients.command("show")
def show(name: Name, lineage: LineageOption) -> None:
    """Show one client: its budget, what it spent on what, and its newest receipts."""

    async def read(opened: Ledger, chosen: str) -> tuple[ClientAccount, list[Receipt]]:
        newest = await opened.client_receipts(chosen, name, count=10, newest_first=True)
        return await opened.client(chosen, name), newest

    account, receipts = lineage.run_on(read)
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
        out.print(_table_of_keys(account.api_keys), highlight=False)
    table = whole("receipt", "time", "model", "mechanism", "rows", "rho")
    for receipt in receipts:
        model = receipt.model if len(receipt.model) <= 16 else receipt.model[:15] + "…"
        row = (str(receipt.number), _when(receipt.time), model, receipt.mechanism, str(receipt.rows))
        table.add_row(*row, f"{to_rho(receipt.total):.6g}")
    out.print(table, highlight=False)


@clients.command("set-budget")
def set_budget(name: Name, given: AccountBudget, lineage: LineageOption, yes: Yes = False) -> None:
    """Change a client's budget. What is spent stays spent; a budget below it only refuses further questions."""
    given.budget(given.accepts or "gaussian")  # nonsense is refused before the ledger is opened

    async def apply(opened: Ledger, chosen: str) -> str:
        before = (await opened.client(chosen, name)).budget
        budget = given.budget(given.accepts or before.accepts)
        _check_within_lineage(name, budget, (await opened.lineage(chosen)).budget)
        if not _may_raise(name, before, budget, yes=yes):
            return "nothing was changed"
        await opened.set_client_budget(chosen, name, budget)
        return f"{name} may now spend rho = {to_rho(budget.picorho):.6g}"

    typer.echo(lineage.run_on(apply))


@clients.command("revoke")
def revoke(name: Name, lineage: LineageOption) -> None:
    """Refuse a client from now on. What it spent stays spent."""

    async def apply(opened: Ledger, chosen: str) -> None:
        await opened.revoke(chosen, name)

    lineage.run_on(apply)
    typer.echo(f"{name} is revoked")


@clients.command("add-key")
def add_key(name: Name, key: KeyOptions, lineage: LineageOption) -> None:
    """Give a client a further API key, as for a dashboard that only reads the budget."""
    secret = new_api_key()
    kept = key.key(secret)

    async def apply(opened: Ledger, chosen: str) -> None:
        await opened.add_key(chosen, name, kept)

    lineage.run_on(apply)
    _print_key(secret, f"A further API key of {name}, {kept.id}")


@clients.command("rotate-key")
def rotate_key(
    name: Name,
    key: KeyOptions,
    lineage: LineageOption,
    overlap: Annotated[
        str,
        typer.Option(
            help="How long the former keys stay valid after the new one is made, as 1h. [default: not at all]"
        ),
    ] = "0s",
    key_id: Annotated[
        str | None, typer.Option("--key", help="Replace only the key of this id, whose scopes the new one gets.")
    ] = None,
) -> None:
    """Give a client a new API key; the former ones are refused from now on, or after --overlap."""
    secret, seconds = new_api_key(), _seconds(overlap, "--overlap")
    kept = key.key(secret)

    async def apply(opened: Ledger, chosen: str) -> None:
        new, replaced = kept, None
        if key_id is not None:
            former = await _find(opened, chosen, name, key_id)
            replaced = former.digest
            new = kept if key.scope else ApiKey(kept.digest, kept.expires, former.scopes)
        await opened.rotate_key(chosen, name, new, replaced=replaced, overlap=seconds)

    lineage.run_on(apply)
    _print_key(secret, f"The new API key of {name}, {kept.id}")


@clients.command("remove-key")
def remove_key(name: Name, key_id: KeyId, lineage: LineageOption) -> None:
    """Take one API key away from a client, at once; its others stay."""

    async def apply(opened: Ledger, chosen: str) -> None:
        await opened.remove_key(chosen, name, (await _find(opened, chosen, name, key_id)).digest)

    lineage.run_on(apply)
    typer.echo(f"the key {key_id} of {name} is removed")


def _figures(account: Account) -> tuple[str, ...]:
    """Return what an account spent of what it may, under the headings `_FIGURES`."""
    budget = account.budget
    return (
        f"{budget.epsilon_at(account.spent):.4g}",
        f"{budget.epsilon_at(budget.picorho):.4g}",
        f"{budget.delta:g}",
        f"{to_rho(account.spent):.6g}",
        f"{to_rho(budget.picorho):.6g}",
        str(account.releases),
    )


def _exact(account: Account) -> dict[str, object]:
    """Return what an account spent of what it may, for programs: picorho are whole, epsilons are rounded up."""
    budget = account.budget
    return {
        "lineage": account.lineage,
        "spent_picorho": account.spent,
        "budget_picorho": budget.picorho,
        "spent_epsilon": budget.epsilon_at(account.spent),
        "budget_epsilon": budget.epsilon_at(budget.picorho),
        "delta": budget.delta,
        "accepts": budget.accepts,
        "releases": account.releases,
    }


def _may_raise(whose: str, before: Budget, after: Budget, *, yes: bool) -> bool:
    """Ask the owner before a budget grows; return whether to go on."""
    return (
        after.picorho <= before.picorho
        or yes
        or typer.confirm(
            f"Raise the budget of {whose} from rho = {to_rho(before.picorho):.6g} to {to_rho(after.picorho):.6g}? "
            "More may then be learnt about every record"
        )
    )


def _check_within_lineage(name: str, budget: Budget, lineage: Budget) -> None:
    """Raise CannotServe if a client would get more than its lineage, which pays for every answer too, has in all."""
    if budget.picorho > lineage.picorho:
        raise CannotServe(
            f"{name} would get rho = {to_rho(budget.picorho):.6g}, and the lineage, which pays for every answer too, "
            f"has rho = {to_rho(lineage.picorho):.6g} in all: give less, or raise the lineage's budget with 'dpserve "
            "lineage set-budget' first"
        )


def _seconds(text: str, flag: str) -> int:
    """Return a duration, as 90d, 12h, 30m or 45s, in seconds. Raises BadParameter, naming the flag."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration: say 90d, 12h, 30m or 45s", param_hint=flag)
    return int(found[1]) * _UNITS[found[2]]


def _print_key(secret: str, what: str) -> None:
    """Print a key on stdout, and on stderr what it is."""
    typer.echo(f"{what}, shown this once:", err=True)
    typer.echo(secret)


def _table_of_keys(keys: Sequence[ApiKey]) -> Table:
    """Return a client's keys as a table, without their secrets."""
    table = Table("key", "scopes", "expires")
    now = time.time()
    for key in keys:
        ends = "never" if key.expires is None else _when(key.expires) + (" (over)" if key.ended(now) else "")
        table.add_row(key.id, ", ".join(key.scopes), ends)
    return table


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


async def _find(ledger: Ledger, lineage: str, name: str, key_id: str) -> ApiKey:
    keys = (await ledger.client(lineage, name)).api_keys
    if is_key_id(key_id):
        for key in keys:
            if key.id == key_id:
                return key
    raise CannotServe(f"{name} has no API key {key_id!r}; it has {', '.join(key.id for key in keys) or 'none'}")
