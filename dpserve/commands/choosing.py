"""`dpserve train --choose`: Lambda chosen by results on the private records, for a price that the lineage pays."""

import asyncio
import secrets
import time
from dataclasses import replace

import typer

from accounting.budgets import Budget
from accounting.ledger import BudgetExhausted, HoldRequest, Ledger
from accounting.losses import Cost
from accounting.picorho import to_rho
from dpserve.commands import options
from dpserve.commands.command import Options, option
from dpserve.commands.console import steps_with_progress
from dpserve.commands.releases import Training
from mechanisms.gaussian_vector import whole_picorho
from mechanisms.mechanism import Price
from mechanisms.randomness import SystemRandomness
from service.errors import CannotServe
from training.lineage import owner_key

PANEL = "--choose, in place of --lam"


class ChoiceOptions(Options):
    """A private choice of Lambda."""

    choose: str | None = option(
        None,
        "lam=L1,L2,...: values of Lambda to try on a sixth of the records, kept back by a keyed hash. For a head and "
        "--release weights, with --records-declared.",
        panel=PANEL,
    )
    choose_price: str | None = option(
        None, "What the choice costs the lineage: rho:R, noise-multiplier:M or epsilon:E@DELTA.", panel=PANEL
    )
    choose_budget: str | None = option(None, "E@DELTA: the lineage's budget, where it has no account yet.", panel=PANEL)
    choose_ledger: str | None = option(
        None, options.LEDGER, panel=PANEL, variable="DPSERVE_LEDGER", default_text=options.LEDGER_DEFAULT
    )


def with_choice(training: Training, given: ChoiceOptions, kind: str | None) -> Training:
    """Return the training with the Lambda that was chosen, if one is to be; charge the lineage, and print what for."""
    # It needs the solver, which other commands should not wait for.
    from training.choice import choice_for, choose

    if given.choose is None:
        for name in ("choose_price", "choose_budget"):
            if getattr(given, name) is not None:
                raise typer.BadParameter("goes with --choose", param_hint=f"--{name.replace('_', '-')}")
        return training
    if kind not in (None, "weights"):
        raise typer.BadParameter(f"goes with a head and --release weights, not {kind}", param_hint="--choose")
    if "lam" in training.options:
        raise typer.BadParameter("is what is chosen: leave it out", param_hint="--lam")
    lams, price = _lams(given.choose), given.choose_price
    if price is None:
        raise typer.BadParameter("is needed: what the choice costs the lineage", param_hint="--choose-price")
    declared = training.needed("records_declared", "a public number; of a sixth of it noise is an average")
    rest = {name: value for name, value in training.options.items() if name != "records_declared"}
    recipe = replace(training, options=rest | {"lam": lams[0]}).recipe()
    classes = len(training.records.declaration.classes)
    choice = choice_for(lams, declared, whole_picorho(price), recipe, classes)
    budget = None if given.choose_budget is None else _budget(given.choose_budget)

    def pay(cost: Cost) -> None:
        asyncio.run(_charge(options.ledger_location(given.choose_ledger), training.lineage, cost, budget))
        typer.echo(f"the lineage {training.lineage} was charged rho = {to_rho(cost.picorho):g} for choosing")

    key = owner_key(options.state_folder() / "lineage.key")
    with steps_with_progress(len(lams), "choosing") as report:
        chosen = choose(
            training.records, training.feature_map, choice, key, SystemRandomness(), pay=pay, progress=report
        )
    shown = ", ".join(f"{lam:g}: {loss:.3f}" for lam, loss in zip(lams, chosen.losses, strict=True))
    typer.echo(f"Chosen: --lam {chosen.lam:g}. Noisy log losses, each +- {choice.noise:.2g}: {shown}")
    return replace(training, options=rest | {"lam": chosen.lam})


def _lams(text: str) -> tuple[float, ...]:
    name, _, values = text.partition("=")
    try:
        found = tuple(float(value) for value in values.split(","))
    except ValueError:
        found = ()
    if name != "lam" or len(found) < 2:
        raise typer.BadParameter(f"takes lam=L1,L2,..., two values or more, not {text!r}", param_hint="--choose")
    return found


def _budget(text: str) -> Budget:
    price = Price.parse(f"epsilon:{text}")
    if price.delta is None:
        raise typer.BadParameter(f"takes E@DELTA, as 3@1e-6, not {text!r}", param_hint="--choose-budget")
    return Budget.from_epsilon_delta(float(price.amount), price.delta, "gaussian")


async def _charge(location: str, lineage: str, cost: Cost, budget: Budget | None) -> None:
    # Training should not wait for what answers.
    from service.opening import open_lineage

    wish = HoldRequest(lineage, "", secrets.token_hex(16), secrets.token_bytes(32), "choice", (cost,), time.time())
    async with Ledger.open(location, journals=options.journals_folder()) as ledger:
        await open_lineage(ledger, lineage, budget, by=options.operating_systems_user())
        try:
            await ledger.charge(wish)
        except BudgetExhausted as refused:
            raise CannotServe(
                f"the choice costs rho = {to_rho(refused.cost):.6g}, and {to_rho(refused.remaining):.6g} is left of "
                f"the budget of the lineage {lineage}: nothing was chosen"
            ) from None
