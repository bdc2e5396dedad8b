"""`dpserve train` over `training.fit`: reads the records, shows what happens, and pays for choices from the ledger."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from accounting.budgets import Budget
from accounting.currency import RHO
from accounting.ledger import (
    BudgetExhausted,
    HoldRequest,
    LedgerError,
    LineageAccount,
    LineageForgotten,
    UnknownLineage,
)
from accounting.losses import Cost
from accounting.messages import OptionName
from accounting.picorho import to_rho
from dpserve.commands import console
from dpserve.commands.options import (
    forgotten_lineage,
    journals_folder,
    ledger_location,
    open_ledger,
    operating_systems_user,
    refuse_forgotten,
    state_folder,
)
from dpserve.commands.tables import LOCAL, check_public
from dpserve.interrupts import stopped_by_signals
from dpserve.train_options import TrainOptions
from dpserve.wording import as_flag
from training.errors import WrongOption, WrongValue
from training.fit import (
    Event,
    FittedModel,
    LambdaChosen,
    ModelChosen,
    Planned,
    Request,
    Warned,
    check_options,
    check_together,
    fit,
)
from training.inputs.blocks import BlockDeclaration
from training.inputs.records import Records
from training.pay_once.certificate import ReleaseCertificate


def run_training(given: TrainOptions) -> FittedModel:
    """Train what is asked for, write the bundle, and note its records in the lineage.

    Raises WrongOption for options that do not go together, and TrainingError.
    """
    if given.engine != LOCAL and not given.engine.startswith("ray"):
        raise WrongOption("engine", f"takes local, ray or ray://HOST:PORT, not {given.engine!r}")
    purse = LedgerPurse.of(given)
    with stopped_by_signals("the training", purse.words):
        return _trained(given, purse)


def _trained(given: TrainOptions, purse: "LedgerPurse") -> FittedModel:
    # Public rows are read by the declaration of the private records, and `fit` asks for them once it has those.
    read: list[Records] = []
    public = given.public

    def read_public() -> Records:
        return _public_rows(given, str(public), read[0])

    request = given.request(given.lineage or "digits", None if public is None else read_public)
    on_ray = given.engine != LOCAL

    check_together(request, unit=given.unit, on_ray=on_ray)
    refuse_forgotten(request.lineage)
    _warn_of_poor_lineage(request)
    _, records = given.read_all(lambda: check_options(request))
    read.append(records)
    return fit(
        records,
        request,
        given.out,
        state=state_folder(),
        watcher=Screen(),
        purse=purse,
    )


def _warn_of_poor_lineage(request: Request) -> None:
    """Say before the training where the lineage's budget does not pay for the model, as far as a ledger knows it.

    The ledger is the usual one. One that cannot be asked is spoken of once the model is there. Raises WrongOption where
    the lineage was forgotten.
    """
    price = request.whole_price
    if price is None:
        return
    try:
        account = asyncio.run(_account_of(request.lineage))
    except LineageForgotten:
        raise forgotten_lineage(request.lineage) from None
    except (LedgerError, OSError, ValueError, WrongOption):
        return
    if account is None or account.blocks or account.budget.currency is not RHO or account.remaining >= price:
        return
    left, budget = max(account.remaining, 0), account.budget
    typer.echo(
        f"Warning: the lineage {request.lineage} has {budget.words(left)} left, and this model costs "
        f"{budget.words(price)}. Nobody can hold it before 'dpserve lineage set-budget {request.lineage}' raises the "
        "budget; Ctrl-C ends the training, and nothing is charged",
        err=True,
    )


async def _account_of(lineage: str) -> LineageAccount | None:
    """Return a lineage's account in the usual ledger, if there is one; looking makes none."""
    location = ledger_location(None)
    if "://" not in location and not Path(location).exists():
        return None
    async with open_ledger(location, None) as ledger:
        try:
            return await ledger.lineage(lineage)
        except UnknownLineage:
            return None


class Screen(console.Terminal):
    """Shows a training on the terminal: progress on stderr, what was chosen on stdout."""

    def hear(self, event: Event) -> None:
        """Print an event."""
        match event:
            case Warned():
                typer.echo(event.message.worded(as_flag), err=True)
            case Planned():
                for line in (f"Chosen: {event.reason}.", *(f"Warning: {warning}." for warning in event.warnings)):
                    console.stdout_console().print(line, highlight=False)
            case LambdaChosen():
                losses = zip(event.lams, event.choice.losses, strict=True)
                shown = ", ".join(f"{lam:g}: {loss:.3f}" for lam, loss in losses)
                lam = event.choice.lam
                typer.echo(f"Chosen: --lam {lam:g}. Noisy log losses, each +- {event.noise:.2g}: {shown}")
            case ModelChosen():
                among = event.certificate.chosen_among
                assert among is not None
                scores = zip(among.candidates, among.scores, strict=True)
                shown = ", ".join(f"{each}: {score:,.0f}" for each, score in scores)
                typer.echo(
                    f"Chosen: {as_flag(OptionName(event.option))} {among.chosen}. Noisy scores (right answers less "
                    f"wrong ones), each +- {among.vector.standard_deviation:.2g}: {shown}"
                )


@dataclass(frozen=True)
class LedgerPurse:
    """Pays for choices from the owner's ledger. budget: of the lineage, where it has no account yet.

    blocks: those of the records, which pay in the lineage's place.
    """

    lineage: str
    unit: str | None
    ledger: str | None
    replicas: int | None
    budget: Budget | None
    blocks: BlockDeclaration | None = None
    charges: list[str] = field(default_factory=list)
    """The things that were charged for so far."""

    @classmethod
    def of(cls, given: TrainOptions) -> "LedgerPurse":
        """Return the purse that the options of a choice name. Raises WrongOption."""
        budget = None if given.choose_budget is None else _budget(given.choose_budget)
        lineage = given.lineage or "digits"
        blocks = given.block_choice().declaration
        if blocks is not None and budget is not None:
            raise WrongOption("choose_budget", "is a lineage's without blocks: leave it out, these have their own")
        return cls(lineage, given.unit, given.choose_ledger, given.choose_ledger_replicas, budget, blocks)

    def words(self) -> str:
        """Say what was charged so far."""
        return f"nothing but {' and '.join(self.charges)} was charged" if self.charges else "nothing was charged"

    def check(self, picorho: int) -> None:
        """Raise before training what would be raised after it."""
        asyncio.run(self._check(picorho))

    def pay_for_choice(self, cost: Cost) -> None:
        """Charge the lineage for a choice of Lambda."""
        wish = (self.lineage, "", secrets.token_hex(16), secrets.token_bytes(32), "choice", cost, time.time())
        blocks = () if self.blocks is None else self.blocks.charged
        asyncio.run(self._charge(HoldRequest(*wish, blocks=blocks), dict.fromkeys(blocks, self._block_budget)))
        typer.echo(f"the lineage {self.lineage} was charged rho = {to_rho(cost.picorho):g} for choosing")

    def pay_for_model(self, certificate: ReleaseCertificate) -> None:
        """Charge the lineage for all candidates of a model."""
        # Other trainings should not wait for what these import.
        from service.opening import block_budgets_of
        from service.pay_once import hold_request

        budgets = block_budgets_of(certificate, "gaussian")
        asyncio.run(self._charge(hold_request(certificate, "", time.time()), budgets))
        among = certificate.chosen_among
        count = 0 if among is None else len(among.candidates)
        cost = to_rho(certificate.price.picorho)
        typer.echo(f"the lineage {self.lineage} was charged rho = {cost:g} for all {count} candidates")

    @property
    def _block_budget(self) -> Budget | None:
        """The budget with which the blocks open; None where there are none."""
        return None if self.blocks is None else Budget.parse(self.blocks.budget, "gaussian")

    def _opened(self) -> Any:
        return open_ledger(self.ledger, self.replicas, journals=journals_folder())

    async def _charge(self, wish: HoldRequest, budgets: Mapping[str, Budget | None]) -> None:
        # Training should not wait for what answers.
        from service.opening import open_and_charge, too_dear

        async with self._opened() as ledger:
            try:
                by = operating_systems_user()
                await open_and_charge(ledger, wish, self.unit, self.budget, by=by, block_budgets=budgets)
            except BudgetExhausted as refused:
                raise too_dear("the choice", wish.lineage, refused, "nothing was chosen") from None
        self.charges.append("the choice")

    async def _check(self, price: int) -> None:
        from service.opening import account_to_be, check_unit, is_open, too_dear

        names = () if self.blocks is None else self.blocks.charged
        async with self._opened() as ledger:
            budget = self._block_budget or self.budget
            whole = await account_to_be(ledger, self.lineage, budget, has_blocks=bool(names))
            known = await ledger.blocks(self.lineage) if names and is_open(whole) else []
        check_unit(whole, self.unit)
        payers = [block for block in known if block.block in names] if names else [whole]
        for account in payers:
            if account.remaining < price:
                left, block = account.remaining, account.name if names else ""
                refused = BudgetExhausted.of_budget(
                    account.scope, account.budget, price, account.spent, left, block=block
                )
                raise too_dear("the choice", self.lineage, refused, "nothing was chosen")


def _budget(text: str) -> Budget:
    epsilon, _, delta = text.partition("@")
    try:
        return Budget.from_epsilon_delta(float(epsilon), float(delta), "gaussian")
    except ValueError:
        raise WrongValue("choose_budget", "must be E@DELTA, as 3@1e-6", value=text) from None


def _public_rows(given: TrainOptions, source: str, private: Records) -> Records:
    """Return the public rows to simulate on, by the declaration of the private records. Raises TrainingError."""
    declared = private.declaration
    rows = given.read_like(
        source,
        declared.feature_names,
        declared.lower,
        declared.upper,
        declared.classes,
        given.classes,
        declared.columns,
        clip=declared.clips,
    )
    # The private records are noted in their lineage by now.
    check_public(rows, source)
    return rows
