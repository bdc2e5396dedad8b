"""What goes into the ledger and comes out of it, as frozen values.

Nobody passes an amount by hand: a request carries the `Cost` of one answer, and the price, what an account accepts and
the tally all derive from it. A question is a digest that the caller computes of everything that decides its answer (the
model, the mechanism, its cost and the quantised features, under a key), so that the same answer always has the same
question and no other one does.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import msgspec
from msgspec import Struct

from accounting.budgets import Budget
from accounting.ledger import chain
from accounting.ledger.api_keys import ApiKey
from accounting.ledger.errors import LedgerRefusal
from accounting.losses import Cost

LARGEST_REQUEST = 10_000
"""The most questions one request may hold: what the store can charge without keeping others waiting."""

QUESTION = 16
"""Bytes of a question's digest."""

_LINEAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST_CLIENT = 256
_LONGEST_TEXT = 255
_MICROSECONDS = 1_000_000


def checked_lineage(name: str) -> None:
    """Raise ValueError unless `name` can name a lineage in the store's keys, which a cluster finds by it."""
    if not _LINEAGE.fullmatch(name):
        raise ValueError(
            "a lineage's name has 1 to 128 letters, digits, dots, dashes and underscores and starts with a letter or a "
            f"digit; {name!r} does not"
        )


@lru_cache(maxsize=4096)
def checked_client(name: str) -> str:
    """Return a client's name: 1 to 256 bytes of UTF-8 that can be printed, as e-mail addresses. Raises ValueError."""
    if not name.isprintable() or name != name.strip() or not 0 < len(name.encode()) <= _LONGEST_CLIENT:
        raise ValueError(
            f"a client's name has 1 to {_LONGEST_CLIENT} bytes of printable UTF-8, with no space at its ends; {name!r} "
            "does not"
        )
    return name


def checked_text(text: str, what: str) -> None:
    """Raise ValueError unless `text` is neither empty nor too long for the store."""
    if not 0 < len(text.encode()) <= _LONGEST_TEXT:
        raise ValueError(f"{what} must have 1 to {_LONGEST_TEXT} bytes")


def checked_time(time: float) -> None:
    """Raise ValueError unless `time` is finite and not beyond what the store counts in microseconds."""
    if not abs(time) < 2**53 / _MICROSECONDS * 1000:
        raise ValueError(f"a request's time must be finite, not {time}")


def new_api_key() -> str:
    """Return a new API key: 256 bits of the operating system's randomness, to be shown once."""
    return "dp_" + secrets.token_urlsafe(32)


def key_digest(api_key: str) -> bytes:
    """Return what the ledger stores of an API key: its SHA-256, enough for a secret of 256 random bits."""
    return hashlib.sha256(api_key.encode()).digest()


@dataclass(frozen=True)
class Terms:
    """What a line of a request is charged at, and its receipt says.

    `times` is how many releases each question stands for: 1, but for a loss that the owner declares. `after` is empty
    but for a step of a pay-once model: what its question was derived from, beside the model and the cost.
    """

    model: str
    mechanism: str
    cost: Cost
    times: int = 1
    after: bytes = b""

    @cached_property
    def price(self) -> int:
        """What one release costs, in picorho."""
        return self.cost.picorho

    @cached_property
    def packed(self) -> bytes:
        """The terms as the store keeps them."""
        return msgspec.json.encode(
            [self.model, self.mechanism, str(self.cost), self.price, self.times, self.after.hex()]
        )

    @cached_property
    def arguments(self) -> tuple[bytes | str | int, ...]:
        """The terms as the store's functions take them. Raises ValueError for a cost that does not read back.

        Such a cost would stand in a tally that nobody can read any more (a parameter that is a NumPy number prints so).
        """
        text = str(self.cost)
        if Cost.parse(text) != self.cost:
            raise ValueError(f"the cost {text!r} does not read back as itself")
        return self.packed, text, self.cost.standing, self.price, self.times, self.cost.coins

    @staticmethod
    @lru_cache(maxsize=4096)
    def unpacked(packed: bytes) -> tuple["Terms", int]:
        """Read what `packed` wrote, and the price that stands in it. Raises ValueError or TypeError."""
        model, mechanism, cost, price, times, after = msgspec.json.decode(packed)
        return terms_of(str(model), str(mechanism), Cost.parse(cost), int(times), bytes.fromhex(after)), int(price)


@lru_cache(maxsize=4096)
def terms_of(model: str, mechanism: str, cost: Cost, times: int = 1, after: bytes = b"") -> Terms:
    """Return terms, checked once. Raises ValueError for what the store could not hold."""
    checked_text(model, "a model's id")
    checked_text(mechanism, "a mechanism's name")
    terms = Terms(model, mechanism, cost, times, after)
    _ = terms.arguments
    return terms


@dataclass(frozen=True, slots=True)
class Line:
    """Questions of a request that are charged at the same terms; a question that occurs twice is charged once."""

    terms: Terms
    questions: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's name for one request, and the SHA-256 of the request's body."""

    key: str
    body_digest: bytes

    def __post_init__(self) -> None:
        """Refuse an empty or overlong key and a digest that is none."""
        checked_text(self.key, "an idempotency key")
        if len(self.body_digest) != hashlib.sha256().digest_size:
            raise ValueError("the body's digest must be a SHA-256 of 32 bytes")

    def fingerprint(self, *terms: str) -> bytes:
        """Return the 16 bytes that are kept of it: of the body, and of the terms that would be charged again if new."""
        return hashlib.sha256(self.body_digest + msgspec.json.encode(terms)).digest()[:16]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the ledger charges: a `ChargeRequest`, a `HoldRequest`, or what is put back. All of its lines or none.

    `client` is empty where the lineage alone pays. `fingerprint` is what is kept with the idempotency key.
    """

    lineage: str
    client: str
    time: float
    lines: tuple[Line, ...]
    key_digest: bytes = b""
    key: str = ""
    fingerprint: bytes = b""


class ChargeRequest(Struct, frozen=True):
    """One request for rows to pay for: all of its questions or none.

    `questions` are digests of 16 bytes, one for each row: equal where the answers are the same release, for whomever.
    One that occurs twice is charged once. `cost` is that of one answer. `time` is when the request came, in seconds
    since the epoch. `key_digest` is that of the API key that it came with: it is decided only if the key is the
    client's at that instant; empty where the client is known otherwise.
    """

    lineage: str
    client: str
    model: str
    mechanism: str
    cost: Cost
    questions: tuple[bytes, ...]
    time: float
    idempotency: Idempotency | None = None
    key_digest: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what the store could not hold."""
        checked_lineage(self.lineage)
        checked_client(self.client)
        checked_time(self.time)
        if self.cost.coins:
            raise ValueError(f"a row cannot cost {str(self.cost)!r}: only pay-once models have a cost with a coin")
        if not 0 < len(self.questions) <= LARGEST_REQUEST:
            raise ValueError(f"a request must have 1 to {LARGEST_REQUEST} questions, not {len(self.questions)}")
        if any(len(question) != QUESTION for question in self.questions):
            raise ValueError(f"a question must be a digest of {QUESTION} bytes")
        _ = self.terms

    @property
    def terms(self) -> Terms:
        """What each question is charged at."""
        return terms_of(self.model, self.mechanism, self.cost)

    @property
    def price(self) -> int:
        """What one answer costs, in picorho."""
        return self.terms.price

    @property
    def asked(self) -> Asked:
        """The request as the ledger charges it. The same body at other terms would be another charge."""
        key, fingerprint = "", b""
        if self.idempotency is not None:
            key = self.idempotency.key
            fingerprint = self.idempotency.fingerprint(self.model, self.mechanism, str(self.cost))
        lines = (Line(self.terms, self.questions),)
        return Asked(self.lineage, self.client, self.time, lines, self.key_digest, key, fingerprint)


class Receipt(Struct, frozen=True, kw_only=True, dict=True):
    """What one line of a request was charged.

    `number` counts the receipts of the client from 1; `sequence` those of the lineage. That, `lineage_questions`,
    `link` and what derives from them is not for the client, whom it would tell what others ask. `client` is empty, and
    `number` 0, where the lineage alone was charged, for a loss that the owner declared or for what the owner holds.
    `questions` are those that were new to the client, and `lineage_questions` how many of them were new to the lineage,
    too. `microseconds` is the request's time since the epoch. `service` wrote it; `link` is the service's chain before
    the call, or empty for a further receipt of the same call. `price` is picorho of one release.
    """

    lineage: str
    client: str
    sequence: int
    number: int
    terms: Terms
    price: int
    microseconds: int
    questions: tuple[bytes, ...]
    lineage_questions: int
    service: str = ""
    link: bytes = b""

    @property
    def model(self) -> str:
        """The model's id."""
        return self.terms.model

    @property
    def mechanism(self) -> str:
        """The mechanism's name."""
        return self.terms.mechanism

    @property
    def cost(self) -> Cost:
        """The cost of one release."""
        return self.terms.cost

    @property
    def time(self) -> float:
        """When the request came, in seconds since the epoch."""
        return self.microseconds / _MICROSECONDS

    @property
    def rows(self) -> int:
        """How many releases the client's account was charged, or the lineage's where it alone pays."""
        return self.terms.times * len(self.questions)

    @property
    def lineage_rows(self) -> int:
        """How many releases the lineage's account was charged."""
        return self.terms.times * self.lineage_questions

    @property
    def total(self) -> int:
        """What the client's account was charged, in picorho."""
        return self.price * self.rows

    @property
    def lineage_total(self) -> int:
        """What the lineage's account was charged, in picorho."""
        return self.price * self.lineage_rows

    @property
    def pays_for_its_step(self) -> bool:
        """Whether the step that it names, if any, has this model and this cost."""
        terms = self.terms
        expected = (chain.step_question(terms.after, terms.model, str(terms.cost)),) if terms.after else self.questions
        return self.questions == expected and (terms.times == 1 or not terms.after)

    @cached_property
    def hash(self) -> bytes:
        """The SHA-256 of what it says to its client: 32 bytes."""
        questions = b"".join(self.questions)
        return chain.receipt_hash(
            self.lineage, self.client, self.terms.packed, self.number, self.microseconds, questions
        )

    @property
    def linked(self) -> bytes:
        """What the link after its call covers of it."""
        return chain.linked(self.hash, self.sequence, self.lineage_questions)


def microseconds(time: float) -> int:
    """Return seconds as whole microseconds."""
    return round(time * _MICROSECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What the owner changed, as written in the store.

    `kind` is open, add, budget, revoke, add-key, rotate-key, remove-key or reconcile; `subject` the client, empty for
    the lineage; `detail` the new limit in picorho, what is accepted, delta and coins, what became of which keys, or
    what was reconciled; `time` the store's own, in seconds since the epoch, as text. `hash` covers the hash of the act
    before.
    """

    sequence: int
    kind: str
    subject: str
    detail: str
    time: str
    hash: bytes

    def follows(self, previous: bytes) -> bool:
        """Return whether the hash is that of these contents after an act with the hash `previous`."""
        return self.hash == chain.act_hash(previous, self.sequence, self.kind, self.subject, self.detail, self.time)


@dataclass(frozen=True, slots=True)
class Quote:
    """What a request would cost the client now, in picorho, and whether it would be admitted. Asking spends nothing.

    `free` says of each question, by position, whether it would cost the client nothing: it is paid for already, or
    occurs earlier in the request. `refusal` is what charging it would raise.
    """

    total: int
    free: tuple[bool, ...]
    refusal: LedgerRefusal | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How a client's account stood at one instant. `spent` and `lineage_left`, of the lineage's budget, are picorho.

    `lineage_left` is for the owner: a client is told `questions_left`.
    """

    budget: Budget
    spent: int
    lineage_left: int

    @property
    def remaining(self) -> int:
        """What the client's account has left, in picorho."""
        return max(0, self.budget.picorho - self.spent)

    def questions_left(self, price: int) -> int:
        """Return how many more questions at this price, in picorho and above 0, both accounts would pay for at most."""
        return min(self.remaining, self.lineage_left) // price


@dataclass(frozen=True, slots=True)
class Charge:
    """An admitted request.

    `receipts` has one for each line of which a question was new to the client, in order: at most one for rows. `free`
    says of each question, by position, whether it cost the client nothing. `earlier` is the number of the client's
    receipt that the same request got when it came before, by its idempotency key, or None. `standing` is how both
    accounts stood then.
    """

    receipts: tuple[Receipt, ...]
    free: tuple[bool, ...]
    earlier: int | None
    standing: Standing = field(compare=False)

    @property
    def receipt(self) -> Receipt | None:
        """The newest receipt, None if everything was paid for before."""
        return self.receipts[-1] if self.receipts else None

    @property
    def new_to_client(self) -> int:
        """How many questions the client's account was charged for."""
        return sum(len(receipt.questions) for receipt in self.receipts)

    @property
    def new_to_lineage(self) -> int:
        """How many questions the lineage's account was charged for; it would tell the client what others ask."""
        return sum(receipt.lineage_questions for receipt in self.receipts)

    @property
    def charged(self) -> int:
        """What the client's account was charged, in picorho; the lineage's, where it alone pays."""
        return sum(receipt.total for receipt in self.receipts)


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account at one instant. `spent` is picorho, `tally` how many releases of each cost it paid for.

    `created` is in seconds since the epoch. `coined` is how many coins it paid for
    (`Cost.coins`), of the `coins` that its budget allows; `asked` how many questions
    the lineage has paid for, or how many the client after somebody else had.
    """

    lineage: str
    budget: Budget
    spent: int
    coins: int
    coined: int
    tally: Mapping[Cost, int] = field(hash=False)
    created: float
    newest_receipt: int
    asked: int

    @property
    def remaining(self) -> int:
        """What is left, in picorho; 0 if the budget was lowered below what is spent."""
        return max(0, self.budget.picorho - self.spent)

    @property
    def releases(self) -> int:
        """How many releases the account paid for."""
        return sum(self.tally.values())


@dataclass(frozen=True, kw_only=True)
class LineageAccount(Account):
    """What all clients together may learn.

    `newest_receipt` is the lineage's last sequence number, or 0; `newest_act` the same of its acts and `acts_head` the
    hash of that act.
    """

    newest_act: int
    acts_head: bytes


@dataclass(frozen=True, kw_only=True)
class ClientAccount(Account):
    """One client's quota within a lineage. `newest_receipt` is the client's own number.

    `number` is what its receipts call the client.
    """

    client: str
    number: int
    revoked: bool
    api_keys: tuple[ApiKey, ...] = ()
