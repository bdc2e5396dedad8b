"""An archive: the oldest receipts of a lineage move from the store to files in a folder or an object store.

What decides on a charge stays in the store, and so does what was sealed of the receipts (`seals`): no decision, price
or answer depends on where they lie. Each file holds receipts of one lineage, whole calls of its services, from the one
after the file before on. The acts list the files with their SHA-256, so that there is no list beside them to be lost
or altered.

Promises: the store gives up receipts only once a file of them is on the disk, was read again and has the bytes that
were written, and the act that names it is written in the same step; whatever ends in between leaves every receipt in
the store, and at most a file that no act names. To do it again is harmless. Of two that archive at once one does, and
the other one says so. Memory is bounded, however many receipts there are; the newest call stays in the store.
"""

import hashlib
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from accounting.ledger.accounts import UNREADABLE, check_done, reading
from accounting.ledger.backup_chains import FileLines, Place, Summed, write_lines
from accounting.ledger.backups import batches
from accounting.ledger.books import Books
from accounting.ledger.charged_models import ChargedModels
from accounting.ledger.errors import CannotRecover, LedgerRefusal
from accounting.ledger.ledger import Ledger
from accounting.ledger.receipts import Act, Receipt
from accounting.ledger.seals import ARCHIVE, Seal, Sums, identity, seals_of, sums_digest
from accounting.ledger.values import Account, LineageAccount
from accounting.ledger.verification import Watcher, all_acts, all_receipts, unwatched, verify
from accounting.ledger.wire import LineageKeys

RECEIPTS_IN_A_FILE = 1_000_000
"""The most receipts of a file, and of one step of the store."""

_FORMAT = "dpserve ledger archive 1"
_END_OF_NAME = re.compile(r"\d{12}-[0-9a-f]{8}\.zst(?:\.age)?")
"""The pattern of files' names, by the lineage."""
_PIECE = 1 << 18
_ACCOUNTS_IN_A_CALL = 50


class _Line(Struct, frozen=True, omit_defaults=True):
    """A line of a file: whose receipts follow, after which number; a receipt; or the SHA-256 of all lines before."""

    format: str = ""
    lineage: str = ""
    after: int = 0
    receipt: Receipt | None = None
    end: str = ""


_read_line = msgspec.json.Decoder(_Line).decode


class Archive:
    """The files of archived receipts in one place."""

    def __init__(self, place: Place, *, keys: Sequence[Any] = (), watch: Watcher = unwatched) -> None:
        """Read files there. keys: the identities that decrypt them, if they are encrypted."""
        self._place, self._keys, self._watch = place, keys, watch

    def receipts(self, lineage: str, seals: Sequence[Seal], after: int = 0) -> Iterator[Receipt]:
        """Yield the receipts of a lineage's seals with numbers above `after`, oldest first.

        Raises CannotRecover for a file that is missing, or not the one that was sealed, by its last receipt.
        """
        for seal in seals:
            if seal.receipts > after:
                for receipt in self._file(lineage, seal):
                    if receipt.sequence > after:
                        yield receipt

    def unnamed(self, lineage: str, seals: Sequence[Seal]) -> Iterator[Receipt]:
        """Yield the receipts of the lineage's files that none of its seals names, oldest first.

        No act says what such a file holds: its receipts are as good as those of a journal that somebody hands in.
        Raises CannotRecover for a file that is cut short or altered.
        """
        for name in unnamed_files(self._place, lineage, seals):
            after = int(name.rsplit("-", 2)[1]) - 1
            yield from self._receipts_of(Seal(after, 0, name, 0, "", "", "", {}), lineage)

    def _file(self, lineage: str, seal: Seal) -> Iterator[Receipt]:
        last: Receipt | None = None
        for last in self._receipts_of(seal, lineage):
            yield last
        if last is None or identity([last]).hex() != seal.newest:
            raise CannotRecover(f"{seal.file} of the archive does not hold the receipts that were sealed")

    def _receipts_of(self, seal: Seal, lineage: str) -> Iterator[Receipt]:
        lines = FileLines(
            lambda: self._place.open(seal.file),
            seal.file,
            seal.size,
            sha256="" if seal.lines else seal.sha256,
            keys=self._keys,
            whole="the archive",
            option="archive_identity",
            watch=self._watch,
        )
        try:
            yield from _read_file(lines, lineage, seal)
        except UNREADABLE as error:
            raise CannotRecover(f"{seal.file} of the archive cannot be read: {error}") from error


def unnamed_files(place: Place, lineage: str, seals: Iterable[Seal]) -> tuple[str, ...]:
    """Return the names of a lineage's files in a place that no seal names, oldest first."""
    named, begin = {seal.file for seal in seals}, f"archive-{lineage}-"
    return tuple(
        name
        for name in place.names()
        if name.startswith(begin) and _END_OF_NAME.fullmatch(name, len(begin)) and name not in named
    )


def _read_file(lines: Iterable[str], lineage: str, seal: Seal) -> Iterator[Receipt]:
    """Yield the receipts of a file. Raises CannotRecover, and what `UNREADABLE` names."""
    summed, end = hashlib.sha256(), ""
    for number, text in enumerate(lines):
        line = _read_line(text)
        if number == 0 and (line.format, line.lineage, line.after) != (_FORMAT, lineage, seal.after):
            raise CannotRecover(
                f"this is not a file of archived receipts of lineage {lineage} after {seal.after}, in the format "
                f"{_FORMAT!r}"
            )
        if end:
            raise CannotRecover("a file of archived receipts goes on after its end")
        if line.end:
            end = line.end
            continue
        summed.update(text.encode())
        if line.receipt is not None:
            yield line.receipt
    if end != summed.hexdigest():
        raise CannotRecover("a file of archived receipts is cut short or was altered")
    if seal.lines and end != seal.lines:
        raise CannotRecover(f"{seal.file} does not say what the archive lists: it was altered")


@dataclass(frozen=True)
class Archived:
    """The outcome for a lineage: receipts and files of this time, and up to which receipt it is archived now.

    unnamed: files of the lineage in the place that no act names: of an archive that did not end, or is under way, or
    that the store does not know, as it was restored from a time before.
    """

    lineage: str
    receipts: int
    upto: int
    files: tuple[str, ...]
    size: int
    unnamed: tuple[str, ...] = ()


async def archive(
    ledger: Ledger,
    lineage: str,
    place: Place,
    *,
    before: float,
    keys: Sequence[Any] = (),
    most: int = RECEIPTS_IN_A_FILE,
    watch: Watcher = unwatched,
) -> Archived:
    """Move the receipts of requests that came before a time to files in a place, oldest first, up to the first newer.

    before: seconds since the epoch. keys: the recipients to encrypt files for, if any. most: receipts of a file. The
    lineage is verified first: without an archive, by what was sealed before.

    Raises CannotRecover for books that are not right or a file that does not read back; ActRefused if somebody else
    archives at the same time; UnknownLineage, LedgerUnavailable, OSError.
    """
    await _trim(ledger, lineage)
    checked = await verify(ledger, lineage, watch=watch)
    if checked.findings:
        raise CannotRecover(
            f"lineage {lineage} is not right, and nothing of it is archived: {checked.findings[0]}; 'dpserve ledger "
            "verify' says all that is wrong"
        )
    files, size, began = list[str](), 0, (await ledger.lineage(lineage)).archived
    upto = began
    while (written := await _Sealing(ledger, lineage, place, before, keys, most, watch).run()) is not None:
        await _trim(ledger, lineage)
        files.append(written.file)
        upto, size = written.receipts, size + written.size
    acts = await all_acts(ledger, lineage, (await ledger.lineage(lineage)).newest_act)
    with reading(lineage):
        seals = seals_of(acts)
    return Archived(lineage, upto - began, upto, tuple(files), size, unnamed_files(place, lineage, seals))


@dataclass(frozen=True)
class _Sealing:
    """Archives one file of receipts: the parameters of `archive`."""

    ledger: Ledger
    lineage: str
    place: Place
    before: float
    keys: Sequence[Any]
    most: int
    watch: Watcher

    async def run(self) -> Seal | None:
        """Seal one file, and give its receipts up; None if there is no receipt to archive."""
        account, clients, groups, blocks = await self.ledger.snapshot(self.lineage)
        accounts: list[Account] = [account, *clients, *groups, *blocks]
        acts = await all_acts(self.ledger, self.lineage, account.newest_act)
        with reading(self.lineage):
            books, models = self._begun(account, accounts, acts)
        async with aclosing(self._calls(account)) as calls:
            first = await anext(calls, None)
            if first is None:
                return None
            encrypted = ".age" if self.keys else ""
            name = f"archive-{self.lineage}-{account.archived + 1:012}-{secrets.token_hex(4)}.zst{encrypted}"
            entered = _Entered(self.lineage, books, models)
            with self.place.create(name) as file:
                summed = await write_lines(entered.lines(first, calls), file, self.keys)
        try:
            self._check_written(name, summed)
            if books.findings or entered.newest is None:
                raise CannotRecover(f"lineage {self.lineage} is not right: {'; '.join(books.findings)}")
            sums = entered.sums()
            seal = Seal(
                account.archived,
                entered.newest.sequence,
                name,
                summed.size,
                summed.sha256,
                identity([entered.newest]).hex(),
                sums_digest({subject: one.encoding for subject, one in sums.items()}).hex(),
                {service: books.links[service].hex() for service in sorted(entered.services)},
                entered.digest,
                self.place.name,
            )
            await self._seal(seal, sums)
        except (CannotRecover, LedgerRefusal):
            self.place.remove(name)
            raise
        return seal

    def _begun(
        self, account: LineageAccount, accounts: Sequence[Account], acts: Sequence[Act]
    ) -> tuple[Books, ChargedModels]:
        books = Books(self.lineage, acts, accounts)
        books.go_on_from_seal()
        models = ChargedModels(account.budget.currency)
        models.go_on(account)
        return books, models

    async def _calls(self, account: LineageAccount) -> AsyncGenerator[list[Receipt], None]:
        """Yield the receipts to archive, those of a call together; never those of the newest call."""
        call, count = list[Receipt](), 0
        async for receipt in all_receipts(self.ledger, self.lineage, account.newest_receipt, after=account.archived):
            if receipt.link and call:
                count += len(call)
                if count > self.most and count > len(call):
                    return
                yield call
                call = []
            if receipt.time >= self.before:
                return
            call.append(receipt)
            if receipt.sequence % 1000 == 0:
                self.watch(f"archiving the receipts of {self.lineage}", receipt.sequence / account.newest_receipt)

    def _check_written(self, name: str, summed: Summed) -> None:
        """Read a file again. Raises CannotRecover unless it has the bytes that were written."""
        found, size = hashlib.sha256(), 0
        with self.place.open(name) as file:
            while data := bytes(file.read(_PIECE)):
                found.update(data)
                size += len(data)
        if (size, found.hexdigest()) != (summed.size, summed.sha256):
            raise CannotRecover(f"{name} does not read back as it was written")

    async def _seal(self, seal: Seal, sums: dict[str, Sums]) -> None:
        """Note what the accounts had paid for, then write the act and give the receipts up. Raises ActRefused."""
        keys = LineageKeys(self.lineage)
        for some in batches(sums.items(), _ACCOUNTS_IN_A_CALL):
            owners = [(keys.account_of(subject), one) for subject, one in some]
            named = list(dict.fromkeys([keys.account, *(owner.account for owner, _ in owners)]))
            texts = [{"id": owner.id, "text": one.encoding.decode()} for owner, one in owners]
            arguments = {"upto": seal.receipts, "sums": texts}
            reply = await self.ledger.call(self.lineage, "seal", named, arguments, durably=True)
            check_done(reply[0], keys.own)
        reply = await self.ledger.act(
            self.lineage,
            "archive",
            [keys.receipts],
            {"after": seal.after, "upto": seal.receipts},
            kind=ARCHIVE,
            subject="lineage",
            details=msgspec.structs.asdict(seal),
        )
        check_done(reply[0], keys.own)


class _Entered:
    """The lines of a file, and what they say once they all were taken."""

    def __init__(self, lineage: str, books: Books, models: ChargedModels) -> None:
        self._lineage, self._books, self._models = lineage, books, models
        self.newest: Receipt | None = None
        self.services: set[str] = set()
        self.digest = ""

    async def lines(self, first: Sequence[Receipt], calls: AsyncIterator[list[Receipt]]) -> AsyncIterator[str]:
        """Yield the lines."""
        summed = hashlib.sha256()
        title = _Line(format=_FORMAT, lineage=self._lineage, after=self._books.newest)
        async for line in _lines(title, first, calls):
            if line.receipt is not None:
                self._enter(line.receipt)
            packed = msgspec.json.encode(line) + b"\n"
            summed.update(packed)
            yield packed.decode()
        self._books.settle()
        self.digest = summed.hexdigest()
        yield msgspec.json.encode(_Line(end=self.digest)).decode() + "\n"

    def _enter(self, receipt: Receipt) -> None:
        self._books.follow(receipt)
        self._books.enter_sums(receipt)
        self._models.enter(receipt)
        self.newest = receipt
        self.services.add(receipt.service)

    def sums(self) -> dict[str, Sums]:
        """Return what each account paid for up to the newest receipt, by its subject."""
        found = {subject: payer.sums for subject, payer in self._books.payers.items()}
        return found | {"lineage": replace(found["lineage"], models=self._models.listed)}


async def _lines(title: _Line, first: Sequence[Receipt], calls: AsyncIterator[list[Receipt]]) -> AsyncIterator[_Line]:
    yield title
    for receipt in first:
        yield _Line(receipt=receipt)
    async for call in calls:
        for receipt in call:
            yield _Line(receipt=receipt)


async def _trim(ledger: Ledger, lineage: str) -> None:
    """Take what an archive left over out of the store, in calls of a bounded size."""
    account, clients, groups, blocks = await ledger.snapshot(lineage)
    if not account.archived:
        return
    keys = LineageKeys(lineage)
    every: list[Account] = [account, *clients, *groups, *blocks]
    for some in batches((keys.account_of(one.subject) for one in every), _ACCOUNTS_IN_A_CALL):
        indices = {one.id: one.receipts for one in some if one.receipts}
        arguments = {"ids": [one.id for one in some], "clients": list(indices)}
        named = list(dict.fromkeys([keys.account, *(one.account for one in some), *indices.values()]))
        while await ledger.call(lineage, "trim", named, arguments, durably=True) == [b"more"]:
            continue
