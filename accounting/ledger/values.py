"""The ledger's arguments and results, as frozen values.

Nobody passes an amount by hand: a request carries the `Cost` of one answer, and the price, what an account accepts and
the tally all derive from it. A question is a digest that the caller computes of everything that decides its answer (the
model, the mechanism, its cost and the quantised features, under a key), so that the same answer always has the same
question and no other one does.
"""

import hashlib
import re
import secrets
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Protocol, Self
from unicodedata import is_normalized, normalize

import msgspec
from msgspec import Struct, structs

from dpserve.accounting.budgets import Budget, Scope
from dpserve.accounting.currency import RHO, Currency
from dpserve.accounting.ledger.api_keys import ApiKey
from dpserve.accounting.ledger.errors import (
    ActRefused,
    LedgerRefusal,
)
from dpserve.accounting.ledger.receipts import (
    QUESTION,
    UNNAMED,
    Receipt,
    Terms,
    account_subject,
    checked_text,
    checked_time,
    microseconds,
    paying,
)
from dpserve.accounting.losses import Cost
from dpserve.accounting.picorho import LARGEST
from dpserve.accounting.report import AccountState

LARGEST_REQUEST = 10_000
"""The most questions one request may hold: what the store can charge without keeping others waiting."""

_LINEAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONGEST_CLIENT = 256
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as printable and show nothing: Unicode's Default_Ignorable_Code_Point, and Braille's blank."""


@lru_cache(maxsize=256)
def checked_lineage(name: str) -> None:
    """Raise ValueError unless `name` can name a lineage in the store's keys."""
    if not _LINEAGE.fullmatch(name):
        raise ValueError(
            "a lineage's name has 1 to 128 letters, digits, dots, dashes and underscores and starts with a letter or a "
            f"digit; {name!r} does not"
        )


@lru_cache(maxsize=4096)
def checked_client(name: str) -> str:
    """Return a client's id, or a group's: 1 to 256 bytes of UTF-8, as e-mail addresses and OIDC subjects are.

    Ids are compared byte by byte and never altered: two subjects that a provider tells apart are two clients. An id
    must be in Unicode's normal form NFC and show every character that it has, so that no two ids differ only in how
    their accents are composed or in what nobody sees. Raises ValueError, saying what is wrong.
    """
    if not name.isprintable():
        wrong = "has a character that cannot be printed: a control or format character, or half of a surrogate pair"
    elif _UNSEEN.search(name):
        wrong = "has a character that shows nothing: a filler, a joiner or a variation selector"
    elif name != name.strip() or not name:
        wrong = "is empty, or begins or ends with a space"
    elif len(name.encode()) > _LONGEST_CLIENT:
        wrong = f"has {len(name.encode())} bytes of UTF-8, and {_LONGEST_CLIENT} is the most"
    elif not is_normalized("NFC", name):
        wrong = f"is not in Unicode's normal form NFC: write {normalize('NFC', name)!r}"
    else:
        return name
    raise ValueError(f"the client id {name[:_LONGEST_CLIENT]!r} {wrong}")


def checked_display(name: str) -> str:
    """Return how the owner calls a client or group: nothing, or what can be printed, in 256 bytes at most."""
    if not name.isprintable() or len(name.encode()) > _LONGEST_CLIENT:
        raise ValueError(f"a display name can be printed and has at most {_LONGEST_CLIENT} bytes: {name[:256]!r}")
    return name


def new_api_key() -> str:
    """Return a new API key: 256 bits of the operating system's randomness, to be shown once."""
    return "dp_" + secrets.token_urlsafe(32)


def key_digest(api_key: str) -> bytes:
    """Return what the ledger stores of an API key: its SHA-256, enough for a secret of 256 random bits."""
    return hashlib.sha256(api_key.encode()).digest()


class Line(Struct, frozen=True):
    """Questions of a request that are charged at the same terms; a question that occurs twice is charged once."""

    terms: Terms
    questions: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's name for one request, and the SHA-256 of the request's body."""

    key: str
    body_digest: bytes

    def __post_init__(self) -> None:
        """Refuse an empty or overlong key and a digest of another length."""
        checked_text(self.key, "an idempotency key")
        if len(self.body_digest) != hashlib.sha256().digest_size:
            raise ValueError("the body's digest must be a SHA-256 of 32 bytes")

    @property
    def key_digest(self) -> bytes:
        """The 16 bytes that the store knows the key by."""
        return hashlib.sha256(self.key.encode()).digest()[:16]

    def fingerprint(self, *terms: str) -> bytes:
        """Return the 16 bytes that are kept of it: of the body, and of the terms that would be charged again if new."""
        return hashlib.sha256(self.body_digest + msgspec.json.encode(terms)).digest()[:16]


class LedgerRequest(Struct, frozen=True):
    """A request to charge all of its lines or none: a `Chargeable` one, or receipts put back.

    `client` is empty where the lineage alone pays. `key` is a digest of the idempotency key, of 16 bytes however long
    that is, and `fingerprint` what is kept with it.
    """

    lineage: str
    client: str
    microseconds: int
    lines: tuple[Line, ...]
    key_digest: bytes = b""
    key: bytes = b""
    fingerprint: bytes = b""
    group: str | None = None
    """The client's group, where what is put back says so; otherwise the store knows."""

    def of_others(self, blocks: Container[str]) -> "LedgerRequest":
        """Return the part of the request that other blocks than these pay for."""
        lines = []
        for line in self.lines:
            others = [block for block in paying(line.terms.blocks) if block not in blocks]
            if others:
                named = tuple(block for block in others if block != UNNAMED)
                lines.append(Line(structs.replace(line.terms, blocks=named), line.questions))
        return structs.replace(self, lines=tuple(lines))


class Chargeable(Protocol):
    """A request that the ledger charges: for rows (`ChargeRequest`), for a release, or for several (`purchases`)."""

    @property
    def lineage(self) -> str:
        """The lineage that pays."""

    @property
    def ledger_request(self) -> LedgerRequest:
        """The request as the ledger charges it."""


class ChargeRequest(Struct, frozen=True):
    """One request for rows to pay for: all of its questions or none.

    `terms` are those at which each question is charged: of the model, the mechanism, the cost of one answer and the
    blocks. `questions` are digests of 16 bytes, one for each row: equal where the answers are the same release, for
    whomever. One that occurs twice is charged once. `time` is when the request came, in seconds since the epoch.
    `key_digest` is that of the API key that it came with: it is decided only if the key is the client's at that
    instant; empty where the client is known otherwise.
    """

    lineage: str
    client: str
    terms: Terms
    questions: tuple[bytes, ...]
    time: float
    idempotency: Idempotency | None = None
    key_digest: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what the store could not hold."""
        checked_lineage(self.lineage)
        checked_client(self.client)
        checked_time(self.time)
        if self.terms.cost.coins:
            raise ValueError(
                f"a row cannot cost {self.terms.cost_text!r}: only pay-once models have a cost with a coin"
            )
        if not 0 < len(self.questions) <= LARGEST_REQUEST:
            raise ValueError(f"a request must have 1 to {LARGEST_REQUEST} questions, not {len(self.questions)}")
        if set(map(len, self.questions)) != {QUESTION}:
            raise ValueError(f"a question must be a digest of {QUESTION} bytes")

    @property
    def ledger_request(self) -> LedgerRequest:
        """The request as the ledger charges it. The same body at other terms would be another charge."""
        key, fingerprint, terms = b"", b"", self.terms
        if self.idempotency is not None:
            key = self.idempotency.key_digest
            fingerprint = self.idempotency.fingerprint(terms.model, terms.mechanism, terms.cost_text)
        lines = (Line(terms, self.questions),)
        return LedgerRequest(
            self.lineage, self.client, microseconds(self.time), lines, self.key_digest, key, fingerprint
        )


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of a request for the client now, and whether it would be admitted. Asking spends nothing.

    total: in 1e-12 of `currency`, what the client's account counts. words: it as its client reads it, with its verb, as
    `costs rho = 0.5`. shown_cost: by how much that account grows in the
    currency in which a person reads it (`Budget.growth`); None where it never pays for such a release.

    `free` says of each question, by position, whether it would cost the client nothing: it is paid for already, or
    occurs earlier in the request. `refusal` is what charging it would raise.
    """

    total: int
    free: tuple[bool, ...]
    refusal: LedgerRefusal | None
    currency: Currency
    shown_cost: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Balance:
    """A client's account at one instant, in 1e-12 of what it counts; `highest_limit` is as in `Account`.

    `shared_left`, what the accounts that it shares with others (its
    group's, the lineage's) have left at least, in each currency that one of them counts, is for the owner: a client is
    told `questions_left`.
    """

    budget: Budget
    spent: int
    highest_limit: int
    shared_left: tuple[tuple[Currency, int], ...]

    @property
    def remaining(self) -> int:
        """The amount that is left; 0 if the budget was lowered below what is spent."""
        return max(0, self.budget.limit - self.spent)

    def questions_left(self, price: Cost) -> int:
        """Return how many more questions at this price, which is above 0, all accounts would pay for at most."""
        least = LARGEST
        own = (self.budget.currency, max(0, self.budget.limit - self.spent))
        for currency, left in (own, *self.shared_left):
            one = currency.price(price)
            least = min(least, left // one if one is not None else 0)
        return least


class Charge(Struct, frozen=True):
    """An admitted request.

    `receipts` has one for each line of which a question was new to the client, in order: at most one for rows. `free`
    says of each question, by position, whether it cost the client nothing. `earlier` is the number of the client's
    receipt that the same request got when it came before, by its idempotency key, or None. `balance` is how the
    accounts stood after the call. `charged` is what the client's account was charged, in what it counts; the lineage's,
    where it alone pays.
    """

    receipts: tuple[Receipt, ...]
    free: tuple[bool, ...]
    earlier: int | None
    balance: Balance
    charged: int = 0

    @property
    def receipt(self) -> Receipt | None:
        """The newest receipt, None if everything was paid for before."""
        return self.receipts[-1] if self.receipts else None


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account at one instant, in 1e-12 of what it counts. `tally`: how many releases of each cost it paid for.

    `highest_limit` is the highest limit that was in force since the first charge, or is now. The filter's
    proof (`dpserve.accounting.budgets`) ends at a bound that the charges keep to in every course of events. What was
    spent when the owner lowered a limit is an outcome that the clients chose, so neither it nor the lower limit is such
    a bound for what was released before: the limit in force then is. A limit that admitted no charge bounds nothing,
    and is left out. `raises` is how often the limit rose above it since the first charge, and `settled_limit` what it
    was before the first of these. Where more was spent than that, a restored store has lost a raise: it counts as one.

    `created` is in seconds since the epoch. `coins_spent` counts the coins it paid for (`Cost.coins`), of the `coins`
    that its budget allows; `questions` how many a block has paid for, or a client or group after somebody else had.
    """

    lineage: str
    budget: Budget
    spent: int
    highest_limit: int
    coins: int
    coins_spent: int
    tally: Mapping[Cost, int] = field(hash=False)
    created: float
    newest_receipt: int
    questions: int
    raises: int = 0
    settled_limit: int = 0
    group: str = ""

    scope: ClassVar[Scope]

    @property
    def name(self) -> str:
        """The client or group that has the account; empty for the lineage's own."""
        return str(getattr(self, self.scope)) if self.scope != "lineage" else ""

    @property
    def subject(self) -> str:
        """The account's name in acts."""
        return account_subject(self.scope, self.name)

    @property
    def title(self) -> str:
        """The account's owner, in words."""
        titles = {"lineage": "the lineage", "block": f"the block {self.name}"}
        return titles.get(self.scope, f"{self.scope} {self.name}")

    @property
    def remaining(self) -> int:
        """The amount that is left now; 0 if the budget was lowered below what is spent."""
        return max(0, self.budget.limit - self.spent)

    def answers_left(self, price: Cost) -> int:
        """Return how many more releases at this price, which is above 0, the account would pay for."""
        return self.budget.currency.answers(self.remaining, price)

    @property
    def state(self) -> AccountState:
        """The state that reports and explanations are made of."""
        return AccountState.after_releases(
            self.tally,
            self.budget,
            highest_limit=self.highest_limit,
            raises=self.raises,
            settled_limit=self.settled_limit,
            scope=self.scope,
            group=self.group,
        )

    def raised_after_answers(self, budget: Budget) -> bool:
        """Return whether with this budget it could spend more than any limit allowed since its first charge.

        False where it counts pure epsilon: there what is said of a limit holds however it came to be.
        """
        return budget.currency is RHO and self.spent > 0 and budget.limit > self.highest_limit

    def with_budget(self, budget: Budget) -> Self:
        """Return it with another budget."""
        raises = self.raises + self.raised_after_answers(budget)
        settled = self.settled_limit if self.raises else self.highest_limit * (raises > 0)
        return replace(self, budget=budget, raises=raises, settled_limit=settled)

    @property
    def releases(self) -> int:
        """Number of releases that the account paid for."""
        return sum(self.tally.values())


@dataclass(frozen=True, kw_only=True)
class LineageAccount(Account):
    """A lineage, and the account that bounds what all clients together may learn of its records in no named block.

    `newest_receipt` is the lineage's last sequence number, or 0, and `questions` how many all of its blocks have paid
    for; `newest_act` and `acts_head` are the number and the hash of its newest act. `unit` is the privacy unit of its
    models: the name of its column, empty for a record, None before the first model. `is_forgotten`: nothing is charged
    to it any more, and nothing was. `blocks` is how many it has with a name.
    """

    newest_act: int
    acts_head: bytes
    unit: str | None = None
    is_forgotten: bool = False
    blocks: int = 0

    scope = "lineage"


@dataclass(frozen=True, kw_only=True)
class BlockAccount(Account):
    """The account that bounds what all clients together may learn of the records of one block of a lineage.

    `newest_receipt` counts the receipts that name it, and `questions` those that it paid for; `number` is its own among
    the lineage's accounts.
    """

    block: str
    number: int
    display: str = ""

    scope = "block"


@dataclass(frozen=True, kw_only=True)
class GroupAccount(Account):
    """The account that bounds what all clients of one group may learn together, within a lineage.

    `newest_receipt` counts its members' receipts; `number` is what they call it; `display` how the owner calls it, or
    empty.
    """

    group: str
    number: int
    display: str = ""

    scope = "group"


@dataclass(frozen=True, kw_only=True)
class ClientAccount(Account):
    """One client's quota within a lineage. `newest_receipt` is the client's own number.

    `number` is what its receipts call the client; `display` how the owner calls it, or empty; `group` what it belongs
    to, or empty.
    """

    client: str
    number: int
    revoked: bool
    api_keys: tuple[ApiKey, ...] = ()
    display: str = ""

    scope = "client"


@dataclass(frozen=True)
class ChargedModel:
    """The charges of a lineage for one model by one mechanism.

    model: its random id, as its certificate has it. releases: rows, or 1 for a pay-once model, that the lineage
    paid for. spent: what they cost, in 1e-12 of what the account counts. first, last: seconds since the epoch. blocks:
    those of the lineage that paid, each all of it.
    """

    model: str
    mechanism: str
    releases: int
    spent: int
    first: float
    last: float
    blocks: tuple[str, ...] = ()


RAISED_AFTER_ANSWERS = (
    "It was answered under a lower limit. The bounds that were shown hold for a limit that is settled before the first "
    "answer: where somebody who saw answers has a say in a raise, less is promised, and the account says so from now "
    "on. For more over time, settle the whole limit at the start."
)
"""The warning to an owner who raises the limit of an account that was charged."""


def check_within(name: str, budget: Budget, above: Sequence[Account]) -> None:
    """Raise ActRefused if an account would get more than one that pays for its answers, too, has in all.

    An account of another currency is not compared: which of both ends first depends on the prices. Nor is a lineage's
    whose named blocks pay for some of the answers.
    """
    for account in above:
        if isinstance(account, LineageAccount) and account.blocks:
            continue
        of = f"the group {account.group}" if account.scope == "group" else "the lineage"
        currency = account.budget.currency
        if currency is budget.currency and budget.limit > account.budget.limit:
            raise ActRefused(
                "more-than-above",
                f"{name} would get {budget.words(budget.limit)}, and {of}, which pays for every answer too, has "
                f"{budget.words(account.budget.limit)} in all: give less, or raise {of}'s budget first",
            )
