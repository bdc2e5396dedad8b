"""Reconciling a ledger with what its services remember.

A store that was restored is older than what it acknowledged, so every service that kept its journal refuses to go on
until `reconcile` has put back the receipts that the journals hold.

Blocks. A restored store may lack blocks, or all of them. Receipts that are put back bring the blocks that they name
back, without a budget, and so does a loss that is declared for them. A lineage that was charged without blocks keeps
one account for all its records: what names blocks is then charged to it as a whole, which is at least what any record
lost, as a release costs no record more than its price. The other way round nobody knows which blocks a receipt without
any is of, and it is not put back into a lineage that has them.

Promises: putting receipts back never charges a question twice, however often it is done, for a receipt names the
questions that it paid for; it looks at no limit, because what was released was released; receipts that nobody remembers
are not passed over in silence, they have to be declared and are charged.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from msgspec.structs import replace as replaced

from accounting.ledger.accounts import reading
from accounting.ledger.errors import (
    BlocksNotNamed,
    CannotRecover,
    LedgerError,
    OtherUnit,
    UnknownClient,
)
from accounting.ledger.journal import FORGETFUL, JournalContents
from accounting.ledger.ledger import Ledger
from accounting.ledger.receipts import (
    QUESTION,
    Receipt,
    charge_terms,
    digest,
)
from accounting.ledger.seals import RECONCILE, sealed_links, seals_of
from accounting.ledger.values import LedgerRequest, Line
from accounting.ledger.verification import all_acts, all_receipts
from accounting.ledger.wire import LineageKeys
from accounting.losses import Cost
from accounting.messages import OptionName

_RECEIPTS_IN_A_CALL = 200


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
            f"{'; '.join(lost)}: give the journals of the other services with "
            + OptionName("journal")
            + ", or declare at most how many "
            "rows they can have been for with " + OptionName("declare_lost") + ", 0 if none"
        )


@dataclass(frozen=True)
class DeclaredLoss:
    """The largest loss that the owner declares: releases, the cost of each, and the client, if known.

    With 0 releases the owner says that nothing was lost. The same loss is charged once, unless it is `another`.
    blocks: of a lineage with blocks, each that may have lost it, in order; every one of them is charged all of it.
    blocks_were_lost: those of them that neither the store nor a journal knows were lost, too, and are no slip.
    """

    releases: int
    cost: Cost
    client: str = ""
    time: float = 0.0
    another: bool = False
    blocks: tuple[str, ...] = ()
    blocks_were_lost: bool = False

    def __post_init__(self) -> None:
        """Refuse a loss of less than nothing."""
        if self.releases < 0:
            raise ValueError(f"a declared loss must not be of {self.releases} releases")


@dataclass(frozen=True)
class Reconciliation:
    """The result of reconciling a lineage.

    as_one: how many of the receipts that were put back name blocks and are charged to the lineage, which has none.
    blocks_without_budget: those that were lost and are back; nothing of them is answered until they have one.
    """

    lineage: str
    put_back: int
    renumbered: int
    declared: int
    services: int
    as_one: int = 0
    blocks_without_budget: tuple[str, ...] = ()


async def reconcile(
    ledger: Ledger,
    lineage: str,
    journals: Sequence[JournalContents],
    declared: DeclaredLoss | None = None,
    *,
    unit: str | None = None,
) -> Reconciliation:
    """Put back every receipt that the lineage's journals hold and the store lacks, and let the services on again.

    So is the privacy unit under which they were charged. unit: that which the owner states, a column or empty for one
    record, where neither the store nor a journal knows it; until then no model is charged to the lineage.

    Raises LossUndeclared if receipts are lost that no journal holds, or a service wrote to the lineage whose journal
    is not given, and no loss is declared; CannotRecover; UnknownLineage.
    """
    own = [journal for journal in journals if journal.lineage == lineage]
    account = await ledger.lineage(lineage)
    lost = await _lost_receipts(ledger, lineage, account.newest_receipt, own)
    missing = _missing(own, lost, account.newest_receipt) + await _missing_archived(ledger, lineage, own)
    wrote = (await ledger.numbers(lineage))["service"].values()
    # A service that forgets keeps no journal, so none of its journals can be missing.
    kept = {service for service in wrote if not service.startswith(FORGETFUL)}
    unheard = sorted(kept - {journal.service for journal in own})
    if (missing or unheard) and declared is None:
        raise LossUndeclared(lineage, missing, unheard)
    # Before anything is put back, because they may refuse.
    blocks = await _paying_blocks(ledger, lineage, lost)
    declaration = None
    if declared is not None and declared.releases:
        declaration = await _declaration(ledger, lineage, declared, blocks)
    await _restore_unit(ledger, lineage, {journal.charged_unit for journal in own} | {unit})
    as_one = sum(bool(receipt.terms.blocks) for receipt in lost) if blocks is None else 0
    charged = await put_back(ledger, lineage, lost, as_one=blocks is None)
    if declaration is not None:  # after what is put back, which says what group a client that was lost belongs to
        group = await _group_of(ledger, lineage, declaration.client)
        await ledger.apply(lineage, [replace(declaration, group=group)])
    releases = declared.releases if declared is not None else 0
    services = [{"service": journal.service, "writes": journal.writes, "link": journal.link.hex()} for journal in own]
    details = {"put_back": len(lost), "declared": releases, "services": services}
    writes = {"services": [{"service": one["service"], "writes": one["writes"]} for one in services]}
    await ledger.act(lineage, "reconcile", [], writes, kind="reconcile", subject="lineage", details=details)
    renumbered = sum(new.sequence != old.sequence for old, new in charged)
    empty = tuple(block.block for block in await ledger.blocks(lineage) if block.spent and not block.budget.limit)
    return Reconciliation(lineage, len(charged), renumbered, releases, len(own), as_one, empty)


async def _restore_unit(ledger: Ledger, lineage: str, units: set[str | None]) -> None:
    """Settle the unit that journals and the owner know, before anything else. Raises CannotRecover if they differ."""
    try:
        for unit in units - {None}:
            await ledger.restore_unit(lineage, unit or "")
    except OtherUnit as error:
        raise CannotRecover(f"the store, the journals and you name different privacy units: {error}") from None


async def _paying_blocks(ledger: Ledger, lineage: str, lost: Sequence[Receipt]) -> frozenset[str] | None:
    """Return the blocks that a lineage has once its lost receipts are put back; None where it is charged as one.

    Raises CannotRecover for lost receipts that name no block of a lineage that has blocks.
    """
    account = await ledger.lineage(lineage)
    named = frozenset(block for receipt in lost for block in receipt.terms.blocks)
    without = [receipt for receipt in lost if not receipt.terms.blocks]
    if not account.blocks:
        return None if without or account.newest_receipt else named
    if without:
        services = ", ".join(sorted({receipt.service for receipt in without}))
        raise CannotRecover(
            f"{len(without)} lost receipts of lineage {lineage} name no block, and the lineage has blocks: a store "
            f"that had lost these charged them, by the services {services}. Move the journals of these services away, "
            "and declare what they answered with "
            + OptionName("declare_lost")
            + " and, of the blocks that its records lie in, "
            + OptionName("lost_blocks")
        )
    return named | {block.block for block in await ledger.blocks(lineage)}


async def put_back(
    ledger: Ledger, lineage: str, receipts: Sequence[Receipt], *, as_one: bool = False
) -> list[tuple[Receipt, Receipt]]:
    """Charge receipts that the store may lack; what was paid for is left alone. Raises UnknownLineage.

    as_one: charge the lineage alone, whatever blocks they name. Returns those of which something was charged, each with
    its new receipt. Raises CannotRecover, before any is put back.
    """
    for receipt in receipts:
        if receipt.flaw:
            raise CannotRecover(
                f"receipt {receipt.sequence} of lineage {receipt.lineage} {receipt.flaw}: it was altered, or is none "
                "of this ledger's; leave its journal out"
            )
    done: list[tuple[Receipt, Receipt]] = []
    for start in range(0, len(receipts), _RECEIPTS_IN_A_CALL):
        part = receipts[start : start + _RECEIPTS_IN_A_CALL]
        asked = [
            LedgerRequest(
                lineage,
                one.client,
                one.time,
                (Line(replaced(one.terms, blocks=()) if as_one else one.terms, one.questions),),
                group=one.group,
            )
            for one in part
        ]
        for old, charge in zip(part, await ledger.apply(lineage, asked), strict=True):
            done += [(old, new) for new in charge.receipts]
    return done


async def _lost_receipts(
    ledger: Ledger, lineage: str, newest: int, journals: Sequence[JournalContents]
) -> list[Receipt]:
    """Return the receipts of the journals that name a question which the store does not know as paid for, by number."""
    paid: dict[str, set[bytes]] = {}
    async for receipt in all_receipts(ledger, lineage, newest):
        paid.setdefault(receipt.client, set()).update(receipt.questions)
    if (await ledger.lineage(lineage)).archived:
        await _add_stored_questions(ledger, lineage, paid)
    # A receipt without a client is of the lineage alone, whose questions may stand in anybody's receipts.
    everyone = set().union(*paid.values())
    # By hash, as copies of one journal hold the same receipts.
    lost = {
        receipt.hash: receipt
        for journal in journals
        for receipt in journal.receipts
        if not (paid.get(receipt.client, set()) if receipt.client else everyone).issuperset(receipt.questions)
    }
    return sorted(lost.values(), key=lambda receipt: receipt.sequence)


async def _add_stored_questions(ledger: Ledger, lineage: str, paid: dict[str, set[bytes]]) -> None:
    """Add the questions that the store takes for paid, by client: archived receipts cannot say who paid for them."""
    keys, names = LineageKeys(lineage), (await ledger.numbers(lineage))["client"]
    async for page in ledger.scan_pages(lineage, keys.questions):
        for question, owners in page.items():
            paid.setdefault(names.get(owners.split(b" ")[0], ""), set()).add(question)
    for client in await ledger.clients(lineage):
        async for page in ledger.scan_pages(lineage, keys.client(client.client).questions):
            paid.setdefault(client.client, set()).update(page)


def _missing(journals: Sequence[JournalContents], lost: Sequence[Receipt], newest: int) -> int:
    """Return how many receipts at least must have been lost beside `lost`: the gaps that these show."""
    if not lost:
        return 0
    first, last = min(newest + 1, lost[0].sequence), lost[-1].sequence
    sequences = {receipt.sequence for journal in journals for receipt in journal.receipts}
    return last - first + 1 - len(sequences.intersection(range(first, last + 1)))


async def _missing_archived(ledger: Ledger, lineage: str, journals: Sequence[JournalContents]) -> int:
    """Return how many calls at least must have been lost that no journal holds, as they were archived when it went on.

    They are in the archive's files, and a store from before that archive does not know of it.
    """
    acts = await all_acts(ledger, lineage, (await ledger.lineage(lineage)).newest_act)
    with reading(lineage):
        known = {pair for seal in seals_of(acts) for pair in sealed_links([seal]).items()}
        heard = Counter[str]()
        for act in acts:
            for one in act.details["services"] if act.kind == RECONCILE else ():
                heard[one["service"]] = max(heard[one["service"]], one["writes"])
    return len(
        {
            (journal.service, resumption.link)
            for journal in journals
            for resumption in journal.resumptions
            if resumption.writes > heard[journal.service]
        }
        - known
    )


async def _declaration(
    ledger: Ledger, lineage: str, declared: DeclaredLoss, paying: frozenset[str] | None
) -> LedgerRequest:
    """Return the charge of a declared loss: one question, which stands for so many releases.

    paying: the blocks that the lineage has by then, or None where it is charged as one.
    It is a digest of the loss and of how often the lineage was reconciled: a reconciliation that was cut short is
    finished by the same words and charges once. Raises CannotRecover for the same loss in an earlier one.
    """
    account = await ledger.lineage(lineage)
    before = sum(act.kind == "reconcile" for act in await all_acts(ledger, lineage, account.newest_act))
    charged = set(await ledger.scan(lineage, LineageKeys(lineage).questions))
    if not declared.another and any(_question_of(lineage, declared, round_) in charged for round_ in range(before)):
        raise CannotRecover(
            f"this loss of lineage {lineage} was declared before and is charged; if as much was lost once more, say "
            + OptionName("declare_again")
        )
    if paying and not declared.blocks:
        raise CannotRecover(str(BlocksNotNamed(lineage)))
    unknown = sorted(set(declared.blocks).difference(paying)) if paying else []
    if unknown and not declared.blocks_were_lost:  # of a lineage that lost all of them, none can be a slip
        raise CannotRecover(
            f"neither the store nor a journal knows a block {unknown[0]!r} of lineage {lineage}, which has "
            f"{', '.join(sorted(paying or ()))}: if it was lost, too, say so with "
            + OptionName("blocks_were_lost")
            + "; it comes back without a budget"
        )
    cost, blocks = declared.cost, () if paying is None else declared.blocks
    terms = charge_terms("declared loss", "declared loss", cost, declared.releases, blocks=blocks)
    line = Line(terms, (_question_of(lineage, declared, before),))
    return LedgerRequest(lineage, declared.client, declared.time, (line,))


async def _group_of(ledger: Ledger, lineage: str, client: str) -> str:
    """Return the group of a client, which pays for what the client lost, too; nothing for one that is not known."""
    with suppress(UnknownClient):
        return (await ledger.client(lineage, client)).group if client else ""
    return ""


def _question_of(lineage: str, declared: DeclaredLoss, before: int) -> bytes:
    loss = (lineage, before, declared.client, str(declared.cost), declared.releases, *declared.blocks)
    return digest("dpserve declared loss", *loss)[:QUESTION]
