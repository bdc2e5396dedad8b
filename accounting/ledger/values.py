"""What goes into the ledger and comes out of it, as frozen values.

Nobody passes an amount by hand: a `ChargeRequest` carries the `Cost` of one release, and the price, what an
account accepts and the tally all derive from it. Nobody passes a row's identity by hand either: it is derived
from everything that decides what the answer says, so that a stored answer can only ever be given again to the
client who paid for it, for the row, the model and the price that were paid for.
"""

import hashlib
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from msgspec import Struct

from accounting.budgets import Budget
from accounting.ledger import chain
from accounting.ledger.api_keys import ApiKey
from accounting.ledger.errors import LedgerRefusal
from accounting.losses import Cost

LARGEST_REQUEST = 10_000
"""The most rows one request may hold: what the store can charge without keeping others waiting."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST_TEXT = 255


def checked_name(name: str, what: str) -> None:
    """Raise ValueError unless `name` can name a lineage or a client in the store's keys."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a {what} has 1 to 128 letters, digits, dots, dashes and underscores and starts with a letter or a "
            f"digit; {name!r} does not"
        )


def checked_text(text: str, what: str) -> None:
    """Raise ValueError unless `text` is neither empty nor too long for the store."""
    if not 0 < len(text.encode()) <= _LONGEST_TEXT:
        raise ValueError(f"{what} must have 1 to {_LONGEST_TEXT} bytes")


def new_api_key() -> str:
    """Return a new API key: 256 bits of the operating system's randomness, to be shown once."""
    return "dp_" + secrets.token_urlsafe(32)


def key_digest(api_key: str) -> bytes:
    """Return what the ledger stores of an API key: its SHA-256, enough for a secret of 256 random bits."""
    return hashlib.sha256(api_key.encode()).digest()


@dataclass(frozen=True, slots=True)
class Terms:
    """A cost as the ledger writes it: its text, the price of one release in picorho, and its kind."""

    text: str
    price: int
    standing: str
    """What an account must accept to pay for it: see `Cost.standing`."""
    coin: float
    """See `Cost.coin`."""


@lru_cache(maxsize=256)
def terms_of(cost: Cost) -> Terms:
    """Return a cost's terms. Raises ValueError for one whose text does not read back as the same cost.

    Such a text would stand in a tally that nobody can read any more (a parameter that is a NumPy number
    prints so).
    """
    text = str(cost)
    if Cost.parse(text) != cost:
        raise ValueError(f"the cost {text!r} does not read back as itself")
    return Terms(text, cost.picorho, cost.standing, cost.coin)


def row_id(client: str, model: str, mechanism: str, cost: Cost, row: bytes) -> bytes:
    """Return the 32 bytes that stand for a row in the ledger: SHA-256 over its length-prefixed parts.

    Within a lineage two rows share an id only if client, model, mechanism, cost and bytes are all equal. The
    cost is a part because a row that was charged and not answered is computed again at no charge: at another
    noise multiplier that would be a release that nobody paid for.
    """
    return _row_ids(_asked_of(client, model, mechanism, terms_of(cost).text), (row,))[0]


@lru_cache(maxsize=4096)
def _asked_of(client: str, model: str, mechanism: str, cost: str) -> "hashlib._Hash":
    asked = hashlib.sha256(b"dpserve row")
    for part in (client, model, mechanism, cost):
        encoded = part.encode()
        asked.update(len(encoded).to_bytes(8, "big"))
        asked.update(encoded)
    return asked


def _row_ids(asked: "hashlib._Hash", rows: tuple[bytes, ...]) -> tuple[bytes, ...]:
    ids = []
    for row in rows:
        digest = asked.copy()
        digest.update(len(row).to_bytes(8, "big"))
        digest.update(row)
        ids.append(digest.digest())
    return tuple(ids)


@lru_cache(maxsize=4096)
def _checked_terms(lineage: str, client: str, model: str, mechanism: str, cost: Cost) -> Terms:
    """Return the terms of a request that names these. Raises ValueError for what the store could not hold."""
    checked_name(lineage, "lineage")
    checked_name(client, "client's name")
    checked_text(model, "a model's id")
    checked_text(mechanism, "a mechanism's name")
    terms = terms_of(cost)
    if terms.coin:
        # The reserve of delta counts coins by the least price of what is paid for once, and rows cost less.
        raise ValueError(f"a row cannot cost {str(cost)!r}: a release with a coin is held, and paid for once")
    return terms


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


class ChargeRequest(Struct, frozen=True, dict=True):
    """One request to pay for: all of its rows or none.

    `rows` are the rows' canonical bytes (the caller sees to it that equal rows have equal bytes); a row that
    occurs twice is charged once. `cost` is that of one release of one row. `time` is when the request came, in
    seconds since the epoch. With `answered_only` it is decided only if all of its rows are answered already, and so
    costs nothing. `key_digest` is that of the API key that it came with: it is decided only if the key is the client's
    at that instant; empty where the client is known otherwise.
    """

    lineage: str
    client: str
    model: str
    mechanism: str
    cost: Cost
    rows: tuple[bytes, ...]
    time: float
    idempotency: Idempotency | None = None
    answered_only: bool = False
    key_digest: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what the store could not hold."""
        self.__dict__["terms"] = _checked_terms(self.lineage, self.client, self.model, self.mechanism, self.cost)
        if not math.isfinite(self.time):
            raise ValueError(f"a request's time must be finite, not {self.time}")
        if not 0 < len(self.rows) <= LARGEST_REQUEST:
            raise ValueError(f"a request must have 1 to {LARGEST_REQUEST} rows, not {len(self.rows)}")

    @property
    def terms(self) -> Terms:
        """The cost of one row, as the ledger writes it."""
        terms: Terms | None = self.__dict__.get("terms")  # which a copy does not have
        return terms or _checked_terms(self.lineage, self.client, self.model, self.mechanism, self.cost)

    @property
    def price(self) -> int:
        """What one row costs, in picorho."""
        return self.terms.price

    @cached_property
    def row_ids(self) -> tuple[bytes, ...]:
        """The rows' ids, by position."""
        return _row_ids(_asked_of(self.client, self.model, self.mechanism, self.terms.text), self.rows)

    @cached_property
    def terms_digest(self) -> bytes:
        """The digest of what the receipt will say whatever is decided."""
        return chain.terms_digest(
            self.lineage, self.client, self.model, self.mechanism, self.terms.text, self.price, self.time
        )


class Receipt(Struct, frozen=True, kw_only=True):
    """What one request was charged, as written in the store. `price` and `total` are picorho.

    `sequence` counts the receipts of the lineage from 1; `rows` is how many rows were charged, replays and
    duplicates left out; `time` is the request's, in seconds since the epoch. `previous` is the hash of the receipt
    before it and `hash` its own, of 32 bytes each (`chain.receipt_hash`). `client` is empty where the lineage
    alone was charged, for a loss that the owner declared or for what the owner holds.

    `held` is empty but for a step of a release that is paid for once (`accounting.ledger.holdings`), whose id it then
    is. `after` is what the step's id was derived from, beside the model and the cost: `chain.step_id`. `shared` says
    that the lineage had paid for that step before, so that the client alone was charged.
    """

    sequence: int
    lineage: str
    client: str
    model: str
    mechanism: str
    cost: Cost
    price: int
    rows: int
    total: int
    time: float
    previous: bytes
    hash: bytes
    held: bytes = b""
    after: bytes = b""
    shared: bool = False

    @property
    def lineage_rows(self) -> int:
        """How many releases the lineage's account was charged."""
        return 0 if self.shared else self.rows

    @property
    def pays_for_its_step(self) -> bool:
        """Whether the step that it names, if any, has this model and this cost."""
        return not self.held or self.held == chain.step_id(self.after, self.model, str(self.cost))

    @property
    def terms_digest(self) -> bytes:
        """The digest of what the receipt says apart from its place in the chain and its rows."""
        return chain.terms_digest(
            self.lineage, self.client, self.model, self.mechanism, str(self.cost), self.price, self.time
        )

    def hash_from_contents(self) -> bytes:
        """Return the hash that these contents have: `hash`, unless they were altered."""
        if self.held:
            return chain.step_hash(
                self.previous, self.terms_digest, self.sequence, self.rows, self.held, shared=self.shared
            )
        return chain.receipt_hash(self.previous, self.terms_digest, self.sequence, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What the owner changed, as written in the store.

    `kind` is open, add, budget, revoke, add-key, rotate-key, remove-key or reconcile; `subject` the client, empty for
    the lineage; `detail` the new limit in picorho, what is accepted and delta, what became of which keys, or what was
    reconciled; `time` the store's own, in seconds since the epoch, as text.
    """

    sequence: int
    kind: str
    subject: str
    detail: str
    time: str
    previous: bytes
    hash: bytes

    def hash_from_contents(self) -> bytes:
        """Return the hash that these contents have: `hash`, unless they were altered."""
        return chain.act_hash(self.previous, self.sequence, self.kind, self.subject, self.detail, self.time)


@dataclass(frozen=True, slots=True)
class Quote:
    """What a request would cost now, in picorho, and whether it would be admitted. Nothing is spent by asking.

    `free` says of each row, by position, whether it would cost nothing: it is paid for already, or occurs earlier
    in the request. `refusal` is what charging it would raise.
    """

    total: int
    free: tuple[bool, ...]
    refusal: LedgerRefusal | None


class Answered(Struct, frozen=True):
    """A row whose answer is stored: send exactly these bytes."""

    row_id: bytes
    answer: bytes


class Unanswered(Struct, frozen=True):
    """A row that is paid for and has no answer yet: compute one, settle it, and send what settling returns."""

    row_id: bytes


@dataclass(frozen=True, slots=True)
class Charge:
    """An admitted request: its rows by position, and the receipt, or None if no row of it was new.

    `earlier` is the number of the receipt that the same request got when it came before, by its idempotency key, or
    None. `standing` is how both accounts stood then, as the store said it: `Ledger.standing` reads it.
    """

    receipt: Receipt | None
    rows: tuple[Answered | Unanswered, ...]
    earlier: int | None = None
    standing: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a client's account stood at one instant. `spent` and `lineage_left`, of the lineage's budget, are picorho."""

    budget: Budget
    spent: int
    lineage_left: int


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account at one instant. `spent` is picorho, `tally` how many releases of each cost it paid for.

    `created` is in seconds since the epoch.
    """

    lineage: str
    budget: Budget
    spent: int
    tally: Mapping[Cost, int] = field(hash=False)
    created: float

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

    `newest_receipt` is the lineage's last sequence number, or 0, and `head` that receipt's hash; `newest_act` and
    `acts_head` the same of its acts. `epoch` counts how often the ledger was reconciled.
    """

    newest_receipt: int
    head: bytes
    newest_act: int
    acts_head: bytes
    epoch: int


@dataclass(frozen=True, kw_only=True)
class ClientAccount(Account):
    """One client's quota within a lineage."""

    client: str
    revoked: bool
    api_keys: tuple[ApiKey, ...] = ()
