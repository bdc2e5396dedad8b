"""Lists of `dpserve clients`, `groups` and `lineage`; the commands that change them are in `dpserve.commands.acts`."""

import json
import time
from collections.abc import Sequence

import typer
from rich.table import Table

from accounting.currency import RHO
from accounting.ledger import (
    Account,
    ApiKey,
    ClientAccount,
    GroupAccount,
    Ledger,
    LineageAccount,
    Receipt,
)
from accounting.picorho import to_rho
from dpserve.commands import options
from dpserve.commands.acts import LineageOption, clients, groups, lineages
from dpserve.commands.command import option
from dpserve.commands.console import stdout_console, whole
from dpserve.commands.options import LedgerOption

_FIGURES = ("epsilon spent", "of", "at delta", "rho spent", "of", "releases")

NAME = option(..., "The client's id.", argument=True, complete=options.client_names)
JSON = option(False, "Print what is spent, exactly, as JSON.", "--json")


@lineages.command("show")
def show_lineages(ledger: LedgerOption, as_json: bool = JSON) -> None:
    """List the lineages with their budgets."""
    accounts = ledger.run(Ledger.lineages)
    if as_json:
        typer.echo(json.dumps([_exact(each) for each in accounts]))
        return
    table = whole("lineage", *_FIGURES, "refill", "accepts")
    for account in accounts:
        table.add_row(account.lineage, *_figures(account), _refill(account), account.budget.accepts)
    stdout_console().print(table, highlight=False)


@groups.command("list")
def list_groups(lineage: LineageOption, as_json: bool = JSON) -> None:
    """List the groups of a lineage with their budgets and members."""

    async def read(opened: Ledger, chosen: str) -> tuple[list[GroupAccount], list[ClientAccount]]:
        return await opened.groups(chosen), await opened.clients(chosen)

    accounts, members = lineage.run_on(read)
    of = {each.group: [one.client for one in members if one.group == each.group] for each in accounts}
    if as_json:
        listed = [
            {"group": each.group, "display_name": each.display, "members": of[each.group]} | _exact(each)
            for each in accounts
        ]
        typer.echo(json.dumps(listed))
        return
    table = whole("group", *_FIGURES, "refill", "members")
    for account in accounts:
        row = (_shown_name(account.group, account.display), *_figures(account), _refill(account))
        table.add_row(*row, str(len(of[account.group])))
    stdout_console().print(table, highlight=False)


@clients.command("list")
def list_(lineage: LineageOption, as_json: bool = JSON) -> None:
    """List the clients of a lineage with their budgets."""
    accounts = lineage.run_on(Ledger.clients)
    if as_json:
        listed = [
            {"client": each.client, "display_name": each.display, "group": each.group, "revoked": each.revoked}
            | _exact(each)
            for each in accounts
        ]
        typer.echo(json.dumps(listed))
        return
    # What nobody uses is no column.
    grouped, refilled = any(each.group for each in accounts), any(each.budget.refill for each in accounts)
    more = [*(["group"] if grouped else []), *(["refill"] if refilled else [])]
    table = whole("client", *_FIGURES, *more, "status")
    for account in accounts:
        cells = [*([account.group] if grouped else []), *([_refill(account)] if refilled else [])]
        status = "revoked" if account.revoked else "active"
        table.add_row(_shown_name(account.client, account.display), *_figures(account), *cells, status)
    stdout_console().print(table, highlight=False)


@clients.command("show")
def show(*, name: str = NAME, lineage: LineageOption) -> None:
    """Show one client: its budget, what it spent on what, and its newest receipts."""

    async def read(opened: Ledger, chosen: str) -> tuple[ClientAccount, list[Receipt]]:
        newest = await opened.client_receipts(chosen, name, count=10, newest_first=True)
        return await opened.client(chosen, name), newest

    account, receipts = lineage.run_on(read)
    budget, currency = account.budget, account.budget.currency
    out = stdout_console()
    epsilons = f"{budget.epsilon_at(account.spent):.4g} of {budget.epsilon_at(budget.limit):.4g}"
    if currency is RHO:
        spent = f"rho spent: {to_rho(account.spent):.6g} of {to_rho(budget.limit):.6g}; epsilon spent: {epsilons} at "
        spent += f"delta = {budget.delta:g}"
    else:
        spent = f"pure epsilon spent: {epsilons}"
    out.print(
        f"{_shown_name(account.client, account.display)} of lineage {account.lineage} is "
        f"{'revoked' if account.revoked else 'active'}\n{spent}; accepts: {budget.accepts}",
        highlight=False,
    )
    if account.group:
        out.print(f"belongs to the group {account.group}, which pays for its answers, too", highlight=False)
    if budget.refill is not None:
        out.print(f"refill: {_refill(account)}, within {budget.words(budget.limit)} in all", highlight=False)
    for cost, releases in account.tally.items():
        out.print(f"{releases} releases at {cost}", highlight=False)
    if account.api_keys:
        out.print(_table_of_keys(account.api_keys), highlight=False)
    table = whole("receipt", "time", "model", "mechanism", "rows", currency.name)
    for receipt in receipts:
        model = receipt.model if len(receipt.model) <= 16 else receipt.model[:15] + "…"
        row = (str(receipt.number), _when(receipt.time), model, receipt.mechanism, str(receipt.releases))
        table.add_row(*row, f"{currency.value(receipt.total_in(currency, receipt.releases)):.6g}")
    out.print(table, highlight=False)


def _figures(account: Account) -> tuple[str, ...]:
    """Return what an account spent of what it may, under the headings `_FIGURES`."""
    budget, counts_rho = account.budget, account.budget.currency is RHO
    return (
        f"{budget.epsilon_at(account.spent):.4g}",
        f"{budget.epsilon_at(budget.limit):.4g}",
        f"{budget.delta:g}" if counts_rho else "0 (pure)",
        f"{to_rho(account.spent):.6g}" if counts_rho else "",
        f"{to_rho(budget.limit):.6g}" if counts_rho else "",
        str(account.releases),
    )


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
        f"refill_{unit}": budget.refill.amount if budget.refill is not None else None,
        "refill_period": budget.refill.period if budget.refill is not None else None,
        f"remaining_{unit}": account.remaining,
        **({"unit": account.unit} if isinstance(account, LineageAccount) else {}),
    }


def _shown_name(name: str, display: str) -> str:
    return f"{name} ({display})" if display else name


def _refill(account: Account) -> str:
    """Return what an account may spend in a period, and what of it is left."""
    refill = account.budget.refill
    if refill is None:
        return ""
    until = f" until {account.refilled}" if account.refilled is not None else ""
    currency = account.budget.currency
    each, left = currency.value(refill.amount), currency.value(account.remaining)
    return f"{currency.name} {each:.6g} a {refill.period}, {left:.6g} left{until}"


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
