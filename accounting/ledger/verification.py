"""Whether a lineage's books are right, and whether the store's other keys say what its receipts say.

Promises: with no findings, what `books` promises; every API key leads to the client whose it is; every client is shown
its own receipts, and is taken to have paid for what it paid for; and every receipt in the journals that are given is
there. A service may go on charging meanwhile: what it charges after the accounts were read is left out.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from accounting.ledger import wire
from accounting.ledger.accounts import Accounts, reading
from accounting.ledger.books import Books, IndexDigest
from accounting.ledger.errors import LedgerDamaged
from accounting.ledger.journal import JournalContents
from accounting.ledger.questions import PaidQuestions
from accounting.ledger.receipts import Act, Receipt, account_subject
from accounting.ledger.values import ClientAccount, GroupAccount, LineageAccount
from accounting.ledger.wire import LineageKeys

_PAGE = 1000
_INDEX_PAGE = 5000
_FIRST = "first:"
_SHOWN = 5


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


async def all_receipts(ledger: Accounts, lineage: str, upto: int, *, after: int = 0) -> AsyncIterator[Receipt]:
    """Yield the receipts of a lineage with numbers above `after` and up to `upto`, oldest first."""
    while after < upto and (page := await ledger.receipts(lineage, after=after, count=_PAGE)):
        for receipt in page:
            if receipt.sequence <= upto:
                yield receipt
        after = page[-1].sequence


async def all_acts(ledger: Accounts, lineage: str, upto: int) -> list[Act]:
    """Return the acts of a lineage with numbers up to `upto`, oldest first."""
    acts: list[Act] = []
    while len(acts) < upto and (page := await ledger.acts(lineage, after=len(acts), count=_PAGE)):
        acts += page
    return acts[:upto]


async def verify(ledger: Accounts, lineage: str, witnesses: Iterable[JournalContents] = ()) -> Verification:
    """Walk a lineage's chains and compute its balances. Raises UnknownLineage.

    `witnesses`: journals of services, whose receipts must be in the chain. What cannot be read at all is the one
    finding.
    """
    try:
        return await _walk(ledger, lineage, list(witnesses))
    except LedgerDamaged as damage:
        return Verification(lineage, 0, 0, b"", (damage.what,))


async def _walk(ledger: Accounts, lineage: str, witnesses: Sequence[JournalContents]) -> Verification:
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
    witnessed = {receipt.sequence for journal in witnesses for receipt in journal.receipts}
    books = Books(lineage, acts, [account, *clients, *groups, *blocks], witnessed)
    async for receipt in all_receipts(ledger, lineage, account.newest_receipt):
        books.enter(receipt)
    books.compare(account, [*clients, *groups, *blocks])
    findings = [*books.findings, *await _check_questions(ledger, account, books, clients, groups)]
    if contents.others[1] != {block.block.encode(): b"%d" % block.number for block in blocks}:
        findings.append("a block's number is not the one that the lineage lists")
    findings += _check_api_keys(contents.others[0], [holder for holder in holders if holder is not None])
    findings += await _check_indices(ledger, account, books)
    missing = [receipt for journal in witnesses for receipt in _missing_receipts(books, journal)]
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
    ledger: Accounts,
    account: LineageAccount,
    books: Books,
    clients: Sequence[ClientAccount],
    groups: Sequence[GroupAccount],
) -> list[str]:
    """Return what is wrong with the questions that the store takes to be paid for.

    A service may have charged more of them since `account` was read. A question is stored after its receipt, in one
    step, so the receipts that are read after the questions explain all that came meanwhile.
    """
    with reading(account.lineage):
        await _match_questions(ledger, account.lineage, books.paid, clients, groups)
    await _explain_questions(ledger, account, books.paid)
    paid = books.paid
    odd, findings = paid.odd_subjects(), list[str]()
    if paid.lacks_first() or any(subject.startswith(_FIRST) for subject in odd):
        findings.append("the questions that the lineage has paid for are not those of its receipts")
    findings += [
        f"the questions that {one.title} has paid for are not those of its receipts"
        for one in (*clients, *groups)
        if one.subject in odd or paid.lacks_later(one.subject)
    ]
    return findings


async def _match_questions(
    ledger: Accounts,
    lineage: str,
    paid: PaidQuestions,
    clients: Sequence[ClientAccount],
    groups: Sequence[GroupAccount],
) -> None:
    """Match the store's questions with those of the receipts that were entered, and note those that are not there."""
    keys = LineageKeys(lineage)
    groups_by = {b"%d" % one.number: one.group for one in groups} | {b"": ""}
    clients_by = {b"%d" % one.number: one.client for one in clients} | {b"0": ""}
    async for page in ledger.scan_pages(lineage, keys.questions):
        for question, owners in page.items():
            client, _, group = owners.partition(b" ")
            known = client in clients_by and group in groups_by
            if not known or not paid.match_first(question, (clients_by[client], groups_by[group])):
                paid.note_odd(f"{_FIRST}{client!r}", question)
    sets = {one.subject: keys.client(one.client).questions for one in clients}
    sets |= {one.subject: keys.group(one.group).questions for one in groups}
    for subject, key in sets.items():
        async for page in ledger.scan_pages(lineage, key):
            for question in page:
                if not paid.match_later(subject, question):
                    paid.note_odd(subject, question)


async def _explain_questions(ledger: Accounts, account: LineageAccount, paid: PaidQuestions) -> None:
    """Strike out the questions that were noted and that receipts paid for which came after `account` was read."""
    newest = (await ledger.lineage_or_forgotten(account.lineage)).newest_receipt
    named = (await ledger.numbers(account.lineage))["client"]
    numbers = {name: number for number, name in named.items()} | {"": b"0"}
    async for receipt in all_receipts(ledger, account.lineage, newest, after=account.newest_receipt):
        for question in receipt.questions:
            paid.explain(f"{_FIRST}{numbers[receipt.client]!r}", question)
            paid.explain(account_subject("client", receipt.client), question)
            paid.explain(account_subject("group", receipt.group), question)


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


async def _check_indices(ledger: Accounts, account: LineageAccount, books: Books) -> list[str]:
    """Return a line for each client who is shown other receipts than those that name it."""
    findings = []
    for subject, paid in sorted(books.payers.items()):
        scope, _, name = subject.partition(":")
        if scope != "client":
            continue
        shown, after = IndexDigest(), 0
        with suppress(LedgerDamaged):
            while page := await ledger.client_index(account.lineage, name, after=after, count=_INDEX_PAGE):
                for number, sequence in page:
                    if sequence <= account.newest_receipt:
                        shown.add(number, sequence)
                after = page[-1][0]
        if shown != paid.index:
            findings.append(f"the receipts that client {name} is shown are not those that name this client")
    return findings


def _missing_receipts(books: Books, journal: JournalContents) -> list[Receipt]:
    """Return the receipts of a journal that are not in the ledger."""
    # What was put back has another number, and may have been paid for anew by another receipt.
    return [
        receipt
        for receipt in journal.receipts
        if books.hashes.get(receipt.sequence) != receipt.hash
        and not (
            books.is_reconciled and all(books.has_paid(receipt.client, question) for question in receipt.questions)
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
