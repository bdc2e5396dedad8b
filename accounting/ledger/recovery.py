"""Backing a ledger up, restoring it, and reconciling it with what its services remember.

A backup holds accounts, acts and receipts, and not the answered rows: after a restoration every row costs again,
and nothing that was spent is forgotten. A store that was restored is older than what it acknowledged, so every
service that kept its journal refuses to go on until `reconcile` has put back the receipts that the journals hold.

Promises: putting receipts back never charges one twice, however often it is done; it looks at no limit, because
what was released was released; receipts that nobody remembers are not passed over in silence, they have to be
declared and are charged.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from accounting.ledger import chain
from accounting.ledger.accounts import reading
from accounting.ledger.backups import Balances, CannotBackUp, CannotRestore, Section, lines_of, sections_of
from accounting.ledger.errors import LedgerDamaged, LedgerError, UnknownLineage
from accounting.ledger.holdings import apply_held_call, check_coins
from accounting.ledger.journal import JournalContents
from accounting.ledger.ledger import Ledger
from accounting.ledger.values import Receipt
from accounting.ledger.verification import all_acts, all_receipts
from accounting.ledger.wire import Argument, LineageKeys
from accounting.losses import Cost

__all__ = [
    "CannotBackUp",
    "CannotRestore",
    "DeclaredLoss",
    "LossDeclaredBefore",
    "LossUndeclared",
    "Reconciliation",
    "StepNotPaidFor",
    "apply",
    "backup",
    "reconcile",
    "restore",
]

_RECEIPTS_IN_A_CALL = 200

_WRITTEN_BY_ACTS = frozenset(
    (b"limit", b"accepts", b"delta", b"created", b"revoked", b"api_keys", b"acts", b"acts_head", b"epoch", b"format")
)
"""Of an account's fields those that its receipts do not write."""


class StepNotPaidFor(LedgerError):
    """A receipt names a step of a release that its model and cost are not those of. Nothing was put back."""

    def __init__(self, receipt: Receipt) -> None:
        """Say which receipt."""
        super().__init__(
            f"receipt {receipt.sequence} of lineage {receipt.lineage} names a step that it does not pay for: it was "
            "altered, or is none of this ledger's; leave its journal out"
        )


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
            f"{'; '.join(lost)}: give the journals of the other services with --journal, or declare at most how many "
            "rows they can have been for with --declare-lost, 0 if none"
        )


class LossDeclaredBefore(LedgerError):
    """The same loss was declared before, and charged. Nothing was changed."""

    def __init__(self, lineage: str) -> None:
        """Say what there is to be done."""
        super().__init__(
            f"this loss of lineage {lineage} was declared before and is charged; if as much was lost once more, say "
            "--declare-again"
        )


@dataclass(frozen=True)
class DeclaredLoss:
    """What the owner says was lost at most: releases, the cost of each, and of which client, or of an unknown one.

    With 0 releases the owner says that nothing was lost. The same loss is charged once, unless it is `another`.
    """

    releases: int
    cost: Cost
    client: str = ""
    time: float = 0.0
    another: bool = False

    def __post_init__(self) -> None:
        """Refuse a loss of less than nothing."""
        if self.releases < 0:
            raise ValueError(f"a declared loss must not be of {self.releases} releases")
        check_coins(self.cost)


@dataclass(frozen=True)
class Reconciliation:
    """What reconciling a lineage did."""

    lineage: str
    put_back: int
    renumbered: int
    declared: int
    services: int


async def backup(ledger: Ledger, lineages: Sequence[str] = ()) -> AsyncIterator[str]:
    """Yield the lines of a backup of these lineages, of every one if none is named; the last holds their SHA-256.

    Raises CannotBackUp, at the latest instead of the last line, for a lineage whose books are not right: restoring
    them could spend less than was spent.
    """
    async for line in lines_of(_backed_up(ledger, lineages or await ledger.lineage_names())):
        yield line


async def _backed_up(ledger: Ledger, lineages: Iterable[str]) -> AsyncIterator[Section | Receipt]:
    for lineage in lineages:
        try:
            section = await _section(ledger, lineage)
        except UnknownLineage:
            continue  # listed, and never opened
        with reading(lineage):
            balances, newest = Balances(section), int(section.account[b"seq"])
        yield section
        async for receipt in all_receipts(ledger, lineage, newest):
            balances.enter(receipt)
            yield receipt
        with reading(lineage):
            flaws = balances.flaws()
        if flaws:
            raise CannotBackUp(
                f"lineage {lineage} is not right: {flaws[0]}; 'dpserve ledger verify' says all that is wrong, and a "
                "backup from before or the journals can mend it"
            )


async def _section(ledger: Ledger, lineage: str) -> Section:
    while True:
        # What was put back after the accounts were read is not in them, and must not be taken for it.
        applied = await ledger.applied(lineage)
        own, clients, services = await ledger.stored_fields(lineage)
        if applied == await ledger.applied(lineage):
            break
    with reading(lineage):
        newest = int(own[b"acts"])
    acts = await all_acts(ledger, lineage, newest)
    return Section(lineage, own, clients, acts, frozenset(applied), frozenset(services))


async def restore(ledger: Ledger, lines: Iterable[str]) -> list[str]:
    """Restore the lineages of a backup into a ledger that has none of them; return their names.

    Raises CannotRestore, having changed nothing, for a backup that is damaged or a lineage that exists; LedgerDamaged
    if what was written is not what the backup says: then the lineage may spend nothing.
    """
    sections = sections_of(lines)
    existing = {account.lineage for account in await ledger.lineages()}
    for section, receipts in sections:
        if section.lineage in existing:
            raise CannotRestore(f"the ledger has a lineage {section.lineage} already; restore into an empty one")
        for receipt in receipts:
            if not receipt.pays_for_its_step:
                raise CannotRestore(str(StepNotPaidFor(receipt)))
    for section, receipts in sections:
        await _restore_section(ledger, section, receipts)
    return [section.lineage for section, _ in sections]


async def _restore_section(ledger: Ledger, section: Section, receipts: Sequence[Receipt]) -> None:
    """Restore a lineage that may spend nothing until all of it is there, so that half of it is no new beginning."""
    keys = LineageKeys(section.lineage)
    account = _undone(section.account) | {b"limit": b"0"}
    arguments: list[Argument] = [2 * len(account), *_flat(account)]
    arguments += [len(section.applied), *sorted(section.applied), len(section.services), *sorted(section.services)]
    for name, stored in section.clients.items():
        fields = _undone(stored)
        arguments += [name, fields[b"api_keys"], 2 * len(fields), *_flat(fields)]
    for act in section.acts:
        arguments += [f"{act.sequence}-0", act.kind, act.subject, act.detail, act.time, act.previous, act.hash]
    named = [keys.account, keys.acts, keys.tally, keys.receipts, keys.held, keys.rows, keys.applied]
    named += [keys.api_keys, keys.clients]
    named += [keys.client(name).account for name in section.clients]
    await ledger.list_lineage(section.lineage)
    await ledger.call(section.lineage, "restore", named, arguments, durably=True)
    outcomes = await apply(ledger, section.lineage, receipts)
    own, clients, _ = await ledger.stored_fields(section.lineage)
    own[b"limit"] = section.account[b"limit"]
    as_it_was = _holds(own, section.account) and clients.keys() == section.clients.keys()
    as_it_was = as_it_was and all(_holds(clients[name], stored) for name, stored in section.clients.items())
    if outcomes.count("appended") != len(receipts) or not as_it_was:
        raise LedgerDamaged(section.lineage, "what was restored is not what the backup says; empty the ledger")
    await ledger.call(section.lineage, "finish_restore", [keys.account], [section.account[b"limit"]], durably=True)


def _undone(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the fields of an account before its first receipt: putting the receipts back writes the others."""
    kept = {name: value for name, value in fields.items() if name in _WRITTEN_BY_ACTS}
    return kept | {b"spent": b"0"} | ({b"seq": b"0"} if b"seq" in fields else {})


def _holds(found: Mapping[bytes, bytes], fields: Mapping[bytes, bytes]) -> bool:
    return all(found.get(name) == value for name, value in fields.items())


async def reconcile(
    ledger: Ledger, lineage: str, journals: Sequence[JournalContents], declared: DeclaredLoss | None = None
) -> Reconciliation:
    """Put back every receipt that the lineage's journals hold and the store lacks, and let the services on again.

    Raises LossUndeclared if receipts are lost that no journal holds, or a service wrote to the lineage whose journal
    is not given, and no loss is declared; LossDeclaredBefore; UnknownLineage.
    """
    own = [journal for journal in journals if journal.lineage == lineage]
    lost = await _lost(ledger, lineage, own)
    missing = await _missing(ledger, lineage, lost)
    unheard = sorted((await ledger.stored_fields(lineage))[2] - {journal.service for journal in own})
    if (missing or unheard) and declared is None:
        raise LossUndeclared(lineage, missing, unheard)
    declaration = await _declaration(ledger, lineage, declared) if declared is not None else []
    outcomes = await apply(ledger, lineage, lost)
    releases = sum(receipt.rows for receipt in declaration)
    await apply(ledger, lineage, declaration)
    detail = f"{len(lost)} receipts put back, {releases} releases declared lost"
    keys = LineageKeys(lineage)
    services: list[Argument] = []
    for journal in own:
        services += [journal.service, journal.writes]
    await ledger.call(lineage, "reconcile", [keys.account, keys.acts], [detail, *services], durably=True)
    return Reconciliation(
        lineage, outcomes.count("appended") + outcomes.count("again"), outcomes.count("again"), releases, len(own)
    )


async def apply(ledger: Ledger, lineage: str, receipts: Sequence[Receipt]) -> list[str]:
    """Charge receipts that the store may lack; one that it has is left alone. Raises UnknownLineage.

    Returns for each: 'there', 'appended' (the next in the chain, as it was) or 'again' (under a new number). Raises
    StepNotPaidFor, before the first of them is put back.
    """
    outcomes: list[str] = []
    for receipt in receipts:
        if not receipt.pays_for_its_step:
            raise StepNotPaidFor(receipt)
    for held, run in groupby(receipts, key=lambda receipt: bool(receipt.held)):
        outcomes += await (_apply_held if held else _apply_rows)(ledger, lineage, list(run))
    return outcomes


async def _apply_held(ledger: Ledger, lineage: str, receipts: Sequence[Receipt]) -> list[str]:
    outcomes = []
    for receipt in receipts:
        (outcome,) = await ledger.call(lineage, "apply_held", *apply_held_call(receipt), durably=True)
        if outcome == b"unknown-lineage":
            raise UnknownLineage(lineage)
        outcomes.append(outcome.decode())
    return outcomes


async def _apply_rows(ledger: Ledger, lineage: str, receipts: Sequence[Receipt]) -> list[str]:
    keys, outcomes = LineageKeys(lineage), list[str]()
    for start in range(0, len(receipts), _RECEIPTS_IN_A_CALL):
        named = [keys.account, keys.tally, keys.receipts, keys.applied, keys.clients]
        places: dict[str, int] = {"": 0}
        arguments: list[Argument] = [lineage]
        for receipt in receipts[start : start + _RECEIPTS_IN_A_CALL]:
            if receipt.client not in places:
                places[receipt.client] = len(places)
                client = keys.client(receipt.client)
                named += [client.account, client.tally, client.receipts]
            arguments += [places[receipt.client], receipt.client, receipt.model, receipt.mechanism, str(receipt.cost)]
            arguments += [receipt.price, receipt.rows, repr(receipt.time), receipt.sequence]
            arguments += [receipt.hash, receipt.terms_digest]
        reply = await ledger.call(lineage, "apply", named, arguments, durably=True)
        if reply == [b"unknown-lineage"]:
            raise UnknownLineage(lineage)
        outcomes += [outcome.decode() for outcome in reply]
    return outcomes


async def _lost(ledger: Ledger, lineage: str, journals: Sequence[JournalContents]) -> list[Receipt]:
    """Return the receipts of the journals that are neither in the chain nor put back, by number."""
    remembered = {receipt.hash: receipt for journal in journals for receipt in journal.receipts}
    account = await ledger.lineage(lineage)
    there = await ledger.applied(lineage)
    async for receipt in all_receipts(ledger, lineage, account.newest_receipt):
        there.add(receipt.hash)
    return sorted((remembered[known] for known in remembered.keys() - there), key=lambda receipt: receipt.sequence)


async def _missing(ledger: Ledger, lineage: str, lost: Sequence[Receipt]) -> int:
    """Return how many receipts at least must have been lost beside `lost`: the gaps that these show."""
    if not lost:
        return 0
    first = lost[0]
    before = await ledger.receipts(lineage, after=first.sequence - 2, count=1) if first.sequence > 1 else []
    if first.sequence == 1:
        follows = first.previous == chain.GENESIS
    else:
        follows = bool(before) and before[0].sequence == first.sequence - 1 and before[0].hash == first.previous
    gaps = lost[-1].sequence - first.sequence + 1 - len({receipt.sequence for receipt in lost})
    newest = (await ledger.lineage(lineage)).newest_receipt
    return gaps + (0 if follows else max(1, first.sequence - 1 - newest))


async def _declaration(ledger: Ledger, lineage: str, declared: DeclaredLoss) -> list[Receipt]:
    """Return the receipt of a declared loss, none for a loss of nothing.

    Its hash stands for the loss and the epoch, which ends when a reconciliation does: one that was cut short is
    finished by the same words and charges once. Raises LossDeclaredBefore for the same loss in an earlier epoch.
    """
    if not declared.releases:
        return []
    epoch, applied = (await ledger.lineage(lineage)).epoch, await ledger.applied(lineage)
    before = (_receipt_of(lineage, declared, earlier).hash for earlier in range(epoch))
    if not declared.another and not applied.isdisjoint(before):
        raise LossDeclaredBefore(lineage)
    return [_receipt_of(lineage, declared, epoch)]


def _receipt_of(lineage: str, declared: DeclaredLoss, epoch: int) -> Receipt:
    loss = json.dumps(["declared loss", lineage, epoch, declared.client, str(declared.cost), declared.releases])
    return Receipt(
        sequence=0,
        lineage=lineage,
        client=declared.client,
        model="declared loss",
        mechanism="declared loss",
        cost=declared.cost,
        price=declared.cost.picorho,
        rows=declared.releases,
        total=declared.cost.picorho * declared.releases,
        time=declared.time,
        previous=chain.GENESIS,
        hash=hashlib.sha256(loss.encode()).digest(),
    )


def _flat(fields: Mapping[bytes, bytes]) -> list[bytes]:
    return [word for pair in fields.items() for word in pair]
