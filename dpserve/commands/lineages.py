"""`dpserve lineage`: what all clients of one set of records may learn together."""

import asyncio
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from accounting.ledger import Account, Ledger, LineageAccount, UnknownLineage
from accounting.picorho import to_rho
from dpserve.commands import completing, options
from dpserve.commands.console import stdout_console, whole
from dpserve.commands.help import Group
from service.errors import CannotServe
from training.loading import load_model
from training.sealing import CERTIFICATE_FILE

app = Group("What all clients of one set of records may learn together.")

LineageArgument = Annotated[
    str, typer.Argument(help="The lineage's name, or a bundle of it.", autocompletion=completing.lineages)
]


FIGURES = ("epsilon spent", "of", "at delta", "rho spent", "of", "releases")
"""The headings of `figures_of`."""


def figures_of(account: Account) -> tuple[str, ...]:
    """Return what an account spent of what it may, for a line of a table."""
    budget = account.budget
    return (
        f"{budget.epsilon_at(account.spent):.4g}",
        f"{budget.epsilon_at(budget.picorho):.4g}",
        f"{budget.delta:g}",
        f"{to_rho(account.spent):.6g}",
        f"{to_rho(budget.picorho):.6g}",
        str(account.releases),
    )


def exact(account: Account) -> dict[str, object]:
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


@app.command("show")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print what is spent, exactly, as JSON.")] = False,
    ledger: options.Ledger_ = None,
) -> None:
    """List the lineages with their budgets."""

    async def read() -> list[LineageAccount]:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            return await opened.lineages()

    accounts = asyncio.run(read())
    if as_json:
        typer.echo(json.dumps([exact(each) for each in accounts]))
        return
    table = whole("lineage", *FIGURES, "accepts")
    for account in accounts:
        table.add_row(account.lineage, *figures_of(account), account.budget.accepts)
    stdout_console().print(table, highlight=False)


@app.command("set-budget")
def set_budget(
    lineage: LineageArgument,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    rho: options.Rho = None,
    mu: options.Mu = None,
    posterior_belief: options.PosteriorBelief = None,
    advantage: options.Advantage = None,
    accepts: options.AcceptsOption = "gaussian",
    ledger: options.Ledger_ = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before raising a budget.")] = False,
) -> None:
    """Open a lineage's account, or change its budget. What is spent stays spent."""
    words = options.BudgetWords(
        epsilon=epsilon, rho=rho, mu=mu, posterior_belief=posterior_belief, advantage=advantage, delta=delta
    )
    budget = words.budget(accepts)
    name = lineage_named(lineage)

    async def apply() -> str:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            try:
                account = await opened.lineage(name)
            except UnknownLineage:
                if not (Path(lineage) / CERTIFICATE_FILE).exists():
                    raise CannotServe(
                        f"the ledger has no lineage {name!r}, and there is no bundle of that name to open one for"
                    ) from None
                await opened.open_lineage(name, budget, time=time.time())
                return f"opened the lineage {name}"
            raised = budget.picorho > account.budget.picorho
            if (
                raised
                and not yes
                and not typer.confirm(
                    f"Raise the budget of {name} from rho = {to_rho(account.budget.picorho):.6g} to "
                    f"{to_rho(budget.picorho):.6g}? Clients may then learn more about every record"
                )
            ):
                return "nothing was changed"
            await opened.set_lineage_budget(name, budget)
            return f"the lineage {name} may now spend rho = {to_rho(budget.picorho):.6g}"

    typer.echo(asyncio.run(apply()))
