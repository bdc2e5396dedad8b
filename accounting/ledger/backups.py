"""Backing a ledger up, and restoring it, in bounded memory: receipts pass by page by page.

Promises: a backup is of right books or of none, and a file that is cut short or altered is refused before anything is
written; what is restored is what the file says, or else the lineage may spend nothing.
"""

import hashlib
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from accounting.ledger.accounts import UNREADABLE, reading
from accounting.ledger.books import Books
from accounting.ledger.errors import CannotRecover, LedgerDamaged, LineageForgotten, UnknownLineage
from accounting.ledger.ledger import Ledger
from accounting.ledger.questions import PaidQuestions
from accounting.ledger.receipts import Act, EntryFields, Numbers, Receipt, Terms, entry_of_act, entry_of_receipt
from accounting.ledger.store import binary
from accounting.ledger.values import BlockAccount, ClientAccount, GroupAccount, LineageAccount
from accounting.ledger.verification import all_acts, all_receipts
from accounting.ledger.wire import LineageKeys, read_account

_FORMAT = "dpserve ledger backup 7"
_FORMER_FORMAT = "dpserve ledger backup 6"
"""That of backups which know no blocks, and are read all the same: no lineage of theirs has any."""

_RECEIPTS_IN_A_CALL = 200
_ENTRIES_IN_A_CALL = 2500
_RECEIPTS_IN_A_PAGE = 2000

_Entry = TypeVar("_Entry")


class _Section(Struct, frozen=True):
    """The part of a backup that precedes the receipts of one lineage.

    `account`, `clients`, `groups`, `blocks` and `services` are the fields of the accounts, and of the services that
    ever wrote to the lineage, as they lie in the store. What was paid for, the terms and the clients' indices are in
    the receipts.
    """

    lineage: str
    account: dict[bytes, bytes]
    clients: dict[str, dict[bytes, bytes]]
    groups: dict[str, dict[bytes, bytes]]
    services: dict[bytes, bytes]
    acts: list[Act]
    blocks: dict[str, dict[bytes, bytes]] = {}


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
        section = _Section(lineage, account, fields.clients, fields.groups, services, acts, fields.blocks)
        with reading(lineage):
            whole, inner = _accounts_of(section)
        books = Books(lineage, acts, [whole, *inner])
        yield _Line(section=section)
        async for receipt in all_receipts(ledger, lineage, newest):
            books.enter(receipt)
            yield _Line(receipt=receipt)
        books.compare(whole, inner)
        if books.findings:
            raise CannotRecover(
                f"lineage {lineage} is not right: {books.findings[0]}; 'dpserve ledger verify' says all that is wrong, "
                "and a backup from before or the journals can mend it"
            )


def _accounts_of(section: _Section) -> tuple[LineageAccount, list[ClientAccount | GroupAccount | BlockAccount]]:
    """Read the accounts of a section: the lineage's, and the others. Raises KeyError or ValueError."""
    keys = LineageKeys(section.lineage)
    whole = read_account(keys.own, section.account)
    inner: list[ClientAccount | GroupAccount | BlockAccount | None] = [
        *(read_account(keys.client(name), fields) for name, fields in section.clients.items()),
        *(read_account(keys.group(name), fields) for name, fields in section.groups.items()),
        *(read_account(keys.block(name), fields) for name, fields in section.blocks.items()),
    ]
    if whole is None or None in inner:
        raise ValueError("an account has no fields")
    return whole, [account for account in inner if account is not None]


@dataclass
class _Contents:
    """A section of a backup that was read: how many receipts it has, their digest, and the terms that they name."""

    section: _Section
    receipts: int = 0
    digest: "_ReceiptsDigest" = field(default_factory=lambda: _ReceiptsDigest())
    terms: dict[Terms, bytes] = field(default_factory=dict)

    def add(self, receipt: Receipt) -> None:
        self.receipts += 1
        self.digest.add(receipt)
        self.terms.setdefault(receipt.terms, b"%d" % (len(self.terms) + 1))


class _ReceiptsDigest:
    """The SHA-256 of receipts in order."""

    def __init__(self) -> None:
        self._summed = hashlib.sha256()

    def add(self, receipt: Receipt) -> None:
        self._summed.update(msgspec.json.encode(receipt) + b"\n")

    @property
    def value(self) -> bytes:
        return self._summed.digest()


async def restore(ledger: Ledger, lines: Iterable[str]) -> list[str]:
    """Restore the lineages of a backup into a ledger that has none of them; return their names.

    lines: can be iterated over more than once, as an open file cannot. They are read twice, so that nothing is written
    of a backup that is not right.

    Raises CannotRecover, having changed nothing, for a backup that is damaged or a lineage that exists; LedgerDamaged
    if what was written is not what the backup says: then the lineage may spend nothing.
    """
    try:
        contents = _read_backup(lines)
    except UNREADABLE as error:
        raise CannotRecover(f"the backup cannot be read: {error}") from error
    for one in contents:
        lineage = one.section.lineage
        with suppress(UnknownLineage, LedgerDamaged):  # what was half restored is gone on with, and compared at the end
            if (await ledger.lineage_or_forgotten(lineage)).is_forgotten:
                raise CannotRecover(str(LineageForgotten(lineage)))
            raise CannotRecover(f"the ledger has a lineage {lineage} already; restore into an empty one")
    receipts = (line.receipt for line in map(_read_line, lines) if line.receipt is not None)
    for one in contents:
        await _restore_section(ledger, one, itertools.islice(receipts, one.receipts))
    return [one.section.lineage for one in contents]


_read_line = msgspec.json.Decoder(_Line).decode


def _read_backup(lines: Iterable[str]) -> list[_Contents]:
    """Read a backup once, and check all that it says. Raises CannotRecover, and what `UNREADABLE` names."""
    summed, contents, end = hashlib.sha256(), list[_Contents](), ""
    books = None
    for number, text in enumerate(lines):
        line = _read_line(text)
        if end or (number == 0 and line.format not in (_FORMAT, _FORMER_FORMAT)):
            raise CannotRecover(f"this is not a backup of a ledger in the format {_FORMAT!r}")
        if line.end:
            end = line.end
            continue
        summed.update(text.encode())
        if line.section is not None:
            _check_section(contents, books)
            whole, inner = _accounts_of(line.section)
            books = Books(line.section.lineage, line.section.acts, [whole, *inner])
            contents.append(_Contents(line.section))
        elif line.receipt is not None:
            if books is None:
                raise ValueError("a receipt is of no lineage")
            books.enter(line.receipt)
            contents[-1].add(line.receipt)
    if end != summed.hexdigest():
        raise CannotRecover("the backup is cut short or was altered")
    _check_section(contents, books)
    return contents


def _check_section(contents: Sequence[_Contents], books: Books | None) -> None:
    """Raise CannotRecover unless the books of the newest section are right."""
    if books is not None:
        books.compare(*_accounts_of(contents[-1].section))
        if books.findings:
            raise CannotRecover(f"the backup of lineage {books.lineage} is not whole: {books.findings[0]}")


async def _restore_section(ledger: Ledger, contents: _Contents, receipts: Iterable[Receipt]) -> None:
    """Restore a lineage. Its account comes last: without it every call finds the lineage lost."""
    section = contents.section
    lineage, keys = section.lineage, LineageKeys(section.lineage)
    numbers: Numbers = {
        "terms": contents.terms,
        "client": {name: fields[b"number"] for name, fields in section.clients.items()} | {"": b"0"},
        "group": {name: fields[b"number"] for name, fields in section.groups.items()} | {"": b"0"},
        "service": {entry.decode(): value.split(b" ")[0] for entry, value in section.services.items()},
    }
    writing = _Restoring(ledger, lineage)
    await writing.hash(keys.services, section.services)
    blocks = {name: fields[b"number"] for name, fields in section.blocks.items()}
    listed = ((keys.clients, numbers["client"]), (keys.groups, numbers["group"]), (keys.blocks, blocks))
    for key, names in listed:
        await writing.hash(key, {name.encode(): number for name, number in names.items() if name})
    await writing.hash(keys.terms, {one.encoding: number for one, number in numbers["terms"].items()})
    await writing.stream(keys.acts, map(entry_of_act, section.acts))
    owners: dict[bytes, bytes] = {}
    for name, fields in section.clients.items():
        account = read_account(keys.client(name), fields)
        owners |= {
            key.digest: f"{' '.join(key.terms)} {name}".encode() for key in (account.api_keys if account else ())
        }
        await writing.hash(keys.client(name).account, fields)
    accounts = {keys.group(name).account: fields for name, fields in section.groups.items()}
    accounts |= {keys.block(name).account: fields for name, fields in section.blocks.items()}
    for key, fields in accounts.items():
        await writing.hash(key, fields)
    await writing.hash(keys.api_keys, owners)
    books = Books(lineage, section.acts)
    for page in _batches(receipts, _RECEIPTS_IN_A_PAGE):
        own: dict[str, list[tuple[str, EntryFields]]] = {}
        for receipt in page:
            books.enter(receipt)
            if receipt.client:
                entries = own.setdefault(keys.client(receipt.client).receipts, [])
                entries.append((f"{receipt.number}-{receipt.sequence}", ["", ""]))
        for key, entries in own.items():
            await writing.stream(key, entries)
        await writing.stream(keys.receipts, (entry_of_receipt(receipt, numbers) for receipt in page))
    await _restore_questions(writing, section, books, numbers)
    digest_of_stored = _ReceiptsDigest()
    async for receipt in all_receipts(ledger, lineage, contents.receipts + 1):
        digest_of_stored.add(receipt)
    right = digest_of_stored.value == contents.digest.value
    right = right and await all_acts(ledger, lineage, len(section.acts) + 1) == section.acts
    # What an earlier restore left behind, of another backup, must not mix with this one: a key that was taken away.
    if not right or not await writing.is_all_there_is():
        raise LedgerDamaged(lineage, "what was restored is not what the backup says; empty the ledger")
    await ledger.list_lineage(lineage)
    await writing.hash(keys.account, section.account)


async def _restore_questions(writing: "_Restoring", section: _Section, books: Books, numbers: Numbers) -> None:
    keys = LineageKeys(section.lineage)
    for own in (*map(keys.client, section.clients), *map(keys.group, section.groups)):
        await writing.large(own.questions, "set", _Later(books.paid, own.subject))
    await writing.large(keys.questions, "hash", _First(books.paid, numbers))


@dataclass(frozen=True)
class _First:
    """The hash of the lineage's questions, as it is to be restored."""

    paid: PaidQuestions
    numbers: Numbers

    def entries(self) -> Iterator[list[bytes]]:
        for question, (client, group) in self.paid.first_payments():
            its = self.numbers["group"][group] if group else b""
            yield [question, self.numbers["client"][client] + (b" " + its if group else b"")]

    def match(self, question: bytes, value: bytes) -> bool:
        payment = self.paid.first_payment(question)
        if payment is None:
            return False
        client, group = payment
        right = self.numbers["client"][client] + (b" " + self.numbers["group"][group] if group else b"")
        return value == right and self.paid.match_first(question, payment)

    def is_matched(self) -> bool:
        return not self.paid.lacks_first()


@dataclass(frozen=True)
class _Later:
    """The set of questions that a client or group paid for after somebody else, as it is to be restored."""

    paid: PaidQuestions
    subject: str

    def entries(self) -> Iterator[list[bytes]]:
        return ([question] for question in self.paid.paid_later(self.subject))

    def match(self, question: bytes, _: bytes) -> bool:
        return self.paid.match_later(self.subject, question)

    def is_matched(self) -> bool:
        return not self.paid.lacks_later(self.subject)


class _Restoring:
    """Writes the keys of a lineage that has no account yet, a part at a time."""

    def __init__(self, ledger: Ledger, lineage: str) -> None:
        self._ledger = ledger
        self._lineage = lineage
        self._written: dict[str, Mapping[bytes, bytes]] = {}
        self._large: dict[str, _First | _Later] = {}

    async def is_all_there_is(self) -> bool:
        """Return whether each hash and set holds what was written, and nothing else."""
        for key, fields in self._written.items():
            if fields and await self._ledger.scan(self._lineage, key) != fields:
                return False
        for key, questions in self._large.items():
            async for page in self._ledger.scan_pages(self._lineage, key):
                if not all(questions.match(*entry) for entry in page.items()):
                    return False
            if not questions.is_matched():
                return False
        return True

    async def hash(self, key: str, fields: Mapping[bytes, bytes]) -> None:
        self._written[key] = fields
        await self._write(key, "hash", (list(pair) for pair in fields.items()))

    async def large(self, key: str, kind: str, questions: _First | _Later) -> None:
        self._large[key] = questions
        await self._write(key, kind, questions.entries())

    async def stream(self, key: str, entries: Iterable[tuple[str, EntryFields]]) -> None:
        await self._write(key, "stream", ([id_, *words] for id_, words in entries))

    async def _write(self, key: str, kind: str, entries: Iterable[Sequence[str | bytes | int]]) -> None:
        keys = [key, LineageKeys(self._lineage).account]
        for some in _batches(entries, _RECEIPTS_IN_A_CALL if kind == "stream" else _ENTRIES_IN_A_CALL):
            part = {"kind": kind, "width": len(some[0]), "words": [_word(word) for entry in some for word in entry]}
            if await self._ledger.call(self._lineage, "restore", keys, part, durably=True) != [b"done"]:
                raise LedgerDamaged(self._lineage, "somebody opened it while it was restored; empty the ledger")


def _batches(entries: Iterable[_Entry], count: int) -> Iterator[list[_Entry]]:
    left = iter(entries)
    while some := list(itertools.islice(left, count)):
        yield some


def _word(word: str | bytes | int) -> Any:
    return binary(word) if isinstance(word, bytes) else str(word)
