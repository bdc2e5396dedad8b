"""`dpserve clients`: who may ask, and for how much."""

import asyncio
import json
import time
from typing import Annotated

import typer

from accounting.budgets import Budget
from accounting.ledger import ClientAccount, Ledger, Receipt, new_api_key
from accounting.picorho import to_rho
from dpserve.commands import client_keys, options
from dpserve.commands.client_keys import Lineage, Name
from dpserve.commands.console import stdout_console, whole
from dpserve.commands.help import Group
from dpserve.commands.lineages import FIGURES, chosen_lineage, exact, figures_of
from service.errors import CannotServe

app = Group("Who may ask, and for how much.")


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
    expires_in: client_keys.Expires = None,
    scope: client_keys.ScopesOption = None,
    lineage: Lineage = None,
    ledger: options.Ledger_ = None,
) -> None:
    """Give a client a budget, and print its API key: once, for only a digest is kept."""
    words = options.BudgetWords(
        epsilon=epsilon, rho=rho, mu=mu, posterior_belief=posterior_belief, advantage=advantage, delta=delta
    )
    words.budget(accepts or "gaussian")  # so that nonsense is refused before the ledger is opened
    secret = new_api_key()
    key = client_keys.key_of(secret, expires_in, scope)

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            chosen = await chosen_lineage(opened, lineage)
            whole = (await opened.lineage(chosen)).budget
            budget = words.budget(accepts or whole.accepts)
            _check_within_lineage(name, budget, whole)
            await opened.add_client(chosen, name, budget, key, time=time.time())

    asyncio.run(apply())
    client_keys.print_key(secret, f"The API key of {name}")


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
        out.print(client_keys.table_of_keys(account.api_keys), highlight=False)
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


app.command("add-key")(client_keys.add_key)
app.command("rotate-key")(client_keys.rotate_key)
app.command("remove-key")(client_keys.remove_key)


@app.command("revoke")
def revoke(name: Name, lineage: Lineage = None, ledger: options.Ledger_ = None) -> None:
    """Refuse a client from now on. What it spent stays spent."""

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            await opened.revoke(await chosen_lineage(opened, lineage), name)

    asyncio.run(apply())
    typer.echo(f"{name} is revoked")
