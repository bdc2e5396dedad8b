"""Lists of `dpserve clients`, `groups` and `lineage`; the commands that change them are in `dpserve.commands.acts`."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table

from dpserve.accounting.currency import EPSILON
from dpserve.accounting.ledger import (
    Account,
    ApiKey,
    BlockAccount,
    ClientAccount,
    GroupAccount,
    Ledger,
    LineageAccount,
    LineageForgotten,
    Receipt,
)
from dpserve.accounting.ledger.charged_models import charged_models
from dpserve.accounting.ledger.values import ChargedModel
from dpserve.commands import options
from dpserve.commands.acts import LineageOption, Sought, clients, groups, lineage_named, lineages
from dpserve.commands.console import stdout_console, whole
from dpserve.commands.options import LedgerOption
from dpserve.training.options import option

_FIGURES = ("spent", "left", "of", "in", "releases")

NAME = option(..., "The client's id.", argument=True, complete=options.client_names)
JSON = option(False, "Print what is spent, exactly, as JSON.", "--json")


@lineages.command("list")
def list_lineages(ledger: LedgerOption, as_json: bool = JSON) -> None:
    """List the lineages with their budgets."""

    async def read(opened: Ledger) -> list[list[LineageAccount | BlockAccount]]:
        return [await opened.all_blocks(lineage.lineage) for lineage in await opened.lineages()]

    listed = ledger.run(read)
    if as_json:
        typer.echo(json.dumps([_exact(account) | _exact_blocks(blocks) for account, *blocks in listed]))
        return
    table = whole("lineage", *_FIGURES, "accepts")
    for blocks in listed:
        for account in [account for account in blocks if _has_budget(account)] or blocks[:1]:
            of_block = f", block {account.name}" if account.name else ""
            table.add_row(account.lineage + of_block, *figures_of(account), account.budget.accepts)
    stdout_console().print(table, highlight=False)


@lineages.command("show")
def show_lineage(
    *,
    name: str = option(..., "The lineage's name, or a bundle of it.", argument=True, complete=options.lineage_names),
    ledger: LedgerOption,
    as_json: bool = JSON,
) -> None:
    """Show one lineage: its budget, its privacy unit, the models that it paid for, its blocks, groups and clients."""
    lineage = lineage_named(name)

    async def read(
        opened: Ledger,
    ) -> tuple[tuple[LineageAccount, list[ClientAccount], list[GroupAccount], list[BlockAccount]], list[ChargedModel]]:
        accounts = await opened.snapshot(lineage)
        return accounts, await charged_models(opened, accounts[0])

    (account, members, its_groups, blocks), models = ledger.run(read)
    currency = account.budget.currency
    if as_json:
        spent_in = f"spent_pico{currency.name}"
        listed = [
            {spent_in if name == "spent" else name: value for name, value in asdict(model).items()} for model in models
        ]
        named = {"groups": [each.group for each in its_groups], "clients": [each.client for each in members]}
        own = {"created": account.created, "models": listed}
        typer.echo(json.dumps(_exact(account) | own | _exact_blocks(blocks) | named))
        return
    out = stdout_console()
    _print_spent(out, f"the lineage {account.lineage}, opened {_when(account.created)} UTC", account)
    protects = {None: "not settled before the first model", "": "one record"}
    unit = protects.get(account.unit, f"all records with one value of {account.unit}")
    if account.is_forgotten:
        out.print(str(LineageForgotten(account.lineage)), highlight=False)
    out.print(f"privacy unit: {unit}", highlight=False)
    table = whole("model", "mechanism", "first charged", "last charged", "releases", "share")
    total = sum(model.spent for model in models) or 1
    for model in models:
        row = (_shown_model(model.model), model.mechanism, _when(model.first), _when(model.last), str(model.releases))
        table.add_row(*row, f"{model.spent / total:.1%}")
    out.print(table, highlight=False)
    if blocks:
        out.print(_table_of_blocks(blocks, models), highlight=False)
    if its_groups:
        out.print(_table_of_groups(its_groups, members), highlight=False)
    out.print(_table_of_clients(members), highlight=False)


@groups.command("list")
def list_groups(lineage: LineageOption, as_json: bool = JSON) -> None:
    """List the groups of a lineage with their budgets and members."""

    async def read(opened: Ledger, chosen: str) -> tuple[list[GroupAccount], list[ClientAccount]]:
        return await opened.groups(chosen), await opened.clients(chosen)

    accounts, members = lineage.run_on(read)
    if as_json:
        listed = [
            {"group": group.group, "display_name": group.display, "members": _members(group, members)} | _exact(group)
            for group in accounts
        ]
        typer.echo(json.dumps(listed))
        return
    stdout_console().print(_table_of_groups(accounts, members), highlight=False)


@clients.command("list")
def list_(lineage: LineageOption, as_json: bool = JSON) -> None:
    """List the clients of a lineage with their budgets."""
    accounts = lineage.run_on(Ledger.clients)
    if as_json:
        listed = [
            {"client": client.client, "display_name": client.display, "group": client.group, "revoked": client.revoked}
            | _exact(client)
            for client in accounts
        ]
        typer.echo(json.dumps(listed))
        return
    stdout_console().print(_table_of_clients(accounts), highlight=False)


@clients.command("show")
def show(*, name: str = NAME, lineage: LineageOption) -> None:
    """Show one client: its budget, what it spent on what, and its newest receipts."""

    async def read(opened: Ledger, chosen: str) -> tuple[ClientAccount, list[Receipt]]:
        newest = await opened.client_receipts(chosen, name, count=10, newest_first=True)
        return await opened.client(chosen, name), newest

    account, receipts = lineage.run_on(read, Sought("client", name))
    budget, before = account.budget, account.spent
    out = stdout_console()
    title = f"{_shown_name(account.client, account.display)} of lineage {account.lineage} is {_status(account)}"
    _print_spent(out, title, account)
    if account.api_keys:
        out.print(_table_of_keys(account.api_keys), highlight=False)
    table = whole("receipt", "time", "model", "mechanism", "rows", f"added to {budget.shown_in}")
    for receipt in receipts:  # the newest first: before it less was spent
        charged = receipt.total_in(budget.currency, receipt.releases)
        before = max(0, before - charged)
        added = budget.growth(before, charged)
        row = (str(receipt.number), _when(receipt.time), _shown_model(receipt.model), receipt.mechanism)
        table.add_row(*row, str(receipt.releases), "" if added is None else budget.figure(added))
    out.print(table, highlight=False)


def _print_spent(out: Console, title: str, account: Account) -> None:
    """Print what an account is, what it spent of what it may, in sum and by cost, and what else pays with it."""
    budget, currency = account.budget, account.budget.currency
    spent, left, limit, unit, _ = figures_of(account)
    out.print(
        f"{title}\nspent: {spent} of {limit}, left: {left}, in {unit}; accepts: {budget.accepts}", highlight=False
    )
    if isinstance(account, ClientAccount) and account.group:
        out.print(f"belongs to the group {account.group}, which pays for its answers, too", highlight=False)
    for cost, releases in account.tally.items():
        price = currency.price(cost)
        out.print(
            f"{releases:,} release{'s' * (releases != 1)}, {'each ' * (releases != 1)}"
            + ("without a price" if price is None else f"{budget.words(price)} by itself"),
            highlight=False,
        )


def figures_of(account: Account) -> tuple[str, ...]:
    """Return what an account spent of what it may, under the headings `_FIGURES`."""
    budget = account.budget
    spent, limit = budget.shown(account.spent), budget.shown(budget.limit)
    unit = "rho" if budget.shown_in == "rho" else f"epsilon at {budget.delta:g}"
    if budget.currency is EPSILON:
        unit = "pure epsilon"
    figures = (budget.figure(each) for each in (spent, max(0.0, limit - spent), limit))
    return (*figures, unit, str(account.releases))


def _has_budget(account: Account) -> bool:
    """Tell whether an account was ever to pay for anything: the block without a name may have no records."""
    return bool(account.budget.limit or account.spent)


def _exact_blocks(blocks: Iterable[Account]) -> dict[str, object]:
    """Return the blocks that have names, for programs, where there are any."""
    listed = [{"block": account.name} | _exact(account) for account in blocks]
    return {"blocks": listed} if listed else {}


def _exact(account: Account) -> dict[str, object]:
    """Return what an account spent of what it may, for programs: amounts are whole, epsilons are rounded up."""
    budget = account.budget
    unit = f"pico{budget.currency.name}"
    return {
        "lineage": account.lineage,
        f"spent_{unit}": account.spent,
        f"budget_{unit}": budget.limit,
        "spent_epsilon": budget.epsilon_at(account.spent),
        "budget_epsilon": budget.epsilon_at(budget.limit),
        "delta": budget.delta,
        "accepts": budget.accepts,
        "releases": account.releases,
        f"remaining_{unit}": account.remaining,
        **({"unit": account.unit} if isinstance(account, LineageAccount) else {}),
    }


def _shown_model(model: str) -> str:
    return model if len(model) <= 16 else model[:15] + "…"


def _shown_name(name: str, display: str) -> str:
    return f"{name} ({display})" if display else name


def _members(group: GroupAccount, clients: Sequence[ClientAccount]) -> list[str]:
    return [client.client for client in clients if client.group == group.group]


def _status(client: ClientAccount) -> str:
    return "revoked" if client.revoked else "active"


def _table_of_blocks(accounts: Sequence[BlockAccount], models: Sequence[ChargedModel]) -> Table:
    table = whole("block", *_FIGURES, "by the models")
    for account in accounts:
        paid = dict.fromkeys(_shown_model(model.model) for model in models if account.block in model.blocks)
        table.add_row(account.block, *figures_of(account), ", ".join(paid))
    return table


def _table_of_groups(accounts: Sequence[GroupAccount], clients: Sequence[ClientAccount]) -> Table:
    table = whole("group", *_FIGURES, "members")
    for account in accounts:
        row = (_shown_name(account.group, account.display), *figures_of(account))
        table.add_row(*row, str(len(_members(account, clients))))
    return table


def _table_of_clients(accounts: Sequence[ClientAccount]) -> Table:
    # What nobody uses is no column.
    grouped = any(account.group for account in accounts)
    more = ["group"] if grouped else []
    table = whole("client", *_FIGURES, *more, "status")
    for account in accounts:
        cells = [account.group] if grouped else []
        table.add_row(_shown_name(account.client, account.display), *figures_of(account), *cells, _status(account))
    return table


def _table_of_keys(keys: Sequence[ApiKey]) -> Table:
    """Return a client's keys as a table, without their secrets."""
    table = Table("key", "scopes", "expires")
    now = time.time()
    for key in keys:
        ends = "never" if key.expires is None else _when(key.expires) + (" (over)" if key.has_ended(now) else "")
        table.add_row(key.id, ", ".join(key.scopes), ends)
    return table


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
