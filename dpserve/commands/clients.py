"""`dpserve clients`: who may ask, and for how much."""

import asyncio
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from accounting.ledger import ClientAccount, Ledger, key_digest, new_api_key
from accounting.picorho import to_rho
from dpserve.commands import options
from dpserve.commands.lineages import chosen_lineage

app = typer.Typer(help="Who may ask, and for how much.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The client's name.")]
Lineage = Annotated[
    str | None, typer.Option("--lineage", help="The lineage, or a bundle of it; needed when the ledger has several.")
]


@app.command("add")
def add(
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
) -> None:
    """Give a client a budget, and print its API key: once, for only a digest is kept."""
    words = options.BudgetWords(
        epsilon=epsilon, rho=rho, mu=mu, posterior_belief=posterior_belief, advantage=advantage, delta=delta
    )
    budget = words.budget(accepts)
    key = new_api_key()

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            chosen = await chosen_lineage(opened, lineage)
            await opened.add_client(chosen, name, budget, key_digest(key), time=time.time())

    asyncio.run(apply())
    typer.echo(f"The API key of {name}, shown this once:", err=True)
    typer.echo(key)


@app.command("list")
def list_(lineage: Lineage = None, ledger: options.Ledger_ = None) -> None:
    """List the clients of a lineage with their budgets."""

    async def read() -> list[ClientAccount]:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            return await opened.clients(await chosen_lineage(opened, lineage))

    table = Table("client", "epsilon spent", "of", "at delta", "rho spent", "of", "releases", "status")
    for account in asyncio.run(read()):
        budget = account.budget
        table.add_row(
            account.client,
            f"{budget.epsilon_at(account.spent):.4g}",
            f"{budget.epsilon_at(budget.picorho):.4g}",
            f"{budget.delta:g}",
            f"{to_rho(account.spent):.6g}",
            f"{to_rho(budget.picorho):.6g}",
            str(account.releases),
            "revoked" if account.revoked else "active",
        )
    Console().print(table, highlight=False)


@app.command("revoke")
def revoke(name: Name, lineage: Lineage = None, ledger: options.Ledger_ = None) -> None:
    """Refuse a client from now on. What it spent stays spent."""

    async def apply() -> None:
        async with Ledger.open(options.ledger_location(ledger)) as opened:
            await opened.revoke(await chosen_lineage(opened, lineage), name)

    asyncio.run(apply())
    typer.echo(f"{name} is revoked")
