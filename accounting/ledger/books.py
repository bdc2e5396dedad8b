"""The books of a lineage: its chains walked, and every balance computed again from receipts and acts.

Promise: with no findings, the receipts and acts are those that were written, as far as SHA-256 and the newest links can
tell; every account has spent exactly what its receipts say, no account paid twice for a question, and every budget is
the one last set.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from accounting.ledger.receipts import GENESIS, Act, Receipt, first_link, next_link
from accounting.ledger.values import Account, ClientAccount, LineageAccount
from accounting.losses import Cost


@dataclass
class Payer:
    """What one account paid for, by its receipts: the lineage's, or one client's."""

    spent: int = 0
    coined: int = 0
    tally: Counter[Cost] = field(default_factory=Counter)
    numbers: list[tuple[int, int]] = field(default_factory=list)
    """The client's and the lineage's number of each receipt of a client."""
    questions: set[bytes] = field(default_factory=set)

    def pay(self, receipt: Receipt, releases: int) -> None:
        """Add what a receipt charged."""
        self.spent += receipt.price * releases
        self.coined += releases * receipt.cost.coins
        if releases:
            self.tally[receipt.cost] += releases


class Books:
    """The books of one lineage: enter receipts, then compare the accounts. `findings` has a line for each flaw."""

    def __init__(self, lineage: str, acts: Sequence[Act]) -> None:
        """Walk the acts."""
        self.lineage = lineage
        self.findings: list[str] = []
        self.whole = Payer()
        self.clients: dict[str, Payer] = {}
        self.first_payers: dict[bytes, str] = {}
        self.hashes: list[bytes] = []
        self.links: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self._open_call: tuple[str, list[Receipt]] = ("", [])
        self._acts = acts
        self._acts_head = GENESIS
        self._last: dict[tuple[str, str], str] = {}
        self._limits: set[tuple[str, int]] = set()
        self._resumed: set[tuple[str, bytes]] = set()
        for number, act in enumerate(acts, 1):
            self._enter_act(number, act)

    def _enter_act(self, number: int, act: Act) -> None:
        if act.sequence != number or not act.follows(self._acts_head):
            self.findings.append(f"act {number} was altered or is missing")
        self._acts_head = act.hash
        if act.kind in ("open", "add", "budget"):
            self._last["budget", act.subject] = act.detail
            self._limits.add((act.subject, int(act.detail.split(" ")[0])))
        else:
            self._last[act.kind, act.subject] = act.detail
        if act.kind == "reconcile":
            self._resumed |= resumed(act.detail)

    def enter(self, receipt: Receipt) -> None:
        """Enter the next receipt."""
        name = f"receipt {receipt.sequence}"
        expected = len(self.hashes) + 1
        if receipt.sequence != expected:
            self.findings.append(f"receipt {expected} is missing: the next one is {receipt.sequence}")
            self.hashes += [b""] * (receipt.sequence - expected)
        if receipt.lineage != self.lineage:
            self.findings.append(f"{name} is of another lineage")
        if receipt.flaw:
            self.findings.append(f"{name} was altered: it {receipt.flaw}")
        self._enter_link(receipt)
        self._enter_questions(receipt)
        self.hashes.append(receipt.hash)

    def _enter_link(self, receipt: Receipt) -> None:
        service, call = self._open_call
        if receipt.link:
            self._close_call()
            before = self.links.get(receipt.service, first_link(self.lineage, receipt.service))
            if receipt.link != before and (receipt.service, receipt.link) not in self._resumed:
                self.findings.append(f"receipt {receipt.sequence} does not follow from those of its service before it")
            self.links[receipt.service] = receipt.link
            self.calls[receipt.service] += 1
            self._open_call = (receipt.service, [receipt])
        elif service == receipt.service:
            call.append(receipt)
        else:
            self.findings.append(f"receipt {receipt.sequence} is without a link, and not of the call before it")

    def _close_call(self) -> None:
        service, call = self._open_call
        if call:
            self.links[service] = next_link(self.links[service], call)
        self._open_call = ("", [])

    def _enter_questions(self, receipt: Receipt) -> None:
        new = [question for question in receipt.questions if question not in self.first_payers]
        self.first_payers |= dict.fromkeys(new, receipt.client)
        own = self.clients.setdefault(receipt.client, Payer()) if receipt.client else self.whole
        again = len(set(receipt.questions)) != len(receipt.questions) or not own.questions.isdisjoint(receipt.questions)
        if (
            again
            or len(new) != receipt.lineage_questions
            or (not receipt.client and len(new) != len(receipt.questions))
        ):
            self.findings.append(f"receipt {receipt.sequence} charges a question to the wrong accounts")
        self.whole.pay(receipt, receipt.lineage_rows)
        self.whole.questions.update(new)
        if receipt.client:
            own.pay(receipt, receipt.rows)
            own.questions.update(receipt.questions)
            own.numbers.append((receipt.number, receipt.sequence))
            if receipt.number != len(own.numbers):
                self.findings.append(f"receipt {receipt.sequence} has not its client's next number")

    def compare(self, account: LineageAccount, clients: Sequence[ClientAccount]) -> None:
        """Compare the accounts with what was entered; call it after the last receipt."""
        self._close_call()
        if account.newest_receipt != len(self.hashes):
            self.findings.append(f"the account counts {account.newest_receipt} receipts, of {len(self.hashes)}")
        if (account.newest_act, account.acts_head) != (len(self._acts), self._acts_head):
            self.findings.append("the newest act is not the one that the account holds")
        self._compare("the lineage", "", account, self.whole)
        if account.asked != len(self.first_payers):
            self.findings.append("the lineage counts another number of questions than its receipts")
        added = {act.subject for act in self._acts if act.kind == "add"}
        for client in clients:
            name, paid = client.client, self.clients.get(client.client, Payer())
            self._compare(f"client {name}", name, client, paid)
            if (client.newest_receipt, client.asked) != (len(paid.numbers), len(self.of_client(name))):
                self.findings.append(f"client {name} counts other receipts or questions than name it")
            if client.revoked != (("revoke", name) in self._last or name not in added):
                self.findings.append(f"client {name} is revoked without an act, or not revoked in spite of one")
        known = {client.client for client in clients}
        self.findings += [f"the account of {name} is lost" for name in sorted((self.clients.keys() | added) - known)]

    def _compare(self, who: str, name: str, account: Account, paid: Payer) -> None:
        if account.spent != paid.spent or account.coined != paid.coined:
            self.findings.append(f"{who} has spent {account.spent} picorho, and its receipts say {paid.spent}")
        if dict(account.tally) != dict(paid.tally):
            self.findings.append(f"the tally of {who} is not that of its receipts")
        # A client that only its receipts brought back has no act, a limit of 0, and is revoked for ever.
        limit, accepts, delta, coins = self._last.get(("budget", name), f"0 any {account.budget.delta!r} 0").split(" ")
        stated = (int(limit), accepts, float(delta), int(coins))
        if (account.budget.picorho, account.budget.accepts, account.budget.delta, account.coins) != stated:
            self.findings.append(f"the budget of {who} is not the one that was last set")
        if account.highest_limit > account.budget.picorho and (name, account.highest_limit) not in self._limits:
            self.findings.append(f"the highest limit of {who} was never set")

    @property
    def reconciled(self) -> bool:
        """Whether receipts may have been put back."""
        return any(act.kind == "reconcile" for act in self._acts)

    def of_client(self, name: str) -> set[bytes]:
        """Return the questions that a client paid for after somebody else: what its own set holds."""
        own = self.clients.get(name, Payer()).questions
        return {question for question in own if self.first_payers[question] != name}


def resumed(detail: str) -> set[tuple[str, bytes]]:
    """Return which services went on from which link after a reconciliation, by its act's detail."""
    found = set()
    for part in detail.split("; ")[1:]:
        service, _, link = part.split(" ")
        found.add((service, bytes.fromhex(link)))
    return found
