"""Private evaluations: who pays for one, what is noted of the held-out rows, and the charge.

The command line and `PrivateClassifier` evaluate by these.
"""

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Account, Ledger, NoBudget, Purchase, ReleaseRequest, UnknownLineage
from dpserve.accounting.ledger.purchases import buy, words_of_charge
from dpserve.accounting.ledger.receipts import UNNAMED, paying
from dpserve.accounting.messages import Message
from dpserve.training.block_choice import Blocks
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.evaluation import SHARES, Evaluation, EvaluationPart, Law
from dpserve.training.inputs.blocks import noted_in_blocks
from dpserve.training.inputs.lineage import RecordRegistry, check_lineage_name, overlap_text
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.registry import kind_of
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.model import ReleasedModel
from dpserve.training.purchases import model_purchase


@dataclass(frozen=True, kw_only=True)
class Payer:
    """The lineage that pays for an evaluation, and the blocks of it that the held-out rows lie in.

    budget: with which the lineage, or a block of it, opens that neither the ledger nor the model has.
    """

    lineage: str
    blocks: tuple[str, ...] = ()
    budget: Budget | None = None

    @classmethod
    def chosen(cls, certificate: ReleaseCertificate, lineage: str | None, choice: Blocks, opening: str) -> Self:
        """Return who pays for an evaluation of the model.

        lineage: of the held-out records; None for the model's. opening: the budget with which the lineage opens, or
        each of its blocks, as epsilon:3@1e-6; "" for none.
        Raises WrongOption for what does not go together, and TrainingError for what is no lineage's name.
        """
        name = certificate.lineage if lineage is None else check_lineage_name(lineage)
        blocks, budget = choice.declared(None), Budget.parse(opening, "gaussian") if opening else None
        return cls(lineage=name, blocks=() if blocks is None else blocks.names, budget=budget)

    @property
    def budgets(self) -> dict[str, Budget | None]:
        """The budgets with which the blocks that pay open."""
        return dict.fromkeys(paying(self.blocks), self.budget)


def evaluable(certificate: ModelCertificate, model: ReleasedModel | None) -> ReleasedModel:
    """Return the model that is evaluated. Raises TrainingError for one that cannot be.

    model: None for one whose answers are paid for one by one.
    """
    lack = kind_of(certificate).limitation("evaluation")
    if lack is not None or model is None:
        raise TrainingError(f"{certificate.name}: {lack}")
    return model


def parts_named(names: Sequence[str] | None) -> tuple[EvaluationPart, ...] | None:
    """Return the parts of an evaluation that are named, None for all that a model has. Raises WrongOption."""
    if names is None:
        return None
    if set(names) - set(SHARES) or "accuracy" not in names:
        raise WrongOption("report", f"takes accuracy and any of {', '.join(list(SHARES)[1:])}, not {', '.join(names)}")
    return cast(tuple[EvaluationPart, ...], tuple(names))


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
    known = RecordRegistry(state)
    digests = known.digests(records)
    with known.noted(lineage, digests, records.unit) as elsewhere:
        if elsewhere:
            warning = overlap_text(lineage, digests, elsewhere)
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
    paid for by the blocks that the held-out rows lie in. Of one lineage both are paid for, or neither. Raises what
    `buy` raises, and WrongOption for blocks unnamed.
    """
    evaluated = ReleaseRequest(
        lineage=payer.lineage,
        client="",
        model=evaluation_id,
        drawn=secrets.token_bytes(32),
        mechanism="evaluation",
        cost=law.cost,
        time=time.time(),
        blocks=payer.blocks,
    )
    model = model_purchase(certificate)
    evaluation = Purchase(
        title="the evaluation",
        lineage=payer.lineage,
        unit=certificate.unit,
        payers=payer.budgets,
        releases=(evaluated,),
    )
    await _check_blocks_named(ledger, payer, model)
    try:
        receipts = await buy(ledger, [model, evaluation], by=by)
    except NoBudget as error:
        if error.lineage == payer.lineage:
            raise
        raise TrainingError(
            f"the lineage {error.lineage} pays for the model, which is not paid for, and has no budget yet: run "
            "'dpserve serve' with the bundle first, or 'dpserve lineage set-budget BUNDLE --epsilon E --delta D'"
        ) from None
    (release,) = model.releases
    return [
        f"{_payers(request)} was charged {await words_of_charge(ledger, charged)} for {what}"
        for request, what in ((release, "the model"), (evaluated, "the evaluation"))
        if (charged := [receipt for receipt in receipts if receipt.model == request.model])
    ]


def _payers(request: ReleaseRequest) -> str:
    """Say whose accounts a charge is on."""
    lineage, several = f"the lineage {request.lineage}", len(request.blocks) > 1
    if not request.blocks:
        return lineage
    return f"{'each of the blocks' if several else 'the block'} {', '.join(request.blocks)} of {lineage}"


async def _check_blocks_named(ledger: Ledger, payer: Payer, model: Purchase) -> None:
    """Raise WrongOption where the block without a name would pay, and others alone have a budget."""
    if payer.blocks or payer.budget is not None:
        return
    await ledger.join(payer.lineage)
    accounts: Sequence[Account] = []
    with suppress(UnknownLineage):
        accounts = await ledger.all_blocks(payer.lineage)
    others = bool(accounts) or (model.lineage == payer.lineage and UNNAMED not in model.payers)
    if others and not any(account.budget.limit for account in accounts if not account.name):
        raise WrongOption(
            "block",
            Message(
                "is needed, or {block_name}: the lineage {} has no budget but its blocks', and those that the held-out "
                "rows lie in pay for an evaluation",
                payer.lineage,
            ),
        )
