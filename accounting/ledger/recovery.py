"""Reconciling a ledger with what its services remember.

A store that was restored is older than what it acknowledged, so every service that kept its journal refuses to go on
until `reconcile` has put back the receipts that the journals hold.

Blocks. A restored store may lack blocks, or all that have names. Receipts that are put back bring the blocks that they
name back, without a budget, and so does a loss that is declared for them.

Promises: putting receipts back never charges a question twice, however often it is done, for a receipt names the
questions that it paid for; it looks at no limit, because what was released was released; receipts that nobody remembers
are not passed over in silence, they have to be declared and are charged. Journals are read page by page, twice, in
bounded memory: whether something was paid for the store is asked.
"""

import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from dpserve.accounting.ledger.backups import batches
from dpserve.accounting.ledger.errors import (
    CannotRecover,
    LedgerError,
    OtherUnit,
    UnknownBlock,
    UnknownClient,
)
from dpserve.accounting.ledger.journal import FORGETFUL, JournalFiles
from dpserve.accounting.ledger.ledger import Ledger
from dpserve.accounting.ledger.owner import Acts
from dpserve.accounting.ledger.receipts import (
    QUESTION,
    Receipt,
    charge_terms,
    digest,
    microseconds,
)
from dpserve.accounting.ledger.values import LedgerRequest, Line
from dpserve.accounting.ledger.verification import Watcher, all_acts, unwatched
from dpserve.accounting.losses import Cost
from dpserve.accounting.messages import Message

_RECEIPTS_IN_A_CALL = 200
_BITS = 1 << 15


class LossUndeclared(LedgerError):
    """Receipts were lost that no journal holds, or may have been. Nothing was changed.

    `missing` is how many there are at least; `services` those that wrote to the lineage and whose journals are not
    given, so that nobody knows what they were acknowledged last.
    """

    def __init__(self, lineage: str, missing: int, services: Sequence[str] = ()) -> None:
        """Say what there is to be done."""
        self.missing = missing
        self.services = tuple(services)
        lost = [f"{missing} or more receipts of lineage {lineage} are lost and in no journal"] if missing else []
        if services:
            lost.append(f"the journals of {len(services)} services that wrote to lineage {lineage} are not given")
        super().__init__(
            Message(
                "{}: give the journals of the other services with {journal}, or declare at most how many "
                "rows they can have been for with {declare_lost}, 0 if none",
                "; ".join(lost),
            )
        )


@dataclass(frozen=True)
class DeclaredLoss:
    """The largest loss that the owner declares: releases, the cost of each, and the client, if known.

    With 0 releases the owner says that nothing was lost. The same loss is charged once, unless it is `another`.
    blocks: each that may have lost it, in order; every one of them is charged all of it. With none it is the one
    without a name; None if the owner does not say, where the lineage has no other. gone: those among them whose
    accounts the store lost, too: they come back without a budget, so that what they lost is counted, and nothing more
    is charged to them before the owner gives them one.
    """

    releases: int
    cost: Cost
    client: str = ""
    time: float = 0.0
    another: bool = False
    blocks: tuple[str, ...] | None = None
    gone: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a loss of less than nothing, and a block that is gone and lost nothing."""
        if self.releases < 0:
            raise ValueError(f"a declared loss must not be of {self.releases} releases")
        if astray := sorted(set(self.gone) - set(self.blocks or ())):
            raise ValueError(f"the block {astray[0]} is gone, and is none of those that lost something: name it there")


@dataclass(frozen=True)
class Reconciliation:
    """The result of reconciling a lineage.

    blocks_without_budget: those that were lost and are back; nothing of them is answered until they have one.
    """

    lineage: str
    put_back: int
    renumbered: int
    declared: int
    services: int
    blocks_without_budget: tuple[str, ...] = ()


async def reconcile(
    owner: Acts,
    lineage: str,
    journals: Sequence[JournalFiles],
    declared: DeclaredLoss | None = None,
    *,
    unit: str | None = None,
    watch: Watcher = unwatched,
) -> Reconciliation:
    """Put back every receipt that the lineage's journals hold and the store lacks, and let the services on again.

    So is the privacy unit under which they were charged.
    unit: that which the owner states, a column or empty for one record, where neither the store nor a journal knows it;
    until then no model is charged to the lineage.

    Raises LossUndeclared if receipts are lost that no journal holds, or a service wrote to the lineage whose journal
    is not given, and no loss is declared; CannotRecover; UnknownLineage.
    """
    ledger, own = owner.ledger, [journal for journal in journals if journal.lineage == lineage]
    account = await ledger.lineage(lineage)
    newest = max((journal.newest for journal in own), default=0)
    progress = partial(_show, watch, f"the journals of {lineage}", max(1, newest))
    found = await _survey(ledger, lineage, [journal.receipts for journal in own], progress)
    missing = found.missing(account.newest_receipt)
    wrote = (await ledger.numbers(lineage))["service"].values()
    # A service that forgets keeps no journal, so none of its journals can be missing.
    kept = {service for service in wrote if not service.startswith(FORGETFUL)}
    unheard = sorted(kept - {journal.service for journal in own})
    if (missing or unheard) and declared is None:
        raise LossUndeclared(lineage, missing, unheard)
    declaration = None
    if declared is not None and declared.releases:  # before anything is put back, because it may be refused
        declaration = await _declaration(ledger, lineage, declared, found.blocks)
    await _restore_unit(owner, lineage, {journal.charged_unit for journal in own} | {unit})
    charged = renumbered = 0
    if found.lost:
        sources = [journal.receipts for journal in own]
        async for _, receipts in _lost_receipts(ledger, lineage, sources, progress):
            for old, new in await put_back(ledger, lineage, receipts):
                charged, renumbered = charged + 1, renumbered + (new.sequence != old.sequence)
    if declaration is not None:  # after what is put back, which says what group a client that was lost belongs to
        group = await _group_of(ledger, lineage, declaration.client)
        await ledger.apply([structs.replace(declaration, group=group)])
    releases = declared.releases if declared is not None else 0
    services = [{"service": journal.service, "writes": journal.writes, "link": journal.link.hex()} for journal in own]
    details = {"put_back": charged, "declared": releases, "services": services}
    writes = {"services": [{"service": one["service"], "writes": one["writes"]} for one in services]}
    await owner.act(lineage, "reconcile", [], writes, kind="reconcile", subject="lineage", details=details)
    empty = tuple(block.block for block in await ledger.blocks(lineage) if block.spent and not block.budget.limit)
    return Reconciliation(lineage, charged, renumbered, releases, len(own), empty)


async def _restore_unit(owner: Acts, lineage: str, units: set[str | None]) -> None:
    """Settle the unit that journals and the owner know, before anything else. Raises CannotRecover if they differ."""
    try:
        for unit in units - {None}:
            await owner.restore_unit(lineage, unit or "")
    except OtherUnit as error:
        raise CannotRecover(f"the store, the journals and you name different privacy units: {error}") from None


async def put_back(ledger: Ledger, lineage: str, receipts: Sequence[Receipt]) -> list[tuple[Receipt, Receipt]]:
    """Charge receipts that the store may lack; what was paid for is left alone. Raises UnknownLineage.

    Returns those of which something was charged, each with its new receipt. Raises CannotRecover, before any is put
    back.
    """
    _check_unaltered(receipts)
    done: list[tuple[Receipt, Receipt]] = []
    for start in range(0, len(receipts), _RECEIPTS_IN_A_CALL):
        part = receipts[start : start + _RECEIPTS_IN_A_CALL]
        asked = [
            LedgerRequest(
                lineage,
                one.client,
                one.microseconds,
                (Line(one.terms, one.questions),),
                group=one.group,
            )
            for one in part
        ]
        for old, charge in zip(part, await ledger.apply(asked), strict=True):
            done += [(old, new) for new in charge.receipts]
    return done


def _check_unaltered(receipts: Iterable[Receipt]) -> None:
    for receipt in receipts:
        if receipt.flaw:
            raise CannotRecover(
                f"receipt {receipt.sequence} of lineage {receipt.lineage} {receipt.flaw}: it was altered, or is none "
                "of this ledger's; leave its journal out"
            )


class _Numbers:
    """A set of whole numbers that lie close together, of a bit each."""

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def add(self, number: int) -> None:
        page, bit = divmod(number, _BITS)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit

    def count(self, first: int, last: int) -> int:
        """Return how many numbers from the first to the last, both included, are in it."""
        total = 0
        for page, bits in self._pages.items():
            low, high = max(0, first - page * _BITS), min(_BITS - 1, last - page * _BITS)
            if low <= high:
                total += (bits >> low & (1 << high - low + 1) - 1).bit_count()
        return total


@dataclass
class _Survey:
    """The number of receipts that journals hold and the store lacks, and the first and last number of them.

    blocks: those that they name.
    """

    lost: int = 0
    first: int = 0
    last: int = 0
    known: _Numbers = field(default_factory=_Numbers)
    blocks: set[str] = field(default_factory=set)

    def missing(self, newest: int) -> int:
        """Return how many receipts at least must have been lost beside these: the gaps that they show."""
        if not self.lost:
            return 0
        first = min(newest + 1, self.first)
        return self.last - first + 1 - self.known.count(first, self.last)


Progress = Callable[[int], None]
"""Hears the number of the receipt that was read last."""


def _show(watch: Watcher, what: str, newest: int, number: int) -> None:
    watch(what, min(1.0, number / newest))


async def _survey(ledger: Ledger, lineage: str, sources: Sequence[Iterable[Receipt]], progress: Progress) -> _Survey:
    """Read all sources. Raises CannotRecover for a lost receipt that was altered."""
    found = _Survey()
    async for known, lost in _lost_receipts(ledger, lineage, sources, progress):
        for number in known:
            found.known.add(number)
        if lost:
            _check_unaltered(lost)
            numbers = [receipt.sequence for receipt in lost]
            found.first = min(numbers) if not found.lost else min(found.first, *numbers)
            found.blocks.update(block for receipt in lost for block in receipt.terms.blocks)
            found.last, found.lost = max(found.last, *numbers), found.lost + len(lost)
    return found


async def _lost_receipts(
    ledger: Ledger, lineage: str, sources: Sequence[Iterable[Receipt]], progress: Progress
) -> AsyncIterator[tuple[list[int], list[Receipt]]]:
    """Yield the numbers of receipts of journals, some at a time, and the receipts that the store lacks.

    The store lacks one that names a question which it does not know as paid for by its client; of a receipt without a
    client, which is of the lineage alone, as paid for by anybody. They come by number, as far as each source has them
    in order, and one that is in two sources may come twice.
    """
    merged = heapq.merge(*sources, key=lambda receipt: receipt.sequence)
    for some in batches(merged, _RECEIPTS_IN_A_CALL):
        distinct = list({receipt.hash: receipt for receipt in some}.values())
        paid = await ledger.paid_for(lineage, [(one.client, one.questions) for one in distinct])
        lost = [one for one, is_paid in zip(distinct, paid, strict=True) if not is_paid]
        yield [one.sequence for one in some], lost
        progress(some[-1].sequence)


async def _declaration(ledger: Ledger, lineage: str, declared: DeclaredLoss, back: Set[str]) -> LedgerRequest:
    """Return the charge of a declared loss: one question, which stands for so many releases.

    back: the blocks that receipts bring back before.
    It is a digest of the loss and of how often the lineage was reconciled: a reconciliation that was cut short is
    finished by the same words and charges once. Raises CannotRecover for the same loss in an earlier one.
    """
    account = await ledger.lineage(lineage)
    before = sum(act.kind == "reconcile" for act in await all_acts(ledger, lineage, account.newest_act))
    former = [_question_of(lineage, declared, round_) for round_ in range(before)]
    if not declared.another and any(await ledger.paid_for(lineage, [("", [question]) for question in former])):
        raise CannotRecover(
            Message(
                "this loss of lineage {} was declared before and is charged; if as much was lost once more, "
                "say {declare_again}",
                lineage,
            )
        )
    known = {block.block for block in await ledger.blocks(lineage)}
    if declared.blocks is None and (known or back):
        raise CannotRecover(
            Message(
                "the lineage {} has blocks ({}): name those that can have lost it, with {lost_blocks}",
                lineage,
                ", ".join(sorted(known | back)),
            )
        )
    blocks = declared.blocks or ()
    if unknown := sorted(set(blocks) - known - back - set(declared.gone)):  # a slip, perhaps
        raise CannotRecover(
            Message(
                "{}; if the store lost its account, say so with {lost_block_accounts:{}}",
                UnknownBlock(unknown[0]),
                unknown[0],
            )
        )
    if there := sorted(known & set(declared.gone)):
        raise CannotRecover(f"the lineage {lineage} has the block {there[0]}: it is not gone")
    terms = charge_terms("declared loss", "declared loss", declared.cost, declared.releases, blocks=blocks)
    line = Line(terms, (_question_of(lineage, declared, before),))
    return LedgerRequest(lineage, declared.client, microseconds(declared.time), (line,))


async def _group_of(ledger: Ledger, lineage: str, client: str) -> str:
    """Return the group of a client, which pays for what the client lost, too; nothing for one that is not known."""
    with suppress(UnknownClient):
        return (await ledger.client(lineage, client)).group if client else ""
    return ""


def _question_of(lineage: str, declared: DeclaredLoss, before: int) -> bytes:
    loss = (lineage, before, declared.client, str(declared.cost), declared.releases, *(declared.blocks or ()))
    return digest("dpserve declared loss", *loss)[:QUESTION]
