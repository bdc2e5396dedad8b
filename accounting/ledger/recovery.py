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
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from accounting.ledger import chain
from accounting.ledger.errors import LedgerError, UnknownLineage
from accounting.ledger.holdings import apply_held_call, check_coins
from accounting.ledger.journal import JournalContents, describe_receipt, receipt_from
from accounting.ledger.ledger import Ledger
from accounting.ledger.values import Act, Receipt
from accounting.ledger.verification import all_acts, all_receipts
from accounting.ledger.wire import Argument, LineageKeys
from accounting.losses import Cost

_FORMAT = "dpserve ledger backup 1"
_RECEIPTS_IN_A_CALL = 200


class CannotRestore(LedgerError):
    """The ledger cannot be restored from this; one line says why. Nothing was changed."""


class StepNotPaidFor(LedgerError):
    """A receipt names a step of a release that its model and cost are not those of. Nothing was put back."""

    def __init__(self, receipt: Receipt) -> None:
        """Say which receipt."""
        super().__init__(
            f"receipt {receipt.sequence} of lineage {receipt.lineage} names a step that it does not pay for: it was "
            "altered, or is none of this ledger's; leave its journal out"
        )


class LossUndeclared(LedgerError):
    """Receipts were lost that no journal holds. Nothing was changed. `missing` is how many there are at least."""

    def __init__(self, lineage: str, missing: int) -> None:
        """Say what there is to be done."""
        self.missing = missing
        super().__init__(
            f"{missing} or more receipts of lineage {lineage} are lost and in no journal: give the journals of the "
            "other services with --journal, or declare at most how many rows they can have been for with --declare-lost"
        )


@dataclass(frozen=True)
class DeclaredLoss:
    """What the owner says was lost at most: releases, the cost of each, and of which client, or of an unknown one."""

    releases: int
    cost: Cost
    client: str = ""
    time: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a loss of nothing."""
        if self.releases < 1:
            raise ValueError(f"a declared loss must be of at least one release, not {self.releases}")
        check_coins(self.cost)


@dataclass(frozen=True)
class Reconciliation:
    """What reconciling a lineage did."""

    lineage: str
    put_back: int
    renumbered: int
    declared: int
    services: int


async def backup(ledger: Ledger) -> AsyncIterator[str]:
    """Yield the lines of a backup of every lineage; the last one holds the SHA-256 of all before it."""
    digest = hashlib.sha256()
    async for value in _backup_values(ledger):
        line = json.dumps(value, separators=(",", ":")) + "\n"
        digest.update(line.encode())
        yield line
    yield json.dumps({"end": digest.hexdigest()}) + "\n"


async def _backup_values(ledger: Ledger) -> AsyncIterator[dict[str, Any]]:
    yield {"format": _FORMAT}
    for account in await ledger.lineages():
        lineage = account.lineage
        # The receipts' end is read before the clients: whoever is named in one of them is among these.
        own, clients = await ledger.stored_fields(lineage)
        newest, acts = int(own[b"seq"]), int(own[b"acts"])
        yield {
            "lineage": lineage,
            "account": _as_text(own),
            "clients": {name: _as_text(fields) for name, fields in clients.items()},
            "acts": [_described_act(act) for act in await all_acts(ledger, lineage, acts)],
        }
        async for receipt in all_receipts(ledger, lineage, newest):
            yield {"receipt": describe_receipt(receipt)}


async def restore(ledger: Ledger, lines: Iterable[str]) -> list[str]:
    """Restore the lineages of a backup into a ledger that has none of them; return their names.

    Raises CannotRestore, having changed nothing, for a backup that is damaged or a lineage that exists.
    """
    sections = _sections(lines)
    existing = {account.lineage for account in await ledger.lineages()}
    for section in sections:
        if section.lineage in existing:
            raise CannotRestore(f"the ledger has a lineage {section.lineage} already; restore into an empty one")
        for receipt in section.receipts:
            if not receipt.pays_for_its_step:
                raise CannotRestore(str(StepNotPaidFor(receipt)))
    for section in sections:
        await _restore_section(ledger, section)
    return [section.lineage for section in sections]


@dataclass(frozen=True)
class _Section:
    lineage: str
    account: dict[bytes, bytes]
    clients: dict[str, dict[bytes, bytes]]
    acts: list[Act]
    receipts: list[Receipt]


def _sections(lines: Iterable[str]) -> list[_Section]:
    digest, sections, ended = hashlib.sha256(), list[_Section](), False
    try:
        for number, line in enumerate(lines):
            value = json.loads(line)
            if ended or (number == 0 and value.get("format") != _FORMAT):
                raise CannotRestore("this is not a backup of a ledger")
            if "end" in value:
                ended = value["end"] == digest.hexdigest()
                if not ended:
                    break
            elif "lineage" in value:
                clients = {name: _as_bytes(fields) for name, fields in value["clients"].items()}
                acts = [_act_from(act) for act in value["acts"]]
                sections.append(_Section(value["lineage"], _as_bytes(value["account"]), clients, acts, []))
            elif "receipt" in value:
                sections[-1].receipts.append(receipt_from(value["receipt"]))
            digest.update(line.encode())
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise CannotRestore(f"the backup cannot be read: {error}") from error
    if not ended:
        raise CannotRestore("the backup is cut short or was altered")
    return sections


async def _restore_section(ledger: Ledger, section: _Section) -> None:
    keys = LineageKeys(section.lineage)
    unspent = {b"spent": b"0", b"seq": b"0"}  # putting the receipts back spends it again
    account = {name: value for name, value in section.account.items() if name != b"head"} | unspent
    arguments: list[Argument] = [2 * len(account), *_flat(account)]
    for name, stored in section.clients.items():
        fields = stored | {b"spent": b"0"}
        arguments += [name, fields[b"digest"], 2 * len(fields), *_flat(fields)]
    for act in section.acts:
        arguments += [f"{act.sequence}-0", act.kind, act.subject, act.detail, act.time, act.previous, act.hash]
    named = [keys.account, keys.acts, keys.tally, keys.receipts, keys.held, keys.rows, keys.applied]
    named += [keys.api_keys, keys.clients]
    named += [keys.client(name).account for name in section.clients]
    await ledger.list_lineage(section.lineage)
    await ledger.call(section.lineage, "restore", named, arguments, durably=True)
    await apply(ledger, section.lineage, section.receipts)


async def reconcile(
    ledger: Ledger, lineage: str, journals: Sequence[JournalContents], declared: DeclaredLoss | None = None
) -> Reconciliation:
    """Put back every receipt that the lineage's journals hold and the store lacks, and let the services on again.

    Raises LossUndeclared if receipts are lost that no journal holds and no loss is declared; UnknownLineage.
    """
    own = [journal for journal in journals if journal.lineage == lineage]
    lost = await _lost(ledger, lineage, own)
    missing = await _missing(ledger, lineage, lost)
    if missing and declared is None:
        raise LossUndeclared(lineage, missing)
    outcomes = await apply(ledger, lineage, lost)
    releases = 0
    if declared is not None:
        releases = declared.releases
        await apply(ledger, lineage, [_receipt_of(lineage, declared)])
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


def _receipt_of(lineage: str, declared: DeclaredLoss) -> Receipt:
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
        hash=secrets.token_bytes(32),  # two declarations are two losses
    )


def _flat(fields: dict[bytes, bytes]) -> list[bytes]:
    return [word for pair in fields.items() for word in pair]


def _as_text(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.hex() for name, value in fields.items()}


def _as_bytes(fields: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): bytes.fromhex(value) for name, value in fields.items()}


def _described_act(act: Act) -> dict[str, Any]:
    words = {name: getattr(act, name) for name in ("sequence", "kind", "subject", "detail", "time")}
    return words | {"previous": act.previous.hex(), "hash": act.hash.hex()}


def _act_from(described: dict[str, Any]) -> Act:
    hashes = {name: bytes.fromhex(described[name]) for name in ("previous", "hash")}
    return Act(**(described | hashes))
