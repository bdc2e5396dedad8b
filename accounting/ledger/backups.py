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
from msgspec.structs import replace

from accounting.ledger.accounts import UNREADABLE, reading
from accounting.ledger.books import Books
from accounting.ledger.errors import CannotRecover, LedgerDamaged, LedgerUnavailable, LineageForgotten, UnknownLineage
from accounting.ledger.ledger import Ledger
from accounting.ledger.questions import PaidQuestions
from accounting.ledger.receipts import (
    Act,
    EntryFields,
    Numbers,
    Receipt,
    Terms,
    account_subject,
    digest,
    entry_of_act,
    entry_of_receipt,
)
from accounting.ledger.store import binary
from accounting.ledger.values import BlockAccount, ClientAccount, GroupAccount, LineageAccount
from accounting.ledger.verification import Watcher, all_acts, receipt_pages, unwatched
from accounting.ledger.wire import LineageKeys, read_account
from accounting.messages import OptionName

_FORMAT = "dpserve ledger backup 7"
_FORMER_FORMAT = "dpserve ledger backup 6"
"""That of backups which know no blocks, and are read all the same: no lineage of theirs has any."""

_SECTION = '{"section":'
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
    services: dict[bytes, bytes]
    acts: list[Act]
    blocks: dict[str, dict[bytes, bytes]] = {}
    after: int = 0
    """The number of the newest receipt in the links of a chain before this one."""


class Link(Struct, frozen=True):
    """The place of a backup in a chain: its id, the number from 1, and the digest that the one before ends with.

    A link has the accounts as they are, and the acts and receipts since the link before.
    """

    chain: str
    number: int
    previous: str = ""


class Extent(Struct, frozen=True):
    """The part of a lineage that the links of a chain hold: what the next link must follow.

    receipts, acts: how many; newest: a digest of the newest receipt, act: the hash of the newest act; links: those that
    each service's next call must carry.
    """

    receipts: int
    acts: int
    newest: bytes
    act: bytes
    links: dict[str, bytes]


class _Line(Struct, frozen=True, omit_defaults=True):
    """A line of a backup: its format and place in a chain, a lineage, a receipt of it, or the SHA-256 of all before."""

    format: str = ""
    link: Link | None = None
    section: _Section | None = None
    receipt: Receipt | None = None
    end: str = ""


async def backup(ledger: Ledger, lineages: Sequence[str] = (), *, watch: Watcher = unwatched) -> AsyncIterator[str]:
    """Yield the lines of a backup of these lineages, of every one if none is named; the last holds their SHA-256.

    Raises CannotRecover, at the latest instead of the last line, for a lineage whose books are not right: restoring
    them could spend less than was spent.
    """
    async for line in Backup(ledger, lineages, watch=watch).lines():
        yield line


class Backup:
    """A backup that is made once, by `lines`.

    Then `digest` is what it ends with, and `extents` what it and those before it in its chain hold.
    """

    def __init__(
        self,
        ledger: Ledger,
        lineages: Sequence[str] = (),
        *,
        link: Link | None = None,
        extents: Mapping[str, Extent] | None = None,
        watch: Watcher = unwatched,
    ) -> None:
        """Back up these lineages, every one if none is named. link, extents: for the next link of a chain."""
        self._ledger = ledger
        self._lineages = lineages
        self._link = link
        self._before = dict(extents or {})
        self._watch = watch
        self.extents: dict[str, Extent] = {}
        self.digest = ""

    async def lines(self) -> AsyncIterator[str]:
        """Yield the lines. Raises CannotRecover as `backup` does, or for what does not follow the links before.

        The books of what is in no link before are checked whole; of what follows, numbers, hashes, links and acts:
        `restore` checks the books of all links before it writes anything.
        """
        summed = hashlib.sha256()
        async for line in self._sections(self._lineages or await self._ledger.lineage_names()):
            packed = msgspec.json.encode(line) + b"\n"
            summed.update(packed)
            yield packed.decode()
        self.digest = summed.hexdigest()
        yield msgspec.json.encode(_Line(end=self.digest)).decode() + "\n"

    async def _sections(self, lineages: Iterable[str]) -> AsyncIterator[_Line]:
        yield _Line(format=_FORMAT, link=self._link)
        for lineage in lineages:
            keys = LineageKeys(lineage)
            fields = await self._ledger.read_accounts(lineage, keys.services)
            account, (services,) = fields.lineage, fields.others
            if not account:
                try:
                    await self._ledger.lineage_or_forgotten(lineage)
                except UnknownLineage:
                    continue  # listed, and never opened
            with reading(lineage):
                newest, newest_act = int(account[b"seq"]), int(account[b"acts"])
            acts = await all_acts(self._ledger, lineage, newest_act)
            section = _Section(lineage, account, fields.clients, fields.groups, services, acts, fields.blocks)
            async for line in self._section(section, newest):
                yield line

    async def _section(self, section: _Section, newest: int) -> AsyncIterator[_Line]:
        lineage, acts, before = section.lineage, section.acts, self._before.get(section.lineage)
        with reading(lineage):
            whole, inner = _accounts_of(section)
        books = Books(lineage, acts, [whole, *inner])
        after = 0
        if before is not None:
            await self._check_follows(lineage, before, acts, newest)
            after = before.receipts
            books.go_on(after, before.links)
            section = replace(section, acts=acts[before.acts :], after=after)
        yield _Line(section=section)
        last = await self._ledger.receipts(lineage, after=newest - 1, count=1) if newest else []
        with reading(lineage):
            async for page in receipt_pages(self._ledger, lineage, newest, after=after):
                for receipt in page:
                    books.follow(receipt)
                    if before is None:
                        books.enter_payers(receipt)
                    yield _Line(receipt=receipt)
                self._watch(f"the receipts of {lineage}", (books.newest - after) / (newest - after))
            books.settle()
        if before is None:
            books.compare(whole, inner)
        else:
            books.compare_chains(whole)
        if books.findings:
            raise CannotRecover(
                f"lineage {lineage} is not right: {books.findings[0]}; 'dpserve ledger verify' says all that is wrong, "
                "and a backup from before or the journals can mend it"
            )
        act = acts[-1].hash if acts else b""
        self.extents[lineage] = Extent(newest, len(acts), _identity(last), act, books.links)

    async def _check_follows(self, lineage: str, before: Extent, acts: Sequence[Act], newest: int) -> None:
        """Raise CannotRecover unless the lineage is what the links before hold, and what came since."""
        number = before.receipts
        found = _identity(await self._ledger.receipts(lineage, after=number - 1, count=1)) if number else b""
        act = acts[before.acts - 1].hash if 0 < before.acts <= len(acts) else b""
        if newest < before.receipts or (found, act) != (before.newest, before.act):
            raise CannotRecover(
                f"lineage {lineage} is not the one that was backed up before: it was restored or replaced since; begin "
                "a new chain with " + OptionName("full")
            )


def _identity(newest: Sequence[Receipt]) -> bytes:
    """Return a digest of one receipt, its place and its service; nothing for none."""
    return b"".join(digest("dpserve backup", one.link_values, one.service, one.link) for one in newest[:1])


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


async def restore(ledger: Ledger, *links: Iterable[str], watch: Watcher = unwatched) -> list[str]:
    """Restore the lineages of a backup into a ledger that has none of them; return their names.

    links: the lines of a backup, or of all links of a chain in order, which can be iterated over more than once, as an
    open file cannot. They are read three times, so that nothing is written of a backup that is not right.

    Raises CannotRecover, having changed nothing, for a backup that is damaged or a lineage that exists; LedgerDamaged
    if what was written is not what the backup says: then the lineage may spend nothing.
    """
    try:
        contents = _read_backup(links)
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
        for lines in links:
            for lineage, found in itertools.groupby(_read_receipts(lines), key=itemgetter(0)):
                one = contents[lineage]
                receipts = _watched(map(itemgetter(1), found), one, watch)
                await _restore_receipts(restoring[lineage], receipts, one)
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


def _read_backup(links: Sequence[Iterable[str]]) -> dict[str, _Contents]:
    """Read a backup, and check all that it says. Raises CannotRecover, and what `UNREADABLE` names."""
    sections, contents, before = _merged_sections(links), dict[str, _Contents](), _Line()
    for number, lines in enumerate(links, 1):
        check = partial(_check_place, number=number, count=len(links), before=before)
        before = _read_link(lines, check, sections, contents)
    for one in contents.values():
        one.check()
    return contents


def _merged_sections(links: Sequence[Iterable[str]]) -> dict[str, _Section]:
    """Return the newest section of each lineage, with the acts of all."""
    merged: dict[str, _Section] = {}
    for lines in links:
        for text in lines:
            if text.startswith(_SECTION) and (section := _read_line(text).section) is not None:
                before = merged.get(section.lineage)
                acts = section.acts if before is None else before.acts + section.acts
                merged[section.lineage] = replace(section, acts=acts)
    return merged


def _check_place(link: Link | None, number: int, count: int, before: _Line) -> None:
    """Raise CannotRecover unless a file is the one of this number in its chain of so many."""
    if link is None:
        if count > 1:
            raise CannotRecover(f"file {number} of the chain is a whole backup by itself, and belongs to no chain")
        return
    if link.number != 1 and count == 1:
        raise CannotRecover(f"this is number {link.number} of a chain: restore the folder that holds all of them")
    chain = link.chain if before.link is None else before.link.chain
    if (link.chain, link.number, link.previous) != (chain, number, before.end):
        raise CannotRecover(
            f"number {number} of the chain does not follow the one before: it is number {link.number} of chain "
            f"{link.chain}, or one before it was altered"
        )


def _read_link(
    lines: Iterable[str],
    check: Callable[[Link | None], None],
    sections: Mapping[str, _Section],
    contents: dict[str, _Contents],
) -> _Line:
    """Enter the receipts of one file into the books; return its place and its digest."""
    summed, end, title, own = hashlib.sha256(), "", _Line(), None
    for number, text in enumerate(lines):
        line = _read_line(text)
        title = title if number else line
        if end or title.format not in (_FORMAT, _FORMER_FORMAT):
            raise CannotRecover(f"this is not a backup of a ledger in the format {_FORMAT!r}")
        if number == 0:
            check(title.link)
        if line.end:
            end = line.end
            continue
        summed.update(text.encode())
        if line.section is not None:
            own = _section_contents(line.section, sections, contents)
        elif line.receipt is not None:
            if own is None:
                raise ValueError("a receipt is of no lineage")
            own.add(line.receipt)
    if end != summed.hexdigest():
        raise CannotRecover("the backup is cut short or was altered")
    return _Line(link=title.link, end=end)


def _section_contents(section: _Section, sections: Mapping[str, _Section], contents: dict[str, _Contents]) -> _Contents:
    lineage = section.lineage
    if lineage not in contents:
        whole, inner = _accounts_of(sections[lineage])
        contents[lineage] = _Contents(sections[lineage], Books(lineage, sections[lineage].acts, [whole, *inner]))
    if section.after != contents[lineage].receipts:
        raise CannotRecover(
            f"the backup of lineage {lineage} goes on after receipt {section.after}, and the files before it end with "
            f"{contents[lineage].receipts}"
        )
    return contents[lineage]


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
