"""`dpserve clients`, `groups` and `lineage`: who may ask and for how much, and what many may learn together."""

import json
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import typer
from rich.table import Table

from accounting.budgets import Budget
from accounting.currency import RHO
from accounting.ledger import (
    RAISED_AFTER_ANSWERS,
    Account,
    ApiKey,
    ClientAccount,
    GroupAccount,
    Ledger,
    LineageAccount,
    Receipt,
    UnknownLineage,
    check_within,
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
from dpserve.commands.options import ActsOnLedger, LedgerOption, PacedBudget
from service.errors import CannotServe
from training.bundles.sealing import CERTIFICATE_FILE
from training.kinds.loading import load_model

clients = Group("Give clients keys and budgets: who may ask, and for how much.")
groups = Group("Limit what the clients of one team may learn together.")
lineages = Group("Limit what all clients of one set of records may learn together.")

_Result = TypeVar("_Result")
_FIGURES = ("epsilon spent", "of", "at delta", "rho spent", "of", "releases")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

NAME = option(..., "The client's id.", argument=True, complete=options.client_names)
GROUP_NAME = option(..., "The group's name.", argument=True)
DISPLAY = option("", "What lists call it, beside its id; may be changed at will.", "--display-name")
KEY_ID = option(..., "The key's id, as 'dpserve clients show' lists it.", argument=True)
JSON = option(False, "Print what is spent, exactly, as JSON.", "--json")
YES = option(False, "Do not ask before raising a budget.")


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


class ActOnLineage(LineageOption, ActsOnLedger):
    """A lineage of a ledger that a command changes."""


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


@lineages.command("set-budget")
def set_lineage_budget(
    *,
    lineage: str = option(..., "The lineage's name, or a bundle of it.", argument=True, complete=options.lineage_names),
    given: PacedBudget,
    ledger: ActsOnLedger,
    yes: bool = YES,
) -> None:
    """Open a lineage's account, or change its budget. What is spent stays spent."""
    name = lineage_named(lineage)

    async def apply(opened: Ledger) -> str:
        try:
            account = await opened.lineage(name)
        except UnknownLineage:
            if not (Path(lineage) / CERTIFICATE_FILE).exists():
                raise CannotServe(
                    f"the ledger has no lineage {name!r}, and there is no bundle of that name to open one for"
                ) from None
            await opened.open_lineage(name, given.paced("gaussian"), time=time.time())
            return f"opened the lineage {name}"
        change = partial(opened.set_budget, name)
        return await _changed(f"the lineage {name}", account, given, [], change, yes=yes)

    typer.echo(ledger.run(apply))


@clients.command("add")
def add(
    *,
    name: str = NAME,
    given: PacedBudget,
    key: KeyOptions,
    lineage: ActOnLineage,
    group: str = option("", "The group that it belongs to, which pays for its answers, too.", default_text="none"),
    display: str = DISPLAY,
    keys_of: str | None = option(
        None, "A lineage, or a bundle of it, where the client has keys: the client's keys there work here, too."
    ),
) -> None:
    """Give a client a budget, and print its API key: once, for only a digest is kept."""
    if keys_of is not None and (key.expires_in or key.scope):
        raise typer.BadParameter("--keys-of takes over keys as they are: leave --expires-in and --scope out")
    secret = new_api_key()
    kept = key.key(secret)

    async def apply(opened: Ledger, chosen: str) -> None:
        above = await opened.above(chosen, group)
        budget = given.paced(above[0].budget.accepts)
        check_within(name, budget, above)
        keys = (kept,) if keys_of is None else (await opened.client(lineage_named(keys_of), name)).api_keys
        if not keys:
            raise CannotServe(f"{name} has no API key in {keys_of}")
        await opened.add_client(chosen, name, budget, keys[0], time=time.time(), group=group, display=display)
        for each in keys[1:]:
            await opened.add_key(chosen, name, each)

    lineage.run_on(apply)
    if keys_of is None:
        _print_key(secret, f"The API key of {name}")
    else:
        typer.echo(f"{name} asks with the keys that it has in {keys_of}")


@clients.command("rename")
def rename(
    *,
    name: str = NAME,
    display: str = option(..., "What lists call the client from now on; empty for nothing.", argument=True),
    lineage: ActOnLineage,
) -> None:
    """Change what a client is called. Its id stays, as do its account and its keys."""
    lineage.run_on(lambda opened, chosen: opened.rename(chosen, name, display))
    typer.echo(f"{name} is called {display}" if display else f"{name} has no other name")


@clients.command("set-group")
def set_group(
    *, name: str = NAME, group: str = option(..., "The group; empty for none.", argument=True), lineage: ActOnLineage
) -> None:
    """Put a client that has asked nothing yet into a group. What members know together, the group has paid for."""

    async def apply(opened: Ledger, chosen: str) -> None:
        if group:
            own = (await opened.client(chosen, name)).budget
            check_within(name, own, [await opened.group(chosen, group)])
        await opened.set_group(chosen, name, group)

    lineage.run_on(apply)
    typer.echo(f"{name} belongs to {group or 'no group'}")


@groups.command("add")
def add_group(*, name: str = GROUP_NAME, given: PacedBudget, lineage: ActOnLineage, display: str = DISPLAY) -> None:
    """Open a group with a budget: what all its members together may learn, each within a budget of its own."""

    async def apply(opened: Ledger, chosen: str) -> None:
        above = await opened.above(chosen)
        budget = given.paced(above[0].budget.accepts)
        check_within(name, budget, above)
        await opened.add_group(chosen, name, budget, time=time.time(), display=display)

    lineage.run_on(apply)
    typer.echo(f"the group {name} is open: add members with 'dpserve clients add NAME --group {shlex.quote(name)}'")


@groups.command("set-budget")
def set_group_budget(*, name: str = GROUP_NAME, given: PacedBudget, lineage: ActOnLineage, yes: bool = YES) -> None:
    """Change a group's budget. What is spent stays spent; a budget below it only refuses further questions."""

    async def apply(opened: Ledger, chosen: str) -> str:
        account, above = await opened.group(chosen, name), await opened.above(chosen)
        change = partial(opened.set_budget, chosen, group=name)
        return await _changed(f"the group {name}", account, given, above, change, yes=yes)

    typer.echo(lineage.run_on(apply))


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
        row = (_called(account.group, account.display), *_figures(account), _refill(account))
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
        table.add_row(_called(account.client, account.display), *_figures(account), *cells, status)
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
        f"{_called(account.client, account.display)} of lineage {account.lineage} is "
        f"{'revoked' if account.revoked else 'active'}\n{spent}; accepts: {budget.accepts}",
        highlight=False,
    )
    if account.group:
        out.print(f"belongs to the group {account.group}, which pays for its answers, too", highlight=False)
    if budget.refill is not None:
        out.print(f"refill: {_refill(account)}, within {currency.words(budget.limit)} in all", highlight=False)
    for cost, releases in account.tally.items():
        out.print(f"{releases} releases at {cost}", highlight=False)
    if account.api_keys:
        out.print(_table_of_keys(account.api_keys), highlight=False)
    table = whole("receipt", "time", "model", "mechanism", "rows", currency.name)
    for receipt in receipts:
        model = receipt.model if len(receipt.model) <= 16 else receipt.model[:15] + "…"
        row = (str(receipt.number), _when(receipt.time), model, receipt.mechanism, str(receipt.releases))
        table.add_row(*row, f"{currency.value(receipt.total_in(currency)):.6g}")
    out.print(table, highlight=False)


@clients.command("set-budget")
def set_budget(*, name: str = NAME, given: PacedBudget, lineage: ActOnLineage, yes: bool = YES) -> None:
    """Change a client's budget. What is spent stays spent; a budget below it only refuses further questions."""

    async def apply(opened: Ledger, chosen: str) -> str:
        account = await opened.client(chosen, name)
        above = await opened.above(chosen, account.group)
        change = partial(opened.set_budget, chosen, client=name)
        return await _changed(name, account, given, above, change, yes=yes)

    typer.echo(lineage.run_on(apply))


@clients.command("revoke")
def revoke(*, name: str = NAME, lineage: ActOnLineage) -> None:
    """Refuse a client from now on. What it spent stays spent."""
    lineage.run_on(lambda opened, chosen: opened.revoke(chosen, name))
    typer.echo(f"{name} is revoked")


@clients.command("add-key")
def add_key(*, name: str = NAME, key: KeyOptions, lineage: ActOnLineage) -> None:
    """Give a client a further API key, as for a dashboard that only reads the budget."""
    secret = new_api_key()
    kept = key.key(secret)
    lineage.run_on(lambda opened, chosen: opened.add_key(chosen, name, kept))
    _print_key(secret, f"A further API key of {name}, {kept.id}")


@clients.command("rotate-key")
def rotate_key(
    *,
    name: str = NAME,
    key: KeyOptions,
    lineage: ActOnLineage,
    overlap: str = option(
        "0s",
        "How long the former keys stay valid after the new one is made, as 1h.",
        default_text="not at all",
    ),
    key_id: str | None = option(None, "Replace only the key of this id, whose scopes the new one gets.", "--key"),
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
def remove_key(*, name: str = NAME, key_id: str = KEY_ID, lineage: ActOnLineage) -> None:
    """Take one API key away from a client, at once; its others stay."""

    async def apply(opened: Ledger, chosen: str) -> None:
        await opened.remove_key(chosen, name, (await _find(opened, chosen, name, key_id)).digest)

    lineage.run_on(apply)
    typer.echo(f"the key {key_id} of {name} is removed")


async def _changed(
    whose: str,
    account: Account,
    given: PacedBudget,
    above: Sequence[Account],
    change: Callable[[Budget], Awaitable[object]],
    *,
    yes: bool,
) -> str:
    """Change a budget within those above it, after asking before it grows; return what came of it, in words."""
    before = account.budget
    budget = given.paced(before.accepts, before)
    check_within(whose, budget, above)
    if account.raised_after_answers(budget):
        typer.echo(f"Warning: {whose} has asked already. {RAISED_AFTER_ANSWERS}", err=True)
    if not _may_raise(whose, before, budget, yes=yes):
        return "nothing was changed"
    await change(budget)
    return f"{whose} may now spend {_in_words(budget)}"


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


def _called(name: str, display: str) -> str:
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


def _in_words(budget: Budget) -> str:
    paced = budget.refill
    each = "" if paced is None else f", and {budget.currency.words(paced.amount)} of it in each {paced.period}"
    return f"{budget.currency.words(budget.limit)}{' in all' if each else ''}{each}"


def _may_raise(whose: str, before: Budget, after: Budget, *, yes: bool) -> bool:
    """Ask the owner before a budget grows, or is no longer spread over time; return whether to go on."""
    if not after.lets_more(before):
        return True
    if after.limit <= before.limit:
        return yes or typer.confirm(f"Let {whose} spend its budget faster than before, {_in_words(after)}?")
    return yes or typer.confirm(
        f"Raise the budget of {whose} from {before.currency.words(before.limit)} to "
        f"{after.currency.words(after.limit)}? "
        "More may then be learnt about every record"
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
