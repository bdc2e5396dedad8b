"""Checks before a service answers: the lineage has an account, and it can pay for what is served."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from dpserve.accounting.budgets import Accepts, Budget, accepts_for
from dpserve.accounting.ledger import (
    ActRefused,
    BlockAccount,
    BudgetExhausted,
    Charge,
    CoinsExhausted,
    HoldRequest,
    JointHoldRequest,
    Ledger,
    LedgerRefusal,
    LineageAccount,
    MechanismNotAccepted,
    OtherUnit,
    UnitLost,
    UnknownLineage,
    WouldBeDone,
)
from dpserve.accounting.ledger.receipts import UNNAMED, paying
from dpserve.accounting.losses import Cost
from dpserve.accounting.messages import Message
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.service.errors import CannotServe, NotPaidFor
from dpserve.service.pay_once import hold_request
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.pay_once.certificate import ReleaseCertificate


async def find_lineage(ledger: Ledger, lineage: str) -> LineageAccount | None:
    """Return the lineage's account, or None before there is one. Raises what `Ledger.join` raises."""
    await ledger.join(lineage)  # before anything is opened: an emptied store must not pass for a new one
    try:
        return await ledger.lineage(lineage)
    except UnknownLineage:
        return None


BlockBudgets = Mapping[str, Budget | None]
"""The budgets that blocks open with, by name; None where none is known."""
NewBlocks = Mapping[str, BlockAccount]
"""Blocks that a lineage does not have yet, by name, as they would open."""


def unopened_account(lineage: str, budgets: BlockBudgets) -> LineageAccount:
    """Return the account that a lineage would have, to check what it pays for before it is opened.

    budgets: with which its blocks would open. Its own is that of the one without a name, which pays for nothing where
    only others have any. Raises CannotServe where none has.
    """
    budget = budgets.get(UNNAMED)
    if budget is None:
        budget = next((replace(each, limit=0) for each in budgets.values() if each is not None), None)
    if budget is None:
        raise CannotServe(
            Message(
                "the lineage {} has no budget yet: say what all clients together may learn, with "
                "{lineage_budget}; or open this one alone with 'dpserve lineage set-budget'",
                lineage,
            )
        )
    return LineageAccount(**_unopened(lineage, budget), newest_act=0, acts_head=b"")


def _unopened(lineage: str, budget: Budget) -> dict[str, Any]:
    """Return the fields of any account that opens now with this budget."""
    return {
        "lineage": lineage,
        "budget": budget,
        "spent": 0,
        "highest_limit": budget.limit,
        "coins": budget.coins_allowed,
        "coins_spent": 0,
        "tally": {},
        "created": time.time(),
        "newest_receipt": 0,
        "questions": 0,
    }


async def account_to_be(ledger: Ledger, lineage: str, budgets: BlockBudgets) -> LineageAccount:
    """Return the lineage's account, or what it would be with these budgets; nothing is opened: see `is_open`.

    Raises CannotServe where there is none and no budget is given, or one with another budget.
    """
    account = await find_lineage(ledger, lineage) or unopened_account(lineage, budgets)
    check_budget(account, budgets.get(UNNAMED))
    return account


def is_open(account: LineageAccount) -> bool:
    """Tell whether an account is in the ledger, where opening it is the first act."""
    return account.newest_act > 0


def check_budget(account: LineageAccount, budget: Budget | None) -> None:
    """Raise CannotServe where a budget is given and the account has another: starting a service changes none."""
    if budget is not None and account.budget != budget:
        raise CannotServe(
            Message(
                "the lineage {} has another budget already; leave {lineage_budget} out, or change it with "
                "'dpserve lineage set-budget'",
                account.lineage,
            )
        )


async def open_lineage(ledger: Ledger, lineage: str, budgets: BlockBudgets, *, by: str) -> None:
    """See to it that the lineage and these blocks of it have accounts: open those that it lacks with these budgets.

    What opens stays open: ask first whether it pays for what it opens for (`account_to_be`, `new_blocks`,
    `refusal_of`). by: who has them opened. Raises CannotServe where no budget is given, and where the lineage has
    another, or cannot have the block.
    """
    account = await find_lineage(ledger, lineage)
    if account is None:
        wanted = unopened_account(lineage, budgets).budget
        starting = ledger.acting(by, "a service was started with this budget")
        account = await starting.open_lineage(lineage, wanted, time=time.time())
    check_budget(account, budgets.get(UNNAMED))
    for block, budget in await _lacking(ledger, lineage, budgets):
        await _open_block(ledger.acting(by, _BLOCK_OPENS), lineage, block, budget)


_BLOCK_OPENS = "the first model of its records is charged to it"


async def new_blocks(
    ledger: Ledger, account: LineageAccount, budgets: BlockBudgets, *, by: str
) -> dict[str, BlockAccount]:
    """Return the accounts that a lineage lacks of these blocks with names, as they would open; nothing is opened.

    account: of `account_to_be`. by: as for `open_lineage`, which would raise what this raises.
    """
    opened, lineage, found = is_open(account), account.lineage, dict[str, BlockAccount]()
    for block, budget in await _lacking(ledger, lineage, budgets) if opened else _given(lineage, budgets):
        if opened:
            with suppress(WouldBeDone):
                await _open_block(ledger.acting(by, _BLOCK_OPENS, dry=True), lineage, block, budget)
        found[block] = BlockAccount(**_unopened(lineage, budget), block=block, number=0)
    return found


async def _lacking(ledger: Ledger, lineage: str, budgets: BlockBudgets) -> list[tuple[str, Budget]]:
    known = {block.name for block in await ledger.all_blocks(lineage)}
    return _given(lineage, {block: budget for block, budget in budgets.items() if block not in known})


def _given(lineage: str, budgets: BlockBudgets) -> list[tuple[str, Budget]]:
    """Return each block that has a name with its budget. Raises CannotServe for one without."""
    named = {block: budget for block, budget in budgets.items() if block != UNNAMED}
    for block, budget in named.items():
        if budget is None:
            raise CannotServe(
                f"the block {block} of the lineage {lineage} has no budget yet: serve the model that was trained on it "
                "first, which opens one"
            )
    return [(block, budget) for block, budget in named.items() if budget is not None]


async def _open_block(ledger: Ledger, lineage: str, block: str, budget: Budget) -> None:
    try:
        await ledger.open_block(lineage, block, budget, time=time.time())
    except ActRefused as refused:
        raise CannotServe(f"the lineage {lineage} cannot have the block {block}: {refused}") from None


def block_budgets_of(
    certificate: ModelCertificate, accepts: Accepts, given: Budget | None = None
) -> dict[str, Budget | None]:
    """Return the budgets with which the blocks open that pay for a model, in order.

    accepts: what an account pays for that pays for the model. given: the budget of the block without a name; those with
    names have what the certificate declares.
    """
    stated = certificate.block_budget
    declared = Budget.parse(stated, accepts) if stated else None
    return {block: given if block == UNNAMED else declared for block in paying(certificate.blocks)}


async def payers_of(
    ledger: Ledger, account: LineageAccount, blocks: Sequence[str], new: NewBlocks = MappingProxyType({})
) -> Sequence[LineageAccount | BlockAccount]:
    """Return the accounts that pay for what a model of these blocks says.

    account: the lineage's, of `account_to_be`. new: the blocks that are not open yet, of `new_blocks`.
    """
    held: dict[str, LineageAccount | BlockAccount] = {UNNAMED: account, **new}
    if lacking := [block for block in blocks if block not in held]:
        held |= {each.block: each for each in await ledger.blocks(account.lineage, lacking)}
    return [held[block] for block in paying(blocks)]


async def refusal_of(
    ledger: Ledger,
    request: HoldRequest | JointHoldRequest,
    account: LineageAccount,
    new: NewBlocks = MappingProxyType({}),
) -> LedgerRefusal | None:
    """Return why a lineage, or a block of it, does not pay for a request now; None where it does. Nothing is opened.

    account: of `account_to_be`. new: its blocks that are not open, of `new_blocks`. What is not open is asked for what
    would be charged to it, and the store for the rest: nothing that was charged before is of a block that is not open.
    """
    asked, unopened = request.ledger_request, dict[str, LineageAccount | BlockAccount](new)
    if not is_open(account):
        unopened[UNNAMED] = account
    for block in sorted(unopened):
        costs = [line.terms.cost for line in asked.lines if block in paying(line.terms.blocks)]
        if (refused := _refusal_of_new(unopened[block], costs, block)) is not None:
            return refused
    rest = asked.of_others(unopened)
    return (await ledger.quote(rest)).refusal if rest.lines else None


def _refusal_of_new(account: LineageAccount | BlockAccount, costs: Sequence[Cost], block: str) -> LedgerRefusal | None:
    """Return why an account that is not open yet would not pay. block: its name."""
    budget, scope = account.budget, account.scope
    if sum(cost.coins for cost in costs) > account.coins:
        return CoinsExhausted(scope, str(costs[-1]), block)
    for cost in costs:
        if not budget.pays_for(cost):
            return MechanismNotAccepted(scope, str(cost), block)
    total = sum(budget.currency.price(cost) or 0 for cost in costs)
    if total <= budget.limit:
        return None
    return BudgetExhausted.of_budget(scope, budget, total, 0, block)


async def settle_unit(ledger: Ledger, lineage: str, unit: str | None, *, by: str) -> None:
    """Have the lineage protect this privacy unit, or find that it does; call it before a model is charged or answers.

    unit: the column of units, None for one record. Raises CannotServe where the lineage protects another.
    """
    try:
        await ledger.acting(by, "the first model of the lineage protects it").settle_unit(lineage, unit or "")
    except (OtherUnit, UnitLost) as refused:
        raise CannotServe(str(refused)) from None


def check_unit(account: LineageAccount, unit: str | None) -> None:
    """Raise CannotServe where the lineage protects another privacy unit; settles nothing."""
    if account.unit is not None and account.unit != (unit or ""):
        raise CannotServe(str(OtherUnit(account.lineage, account.unit, unit or "")))


def unit_of(certificate: object) -> str | None:
    """Return the column of units that a certificate names; None for one record, and where nothing is proved."""
    return getattr(certificate, "unit", None)


def named(account: LineageAccount | BlockAccount) -> str:
    """Return whose account it is: a lineage's, or a block's."""
    lineage = f"the lineage {account.lineage}"
    return lineage if isinstance(account, LineageAccount) else f"the block {account.block} of {lineage}"


def check_affordable(account: LineageAccount | BlockAccount, mechanism: Mechanism) -> None:
    """Raise CannotServe if the lineage's account, or a block's, could never pay for one row."""
    if not account.budget.pays_for(mechanism.cost):
        raise CannotServe(
            Message(
                "{} accepts {!r} charges only, and {!r} costs {!r}: serve another mechanism, or change its "
                "budget to one that {accepts} {}",
                named(account),
                account.budget.accepts,
                mechanism.name,
                str(mechanism.cost),
                accepts_for(mechanism.cost),
            )
        )
    currency = account.budget.currency
    price = currency.price(mechanism.cost)
    if price is None or price > account.budget.limit:
        words = currency.words(price) if price is not None else f"no {currency.name}"
        raise CannotServe(
            Message(
                "one row costs {}, more than the whole budget of {}, {:.6g}; choose a lower {price}",
                words,
                named(account),
                currency.value(account.budget.limit),
            )
        )


async def hold_for_owner(ledger: Ledger, certificate: ReleaseCertificate, *, by: str) -> int:
    """Charge the lineage for a release that leaves; return what was charged now, in picorho.

    Blocks open with the budgets that the certificate declares of them. Raises UnknownLineage for a lineage that is not
    open where it declares none, and what `open_and_charge` raises.
    """
    await ledger.join(certificate.lineage)
    wish = hold_request(certificate, "", time.time())
    budgets = block_budgets_of(certificate, accepts_for(certificate.price))
    if not any(budgets.values()):
        await ledger.lineage(certificate.lineage)  # which is not opened here
    return (await open_and_charge(ledger, wish, certificate.unit, budgets, by=by)).charged


async def charge_under(ledger: Ledger, wish: HoldRequest, unit: str | None, *, by: str) -> Charge:
    """Charge a lineage for what protects a privacy unit, which the first that it pays for settles.

    What it does not pay for settles nothing. Where the charge fails after all, somebody else was charged meanwhile,
    under the same unit. Raises what `settle_unit` and `Ledger.charge` raise.
    """
    check_unit(await ledger.lineage(wish.lineage), unit)
    refusal = (await ledger.quote(wish)).refusal
    if refusal is not None:
        raise refusal
    await settle_unit(ledger, wish.lineage, unit, by=by)
    return await ledger.charge(wish)


async def open_and_charge(
    ledger: Ledger,
    wish: HoldRequest,
    unit: str | None,
    budgets: BlockBudgets,
    *,
    by: str,
) -> Charge:
    """Charge a lineage for what protects a privacy unit; open the wish's blocks with these budgets first, if need be.

    What the account would not pay for opens none, so that a training that fails leaves no budget behind. Raises what
    `account_to_be` and `charge_under` raise.
    """
    account = await account_to_be(ledger, wish.lineage, budgets)
    check_unit(account, unit)
    new = await new_blocks(ledger, account, budgets, by=by)
    refusal = await refusal_of(ledger, wish, account, new)
    if refusal is not None:
        raise refusal
    await open_lineage(ledger, wish.lineage, budgets, by=by)
    return await charge_under(ledger, wish, unit, by=by)


_WITHOUT_BLOCK = "leave it out, or train with less"


def too_dear(
    what: str, lineage: str, refused: BudgetExhausted, outcome: str, instead: str = _WITHOUT_BLOCK
) -> NotPaidFor:
    """Return the refusal of what the budget of a lineage does not pay for.

    outcome: what was not done. instead: what to do about a block that does not pay.
    """
    if refused.block:
        return NotPaidFor(f"{_too_dear_for_block(what, refused, instead)}: {outcome}", refused)
    sentence = f"{what} costs {refused.price}, and {refused.left} in the budget of the lineage {lineage}: {outcome}"
    return NotPaidFor(sentence, refused)


def _too_dear_for_block(what: str, refused: BudgetExhausted, instead: str = _WITHOUT_BLOCK) -> str:
    left = refused.currency.words(refused.remaining)
    return f"{what} costs {refused.price}, and the block {refused.block} has {left} left; {instead}"


async def hold_together(ledger: Ledger, certificates: Sequence[ReleaseCertificate]) -> dict[str, int]:
    """Charge lineages for the releases that a service answers from; return what each was charged now, in picorho.

    A lineage pays for all of its own in one act. Raises CannotServe before any lineage is charged if one of them cannot
    pay.
    """
    await check_together(ledger, certificates)
    charged = {}
    for lineage, served in _by_lineage(certificates).items():
        try:
            charged[lineage] = (await ledger.charge(_wishes(served))).charged
        except (BudgetExhausted, MechanismNotAccepted) as refused:  # somebody else was charged since
            _check_payable(lineage, served, refused)
    return charged


async def check_together(
    ledger: Ledger,
    certificates: Sequence[ReleaseCertificate],
    unopened: Mapping[str, LineageAccount] | None = None,
    new: Mapping[str, NewBlocks] | None = None,
) -> None:
    """Raise CannotServe unless each lineage can pay for all of its own of these releases; charge nothing.

    unopened: of `unopened_account`, by lineage, those that the ledger does not have yet; new: their new blocks.
    """
    for lineage, served in _by_lineage(certificates).items():
        account = (unopened or {}).get(lineage) or await ledger.lineage(lineage)
        refused = await refusal_of(ledger, _wishes(served), account, (new or {}).get(lineage, {}))
        _check_payable(lineage, served, refused)


def _by_lineage(certificates: Sequence[ReleaseCertificate]) -> dict[str, list[ReleaseCertificate]]:
    by_lineage: dict[str, list[ReleaseCertificate]] = {}
    for certificate in certificates:
        by_lineage.setdefault(certificate.lineage, []).append(certificate)
    return by_lineage


def _wishes(certificates: Sequence[ReleaseCertificate]) -> JointHoldRequest:
    """Return the wish to pay for each release."""
    now = time.time()
    return JointHoldRequest(tuple(hold_request(each, "", now) for each in certificates))


def _check_payable(lineage: str, certificates: Sequence[ReleaseCertificate], refused: LedgerRefusal | None) -> None:
    if refused is None:
        return
    names = " and ".join(certificate.name for certificate in certificates)
    if isinstance(refused, BudgetExhausted) and refused.block:
        raise CannotServe(f"{_too_dear_for_block(names, refused)}; nothing was charged for what it had not paid for")
    if isinstance(refused, CoinsExhausted):
        raise CannotServe(f"{names}: {refused}; raise the delta with 'dpserve lineage set-budget {lineage}'")
    if not isinstance(refused, BudgetExhausted):
        raise CannotServe(f"the lineage {lineage} does not pay for {names}: {refused}")
    together = " together" if len(certificates) > 1 else ""
    fewer = "serve fewer of them, or " if together else ""
    raise CannotServe(
        f"the lineage {lineage} would pay {refused.price} for {names}{together}, and {refused.left} in its budget; "
        f"nothing was charged for what it had not paid for: "
        f"{fewer}raise its budget with 'dpserve lineage set-budget {lineage}'"
    )


async def check_release(
    ledger: Ledger,
    certificate: ReleaseCertificate,
    unopened: LineageAccount | None = None,
    new: NewBlocks = MappingProxyType({}),
) -> None:
    """Raise CannotServe unless the lineage's account could ever pay for the release, and can pay for it now.

    unopened: the account of `unopened_account`, where the ledger does not have it yet. new: its new blocks.
    """
    account = unopened or await ledger.lineage(certificate.lineage)
    for payer in await payers_of(ledger, account, certificate.blocks, new):
        _check_price(payer, certificate)
    _check_payable(account.lineage, [certificate], await refusal_of(ledger, _wishes([certificate]), account, new))


def _check_price(account: LineageAccount | BlockAccount, certificate: ReleaseCertificate) -> None:
    """Raise CannotServe unless an account could ever pay for a release."""
    budget, price = account.budget, certificate.price
    if not budget.pays_for(price):
        why = (
            "its delta is too small for releases that are Gaussian except with a small chance: take a larger one"
            if price.coins > budget.coins_allowed
            else Message(
                "it accepts {!r} charges only: change it to one that {accepts} {}", budget.accepts, accepts_for(price)
            )
        )
        raise CannotServe(f"{named(account)} does not pay for {certificate.name}, {str(price)!r}: {why}")
    if price.picorho > budget.limit:
        raise CannotServe(
            f"{certificate.name} costs rho = {to_rho(price.picorho):.6g}, and the whole budget of {named(account)} is "
            f"{to_rho(budget.limit):.6g}: nobody could ever pay for it. Train at a lower price, or raise the budget "
            "with 'dpserve lineage set-budget'"
        )
