"""Backing a ledger up, restoring it, and reconciling it with what its services remember.

A store that was restored is older than what it acknowledged, so every service that kept its journal refuses to go on
until `reconcile` has put back the receipts that the journals hold.

Promises: putting receipts back never charges a question twice, however often it is done, for a receipt names the
questions that it paid for; it looks at no limit, because what was released was released; receipts that nobody remembers
are not passed over in silence, they have to be declared and are charged.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Struct

from accounting.ledger.accounts import UNREADABLE, reading
from accounting.ledger.books import Books
from accounting.ledger.errors import (
    LedgerDamaged,
    LedgerError,
    LineageForgotten,
    OtherUnit,
    UnknownClient,
    UnknownLineage,
)
from accounting.ledger.journal import FORGETFUL, JournalContents
from accounting.ledger.ledger import Ledger
from accounting.ledger.receipts import (
    QUESTION,
    Act,
    EntryFields,
    Numbers,
    Receipt,
    charge_terms,
    digest,
    entry_of_act,
    entry_of_receipt,
)
from accounting.ledger.store import binary
from accounting.ledger.values import ClientAccount, GroupAccount, LedgerRequest, Line
from accounting.ledger.verification import all_acts, all_receipts
from accounting.ledger.wire import LineageKeys, read_account
from accounting.losses import Cost
from accounting.messages import OptionName

_FORMAT = "dpserve ledger backup 6"
_RECEIPTS_IN_A_CALL = 200
_WORDS_IN_A_CALL = 5000


class CannotRecover(LedgerError):
    """The ledger cannot be backed up, restored or reconciled like this; one line says why. Nothing was changed."""


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


@dataclass(frozen=True)
class Reconciliation:
    """The result of reconciling a lineage."""

    lineage: str
    put_back: int
    renumbered: int
    declared: int
    services: int


class _Section(Struct, frozen=True):
    """The part of a backup that precedes the receipts of one lineage.

    `account`, `clients`, `groups` and `services` are the fields of the accounts, and of the services that ever wrote to
    the lineage, as they lie in the store. What was paid for, the terms and the clients' indices are in the receipts.
    """

    lineage: str
    account: dict[bytes, bytes]
    clients: dict[str, dict[bytes, bytes]]
    groups: dict[str, dict[bytes, bytes]]
    services: dict[bytes, bytes]
    acts: list[Act]


class _Line(Struct, frozen=True, omit_defaults=True):
    """A line of a backup: its format, a lineage, a receipt of it, or the SHA-256 of all lines before."""

    format: str = ""
    section: _Section | None = None
    receipt: Receipt | None = None
    end: str = ""


async def backup(ledger: Ledger, lineages: Sequence[str] = ()) -> AsyncIterator[str]:
    """Yield the lines of a backup of these lineages, of every one if none is named; the last holds their SHA-256.

    Raises CannotRecover, at the latest instead of the last line, for a lineage whose books are not right: restoring
    them could spend less than was spent.
    """
    summed = hashlib.sha256()
    async for line in _backup_sections(ledger, lineages or await ledger.lineage_names()):
        packed = msgspec.json.encode(line) + b"\n"
        summed.update(packed)
        yield packed.decode()
    yield msgspec.json.encode(_Line(end=summed.hexdigest())).decode() + "\n"


async def _backup_sections(ledger: Ledger, lineages: Iterable[str]) -> AsyncIterator[_Line]:
    yield _Line(format=_FORMAT)
    for lineage in lineages:
        keys = LineageKeys(lineage)
        fields = await ledger.read_accounts(lineage, keys.services)
        account, (services,) = fields.lineage, fields.others
        if not account:
            try:
                await ledger.lineage_or_forgotten(lineage)
            except UnknownLineage:
                continue  # listed, and never opened
        with reading(lineage):
            newest, newest_act = int(account[b"seq"]), int(account[b"acts"])
        acts = await all_acts(ledger, lineage, newest_act)
        section = _Section(lineage, account, fields.clients, fields.groups, services, acts)
        books = Books(lineage, acts)
        yield _Line(section=section)
        async for receipt in all_receipts(ledger, lineage, newest):
            books.enter(receipt)
            yield _Line(receipt=receipt)
        with reading(lineage):
            _compare(section, books)
        if books.findings:
            raise CannotRecover(
                f"lineage {lineage} is not right: {books.findings[0]}; 'dpserve ledger verify' says all that is wrong, "
                "and a backup from before or the journals can mend it"
            )


def _compare(section: _Section, books: Books) -> None:
    """Compare the accounts of a section with its receipts. Raises KeyError or ValueError for what cannot be read."""
    keys = LineageKeys(section.lineage)
    whole = read_account(keys.own, section.account)
    inner: list[ClientAccount | GroupAccount | None] = [
        *(read_account(keys.client(name), fields) for name, fields in section.clients.items()),
        *(read_account(keys.group(name), fields) for name, fields in section.groups.items()),
    ]
    if whole is None or None in inner:
        raise ValueError("an account has no fields")
    books.compare(whole, [account for account in inner if account is not None])


async def restore(ledger: Ledger, lines: Iterable[str]) -> list[str]:
    """Restore the lineages of a backup into a ledger that has none of them; return their names.

    Raises CannotRecover, having changed nothing, for a backup that is damaged or a lineage that exists; LedgerDamaged
    if what was written is not what the backup says: then the lineage may spend nothing.
    """
    try:
        sections = _read_backup(lines)
    except UNREADABLE as error:
        raise CannotRecover(f"the backup cannot be read: {error}") from error
    for section, _, books in sections:
        if books.findings:
            raise CannotRecover(f"the backup of lineage {section.lineage} is not whole: {books.findings[0]}")
        with suppress(UnknownLineage, LedgerDamaged):  # what was half restored is gone on with, and compared at the end
            if (await ledger.lineage_or_forgotten(section.lineage)).is_forgotten:
                raise CannotRecover(str(LineageForgotten(section.lineage)))
            raise CannotRecover(f"the ledger has a lineage {section.lineage} already; restore into an empty one")
    for section, receipts, books in sections:
        await _restore_section(ledger, section, receipts, books)
    return [section.lineage for section, *_ in sections]


def _read_backup(lines: Iterable[str]) -> list[tuple[_Section, list[Receipt], Books]]:
    summed, sections, end = hashlib.sha256(), list[tuple[_Section, list[Receipt], Books]](), ""
    for number, text in enumerate(lines):
        line = msgspec.json.decode(text, type=_Line)
        if end or (number == 0 and line.format != _FORMAT):
            raise CannotRecover(f"this is not a backup of a ledger in the format {_FORMAT!r}")
        if line.end:
            end = line.end
            continue
        summed.update(text.encode())
        if line.section is not None:
            sections.append((line.section, [], Books(line.section.lineage, line.section.acts)))
        elif line.receipt is not None:
            _, receipts, books = sections[-1]
            receipts.append(line.receipt)
            books.enter(line.receipt)
    if end != summed.hexdigest():
        raise CannotRecover("the backup is cut short or was altered")
    for section, _, books in sections:
        _compare(section, books)
    return sections


async def _restore_section(ledger: Ledger, section: _Section, receipts: Sequence[Receipt], books: Books) -> None:
    """Restore a lineage. Its account comes last: without it every call finds the lineage lost."""
    lineage, keys = section.lineage, LineageKeys(section.lineage)
    numbers: Numbers = {
        "terms": {one: b"%d" % number for number, one in enumerate(dict.fromkeys(one.terms for one in receipts), 1)},
        "client": {name: fields[b"number"] for name, fields in section.clients.items()} | {"": b"0"},
        "group": {name: fields[b"number"] for name, fields in section.groups.items()} | {"": b"0"},
        "service": {entry.decode(): value.split(b" ")[0] for entry, value in section.services.items()},
    }
    writing = _Restoring(ledger, lineage)
    await writing.hash(keys.services, section.services)
    for key, names in ((keys.clients, numbers["client"]), (keys.groups, numbers["group"])):
        await writing.hash(key, {name.encode(): number for name, number in names.items() if name})
    await writing.hash(keys.terms, {one.encoding: number for one, number in numbers["terms"].items()})
    await writing.stream(keys.acts, map(entry_of_act, section.acts))
    owners: dict[bytes, bytes] = {}
    for name, fields in section.clients.items():
        own, paid = keys.client(name), books.payers[keys.client(name).subject]
        account = read_account(own, fields)
        owners |= {
            key.digest: f"{' '.join(key.terms)} {name}".encode() for key in (account.api_keys if account else ())
        }
        await writing.hash(own.account, fields)
        await writing.set(own.questions, books.paid_later(own.subject))
        await writing.stream(own.receipts, ((f"{number}-{sequence}", ["", ""]) for number, sequence in paid.numbers))
    for name, fields in section.groups.items():
        its = keys.group(name)
        await writing.hash(its.account, fields)
        await writing.set(its.questions, books.paid_later(its.subject))
    await writing.hash(keys.api_keys, owners)
    await writing.stream(keys.receipts, (entry_of_receipt(receipt, numbers) for receipt in receipts))
    first = {
        question: numbers["client"][client] + (b" " + numbers["group"][group] if group else b"")
        for question, (client, group) in books.first_payers.items()
    }
    await writing.hash(keys.questions, first)
    right = [one async for one in all_receipts(ledger, lineage, len(receipts) + 1)] == receipts
    right = right and await all_acts(ledger, lineage, len(section.acts) + 1) == section.acts
    # What an earlier restore left behind, of another backup, must not mix with this one: a key that was taken away.
    if not right or not await writing.is_all_there_is():
        raise LedgerDamaged(lineage, "what was restored is not what the backup says; empty the ledger")
    await ledger.list_lineage(lineage)
    await writing.hash(keys.account, section.account)


class _Restoring:
    """Writes the keys of a lineage that has no account yet, a part at a time."""

    def __init__(self, ledger: Ledger, lineage: str) -> None:
        self._ledger = ledger
        self._lineage = lineage
        self._written: dict[str, Mapping[bytes, bytes]] = {}

    async def is_all_there_is(self) -> bool:
        """Return whether each hash and set holds what was written, and nothing else."""
        return all([await self._ledger.scan(self._lineage, key) == it for key, it in self._written.items() if it])

    async def hash(self, key: str, fields: Mapping[bytes, bytes]) -> None:
        self._written[key] = fields
        await self._write(key, "hash", [list(pair) for pair in fields.items()])

    async def set(self, key: str, members: Iterable[bytes]) -> None:
        self._written[key] = dict.fromkeys(members, b"")
        await self._write(key, "set", [[member] for member in self._written[key]])

    async def stream(self, key: str, entries: Iterable[tuple[str, EntryFields]]) -> None:
        await self._write(key, "stream", [[id_, *words] for id_, words in entries])

    async def _write(self, key: str, kind: str, entries: Sequence[Sequence[str | bytes | int]]) -> None:
        width = len(entries[0]) if entries else 1
        at_once = min(_WORDS_IN_A_CALL // width, _RECEIPTS_IN_A_CALL if kind == "stream" else _WORDS_IN_A_CALL)
        keys = [key, LineageKeys(self._lineage).account]
        for start in range(0, len(entries), at_once):
            words = [_word(word) for entry in entries[start : start + at_once] for word in entry]
            part = {"kind": kind, "width": width, "words": words}
            if await self._ledger.call(self._lineage, "restore", keys, part, durably=True) != [b"done"]:
                raise LedgerDamaged(self._lineage, "somebody opened it while it was restored; empty the ledger")


def _word(word: str | bytes | int) -> Any:
    return binary(word) if isinstance(word, bytes) else str(word)


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
    missing = _missing(own, lost, account.newest_receipt)
    wrote = (await ledger.numbers(lineage))["service"].values()
    # A service that forgets keeps no journal, so none of its journals can be missing.
    kept = {service for service in wrote if not service.startswith(FORGETFUL)}
    unheard = sorted(kept - {journal.service for journal in own})
    if (missing or unheard) and declared is None:
        raise LossUndeclared(lineage, missing, unheard)
    await _restore_unit(ledger, lineage, {journal.charged_unit for journal in own} | {unit})
    # Before anything is put back, because it may refuse.
    declaration = await _declaration(ledger, lineage, declared) if declared is not None and declared.releases else None
    charged = await put_back(ledger, lineage, lost)
    if declaration is not None:  # after what is put back, which says what group a client that was lost belongs to
        group = await _group_of(ledger, lineage, declaration.client)
        await ledger.apply(lineage, [replace(declaration, group=group)])
    releases = declared.releases if declared is not None else 0
    services = [{"service": journal.service, "writes": journal.writes, "link": journal.link.hex()} for journal in own]
    details = {"put_back": len(lost), "declared": releases, "services": services}
    writes = {"services": [{"service": one["service"], "writes": one["writes"]} for one in services]}
    await ledger.act(lineage, "reconcile", [], writes, kind="reconcile", subject="lineage", details=details)
    renumbered = sum(new.sequence != old.sequence for old, new in charged)
    return Reconciliation(lineage, len(charged), renumbered, releases, len(own))


async def _restore_unit(ledger: Ledger, lineage: str, units: set[str | None]) -> None:
    """Settle the unit that journals and the owner know, before anything else. Raises CannotRecover if they differ."""
    try:
        for unit in units - {None}:
            await ledger.restore_unit(lineage, unit or "")
    except OtherUnit as error:
        raise CannotRecover(f"the store, the journals and you name different privacy units: {error}") from None


async def put_back(ledger: Ledger, lineage: str, receipts: Sequence[Receipt]) -> list[tuple[Receipt, Receipt]]:
    """Charge receipts that the store may lack; what was paid for is left alone. Raises UnknownLineage.

    Returns those of which something was charged, each with its new receipt. Raises CannotRecover, before any is put
    back.
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
            LedgerRequest(lineage, one.client, one.time, (Line(one.terms, one.questions),), group=one.group)
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


def _missing(journals: Sequence[JournalContents], lost: Sequence[Receipt], newest: int) -> int:
    """Return how many receipts at least must have been lost beside `lost`: the gaps that these show."""
    if not lost:
        return 0
    first, last = min(newest + 1, lost[0].sequence), lost[-1].sequence
    sequences = {receipt.sequence for journal in journals for receipt in journal.receipts}
    return last - first + 1 - len(sequences.intersection(range(first, last + 1)))


async def _declaration(ledger: Ledger, lineage: str, declared: DeclaredLoss) -> LedgerRequest:
    """Return the charge of a declared loss: one question, which stands for so many releases.

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
    terms = charge_terms("declared loss", "declared loss", declared.cost, declared.releases)
    line = Line(terms, (_question_of(lineage, declared, before),))
    return LedgerRequest(lineage, declared.client, declared.time, (line,))


async def _group_of(ledger: Ledger, lineage: str, client: str) -> str:
    """Return the group of a client, which pays for what the client lost, too; nothing for one that is not known."""
    with suppress(UnknownClient):
        return (await ledger.client(lineage, client)).group if client else ""
    return ""


def _question_of(lineage: str, declared: DeclaredLoss, before: int) -> bytes:
    loss = (lineage, before, declared.client, str(declared.cost), declared.releases)
    return digest("dpserve declared loss", *loss)[:QUESTION]
