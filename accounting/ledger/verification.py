"""Whether a lineage's books are right, and whether the store's other keys say what its receipts say.

Promises: with no findings, what `books` promises; every API key leads to the client whose it is; every client is shown
its own receipts, and is taken to have paid for what it paid for; and every receipt in the journals that are given is
there. A service may go on charging meanwhile: what it charges after the accounts were read is left out.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dpserve.accounting.ledger import wire
from dpserve.accounting.ledger.accounts import Accounts
from dpserve.accounting.ledger.books import Books, IndexDigest
from dpserve.accounting.ledger.errors import (
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
)
from dpserve.accounting.ledger.journal import JournalFiles
from dpserve.accounting.ledger.questions import PaidQuestions
from dpserve.accounting.ledger.reading import reading
from dpserve.accounting.ledger.receipts import Act, Receipt
from dpserve.accounting.ledger.values import ClientAccount, GroupAccount, LineageAccount
from dpserve.accounting.ledger.wire import LineageKeys

_PAGE = 1000
_INDEX_PAGE = 5000
_SHOWN = 5

Watcher = Callable[[str, float], None]
"""Hears what is done now, and which share of it is done."""


def unwatched(doing: str, share: float) -> None:
    """Hear nothing."""
    del doing, share


@dataclass(frozen=True)
class Verification:
    """The result of verifying a lineage: `findings` has one line for everything that is wrong.

    Receipts that services were given and the ledger lacks are summed up in lines for each client and model; `missing`
    has all of them.
    """

    lineage: str
    receipts: int
    acts: int
    acts_head: bytes
    findings: tuple[str, ...]
    missing: tuple[Receipt, ...] = ()


async def all_receipts(ledger: Accounts, lineage: str, upto: int) -> AsyncGenerator[Receipt, None]:
    """Yield the receipts of a lineage with numbers up to `upto`, oldest first."""
    async for page in receipt_pages(ledger, lineage, upto):
        for receipt in page:
            yield receipt


async def receipt_pages(ledger: Accounts, lineage: str, upto: int, *, after: int = 0) -> AsyncIterator[list[Receipt]]:
    """Yield what `all_receipts` does, a page at a time. The store looks for the next page meanwhile."""
    asking = asyncio.ensure_future(ledger.receipts(lineage, after=after, count=_PAGE))
    try:
        while after < upto:
            try:
                page = await asking
            except LedgerUnavailable:  # its time may have run out while the page before was entered
                page = await ledger.receipts(lineage, after=after, count=_PAGE)
            if not page:
                break
            after = page[-1].sequence
            asking = asyncio.ensure_future(ledger.receipts(lineage, after=after, count=_PAGE))
            await asyncio.sleep(0)  # which sends it
            yield page if after <= upto else [receipt for receipt in page if receipt.sequence <= upto]
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError, LedgerError):
            await asking


async def all_acts(ledger: Accounts, lineage: str, upto: int) -> list[Act]:
    """Return the acts of a lineage with numbers up to `upto`, oldest first."""
    acts: list[Act] = []
    while len(acts) < upto and (page := await ledger.acts(lineage, after=len(acts), count=_PAGE)):
        acts += page
    return acts[:upto]


async def verify(
    ledger: Accounts,
    lineage: str,
    witnesses: Iterable[JournalFiles] = (),
    *,
    watch: Watcher = unwatched,
) -> Verification:
    """Walk a lineage's chains and compute its balances. Raises UnknownLineage.

    `witnesses`: journals of services, whose receipts must be in the chain. What cannot be read at all is the one
    finding.
    """
    try:
        return await _walk(ledger, lineage, list(witnesses), watch)
    except LedgerDamaged as damage:
        return Verification(lineage, 0, 0, b"", (damage.what,))


async def _walk(ledger: Accounts, lineage: str, witnesses: Sequence[JournalFiles], watch: Watcher) -> Verification:
    damage = await _damaged_keys(ledger, lineage)
    if damage:
        return Verification(lineage, 0, 0, b"", tuple(damage))
    keys = LineageKeys(lineage)
    await ledger.numbers(lineage)  # as they are, and not as this process remembers them
    account, clients, groups, blocks = await ledger.snapshot(lineage)
    with reading(lineage):
        contents = await ledger.read_accounts(lineage, keys.api_keys, keys.blocks)
        holders = [wire.read_account(keys.client(name), fields) for name, fields in contents.clients.items()]
    acts = await all_acts(ledger, lineage, account.newest_act)
    witnessed = (receipt.sequence for journal in witnesses for receipt in journal.receipts)
    books = Books(lineage, acts, witnessed)
    with reading(lineage):
        async for page in receipt_pages(ledger, lineage, account.newest_receipt):
            for receipt in page:
                books.enter(receipt)
            watch(f"the receipts of {lineage}", books.newest / account.newest_receipt)
        books.settle()
    books.compare(account, [*clients, *groups, *blocks])
    await _note_questions(ledger, account, books.paid, clients, groups, watch)
    findings = [*books.findings, *await _check_questions(ledger, account, books, [*clients, *groups])]
    if contents.others[1] != {block.block.encode(): b"%d" % block.number for block in blocks}:
        findings.append("a block's number is not the one that the lineage lists")
    findings += _check_api_keys(contents.others[0], [holder for holder in holders if holder is not None])
    findings += await _check_indices(ledger, account, books, watch)
    missing = _missing_receipts(books, witnesses)
    findings += _missing_in_words(missing)
    for journal in witnesses:
        if journal.charged_unit not in (None, account.unit):
            findings.append(f"the service {journal.service} charged under another privacy unit than the lineage's")
    counts = account.newest_receipt, account.newest_act
    return Verification(lineage, *counts, account.acts_head, tuple(findings), tuple(missing))


async def _damaged_keys(ledger: Accounts, lineage: str) -> list[str]:
    """Return a line for each key that is not what a charge takes it for."""
    _, clients, groups, _ = await ledger.snapshot(lineage)
    keys = LineageKeys(lineage)
    hashes = (keys.services, keys.questions, keys.terms, keys.clients, keys.groups, keys.blocks, keys.api_keys)
    kinds = dict.fromkeys(hashes, "hash")
    kinds |= {keys.group(group.group).questions: "set" for group in groups}
    kinds |= dict.fromkeys((keys.receipts, keys.acts), "stream")
    for client in clients:
        own = keys.client(client.client)
        kinds |= {own.receipts: "stream", own.questions: "set", own.requests: "hash", own.old_requests: "hash"}
    damage = []
    for key, kind in zip(kinds, await ledger.key_types(lineage, list(kinds)), strict=True):
        is_a, _, newest = kind.partition(" ")
        if is_a not in (kinds[key], "none"):
            damage.append(f"{key} is a {is_a} and not a {kinds[key]}")
        elif newest and key in (keys.receipts, keys.acts):
            now = await ledger.lineage_or_forgotten(lineage)  # it may have been charged meanwhile
            if int(newest) > (now.newest_receipt if key == keys.receipts else now.newest_act):
                damage.append(f"{key} has an entry {newest}, which nothing accounts for")
    return damage


async def _check_questions(
    ledger: Accounts, account: LineageAccount, books: Books, inner: Sequence[ClientAccount | GroupAccount]
) -> list[str]:
    """Return what is wrong with the questions that the store takes to be paid for, which were noted.

    A service may have charged more of them since `account` was read. A question is stored after its receipt, in one
    step, so the receipts that are read after the questions explain all that came meanwhile.
    """
    newest = (await ledger.lineage_or_forgotten(account.lineage)).newest_receipt
    numbers = await ledger.numbers(account.lineage)
    async for page in receipt_pages(ledger, account.lineage, newest, after=account.newest_receipt):
        books.paid.enter_late(page)
    agreement = books.paid.compare(numbers)
    findings = []
    if not agreement.is_first_right:
        findings.append("the questions that the lineage has paid for are not those of its receipts")
    findings += [
        f"the questions that {one.title} has paid for are not those of its receipts"
        for one in inner
        if one.subject in agreement.wrong
    ]
    return findings


async def _note_questions(
    ledger: Accounts,
    account: LineageAccount,
    paid: PaidQuestions,
    clients: Sequence[ClientAccount],
    groups: Sequence[GroupAccount],
    watch: Watcher,
) -> None:
    """Note the questions that the store takes to be paid for."""
    lineage, done, total = account.lineage, 0, account.questions
    total += sum(one.questions for one in (*clients, *groups))
    keys = LineageKeys(lineage)
    async for page in ledger.scan_pages(lineage, keys.questions):
        paid.note_first(page)
        done += len(page)
        watch(f"the questions of {lineage}", min(1.0, done / max(1, total)))
    sets = {one.subject: keys.client(one.client).questions for one in clients}
    sets |= {one.subject: keys.group(one.group).questions for one in groups}
    for subject, key in sets.items():
        async for page in ledger.scan_pages(lineage, key):
            paid.note_later(subject, page)
            done += len(page)
            watch(f"the questions of {lineage}", min(1.0, done / max(1, total)))


def _check_api_keys(owners: dict[bytes, bytes], clients: Sequence[ClientAccount]) -> list[str]:
    stated = {
        key.digest: f"{' '.join(key.terms)} {client.client}".encode() for client in clients for key in client.api_keys
    }
    # A client that only its receipts brought back has no keys any more.
    bare = {client.client.encode() for client in clients if not client.api_keys}
    wrong = [
        entry.split(b" ", 2)[2].decode()
        for _, entry in owners.items() ^ stated.items()
        if entry.split(b" ", 2)[2] not in bare
    ]
    return [f"an API key of client {name} is not this client's, or at other terms" for name in sorted({*wrong})]


async def _check_indices(ledger: Accounts, account: LineageAccount, books: Books, watch: Watcher) -> list[str]:
    """Return a line for each client who is shown other receipts than those that name it."""
    findings = []
    for place, (subject, paid) in enumerate(sorted(books.payers.items())):
        watch(f"the clients of {account.lineage}", place / len(books.payers))
        scope, _, name = subject.partition(":")
        if scope != "client":
            continue
        shown, after, newest = IndexDigest(), 0, account.newest_receipt
        with suppress(LedgerDamaged):
            while page := await ledger.client_index(account.lineage, name, after=after, count=_INDEX_PAGE):
                shown.add_entries([entry for entry in page if int(entry.partition(b"-")[2]) <= newest])
                after = int(page[-1].partition(b"-")[0])
        if shown != paid.index:
            findings.append(f"the receipts that client {name} is shown are not those that name this client")
    return findings


def _missing_receipts(books: Books, journals: Iterable[JournalFiles]) -> list[Receipt]:
    """Return the receipts of the journals that are not in the ledger."""
    missing = [
        receipt
        for journal in journals
        for receipt in journal.receipts
        if books.hash_of(receipt.sequence) != receipt.hash
    ]
    if not missing or not books.is_reconciled:
        return missing
    # What was put back has another number, and may have been paid for anew by another receipt.
    payers = books.paid.payers(question for receipt in missing for question in receipt.questions)
    return [
        receipt
        for receipt in missing
        if not all(
            question in payers and (not receipt.client or receipt.client in payers[question])
            for question in receipt.questions
        )
    ]


def _missing_in_words(missing: Iterable[Receipt]) -> list[str]:
    """Return a line for each client and model that missing receipts are of, with their count and the first of them."""
    by_payer: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], list[int]] = {}
    for receipt in missing:
        payer = receipt.client, receipt.model
        by_payer[payer] += 1
        shown = first.setdefault(payer, [])
        if len(shown) < _SHOWN:
            shown.append(receipt.sequence)
    lines = []
    for (client, model), count in sorted(by_payer.items()):
        numbers = ", ".join(map(str, first[client, model]))
        more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
        whose = f"client {client}" if client else "the lineage alone"
        receipts = (
            "1 receipt that a service was given is" if count == 1 else f"{count} receipts that services were given are"
        )
        lines.append(f"{receipts} not in the ledger, of {whose} for model {model}: {numbers}{more}")
    return lines
