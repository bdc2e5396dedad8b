"""Whether a lineage's books are right: its chains walked, every balance computed again from the receipts.

Promises: with no findings, the receipts and acts are those that were written (as far as SHA-256 and the newest
hash can tell), every account has spent exactly what its receipts say, every budget is the one last set, and every
client has its own API key and is shown its own receipts. A service may go on charging meanwhile: the accounts are
read first, at one instant, and the receipts up to there.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from accounting.budgets import Budget
from accounting.ledger import chain
from accounting.ledger.accounts import Accounts
from accounting.ledger.api_keys import ApiKey
from accounting.ledger.errors import LedgerDamaged
from accounting.ledger.journal import JournalContents
from accounting.ledger.values import Account, Act, ClientAccount, LineageAccount, Receipt
from accounting.ledger.wire import LineageKeys
from accounting.losses import Cost

_PAGE = 1000


@dataclass(frozen=True)
class Verification:
    """What was found in a lineage: `findings` has one line for everything that is wrong."""

    lineage: str
    receipts: int
    acts: int
    head: bytes
    findings: tuple[str, ...]


async def all_receipts(ledger: Accounts, lineage: str, upto: int, client: str | None = None) -> AsyncIterator[Receipt]:
    """Yield the receipts of a lineage, or of a client in it, with numbers up to `upto`, oldest first."""
    after = 0
    while after < upto and (page := await ledger.receipts(lineage, client=client, after=after, count=_PAGE)):
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
        return await _walk(ledger, lineage, witnesses)
    except LedgerDamaged as damage:
        return Verification(lineage, 0, 0, b"", (damage.what,))


async def _walk(ledger: Accounts, lineage: str, witnesses: Iterable[JournalContents]) -> Verification:
    damage = await _damaged_keys(ledger, lineage)
    if damage:
        return Verification(lineage, 0, 0, b"", tuple(damage))
    account, clients = await ledger.snapshot(lineage)
    books = _Books(lineage)
    async for receipt in all_receipts(ledger, lineage, account.newest_receipt):
        books.enter(receipt)
    books.close(account, clients)
    books.check_holdings(await ledger.holdings(lineage))
    books.check_acts(account, clients, await all_acts(ledger, lineage, account.newest_act))
    books.check_api_keys(*await ledger.api_keys(lineage))
    for client in clients:
        shown = await ledger.indexed_receipts(lineage, client.client, account.newest_receipt)
        books.check_index(client.client, shown)
    applied = await ledger.applied(lineage)
    for journal in witnesses:
        books.check_witness(journal, applied)
    return Verification(lineage, account.newest_receipt, account.newest_act, account.head, tuple(books.findings))


async def _damaged_keys(ledger: Accounts, lineage: str) -> list[str]:
    """Return a line for each key that is not what a charge takes it for."""
    account, clients = await ledger.snapshot(lineage)
    keys = LineageKeys(lineage)
    hashes = [keys.services, keys.rows, keys.old_rows, keys.api_keys, keys.held]
    streams = {keys.receipts: account.newest_receipt, keys.acts: account.newest_act}
    sets = [keys.applied, keys.clients]
    for client in clients:
        own = keys.client(client.client)
        hashes += [own.requests, own.old_requests, own.held]
        streams[own.receipts] = account.newest_receipt
    kinds = dict.fromkeys(hashes, "hash") | dict.fromkeys(streams, "stream") | dict.fromkeys(sets, "set")
    found = dict(zip(kinds, await ledger.key_types(lineage, list(kinds)), strict=True))
    damage = []
    for key, kind in found.items():
        is_a, _, newest = kind.partition(" ")
        if is_a not in (kinds[key], "none"):
            damage.append(f"{key} is a {is_a} and not a {kinds[key]}")
        elif newest and int(newest) > streams[key]:
            now = await ledger.lineage(lineage)  # it may have been charged meanwhile
            if int(newest) > max(now.newest_receipt, now.newest_act):
                damage.append(f"{key} has an entry {newest}, which nothing accounts for")
    return damage


def _is_budget(budget: Budget, detail: str) -> bool:
    """Tell whether an act's detail says this budget: its limit, what it accepts and, if it says so, its delta."""
    limit, accepts, *delta = detail.split()
    stated = [float(word) for word in delta]
    return (budget.picorho, budget.accepts) == (int(limit), accepts) and stated in ([], [budget.delta])


@dataclass
class _Books:
    """The balances as the receipts have them."""

    lineage: str
    findings: list[str] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=lambda: [chain.GENESIS])
    tallies: dict[str, Counter[Cost]] = field(default_factory=dict)
    spent: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    whole: Counter[Cost] = field(default_factory=Counter)
    whole_spent: int = 0
    held: dict[str, dict[bytes, int]] = field(default_factory=lambda: {"": {}})

    def enter(self, receipt: Receipt) -> None:
        expected = len(self.hashes)
        if receipt.sequence != expected:
            self.findings.append(f"receipt {expected} is missing: the next one is {receipt.sequence}")
            self.hashes += [receipt.previous] * (receipt.sequence - expected)
        if receipt.previous != self.hashes[-1]:
            self.findings.append(f"receipt {receipt.sequence} does not follow from the one before it")
        if receipt.hash != receipt.hash_from_contents() or receipt.lineage != self.lineage:
            self.findings.append(f"receipt {receipt.sequence} was altered")
        if receipt.price != receipt.cost.picorho or receipt.total != receipt.price * receipt.rows:
            self.findings.append(f"receipt {receipt.sequence} charges {receipt.total} picorho, which its cost does not")
        self.hashes.append(receipt.hash)
        self.spent[receipt.client] += receipt.total
        self.numbers.setdefault(receipt.client, []).append(receipt.sequence)
        self.tallies.setdefault(receipt.client, Counter())[receipt.cost] += receipt.rows
        self.whole_spent += receipt.price * receipt.lineage_rows
        if receipt.lineage_rows:
            self.whole[receipt.cost] += receipt.lineage_rows
        if receipt.held:
            self._enter_step(receipt)

    def _enter_step(self, receipt: Receipt) -> None:
        own, everyone = self.held.setdefault(receipt.client, {}), self.held[""]
        if not receipt.pays_for_its_step:
            self.findings.append(f"receipt {receipt.sequence} names a step that it does not pay for")
        paid_before = receipt.held in everyone
        if receipt.shared != paid_before or receipt.rows != 1 or (receipt.client and receipt.held in own):
            self.findings.append(f"receipt {receipt.sequence} charges a step to the wrong accounts")
        own.setdefault(receipt.held, receipt.sequence)
        everyone.setdefault(receipt.held, receipt.sequence)

    def check_holdings(self, found: Mapping[str, Mapping[bytes, int]]) -> None:
        for name in sorted(self.held.keys() | found.keys()):
            expected, there = self.held.get(name, {}), found.get(name, {})
            # A step may have been charged since the accounts were read.
            newer = {step for step, number in there.items() if number > len(self.hashes) - 1}
            if {step: number for step, number in there.items() if step not in newer} != expected:
                self.findings.append(f"what {f'client {name}' if name else 'the lineage'} holds is not in its receipts")

    def close(self, account: LineageAccount, clients: Sequence[ClientAccount]) -> None:
        if len(self.hashes) - 1 != account.newest_receipt:
            self.findings.append(
                f"the account counts {account.newest_receipt} receipts, and there are {len(self.hashes) - 1}"
            )
        if self.hashes[-1] != account.head:
            self.findings.append("the newest receipt's hash is not the one that the account holds")
        self._compare("the lineage", account, self.whole_spent, self.whole)
        for client in clients:
            tally = self.tallies.get(client.client, Counter())
            self._compare(f"client {client.client}", client, self.spent[client.client], tally)
        known = {client.client for client in clients} | {""}
        self.findings += [f"receipts name a client {name!r}, who is none" for name in sorted(self.spent.keys() - known)]

    def _compare(self, who: str, account: Account, spent: int, tally: Counter[Cost]) -> None:
        if account.spent != spent:
            self.findings.append(f"{who} has spent {account.spent} picorho, and its receipts say {spent}")
        if dict(account.tally) != dict(tally):
            self.findings.append(f"the tally of {who} is not that of its receipts")

    def check_acts(self, account: LineageAccount, clients: Sequence[ClientAccount], acts: Sequence[Act]) -> None:
        previous, last = chain.GENESIS, dict[tuple[str, str], str]()
        for number, act in enumerate(acts, 1):
            if act.sequence != number or act.previous != previous or act.hash != act.hash_from_contents():
                self.findings.append(f"act {number} was altered or is missing")
            previous = act.hash
            kind = "budget" if act.kind in ("open", "add") else act.kind
            last[kind, act.subject] = act.detail
        if len(acts) != account.newest_act or previous != account.acts_head:
            self.findings.append("the newest act is not the one that the account holds")
        if account.epoch != sum(act.kind == "reconcile" for act in acts):
            self.findings.append(f"the epoch is {account.epoch}, which is not how often the lineage was reconciled")
        for one in (account, *clients):
            name = one.client if isinstance(one, ClientAccount) else ""
            # A client that only its receipts brought back has no act, a limit of 0, and is revoked for ever.
            if not _is_budget(one.budget, last.get(("budget", name), "0 any")):
                self.findings.append(f"the budget of {name or 'the lineage'} is not the one that was last set")
        added = {act.subject for act in acts if act.kind == "add"}
        for client in clients:
            if client.revoked != (("revoke", client.client) in last or client.client not in added):
                self.findings.append(
                    f"client {client.client} is revoked without an act, or not revoked in spite of one"
                )

    def check_api_keys(self, owners: Sequence[tuple[str, ApiKey]], stated: Mapping[str, Sequence[ApiKey]]) -> None:
        known = set(owners)
        for name, keys in stated.items():
            if any((name, key) not in known for key in keys):
                self.findings.append(f"an API key of client {name} is not known as this client's, or at other terms")
        for name in sorted({name for name, key in owners if name not in stated or key not in (stated[name] or [key])}):
            self.findings.append(f"an API key is known as client {name}'s, and is not, or at other terms")

    def check_index(self, client: str, shown: Sequence[int]) -> None:
        if list(shown) != self.numbers.get(client, []):
            self.findings.append(f"the receipts that client {client} is shown are not those that name this client")

    def check_witness(self, journal: JournalContents, applied: set[bytes]) -> None:
        for receipt in journal.receipts:
            ours = self.hashes[receipt.sequence] if receipt.sequence < len(self.hashes) else b""
            if ours != receipt.hash and receipt.hash not in applied:
                self.findings.append(f"receipt {receipt.sequence}, which a service was given, is not in the ledger")
