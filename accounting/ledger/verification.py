"""Whether a lineage's books are right, and whether the store's other keys say what its receipts say.

Promises: with no findings, what `books` promises; every API key leads to the client whose it is; every client is shown
its own receipts, and is taken to have paid for what it paid for; and every receipt in the journals that are given is
there. A service may go on charging meanwhile: what it charges after the accounts were read is left out.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from accounting.ledger import wire
from accounting.ledger.accounts import Accounts, reading
from accounting.ledger.books import Books
from accounting.ledger.errors import LedgerDamaged
from accounting.ledger.journal import JournalContents
from accounting.ledger.receipts import Act, Receipt, account_subject
from accounting.ledger.values import ClientAccount, GroupAccount, LineageAccount
from accounting.ledger.wire import LineageKeys

_PAGE = 1000


@dataclass(frozen=True)
class Verification:
    """The result of verifying a lineage: `findings` has one line for everything that is wrong."""

    lineage: str
    receipts: int
    acts: int
    acts_head: bytes
    findings: tuple[str, ...]


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
    account, clients, groups = await ledger.snapshot(lineage)
    with reading(lineage):
        paid_first = await ledger.scan(lineage, keys.questions)
        later = {
            **{one.subject: await ledger.scan(lineage, keys.client(one.client).questions) for one in clients},
            **{one.subject: await ledger.scan(lineage, keys.group(one.group).questions) for one in groups},
        }
        contents = await ledger.read_accounts(lineage, keys.api_keys)
        holders = [wire.read_account(keys.client(name), fields) for name, fields in contents.clients.items()]
    books = Books(lineage, await all_acts(ledger, lineage, account.newest_act))
    async for receipt in all_receipts(ledger, lineage, account.newest_receipt):
        books.enter(receipt)
    books.compare(account, [*clients, *groups])
    # What was charged since the accounts were read may have been seen among the questions.
    newest = (await ledger.lineage_or_forgotten(lineage)).newest_receipt
    since = [one async for one in all_receipts(ledger, lineage, newest, after=account.newest_receipt)]
    findings = [*books.findings, *_check_questions(books, clients, groups, paid_first, later, since)]
    findings += _check_api_keys(contents.others[0], [holder for holder in holders if holder is not None])
    findings += await _check_indices(ledger, account, books)
    for journal in witnesses:
        findings += _check_witness(books, journal)
        if journal.charged_unit not in (None, account.unit):
            findings.append(f"the service {journal.service} charged under another privacy unit than the lineage's")
    return Verification(lineage, account.newest_receipt, account.newest_act, account.acts_head, tuple(findings))


async def _damaged_keys(ledger: Accounts, lineage: str) -> list[str]:
    """Return a line for each key that is not what a charge takes it for."""
    _, clients, groups = await ledger.snapshot(lineage)
    keys = LineageKeys(lineage)
    kinds = dict.fromkeys((keys.services, keys.questions, keys.terms, keys.clients, keys.groups, keys.api_keys), "hash")
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


def _check_questions(
    books: Books,
    clients: Sequence[ClientAccount],
    groups: Sequence[GroupAccount],
    paid_first: dict[bytes, bytes],
    later: dict[str, dict[bytes, bytes]],
    since: Sequence[Receipt],
) -> list[str]:
    """Return what is wrong with the questions that are taken to be paid for, whoever `since` paid for more.

    paid_first: the lineage's questions, and to whom they belong; later: the sets of clients and groups by subject.
    """
    numbers = {b"%d" % one.number: one.group for one in groups} | {b"": ""}
    names = {b"%d" % one.number: one.client for one in clients} | {b"0": ""}
    findings, payers = [], dict[bytes, tuple[str, str]]()
    for question, owners in paid_first.items():
        client, _, group = owners.partition(b" ")
        payers[question] = (names.get(client, f"number {client!r}"), numbers.get(group, f"number {group!r}"))
    meanwhile = {
        (subject, question)
        for receipt in since
        for subject in (account_subject("client", receipt.client), account_subject("group", receipt.group))
        for question in receipt.questions
    }
    unchanged = {one: who for one, who in payers.items() if (account_subject("client", who[0]), one) not in meanwhile}
    if unchanged != books.first_payers:
        findings.append("the questions that the lineage has paid for are not those of its receipts")
    for account in (*clients, *groups):
        own = {one for one in later[account.subject] if (account.subject, one) not in meanwhile}
        if own != books.paid_later(account.subject):
            findings.append(f"the questions that {account.title} has paid for are not those of its receipts")
    return findings


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
        shown, after = list[tuple[int, int]](), 0
        with suppress(LedgerDamaged):
            while page := await ledger.client_receipts(account.lineage, name, after=after, count=_PAGE):
                shown += [(one.number, one.sequence) for one in page]
                after = page[-1].number
        if [one for one in shown if one[1] <= account.newest_receipt] != paid.numbers:
            findings.append(f"the receipts that client {name} is shown are not those that name this client")
    return findings


def _check_witness(books: Books, journal: JournalContents) -> list[str]:
    findings = []
    for receipt in journal.receipts:
        # What was put back has another number, and may have been paid for anew by another receipt.
        ours = books.hashes[receipt.sequence - 1] if receipt.sequence <= len(books.hashes) else b""
        # A client that only a journal names has paid for nothing.
        payer = books.payers.get(account_subject("client", receipt.client) if receipt.client else "lineage")
        paid = set[bytes]() if payer is None else payer.questions
        if ours != receipt.hash and not (books.is_reconciled and paid.issuperset(receipt.questions)):
            findings.append(f"receipt {receipt.sequence}, which a service was given, is not in the ledger")
    return findings
