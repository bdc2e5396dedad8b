"""Private evaluations: who pays for one, what is noted of the held-out rows, and the charge.

The command line and `PrivateClassifier` evaluate by these.
"""

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from dpserve.accounting.budgets import Budget, accepts_for
from dpserve.accounting.currency import RHO
from dpserve.accounting.ledger import BudgetExhausted, HoldRequest, JointHoldRequest, Ledger, LineageAccount
from dpserve.accounting.ledger.receipts import UNNAMED, paying
from dpserve.accounting.messages import Message
from dpserve.accounting.picorho import to_rho
from dpserve.service.errors import CannotServe
from dpserve.service.opening import (
    BlockBudgets,
    NewBlocks,
    account_to_be,
    block_budgets_of,
    check_unit,
    find_lineage,
    new_blocks,
    open_lineage,
    refusal_of,
    settle_unit,
    too_dear,
)
from dpserve.service.pay_once import hold_request
from dpserve.training.block_choice import BlockChoice
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.evaluation import SHARES, Evaluation, Law, Part
from dpserve.training.inputs.blocks import noted_in_blocks
from dpserve.training.inputs.lineage import KnownRecords, check_lineage_name, overlap
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.registry import kind_of
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.model import ReleasedModel

_OUTCOME = "no evaluation was made"
_WITHOUT_ROWS = "leave its rows out, or evaluate for less"


@dataclass(frozen=True, kw_only=True)
class Payer:
    """The lineage that pays for an evaluation, and the blocks of it that the held-out rows lie in.

    budget: with which the lineage opens, if it has no account. block_budget: with which a block opens that neither the
    ledger nor the model has.
    """

    lineage: str
    blocks: tuple[str, ...] = ()
    budget: Budget | None = None
    block_budget: Budget | None = None

    @classmethod
    def chosen(
        cls, certificate: ReleaseCertificate, lineage: str | None, choice: BlockChoice, budget: Budget | None
    ) -> Self:
        """Return who pays for an evaluation of the model.

        lineage: of the held-out records; None for the model's. budget: with which the unnamed block opens.
        Raises WrongOption for what does not go together, and TrainingError for what is no lineage's name.
        """
        name = certificate.lineage if lineage is None else check_lineage_name(lineage)
        blocks = choice.declared(needs_budget=False)
        if blocks is not None and budget is not None:
            raise WrongOption("block_budget", "is the budget of blocks, which pay here: leave the lineage's own out")
        if blocks is None:
            payer = cls(lineage=name, budget=budget)
        else:
            block_budget = Budget.parse(blocks.budget, "gaussian") if blocks.budget else None
            payer = cls(lineage=name, blocks=blocks.names, block_budget=block_budget)
        return payer

    @property
    def budgets(self) -> dict[str, Budget | None]:
        """The budgets with which the blocks that pay open."""
        return {block: self.budget if block == UNNAMED else self.block_budget for block in paying(self.blocks)}


def evaluable(certificate: ModelCertificate, model: ReleasedModel | None) -> ReleasedModel:
    """Return the model that is evaluated. Raises TrainingError for one that cannot be.

    model: None for one whose answers are paid for one by one.
    """
    lack = kind_of(certificate).lack("evaluation", {})
    if lack is not None or model is None:
        raise TrainingError(f"{certificate.name}: {lack}")
    return model


def parts_named(names: Sequence[str] | None) -> tuple[Part, ...] | None:
    """Return the parts of an evaluation that are named, None for all that a model has. Raises WrongOption."""
    if names is None:
        return None
    if set(names) - set(SHARES) or "accuracy" not in names:
        raise WrongOption("report", f"takes accuracy and any of {', '.join(list(SHARES)[1:])}, not {', '.join(names)}")
    return cast(tuple[Part, ...], tuple(names))


def published(certificate: ReleaseCertificate, evaluation: Evaluation) -> bytes:
    """Return what an evaluation's file holds: what was released, the figures that follow from it, and a seal."""
    content = evaluation.model_dump(mode="json") | {"figures": evaluation.figures()}
    return json.dumps(content | {"seal": certificate.seal(content)}, indent=1).encode()


@contextmanager
def noted_rows(
    records: Records, source: str, lineage: str, state: Path, *, equal_rows_are_others: bool
) -> Iterator[None]:
    """Note held-out records in the lineage that pays, and in its blocks, for good where what follows succeeds.

    source: what the rows are called. Raises TrainingError for records, or units, that are in another
    lineage, or in another block: `noted_in_blocks`.
    """
    known = KnownRecords(state)
    digests = known.digests(records)
    with known.noted(lineage, digests, records.unit) as elsewhere:
        if elsewhere:
            warning = overlap(lineage, digests, elsewhere)
            remedy = Message(
                "To let the lineage pay that has these rows, add {lineage:{}}; or take them out", next(iter(elsewhere))
            )
            if len(elsewhere) > 1 or known.has_any(digests, lineage):  # and each would name another
                remedy = Message("No lineage alone could pay for these rows: take them out")
            raise TrainingError(
                Message("{} was trained on, or evaluated on, elsewhere. {} {}", source, warning, remedy)
            )
        with noted_in_blocks(records, lineage, state, equal_rows_are_others=equal_rows_are_others):
            yield


async def charge(
    ledger: Ledger, certificate: ReleaseCertificate, payer: Payer, law: Law, evaluation_id: str, *, by: str
) -> list[str]:
    """Charge for the model, unless it is paid for, and for the evaluation; return what was charged, in words.

    Whoever reads an evaluation learns of the model: its blocks, or its lineage, pay for that first. The evaluation is
    paid for by the blocks that the held-out rows lie in. One call charges a lineage, and every block of it, for both or
    for neither. No call of a store reaches two lineages, so of these each is asked first whether it pays, and the
    model's is charged first: what is paid for costs nothing when it is asked for again.

    Raises CannotServe where an account does not pay, and LedgerRefusal.
    """
    now, unit = time.time(), certificate.unit
    model = hold_request(certificate, "", now)
    drawn = secrets.token_bytes(32)
    evaluated = HoldRequest(payer.lineage, "", evaluation_id, drawn, "evaluation", law.cost, now, blocks=payer.blocks)
    requests: list[tuple[HoldRequest | JointHoldRequest, str]] = [(model, "the model"), (evaluated, "the evaluation")]
    if model.lineage == payer.lineage:
        requests = [(JointHoldRequest((model, evaluated)), "the evaluation, with the model,")]
    lineages = dict.fromkeys((model.lineage, payer.lineage))
    openings = {lineage: await _opening(ledger, certificate, payer, lineage, by=by) for lineage in lineages}
    for request, what in requests:
        opening = openings[request.lineage]
        check_unit(opening.account, unit)
        refusal = await refusal_of(ledger, request, opening.account, opening.new)
        if isinstance(refusal, BudgetExhausted):
            raise too_dear(what, request.lineage, refusal, _OUTCOME, _WITHOUT_ROWS)
        if refusal is not None:
            raise refusal
    for lineage, opening in openings.items():
        await open_lineage(ledger, lineage, opening.budgets, by=by)
        await settle_unit(ledger, lineage, unit, by=by)
    spent = {model.model: 0, evaluated.model: 0}
    for request, what in requests:
        try:
            charged = await ledger.charge(request)
        except BudgetExhausted as refused:  # somebody else was charged meanwhile
            raise too_dear(what, request.lineage, refused, _OUTCOME, _WITHOUT_ROWS) from None
        for receipt in charged.receipts:
            spent[receipt.model] = spent.get(receipt.model, 0) + receipt.total_in(RHO, receipt.releases)
    return [
        f"{_payers(wish)} was charged rho = {to_rho(spent[wish.model]):g} for {what}"
        for wish, what in ((model, "the model"), (evaluated, "the evaluation"))
        if spent[wish.model]
    ]


def _payers(wish: HoldRequest) -> str:
    """Say whose accounts a charge is on."""
    lineage, several = f"the lineage {wish.lineage}", len(wish.blocks) > 1
    if not wish.blocks:
        return lineage
    return f"{'each of the blocks' if several else 'the block'} {', '.join(wish.blocks)} of {lineage}"


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """A lineage as it is about to pay. budgets: what its blocks open with. new: those that are not open."""

    account: LineageAccount
    budgets: BlockBudgets
    new: NewBlocks


async def _opening(ledger: Ledger, certificate: ReleaseCertificate, payer: Payer, lineage: str, *, by: str) -> _Opening:
    """Return what a lineage would pay from; open nothing. Raises CannotServe, and WrongOption for blocks unnamed."""
    pays = lineage == payer.lineage
    budgets = payer.budgets if pays else {}
    if lineage == certificate.lineage:
        # The model is paid for first, by blocks that open as its training declared.
        given = payer.budget if pays else None
        budgets = budgets | block_budgets_of(certificate, accepts_for(certificate.price), given)
    accounts = await ledger.all_blocks(lineage) if await find_lineage(ledger, lineage) is not None else []
    opened = {each.name for each in accounts if each.name or each.budget.limit}
    lacking = [block for block in payer.budgets if block not in opened and budgets[block] is None] if pays else []
    for block in lacking:
        if block != UNNAMED:
            raise CannotServe(
                Message(
                    "the block {} of the lineage {} has no budget yet: say what it opens with, with {block_budget}",
                    block,
                    lineage,
                )
            )
        if accounts or len(budgets) > 1:
            raise WrongOption(
                "block",
                Message(
                    "is needed, or {block_name}: the lineage {} has no budget but its blocks', and those "
                    "that the held-out rows lie in pay for an evaluation",
                    lineage,
                ),
            )
    account = await account_to_be(ledger, lineage, budgets)
    new = await new_blocks(ledger, account, budgets, by=by)
    return _Opening(account=account, budgets=budgets, new=new)
