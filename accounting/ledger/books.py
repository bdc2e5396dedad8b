"""The books of a lineage: its chains walked, and every balance computed again from receipts and acts.

Promise: with no findings, the receipts and acts are those that were written, as far as SHA-256 and the newest links can
tell; every account has spent exactly what its receipts say, no account paid twice for a question, every budget is the
one last set, and every API key was given by an act and ended at once by none. The books of any number of receipts take
a bounded part of memory, beside the acts and accounts; who paid for which question lies in a temporary file.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpserve.accounting.budgets import currency_of
from dpserve.accounting.currency import RHO, Currency
from dpserve.accounting.ledger.questions import PaidQuestions
from dpserve.accounting.ledger.receipts import GENESIS, Act, Receipt, account_subject, first_link, next_link, paying
from dpserve.accounting.ledger.values import Account, BlockAccount, ClientAccount, GroupAccount, LineageAccount
from dpserve.accounting.ledger.wire import budget_arguments
from dpserve.accounting.losses import Cost

_SHOWN = 5
_HASH = 32
_IN_WORDS = {
    "order": "do not have the number that follows",
    "lineage": "are of another lineage",
    "flaw": "were altered",
    "link": "do not follow from those of their service before them",
    "call": "are without a link, and not of the call before them",
    "number": "do not have their client's next number",
    "group": "are of another group than their client's before them",
    "questions": "charge a question to the wrong accounts",
}
"""The findings that every receipt may have: the first few are in `findings`, the others are counted."""


@dataclass
class Payer:
    """Everything that one account (a block's, a group's or a client's) paid for, by its receipts."""

    currency: Currency
    spent: int = 0
    coins_spent: int = 0
    receipts: int = 0
    questions: int = 0
    """A block's: the number of questions that the receipts say it paid for."""
    index: "IndexDigest" = field(default_factory=lambda: IndexDigest())
    """The account's own and the lineage's number of each receipt."""
    _releases: Counter[str] = field(default_factory=Counter)
    _rates: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """The charge and the coins of one release, by its cost and its price."""

    def pay(self, receipt: Receipt, releases: int) -> None:
        """Add what a receipt charged."""
        self.receipts += 1
        if not releases:
            return
        terms = receipt.terms
        rates = self._rates.get((terms.cost_text, terms.price))
        if rates is None:
            rates = receipt.price_in(self.currency), terms.cost.coins
            self._rates[terms.cost_text, terms.price] = rates
        self.spent += rates[0] * releases
        self.coins_spent += rates[1] * releases
        self._releases[terms.cost_text] += releases

    @property
    def tally(self) -> Counter[Cost]:
        """The number of releases by their cost."""
        tally: Counter[Cost] = Counter()
        for cost, releases in self._releases.items():
            tally[Cost.parse(cost)] += releases
        return tally


class IndexDigest:
    """The SHA-256 of an index of receipts: of pairs of a payer's own number and the lineage's, in order."""

    def __init__(self) -> None:
        """Begin with no receipt."""
        self._summed = hashlib.sha256()

    def add(self, number: int, sequence: int) -> None:
        """Add the next receipt."""
        self._summed.update(b"%d-%d " % (number, sequence))

    def add_entries(self, entries: Sequence[bytes]) -> None:
        """Add receipts by their entries in a client's index: `NUMBER-SEQUENCE`."""
        self._summed.update(b"".join([entry + b" " for entry in entries]))

    def __eq__(self, other: object) -> bool:
        """Return whether both are of the same receipts."""
        return isinstance(other, IndexDigest) and self._summed.digest() == other._summed.digest()

    __hash__ = None  # type: ignore[assignment]  # it changes


class Books:
    """The books of one lineage: enter receipts, settle, and compare the accounts.

    `findings` has the first few receipts of each kind of flaw, and how many more there are. `paid` is who paid for each
    question, `newest` the number of the newest receipt, and `hash_of` has the hashes that were asked for.
    """

    def __init__(self, lineage: str, acts: Sequence[Act], hashed: Iterable[int] = ()) -> None:
        """Walk the acts. hashed: the numbers of the receipts whose hashes are kept."""
        self.lineage = lineage
        self.paid = PaidQuestions()
        self.newest = 0
        self._hashed = array("Q", np.unique(np.fromiter(hashed, np.uint64)).tobytes())
        self._hashes = array("B", bytes(_HASH * len(self._hashed)))
        self._next_hashed = 0
        self.findings: list[str] = []
        self.payers: dict[str, Payer] = {}
        """The payers by `account_subject`."""
        self.group_of: dict[str, str] = {}
        self.links: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self._open_call: tuple[str, list[Receipt]] = ("", [])
        self._noted: Counter[str] = Counter()
        self._acts = acts
        self._acts_head = GENESIS
        self._last: dict[tuple[str, str], dict[str, Any]] = {}
        self._limits: set[tuple[str, int]] = set()
        self._keys: defaultdict[str, set[str]] = defaultdict(set)
        """The API keys that acts gave each client (by its subject) and did not end at once."""
        self._resumed: set[tuple[str, bytes]] = set()
        for number, act in enumerate(acts, 1):
            self._enter_act(number, act)

    def _enter_act(self, number: int, act: Act) -> None:
        if act.sequence != number or not act.follows(self._acts_head):
            self.findings.append(f"act {number} was altered or is missing")
        self._acts_head = act.hash
        try:
            details = act.details
            if "limit" in details:
                self._last["budget", act.subject] = details
                self._limits.add((act.subject, int(details["limit"])))
            if act.kind != "budget":
                self._last[act.kind, act.subject] = details
            for name in ("display", "group"):
                if name in details:
                    self._last[name, act.subject] = details
            if "key" in details or "ends" in details:
                self._enter_keys(self._keys[act.subject], details)
            if act.kind == "reconcile":
                self._resumed |= {(one["service"], bytes.fromhex(one["link"])) for one in details["services"]}
        except (KeyError, TypeError, ValueError):
            self.findings.append(f"act {number} cannot be read")

    @staticmethod
    def _enter_keys(keys: set[str], details: dict[str, Any]) -> None:
        if details.get("after_seconds") == 0:
            keys -= keys.copy() if details["ends"] == "all" else {details["ends"]}
        if "key" in details:
            keys.add(details["key"])

    def _payer(self, subject: str) -> Payer:
        if subject not in self.payers:
            self.payers[subject] = Payer(self._currency_of(subject))
        return self.payers[subject]

    def _currency_of(self, subject: str) -> Currency:
        """Return what an account counts, which no act changes once it has paid; one brought back, as the lineage."""
        terms = self._last.get(("budget", subject)) or self._last.get(("budget", "lineage"), {})
        return currency_of(terms.get("accepts", "any"))

    def enter(self, receipt: Receipt) -> None:
        """Enter the next receipt. Raises ValueError for what none can hold."""
        self._follow(receipt)
        self._enter_payers(receipt)

    def _follow(self, receipt: Receipt) -> None:
        """Look whether a receipt follows those before it."""
        expected = self.newest + 1
        if receipt.sequence != expected:
            self._note("order", f"receipt {expected} is missing: the next one is {receipt.sequence}")
        if receipt.lineage != self.lineage:
            self._note("lineage", f"receipt {receipt.sequence} is of another lineage")
        if flaw := receipt.flaw:
            self._note("flaw", f"receipt {receipt.sequence} was altered: it {flaw}")
        self._enter_link(receipt)
        self.newest = max(expected, receipt.sequence)
        while self._next_hashed < len(self._hashed) and self._hashed[self._next_hashed] <= self.newest:
            if self._hashed[self._next_hashed] == receipt.sequence:
                start = _HASH * self._next_hashed
                self._hashes[start : start + _HASH] = array("B", receipt.hash)
            self._next_hashed += 1

    def _enter_link(self, receipt: Receipt) -> None:
        service, call = self._open_call
        if receipt.link:
            self.close_call()
            before = self.links.get(receipt.service) or first_link(self.lineage, receipt.service)
            if receipt.link != before and (receipt.service, receipt.link) not in self._resumed:
                self._note("link", f"receipt {receipt.sequence} does not follow from those of its service before it")
            self.links[receipt.service] = receipt.link
            self.calls[receipt.service] += 1
            self._open_call = (receipt.service, [receipt])
        elif service == receipt.service:
            call.append(receipt)
        else:
            self._note("call", f"receipt {receipt.sequence} is without a link, and not of the call before it")

    def close_call(self) -> None:
        """Set the link after the newest call, all of whose receipts were entered."""
        service, call = self._open_call
        if call:
            self.links[service] = next_link(self.links[service], call)
        self._open_call = ("", [])

    def _enter_payers(self, receipt: Receipt) -> None:
        """Enter who pays for what. Raises ValueError for a question that is none."""
        self.paid.enter(receipt)
        for block in paying(receipt.terms.blocks):
            payer = self._payer(account_subject("block" if block else "lineage", block))
            payer.pay(receipt, receipt.lineage_releases)
            payer.questions += receipt.lineage_questions
        if receipt.client:
            if receipt.group:
                group = self._payer(account_subject("group", receipt.group))
                group.pay(receipt, receipt.group_releases)
            own = self._payer(account_subject("client", receipt.client))
            own.pay(receipt, receipt.releases)
            own.index.add(receipt.number, receipt.sequence)
            if receipt.number != own.receipts:
                self._note("number", f"receipt {receipt.sequence} has not its client's next number")
            if self.group_of.setdefault(receipt.client, receipt.group) != receipt.group:
                self._note("group", f"receipt {receipt.sequence} is of another group than its client's before it")

    def _note(self, kind: str, finding: str) -> None:
        """Note a finding of a kind of which every receipt may have one."""
        self._noted[kind] += 1
        if self._noted[kind] <= _SHOWN:
            self.findings.append(finding)

    def settle(self) -> None:
        """Compare what each receipt charges to whom with the receipts before it; call it after the last one."""
        self.close_call()
        self.paid.settle()
        wrong = self.paid.wrong
        for sequence in wrong.first:
            self._note("questions", f"receipt {sequence} charges a question to the wrong accounts")
        more = self._noted + Counter({"questions": max(0, wrong.count - len(wrong.first))})
        self.findings += [
            f"{count - _SHOWN} more receipts {_IN_WORDS[kind]}"
            for kind, count in sorted(more.items())
            if count > _SHOWN
        ]

    def compare(self, whole: LineageAccount, inner: Sequence[ClientAccount | GroupAccount | BlockAccount]) -> None:
        """Compare the accounts of the lineage and of its clients, groups and blocks; call it after `settle`."""
        self._compare_chains(whole)
        self._compare(whole)
        self._compare_settings(whole)
        if whole.questions != self.paid.count:
            self.findings.append("the lineage counts another number of questions than its receipts")
        for account in inner:
            self._compare(account)
            paid = self._payer(account.subject)
            is_block = isinstance(account, BlockAccount)
            later = paid.questions if is_block else self.paid.count_later(account.subject)
            counted = paid.receipts, later
            if (account.newest_receipt, account.questions) != counted:
                self.findings.append(f"{account.title} counts other receipts or questions than name it")
            # The name that the owner gives is no right, and may have been given by an act that a loss took.
            if account.display != self._last.get(("display", account.subject), {}).get("display", account.display):
                self.findings.append(f"{account.title} has another display name than it was given last")
            if isinstance(account, ClientAccount):
                self._compare_client(account)
        if whole.blocks != sum(isinstance(account, BlockAccount) for account in inner):
            self.findings.append("the lineage counts other blocks than it has")
        named = {subject for kind, subject in self._last if kind in ("add-client", "add-group", "add-block")}
        lost = (named | self.payers.keys()) - {"lineage", *(account.subject for account in inner)}
        self.findings += [f"the account of {subject.partition(':')[2]} is lost" for subject in sorted(lost)]

    def _compare_chains(self, whole: LineageAccount) -> None:
        """Compare how many receipts and acts the lineage's account counts."""
        if whole.newest_receipt != self.newest:
            self.findings.append(f"the account counts {whole.newest_receipt} receipts, of {self.newest}")
        if (whole.newest_act, whole.acts_head) != (len(self._acts), self._acts_head):
            self.findings.append("the newest act is not the one that the account holds")

    def _compare_settings(self, whole: LineageAccount) -> None:
        if whole.unit != self._last.get(("unit", "lineage"), {}).get("unit"):
            self.findings.append("the lineage protects another privacy unit than was settled")

    def _compare_client(self, client: ClientAccount) -> None:
        subject = client.subject
        revoked = ("revoke", subject) in self._last or ("add-client", subject) not in self._last
        if client.revoked != revoked:
            self.findings.append(f"{client.title} is revoked without an act, or not revoked in spite of one")
        if not {key.id for key in client.api_keys} <= self._keys[subject]:
            self.findings.append(f"{client.title} has an API key that no act gave it, or that one ended")
        stated = client.group if self.is_reconciled else self._last.get(("group", subject), {}).get("group", "")
        if client.group != self.group_of.get(client.client, stated):
            self.findings.append(f"{client.title} belongs to another group than its receipts or the acts say")

    def _compare(self, account: Account) -> None:
        who, subject, paid = account.title, account.subject, self._payer(account.subject)
        if account.spent != paid.spent or account.coins_spent != paid.coins_spent:
            currency = account.budget.currency
            self.findings.append(
                f"{who} has spent {currency.words(account.spent)} ({account.spent}), and its receipts say {paid.spent}"
            )
        if dict(account.tally) != dict(paid.tally):
            self.findings.append(f"the tally of {who} is not that of its receipts")
        # An account that only its receipts brought back has no act, a limit of 0, and a client is revoked for ever.
        accepts = "any" if self._currency_of("lineage") is RHO else "pure"
        nothing = {"limit": 0, "accepts": accepts, "delta": repr(account.budget.delta), "coins": 0}
        terms = budget_arguments(account.budget) | {"coins": account.coins}
        if any(terms[name] != self._last.get(("budget", subject), nothing).get(name) for name in terms):
            self.findings.append(f"the budget of {who} is not the one that was last set")
        if account.highest_limit > account.budget.limit and (subject, account.highest_limit) not in self._limits:
            self.findings.append(f"the highest limit of {who} was never set")

        # That of an account that its receipts brought back is 0, which no act set.
        if account.settled_limit and (subject, account.settled_limit) not in self._limits:
            self.findings.append(f"the limit that {who} was raised from was never set")

    def hash_of(self, sequence: int) -> bytes:
        """Return the hash of the receipt of a number that was asked for; zeros if there is none."""
        place = bisect_left(self._hashed, sequence)
        return self._hashes[_HASH * place : _HASH * (place + 1)].tobytes()

    @property
    def is_reconciled(self) -> bool:
        """Whether receipts may have been put back."""
        return any(act.kind == "reconcile" for act in self._acts)
