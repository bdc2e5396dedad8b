"""Backing a ledger up, and restoring it, in bounded memory: receipts pass by page by page.

Promises: a backup is of right books or of none, and a file that is cut short or altered is refused before anything is
written; what is restored is what the file says, or else the lineage may spend nothing.
"""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from dpserve.accounting.ledger.books import Books
from dpserve.accounting.ledger.errors import (
    CannotRecover,
    LedgerDamaged,
    LedgerUnavailable,
    LineageForgotten,
    UnknownLineage,
)
from dpserve.accounting.ledger.ledger import Ledger
from dpserve.accounting.ledger.questions import PaidQuestions
from dpserve.accounting.ledger.reading import UNREADABLE, reading
from dpserve.accounting.ledger.receipts import (
    Act,
    EntryFields,
    Numbers,
    Receipt,
    Terms,
    account_subject,
    entry_of_act,
    entry_of_receipt,
)
from dpserve.accounting.ledger.store import binary
from dpserve.accounting.ledger.values import BlockAccount, ClientAccount, GroupAccount, LineageAccount
from dpserve.accounting.ledger.verification import Watcher, all_acts, receipt_pages, unwatched
from dpserve.accounting.ledger.wire import LineageKeys, read_account

_FORMAT = "dpserve ledger backup 8"

_ENTRIES_OF_A_STREAM = 500
_ENTRIES_IN_A_CALL = 2500
_MOST_WAITING = 100_000

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
    blocks: dict[str, dict[bytes, bytes]]
    services: dict[bytes, bytes]
    acts: list[Act]


class _Line(Struct, frozen=True, omit_defaults=True):
    """A line of a backup: its format, a lineage, a receipt of it, or the SHA-256 of all lines before."""

    format: str = ""
    section: _Section | None = None
    receipt: Receipt | None = None
    end: str = ""


async def backup(ledger: Ledger, lineages: Sequence[str] = (), *, watch: Watcher = unwatched) -> AsyncIterator[str]:
    """Yield the lines of a backup of these lineages, of every one if none is named; the last holds their SHA-256.

    Raises CannotRecover, at the latest instead of the last line, for a lineage whose books are not right: restoring
    them could spend less than was spent.
    """
    summed = hashlib.sha256()
    async for line in _sections(ledger, lineages or await ledger.lineage_names(), watch):
        packed = msgspec.json.encode(line) + b"\n"
        summed.update(packed)
        yield packed.decode()
    yield msgspec.json.encode(_Line(end=summed.hexdigest())).decode() + "\n"


async def _sections(ledger: Ledger, lineages: Iterable[str], watch: Watcher) -> AsyncIterator[_Line]:
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
        section = _Section(lineage, account, fields.clients, fields.groups, fields.blocks, services, acts)
        yield _Line(section=section)
        async for receipt in _checked_receipts(ledger, section, newest, watch):
            yield _Line(receipt=receipt)


async def _checked_receipts(ledger: Ledger, section: _Section, newest: int, watch: Watcher) -> AsyncIterator[Receipt]:
    """Yield the receipts of a section up to the newest, and raise CannotRecover if its books are not right."""
    lineage = section.lineage
    with reading(lineage):
        whole, inner = _accounts_of(section)
    books = Books(lineage, section.acts)
    with reading(lineage):
        async for page in receipt_pages(ledger, lineage, newest):
            for receipt in page:
                books.enter(receipt)
                yield receipt
            watch(f"the receipts of {lineage}", books.newest / newest)
        books.settle()
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
    """A section of a backup that was read: its books, how many receipts it has, their digest, and their terms."""

    section: _Section
    books: Books
    receipts: int = 0
    digest: "_ReceiptsDigest" = field(default_factory=lambda: _ReceiptsDigest())
    terms: dict[Terms, bytes] = field(default_factory=dict)

    def add(self, receipt: Receipt) -> None:
        self.books.enter(receipt)
        self.receipts += 1
        self.digest.add(receipt)
        if receipt.terms not in self.terms:
            self.terms[receipt.terms] = b"%d" % (len(self.terms) + 1)

    @property
    def numbers(self) -> Numbers:
        """The numbers of what receipts name, by its name."""
        section = self.section
        return {
            "terms": self.terms,
            "client": {name: fields[b"number"] for name, fields in section.clients.items()} | {"": b"0"},
            "group": {name: fields[b"number"] for name, fields in section.groups.items()} | {"": b"0"},
            "service": {entry.decode(): value.split(b" ")[0] for entry, value in section.services.items()},
        }

    def check(self) -> None:
        """Raise CannotRecover unless the books are right."""
        self.books.settle()
        self.books.compare(*_accounts_of(self.section))
        if self.books.findings:
            raise CannotRecover(f"the backup of lineage {self.books.lineage} is not whole: {self.books.findings[0]}")


class _ReceiptsDigest:
    """The SHA-256 of receipts in order."""

    def __init__(self) -> None:
        self._summed = hashlib.sha256()

    def add(self, receipt: Receipt) -> None:
        self._summed.update(msgspec.json.encode(receipt) + b"\n")

    @property
    def value(self) -> bytes:
        return self._summed.digest()


async def restore(ledger: Ledger, lines: Iterable[str], *, watch: Watcher = unwatched) -> list[str]:
    """Restore the lineages of a backup into a ledger that has none of them; return their names.

    lines: those of a backup, which can be iterated over more than once, as an open file cannot. They are read twice, so
    that nothing is written of a backup that is not right.

    Raises CannotRecover, having changed nothing, for a backup that is damaged or a lineage that exists; LedgerDamaged
    if what was written is not what the backup says: then the lineage may spend nothing.
    """
    try:
        contents = _read_backup(lines)
    except UNREADABLE as error:
        raise CannotRecover(f"the backup cannot be read: {error}") from error
    for lineage in contents:
        with suppress(UnknownLineage, LedgerDamaged):  # what was half restored is gone on with, and compared at the end
            if (await ledger.lineage_or_forgotten(lineage)).is_forgotten:
                raise CannotRecover(str(LineageForgotten(lineage)))
            raise CannotRecover(f"the ledger has a lineage {lineage} already; restore into an empty one")
    async with AsyncExitStack() as stack:
        restoring = {one: await stack.enter_async_context(_Restoring(ledger, one)) for one in contents}
        for lineage, one in contents.items():
            await _restore_accounts(restoring[lineage], one)
        for lineage, found in itertools.groupby(_read_receipts(lines), key=itemgetter(0)):
            one = contents[lineage]
            await _restore_receipts(restoring[lineage], _watched(map(itemgetter(1), found), one, watch), one)
        for lineage, one in contents.items():
            await _finish(restoring[lineage], one)
    return list(contents)


_read_line = msgspec.json.Decoder(_Line).decode


def _read_receipts(lines: Iterable[str]) -> Iterator[tuple[str, Receipt]]:
    lineage = ""
    for line in map(_read_line, lines):
        if line.section is not None:
            lineage = line.section.lineage
        elif line.receipt is not None:
            yield lineage, line.receipt


def _read_backup(lines: Iterable[str]) -> dict[str, _Contents]:
    """Read a backup, and check all that it says. Raises CannotRecover, and what `UNREADABLE` names."""
    summed, end, own, contents = hashlib.sha256(), "", None, dict[str, _Contents]()
    for number, text in enumerate(lines):
        line = _read_line(text)
        if end or (number == 0 and line.format != _FORMAT):
            raise CannotRecover(f"this is not a backup of a ledger in the format {_FORMAT!r}")
        if line.end:
            end = line.end
            continue
        summed.update(text.encode())
        if line.section is not None:
            _accounts_of(line.section)  # or else it cannot be read
            lineage = line.section.lineage
            if lineage in contents:
                raise ValueError(f"it has the lineage {lineage} twice")
            own = contents[lineage] = _Contents(line.section, Books(lineage, line.section.acts))
        elif line.receipt is not None:
            if own is None:
                raise ValueError("a receipt is of no lineage")
            own.add(line.receipt)
    if end != summed.hexdigest():
        raise CannotRecover("the backup is cut short or was altered")
    for one in contents.values():
        one.check()
    return contents


def _watched(receipts: Iterable[Receipt], contents: _Contents, watch: Watcher) -> Iterator[Receipt]:
    for receipt in receipts:
        if receipt.sequence % _ENTRIES_OF_A_STREAM == 0:
            watch(f"the receipts of {contents.section.lineage}", receipt.sequence / contents.receipts)
        yield receipt


async def _finish(writing: "_Restoring", contents: _Contents) -> None:
    """Write the questions, compare all, and write the account: without it every call finds the lineage lost."""
    section, ledger, lineage = contents.section, writing.ledger, writing.lineage
    await _restore_questions(writing, contents.books.paid, contents.numbers)
    await writing.finish()
    digest_of_stored = _ReceiptsDigest()
    async for page in receipt_pages(ledger, lineage, contents.receipts + 1):
        for receipt in page:
            digest_of_stored.add(receipt)
    right = digest_of_stored.value == contents.digest.value
    right = right and await all_acts(ledger, lineage, len(section.acts) + 1) == section.acts
    # What an earlier restore left behind, of another backup, must not mix with this one: a key that was taken away.
    if not right or not await _is_all_there_is(writing, contents, contents.numbers):
        raise LedgerDamaged(
            lineage, "what was restored is not what the backup says; empty the ledger, and restore again"
        )
    await ledger.list_lineage(lineage)
    await writing.hash(writing.keys.account, section.account)
    await writing.finish()


async def _restore_accounts(writing: "_Restoring", contents: _Contents) -> None:
    keys, section, numbers = writing.keys, contents.section, contents.numbers
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


async def _restore_receipts(writing: "_Restoring", receipts: Iterable[Receipt], contents: _Contents) -> None:
    """Write the receipts, and the clients' indices of them."""
    keys, own, waiting = writing.keys, dict[str, list[tuple[str, EntryFields]]](), 0
    numbers = contents.numbers
    for page in batches(receipts, _ENTRIES_OF_A_STREAM):
        await writing.stream(keys.receipts, (entry_of_receipt(receipt, numbers) for receipt in page))
        for receipt in page:
            if receipt.client:
                own.setdefault(receipt.client, []).append((f"{receipt.number}-{receipt.sequence}", ["", ""]))
        waiting += len(page)
        if waiting >= _MOST_WAITING:
            await _restore_indices(writing, own)
            own, waiting = {}, 0
    await _restore_indices(writing, own)


async def _restore_indices(writing: "_Restoring", own: Mapping[str, list[tuple[str, EntryFields]]]) -> None:
    for client, entries in own.items():
        await writing.stream(writing.keys.client(client).receipts, entries)


async def _restore_questions(writing: "_Restoring", paid: PaidQuestions, numbers: Numbers) -> None:
    clients, groups = numbers["client"], numbers["group"]
    for first in paid.paid_first():
        entries = (
            [question, clients[client] + (b" " + groups[group] if group else b"")]
            for question, (client, group) in first
        )
        await writing.part(writing.keys.questions, "hash", entries)
    later, waiting = dict[str, list[bytes]](), 0
    for found in itertools.chain(paid.paid_later(), [None]):
        for subject, questions in (found or {}).items():
            later.setdefault(subject, []).extend(questions)
            waiting += len(questions)
        if waiting >= _MOST_WAITING or found is None:
            for subject, questions in later.items():
                await writing.part(
                    writing.keys.account_of(subject).questions, "set", ([question] for question in questions)
                )
            later, waiting = {}, 0


async def _is_all_there_is(writing: "_Restoring", contents: _Contents, numbers: Numbers) -> bool:
    """Return whether each hash and set holds what was written, and nothing else."""
    if not await writing.has_written_hashes():
        return False
    paid, keys, section = contents.books.paid, writing.keys, contents.section
    async for page in writing.ledger.scan_pages(writing.lineage, keys.questions):
        paid.note_first(page)
    subjects = [account_subject("client", name) for name in section.clients]
    subjects += [account_subject("group", name) for name in section.groups]
    for subject in subjects:
        async for page in writing.ledger.scan_pages(writing.lineage, keys.account_of(subject).questions):
            paid.note_later(subject, page)
    named = {kind: {number: name for name, number in numbers[kind].items()} for kind in ("client", "group")}
    agreement = paid.compare(named)
    return agreement.is_first_right and not agreement.wrong


class _Restoring:
    """Writes the keys of a lineage that has no account yet, a part at a time; the store writes one while the next is
    made."""

    def __init__(self, ledger: Ledger, lineage: str) -> None:
        self.ledger = ledger
        self.lineage = lineage
        self.keys = LineageKeys(lineage)
        self._written: dict[str, Mapping[bytes, bytes]] = {}
        self._under_way: asyncio.Task[list[Any]] | None = None
        self._write: Callable[[], Coroutine[Any, Any, list[Any]]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._under_way

    async def has_written_hashes(self) -> bool:
        """Return whether each hash holds what was written, and nothing else."""
        for key, fields in self._written.items():
            if fields and await self.ledger.scan(self.lineage, key) != fields:
                return False
        return True

    async def hash(self, key: str, fields: Mapping[bytes, bytes]) -> None:
        self._written[key] = fields
        await self.part(key, "hash", (list(pair) for pair in fields.items()))

    async def stream(self, key: str, entries: Iterable[tuple[str, EntryFields]]) -> None:
        await self.part(key, "stream", ([id_, *words] for id_, words in entries))

    async def part(self, key: str, kind: str, entries: Iterable[Sequence[str | bytes | int]]) -> None:
        """Write entries of a key, each of as many words."""
        keys = [key, self.keys.account]
        for some in batches(entries, _ENTRIES_OF_A_STREAM if kind == "stream" else _ENTRIES_IN_A_CALL):
            part = {"kind": kind, "width": len(some[0]), "words": _packed_words(some)}
            await self.finish()
            self._write = partial(self.ledger.call, self.lineage, "restore", keys, part, durably=True)
            self._under_way = asyncio.ensure_future(self._write())
            await asyncio.sleep(0)  # which sends it

    async def finish(self) -> None:
        """Wait for what is under way. Raises LedgerDamaged if it cannot be written."""
        under_way, self._under_way = self._under_way, None
        if under_way is None or self._write is None:
            return
        try:
            reply = await under_way
        except LedgerUnavailable:  # its time may have run out while the next part was made; once more is harmless
            reply = await self._write()
        if reply != [b"done"]:
            raise LedgerDamaged(
                self.lineage, "somebody opened it while it was restored; empty the ledger, and restore again"
            )


def batches(entries: Iterable[_Entry], count: int) -> Iterator[list[_Entry]]:
    """Yield entries in lists of so many."""
    left = iter(entries)
    while some := list(itertools.islice(left, count)):
        yield some


def _packed_words(entries: Sequence[Sequence[str | bytes | int]]) -> msgspec.Raw:
    """Return all words of entries in one list, as the store's MessagePack knows texts (`binary`)."""
    packed = [
        _packed_text(word) if not isinstance(word, bytes) else b"\xdb" + len(word).to_bytes(4, "big") + word
        for entry in entries
        for word in entry
    ]
    return msgspec.Raw(b"\xdd" + len(packed).to_bytes(4, "big") + b"".join(packed))


@lru_cache(maxsize=4096)
def _packed_text(word: str | int) -> bytes:
    return bytes(binary(str(word).encode()))
