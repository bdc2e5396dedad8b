"""Buying releases: what a lineage pays for before anybody sees it, and the accounts that open and pay for it.

The estimator, the commands and the service buy by `buy`, and ask beforehand by `check_purchases`. Promises:

- Everything is checked before anything is opened, settled or charged: that the lineage has no other budget and protects
  no other privacy unit than is said, that each block has an account or a budget to open with, and that every account
  pays for all that is bought of it. What fails leaves nothing behind.
- A lineage pays for all that is bought of it in one act, or for none of it, and at most once for each release: buying
  again, for whatever reason, charges nothing.
- No call of a store reaches two lineages. Of several, all are checked before the first is charged, in order; one that
  somebody else spent from in between may still refuse, after the ones before it were charged.

A release is charged as a question is, by the same function of the store, so that all that holds for questions holds for
releases. A client's account pays for those that the client has not paid for, and a block's for those that nobody paid
for before: a model is drawn once and is the same for everyone, so that who sees it second learns nothing that was not
paid for, and k clients together cost a block what one of them does. The question is a hash of the release, its cost,
and what was drawn; the receipt says what goes into the last link, so that no receipt can mark a release as paid for
less than it costs (`receipts.model_question`): none is put back that does, and `verify` reports one.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from dpserve.accounting import sampling_error
from dpserve.accounting.budgets import Budget, accepts_for
from dpserve.accounting.currency import RHO
from dpserve.accounting.ledger.errors import (
    BudgetExhausted,
    CoinsExhausted,
    LedgerRefusal,
    MechanismNotAccepted,
    NoBudget,
    NotPaidFor,
    OtherBudget,
    OtherUnit,
    Scope,
    UnknownLineage,
)
from dpserve.accounting.ledger.ledger import Ledger
from dpserve.accounting.ledger.owner import act_refused
from dpserve.accounting.ledger.receipts import (
    UNNAMED,
    Receipt,
    charge_terms,
    checked_time,
    microseconds,
    model_question,
    paying,
    release_digest,
)
from dpserve.accounting.ledger.values import (
    Idempotency,
    LedgerRequest,
    Line,
    checked_client,
    checked_lineage,
)
from dpserve.accounting.losses import Cost
from dpserve.accounting.messages import Message


@dataclass(frozen=True)
class ReleaseRequest:
    """A request to pay for one release. `client` is empty for the owner, for whom the lineage's blocks pay alone.

    `model` is the release's random id, and `drawn` 32 bytes derived from what was drawn under it, so that another
    release under the same id is paid for again. It must say nothing about what was drawn, because receipts are seen by
    clients who paid for none of it (`ReleaseCertificate.drawn`). `mechanism` is for the receipts. `cost` is that of the
    whole release. `time` is in seconds since the epoch.
    `key_digest` is that of the API key that the request came with, which must be the client's and good for predictions
    at that instant; empty where the client is known otherwise.
    """

    lineage: str
    client: str
    model: str
    drawn: bytes
    mechanism: str
    cost: Cost
    time: float
    idempotency: Idempotency | None = None
    key_digest: bytes = b""
    blocks: tuple[str, ...] = ()
    """The blocks of the lineage that the release was computed from."""

    def __post_init__(self) -> None:
        """Refuse what the store could not hold, and a cost that no budget provides for."""
        if len(self.drawn) != hashlib.sha256().digest_size:
            raise ValueError("what stands for what was drawn must have 32 bytes")
        checked_lineage(self.lineage)
        if self.client:
            checked_client(self.client)
        elif self.idempotency is not None:
            raise ValueError("the owner pays without an idempotency key")
        checked_time(self.time)
        sampling_error.check_release_rho(self.cost.rho)
        _ = self.line

    @cached_property
    def line(self) -> Line:
        """The line of the one question that stands for the release."""
        release = release_digest(self.model, self.drawn, self.blocks)
        terms = charge_terms(self.model, self.mechanism, self.cost, 1, release, self.blocks)
        return Line(terms, (model_question(release, self.model, str(self.cost)),))

    @property
    def ledger_request(self) -> LedgerRequest:
        """The request as the ledger charges it: the key stands for the model."""
        key, fingerprint = b"", b""
        if self.idempotency is not None:
            key, fingerprint = self.idempotency.key_digest, self.idempotency.fingerprint(self.model)
        return LedgerRequest(
            self.lineage, self.client, microseconds(self.time), (self.line,), self.key_digest, key, fingerprint
        )


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """Releases that a lineage pays for, all of them or none, and what its accounts open with and protect.

    title: what is bought, in words. unit: the column of privacy units that it protects, None for one record. payers:
    the blocks that pay, each with the budget that it opens with, None where none is known. per_answer: the cost of an
    answer of a model whose answers are paid for one by one: nothing is charged for it now, and no account may pay that
    could not pay for one.
    """

    title: str
    lineage: str
    unit: str | None
    payers: Mapping[str, Budget | None]
    releases: tuple[ReleaseRequest, ...] = ()
    per_answer: Cost | None = None

    def __post_init__(self) -> None:
        """Refuse releases that the lineage's blocks alone could not pay for together."""
        if any(release.client or release.lineage != self.lineage for release in self.releases):
            raise ValueError("releases that are paid for together are the owner's, in one lineage")

    @property
    def ledger_request(self) -> LedgerRequest:
        """The releases as the ledger charges them."""
        lines = tuple(release.line for release in self.releases)
        return LedgerRequest(self.lineage, "", microseconds(max(release.time for release in self.releases)), lines)

    def joined_with(self, other: "Purchase") -> "Purchase":
        """Return both as one act of their lineage. Raises OtherBudget and OtherUnit for what contradicts this one.

        A block with a name opens with the first budget that is known.
        """
        if (self.unit or "") != (other.unit or ""):
            raise OtherUnit(self.lineage, self.unit or "", other.unit or "")
        payers = dict(self.payers)
        for block, budget in other.payers.items():
            if payers.get(block) is None:
                payers[block] = budget
            elif block == UNNAMED and budget not in (None, payers[block]):
                raise OtherBudget(self.lineage)
        title, releases = f"{self.title} and {other.title}", self.releases + other.releases
        return replace(self, title=title, payers=payers, releases=releases, per_answer=None)


async def check_purchases(ledger: Ledger, purchases: Sequence[Purchase]) -> None:
    """Raise what `buy` would raise now; open, settle and charge nothing.

    Raises NoBudget, OtherBudget, OtherUnit, UnitLost and NotPaidFor, ActRefused for a block that would count another
    currency than the others, and what `Ledger.join` and `Ledger.quote` raise.
    """
    await _checked(ledger, purchases)


async def buy(ledger: Ledger, purchases: Sequence[Purchase], *, by: str) -> list[Receipt]:
    """Open the accounts that are needed, and charge each lineage for its purchases in one act; return the receipts.

    by: who has accounts opened. Raises what `check_purchases` raises, before anything is changed, and after that where
    somebody else opened an account, or spent from one, in between.
    """
    acts = await _checked(ledger, purchases)
    for act in acts:
        await act.open(ledger, by)
    for act in acts:
        await settle_unit(ledger, act.purchase.lineage, act.purchase.unit, by=by)
    return [receipt for act in acts if act.purchase.releases for receipt in await act.charge(ledger)]


async def settle_unit(ledger: Ledger, lineage: str, unit: str | None, *, by: str) -> None:
    """Have the lineage protect this privacy unit, or find that it does; call it before a model is charged or answers.

    unit: the column of units, None for one record. Raises OtherUnit where the lineage protects another, and UnitLost.
    """
    await ledger.acting(by, "the first model of the lineage protects it").settle_unit(lineage, unit or "")


def picorho_charged(receipts: Iterable[Receipt]) -> int:
    """Return what receipts of purchases charged their lineages, in picorho."""
    return sum(receipt.total_in(RHO, receipt.releases) for receipt in receipts)


async def words_of_charge(ledger: Ledger, receipts: Sequence[Receipt]) -> str:
    """Return what receipts of purchases by one lineage's accounts charged, in the currency that its owner reads."""
    charged = {receipt.lineage: receipt.terms.blocks for receipt in receipts}
    ((lineage, blocks),) = charged.items()
    payer = next(block for block in await ledger.all_blocks(lineage) if block.name in paying(blocks))
    return payer.budget.words(picorho_charged(receipts))


async def _checked(ledger: Ledger, purchases: Sequence[Purchase]) -> list["_Act"]:
    """Return the purchases as one act for each lineage, in order. Raises what `check_purchases` raises."""
    joined: dict[str, Purchase] = {}
    for purchase in purchases:
        before = joined.get(purchase.lineage)
        joined[purchase.lineage] = purchase if before is None else before.joined_with(purchase)
    acts = {lineage: await _prepared(ledger, purchase) for lineage, purchase in joined.items()}
    for purchase in purchases:
        if purchase.per_answer is not None:
            for block in purchase.payers:
                acts[purchase.lineage].check_unspent(block, f"an answer of {purchase.title}", [purchase.per_answer])
    for act in acts.values():
        await act.check_releases(ledger)
    return list(acts.values())


async def _prepared(ledger: Ledger, purchase: Purchase) -> "_Act":
    """Return a purchase with the budgets that would pay, having compared what is said of the lineage with them."""
    lineage, budgets = purchase.lineage, dict[str, Budget]()
    await ledger.join(lineage)  # before anything is opened: an emptied store must not pass for a new one
    with suppress(UnknownLineage):
        budgets = {account.name: account.budget for account in await ledger.all_blocks(lineage)}
        await ledger.check_unit(lineage, purchase.unit or "")
    _check_budget(purchase, budgets.get(UNNAMED))
    opening: dict[str, Budget] = {}
    for block, budget in purchase.payers.items():
        if block not in budgets:
            if budget is None:
                raise NoBudget(lineage, block)
            opening[block] = budget
    if len({budget.currency for budget in (*budgets.values(), *opening.values())}) > 1:
        raise act_refused("other-currency")
    if UNNAMED not in budgets and UNNAMED not in opening:  # where others pay, it pays for nothing
        opening[UNNAMED] = replace(next(iter(opening.values())), limit=0)
    return _Act(purchase, budgets | opening, opening)


@dataclass(frozen=True)
class _Act:
    """A purchase, and the budgets of its lineage's blocks: all of them, and of these the ones that are to be opened."""

    purchase: Purchase
    budgets: Mapping[str, Budget]
    opening: Mapping[str, Budget]

    async def check_releases(self, ledger: Ledger) -> None:
        """Raise NotPaidFor where an account does not pay for its share of the releases now.

        Nothing was charged before to an account that is not open, so that it pays for all of its share. The store says
        of the others what is new to them.
        """
        if not self.purchase.releases:
            return
        request = self.purchase.ledger_request
        for block in self.opening:
            costs = [line.terms.cost for line in request.lines if block in paying(line.terms.blocks)]
            self.check_unspent(block, self.purchase.title, costs)
        others = request.of_others(self.opening)
        if others.lines and (refused := (await ledger.quote(others)).refusal) is not None:
            raise self._worded(refused, self.purchase.title)

    def check_unspent(self, block: str, title: str, costs: Sequence[Cost]) -> None:
        """Raise NotPaidFor where a block could not pay for these even if nothing was spent. title: what they buy."""
        budget, scope = self.budgets[block], _scope(block)
        refused: LedgerRefusal | None = None
        total = sum(budget.currency.price(cost) or 0 for cost in costs)
        if sum(cost.coins for cost in costs) > budget.coins_allowed:
            refused = CoinsExhausted(scope, str(costs[-1]), block)
        elif wrong := [cost for cost in costs if not budget.pays_for(cost)]:
            refused = MechanismNotAccepted(scope, str(wrong[0]), block)
        elif total > budget.limit:
            refused = BudgetExhausted.of_budget(scope, budget, total, 0, block)
        if refused is not None:
            raise self._worded(refused, title)

    async def open(self, ledger: Ledger, by: str) -> None:
        """Open the accounts that are not."""
        lineage, opening = self.purchase.lineage, ledger.acting(by, "the first model of its records is charged to it")
        if UNNAMED in self.opening:
            account = await opening.open_lineage(lineage, self.opening[UNNAMED], time=time.time())
            _check_budget(self.purchase, account.budget)
        for block, budget in self.opening.items():
            if block != UNNAMED:
                await opening.open_block(lineage, block, budget, time=time.time())

    async def charge(self, ledger: Ledger) -> tuple[Receipt, ...]:
        """Charge for the releases. Raises NotPaidFor where somebody else spent in between."""
        try:
            return (await ledger.charge(self.purchase)).receipts
        except (BudgetExhausted, MechanismNotAccepted) as refused:
            raise self._worded(refused, self.purchase.title) from None

    def _worded(self, refused: LedgerRefusal, title: str) -> LedgerRefusal:
        """Return the refusal of what an account does not pay for, with what its owner can do."""
        lineage = self.purchase.lineage
        if not isinstance(refused, BudgetExhausted | MechanismNotAccepted):
            return refused
        block, budget, payer = refused.block, self.budgets[refused.block], f"the lineage {lineage}"
        remedy = f"raise its budget with 'dpserve lineage set-budget {lineage}'"
        if block:
            payer, remedy = f"the block {block} of {payer}", f"leave its records out, or {remedy}"
        if isinstance(refused, BudgetExhausted):
            whole = f"its whole budget, {budget.words(budget.limit)}"
            if refused.is_spent:
                why = f": {whole}, is spent"
            else:
                remedy = f"take a lower price, {'' if block else 'or '}{remedy}"
                why = f", which {refused.price}, and {refused.left} in its budget"
                if refused.cost > budget.limit:
                    why = f", which {budget.words_of_cost(0, refused.cost)[0]}, more than {whole}"
            return NotPaidFor(f"{payer} does not pay for {title}{why}; nothing was charged for it: {remedy}", refused)
        why = "its delta is too small for so many releases that are Gaussian except with a small probability"
        if not isinstance(refused, CoinsExhausted):
            why = Message(
                "it accepts {!r} charges only: choose another mechanism, or give it a budget with {accepts:{}}",
                budget.accepts,
                accepts_for(Cost.parse(refused.cost)),
            )
        return NotPaidFor(Message("{} does not pay for {}, {!r}: {}", payer, title, refused.cost, why), refused)


def _scope(block: str) -> Scope:
    return "block" if block else "lineage"


def _check_budget(purchase: Purchase, budget: Budget | None) -> None:
    """Raise OtherBudget where one is given and the lineage has another: buying changes none."""
    given = purchase.payers.get(UNNAMED)
    if given is not None and budget is not None and budget != given:
        raise OtherBudget(purchase.lineage, budget.accepts, given.accepts)
