"""How the ledger's values are written in the store: the names of its keys, arguments, and how replies read.

All keys of a lineage carry the hash tag `{lineage}`, so that a cluster keeps them together; every key that a
function touches is handed to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any, Protocol, cast

from accounting.budgets import Accepts, Budget
from accounting.ledger import chain
from accounting.ledger.api_keys import read_keys
from accounting.ledger.errors import (
    BudgetExhausted,
    ClientRevoked,
    IdempotencyConflict,
    KeyExpired,
    LedgerDamaged,
    LedgerError,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    RowNotCharged,
    Scope,
    ScopeMissing,
    TermsChanged,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
    WrongFunctionVersion,
)
from accounting.ledger.heads import Head
from accounting.ledger.store import FORMAT
from accounting.ledger.values import (
    Act,
    Answered,
    Charge,
    ChargeRequest,
    ClientAccount,
    LineageAccount,
    Quote,
    Receipt,
    Standing,
    Terms,
    Unanswered,
    checked_name,
)
from accounting.losses import Cost

LINEAGES = "dpserve:lineages"
"""The key that lists every lineage of the store. The only one outside of a lineage."""

IDEMPOTENCY_KEYS = 20_000
"""How many idempotency keys of a client are remembered at most; the oldest are forgotten first."""

Argument = str | bytes | int

_UNREADABLE = "the ledger's store gave a reply that cannot be read"


class Asked(Protocol):
    """What a refusal names of the request that it refuses."""

    @property
    def lineage(self) -> str:
        """The lineage asked of."""
        ...

    @property
    def client(self) -> str:
        """The client who asks."""
        ...

    @property
    def terms(self) -> Terms:
        """What it would have been charged at."""
        ...


_LENGTH = Struct(">I")
_POSITION_AND_LENGTH = Struct(">II")


@dataclass(frozen=True)
class ClientKeys:
    """The names of one client's keys."""

    account: str
    tally: str
    receipts: str
    requests: str
    old_requests: str
    held: str


@dataclass(frozen=True)
class LineageKeys:
    """The names of a lineage's keys. Raises ValueError for a name that cannot be one."""

    lineage: str

    def __post_init__(self) -> None:
        """Refuse a name that would reach outside of the lineage's keys."""
        checked_name(self.lineage, "lineage")

    def _key(self, name: str) -> str:
        return f"dpserve:{{{self.lineage}}}:{name}"

    @property
    def services(self) -> str:
        """Hash: service to the number of its writes. The first key of every function."""
        return self._key("services")

    @property
    def account(self) -> str:
        """Hash: the lineage's account."""
        return self._key("account")

    @property
    def tally(self) -> str:
        """Hash: cost to number of releases."""
        return self._key("tally")

    @property
    def receipts(self) -> str:
        """Stream: the receipts, under their sequence numbers."""
        return self._key("receipts")

    @property
    def acts(self) -> str:
        """Stream: the owner's acts, under their sequence numbers."""
        return self._key("acts")

    @property
    def applied(self) -> str:
        """Set: the hashes of the receipts that were put back under new numbers."""
        return self._key("applied")

    @property
    def held(self) -> str:
        """Hash: the step of a release to the receipt that paid for it first."""
        return self._key("held")

    @property
    def rows(self) -> str:
        """Hash: row id to what became of the row, the young generation."""
        return self._key("rows")

    @property
    def old_rows(self) -> str:
        """Hash: the old generation, which is forgotten next."""
        return self._key("rows:old")

    @property
    def clients(self) -> str:
        """Set: the clients' names."""
        return self._key("clients")

    @property
    def api_keys(self) -> str:
        """Hash: API key digest to whose it is, when it expires and its scopes."""
        return self._key("keys")

    @property
    def contents(self) -> list[str]:
        """Every key of the lineage itself but services and account: none of them is there before it is opened."""
        return [
            self.acts,
            self.tally,
            self.receipts,
            self.rows,
            self.old_rows,
            self.clients,
            self.api_keys,
            self.applied,
            self.held,
        ]

    def client(self, client: str) -> ClientKeys:
        """Return a client's keys: account, tally, receipt numbers, idempotency keys young and old, what it holds."""
        checked_name(client, "client's name")
        name = f"client:{client}"
        parts = (name, f"{name}:tally", f"{name}:receipts", f"{name}:requests", f"{name}:requests:old", f"{name}:held")
        return ClientKeys(*map(self._key, parts))


@lru_cache(maxsize=256)
def _keys_of_charges(lineage: str) -> tuple[str, ...]:
    keys = LineageKeys(lineage)
    contents = (keys.tally, keys.receipts, keys.rows, keys.old_rows, keys.clients, keys.api_keys)
    return keys.services, keys.account, *contents


@lru_cache(maxsize=4096)
def _keys_of_charged(lineage: str, client: str) -> tuple[str, ...]:
    keys = LineageKeys(lineage).client(client)
    return keys.account, keys.tally, keys.receipts, keys.requests, keys.old_requests


@dataclass(frozen=True, slots=True)
class ChargeCall:
    """The keys and arguments of one call of the functions `charge` and `quote`, for one lineage.

    head: the end of the chain after it, if all came true that is foreseen in it; None if nothing is.
    """

    keys: list[str]
    arguments: list[Argument]
    head: Head | None


def charge_call(
    requests: Sequence[ChargeRequest], *, remembered_rows: int, head: Head | None, told: bool = False
) -> ChargeCall:
    """Return the call that asks for all of `requests`, of one lineage.

    `remembered_rows` bounds the rows that the ledger remembers. If `head` is still the end of the chain and every
    row is new and admitted, the hashes that are foreseen here come true and need not be computed by the store. If it is
    not, nothing is decided and `read_stale` returns what is, where `told` asks for that. What requests have in common,
    which in a tick is nearly all that they say, is sent once.
    """
    if told and head is None:
        raise ValueError("who does not say where the chain ends cannot be told that it ends elsewhere")
    lineage = requests[0].lineage
    named = list(_keys_of_charges(lineage))
    places: dict[str, int] = {}
    numbers: dict[tuple[Argument, ...], int] = {}
    asked: list[Argument] = []
    first = b"" if head is None else head.hash + b"%d" % head.sequence
    for request in requests:
        client, terms = request.client, request.terms
        if client not in places:
            places[client] = len(places) + 1
            named += _keys_of_charged(lineage, client)
        offer = (
            places[client],
            client,
            request.model,
            request.mechanism,
            terms.text,
            terms.standing,
            terms.price,
            request.key_digest,
        )
        foreseen = b""
        if head is not None:
            distinct = len(set(request.row_ids)) if len(request.row_ids) > 1 else 1
            foreseen = chain.receipt_hash(head.hash, request.terms_digest, head.sequence + 1, distinct)
            head = Head(head.sequence + 1, foreseen)
        asked += (
            numbers.setdefault(offer, len(numbers)),
            repr(request.time),
            b"".join(request.row_ids),
            request.terms_digest,
            foreseen,
            _rarely_said(request),
        )
    generation = max(1, remembered_rows // 2)
    arguments: list[Argument] = [lineage, generation, IDEMPOTENCY_KEYS // 2, first, int(told), len(numbers)]
    for shared in numbers:
        arguments += shared
    return ChargeCall(named, arguments + asked, head)


def _rarely_said(request: ChargeRequest) -> bytes:
    """Return what few requests have, in one argument: whether an answer is required, body digest, idempotency key."""
    idempotency = request.idempotency
    if idempotency is None:
        return b"1" if request.answered_only else b""
    return b"%d" % request.answered_only + idempotency.body_digest + idempotency.key.encode()


def read_stale(reply: Sequence[Any]) -> Head | None:
    """Read where the chain ends from the reply to a call that nothing was decided of; None from any other."""
    match reply:
        case [b"stale", bytes(newest), bytes(number)]:
            return Head(int(number), newest)
    return None


@dataclass(frozen=True, slots=True)
class DecidedBefore:
    """A request that was decided before, at the terms that `request` has: ask with it."""

    request: ChargeRequest


def read_decision(request: ChargeRequest, reply: Sequence[Any]) -> Charge | DecidedBefore | LedgerError:
    """Read what the function `charge` replied to one request."""
    match reply:
        case [b"charged", number, releases, answers, previous, standing, *earlier]:
            sent_before = int(earlier[0]) or None if earlier else None
            return _charge(request, int(number), int(releases), answers, previous, sent_before, standing)
    return _undecided(request, _words(reply))


def read_quote(request: ChargeRequest, reply: Sequence[Any]) -> Quote | DecidedBefore | LedgerError:
    """Read what the function `quote` replied to one request."""
    match _words(reply):
        case ["quoted", bytes(letters), *refused]:
            free = tuple(letter != ord("n") for letter in letters)
            refused_for = refusal(request, _words(refused[0])) if refused else None
            return Quote(request.price * free.count(False), free, refused_for)
        case others:
            return _undecided(request, others)


def _words(reply: Any) -> list[Any]:
    if not isinstance(reply, list) or not reply or not isinstance(reply[0], bytes):
        raise LedgerUnavailable(_UNREADABLE)
    return [reply[0].decode(), *reply[1:]]


def _undecided(request: ChargeRequest, reply: list[Any]) -> DecidedBefore | LedgerError:
    match reply:
        case ["damaged", what]:
            return LedgerDamaged(request.lineage, what.decode(errors="replace"))
        case ["malformed", what]:
            return LedgerUnavailable(f"the ledger's store cannot read the request: {what.decode(errors='replace')}")
        case ["failed", what]:
            return LedgerUnavailable(f"the ledger's store reports: {what.decode(errors='replace')}")
        case ["newer", what]:
            return WrongFunctionVersion(f"for format {FORMAT}", f"for format {what.decode(errors='replace')}")
        case ["terms", *_] if request.answered_only:  # these are the very terms that the store told
            return LedgerDamaged(request.lineage, f"what an idempotency key of {request.client} stands for")
        case ["terms", model, mechanism, cost]:
            return DecidedBefore(
                ChargeRequest(
                    lineage=request.lineage,
                    client=request.client,
                    model=model.decode(),
                    mechanism=mechanism.decode(),
                    cost=Cost.parse(cost.decode()),
                    rows=request.rows,
                    time=request.time,
                    idempotency=request.idempotency,
                    answered_only=True,
                    key_digest=request.key_digest,
                )
            )
    return refusal(request, reply)


def refusal(request: Asked, reply: Sequence[Any]) -> LedgerRefusal:
    """Read a refusal of a request, its first word as text. Raises LedgerUnavailable for anything else."""
    match list(reply):
        case ["exhausted", scope, cost, spent, limit]:
            return BudgetExhausted(scope_of(scope), int(cost), int(spent), int(limit))
        case ["not-accepted", scope]:
            return MechanismNotAccepted(scope_of(scope), request.terms.text)
        case ["conflict"]:
            return IdempotencyConflict()
        case ["unanswered"]:
            return TermsChanged()
        case ["revoked"]:
            return ClientRevoked(request.client)
        case ["unknown-client"]:
            return UnknownClient(request.client)
        case ["unknown-lineage"]:
            return UnknownLineage(request.lineage)
        case others:
            return _refusal_of_key(others)


def _refusal_of_key(reply: Sequence[Any]) -> LedgerRefusal:
    match reply:
        case ["unknown-key"]:
            return UnknownKey()
        case ["key-expired"]:
            return KeyExpired()
        case ["key-scope", scope]:
            return ScopeMissing(scope.decode())
    raise LedgerUnavailable(_UNREADABLE)


def _charge(
    request: ChargeRequest,
    number: int,
    releases: int,
    answers: bytes,
    previous: bytes,
    earlier: int | None,
    standing: bytes,
) -> Charge:
    rows: list[Answered | Unanswered] = [Unanswered(row) for row in request.row_ids]
    if answers:
        for position, answer in _unpacked(answers):
            rows[position - 1] = Answered(rows[position - 1].row_id, answer)
    receipt = None
    if number:
        receipt = Receipt(
            sequence=number,
            lineage=request.lineage,
            client=request.client,
            model=request.model,
            mechanism=request.mechanism,
            cost=request.cost,
            price=request.price,
            rows=releases,
            total=request.price * releases,
            time=request.time,
            previous=previous,
            hash=chain.receipt_hash(previous, request.terms_digest, number, releases),
        )
    return Charge(receipt, tuple(rows), earlier, standing)


def settle_call(settlements: Sequence[Sequence[tuple[bytes, bytes]]]) -> list[Argument]:
    """Return the arguments of one call of the function `settle`."""
    arguments: list[Argument] = []
    for settlement in settlements:
        arguments.append(b"".join(row for row, _ in settlement))
        arguments.append(b"".join(_LENGTH.pack(len(answer)) + answer for _, answer in settlement))
    return arguments


def read_standing(
    lineage: str, settlement: Sequence[tuple[bytes, bytes]], reply: Sequence[Any]
) -> list[bytes] | LedgerError:
    """Read what the function `settle` replied to one settlement: every row's answer, by position."""
    match reply:
        case [b"settled", b""]:
            return [answer for _, answer in settlement]
        case [b"settled", standing]:
            answers = [answer for _, answer in settlement]
            for position, answer in _unpacked(standing):
                answers[position - 1] = answer
            return answers
    match _words(reply):
        case ["uncharged", position]:
            return RowNotCharged(int(position) - 1)
        case ["damaged", what]:
            return LedgerDamaged(lineage, what.decode(errors="replace"))
        case ["failed", what]:
            return LedgerUnavailable(f"the ledger's store reports: {what.decode(errors='replace')}")
    return LedgerUnavailable(_UNREADABLE)


@lru_cache(maxsize=4096)
def _budget_of(limit: int, accepts: str, delta: str) -> Budget:
    return Budget(limit, cast(Accepts, accepts), float(delta))


def read_standing_of(lineage: str, charge: Charge) -> Standing:
    """Read how both accounts stood once the request was decided. Raises LedgerDamaged."""
    try:
        spent, limit, accepts, delta, whole_spent, whole_limit = charge.standing.decode().split(" ")
        return Standing(_budget_of(int(limit), accepts, delta), int(spent), max(0, int(whole_limit) - int(whole_spent)))
    except ValueError as error:
        raise LedgerDamaged(lineage, f"what the store holds cannot be read: {error!r}") from error


def budget_arguments(budget: Budget) -> list[Argument]:
    """Return a budget as the three arguments that the functions take."""
    return [budget.picorho, budget.accepts, repr(budget.delta)]


def read_lineage(lineage: str, reply: Sequence[Any]) -> LineageAccount | None:
    """Read what the function `read` replied of a lineage's account, None if there is none."""
    fields = _fields(reply[0])
    if not fields:
        return None
    written = int(fields.get(b"format", FORMAT))
    if written > FORMAT:
        raise WrongFunctionVersion(f"for format {FORMAT}", f"for format {written}")
    return LineageAccount(
        lineage=lineage,
        budget=_budget(fields),
        spent=int(fields[b"spent"]),
        tally=_tally(reply[1]),
        created=float(fields[b"created"]),
        newest_receipt=int(fields[b"seq"]),
        head=fields.get(b"head", chain.GENESIS),
        newest_act=int(fields[b"acts"]),
        acts_head=fields.get(b"acts_head", chain.GENESIS),
        epoch=int(fields.get(b"epoch", 0)),
    )


def read_client(lineage: str, client: str, reply: Sequence[Any]) -> ClientAccount | None:
    """Read what the function `read` replied of a client's account, None if there is none."""
    fields = _fields(reply[0])
    if not fields:
        return None
    return ClientAccount(
        lineage=lineage,
        client=client,
        budget=_budget(fields),
        spent=int(fields[b"spent"]),
        tally=_tally(reply[1]),
        created=float(fields[b"created"]),
        revoked={b"0": False, b"1": True}[fields[b"revoked"]],
        api_keys=read_keys(fields[b"api_keys"]),
    )


def read_receipt(entry: Sequence[Any]) -> Receipt:
    """Read one entry of a stream of receipts."""
    number, words = entry
    fields = _fields(words)
    return Receipt(
        sequence=int(number.split(b"-")[0]),
        lineage=fields[b"lineage"].decode(),
        client=fields[b"client"].decode(),
        model=fields[b"model"].decode(),
        mechanism=fields[b"mechanism"].decode(),
        cost=Cost.parse(fields[b"cost"].decode()),
        price=int(fields[b"price"]),
        rows=int(fields[b"rows"]),
        total=int(fields[b"total"]),
        time=float(fields[b"time"]),
        previous=fields[b"previous"],
        hash=fields[b"hash"],
        held=fields.get(b"held", b""),
        after=fields.get(b"after", b""),
        shared=fields.get(b"shared") == b"1",
    )


def read_act(entry: Sequence[Any]) -> Act:
    """Read one entry of a stream of acts."""
    number, words = entry
    fields = _fields(words)
    return Act(
        sequence=int(number.split(b"-")[0]),
        kind=fields[b"kind"].decode(),
        subject=fields[b"subject"].decode(),
        detail=fields[b"detail"].decode(),
        time=fields[b"time"].decode(),
        previous=fields[b"previous"],
        hash=fields[b"hash"],
    )


def scope_of(word: bytes) -> Scope:
    """Return whose account refused."""
    return "client" if word == b"client" else "lineage"


def _unpacked(answers: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(answers):
        position, length = _POSITION_AND_LENGTH.unpack_from(answers, at)
        at += _POSITION_AND_LENGTH.size + length
        yield position, answers[at - length : at]


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _budget(fields: dict[bytes, bytes]) -> Budget:
    accepts = cast(Accepts, fields[b"accepts"].decode())  # which Budget checks
    return Budget(int(fields[b"limit"]), accepts, float(fields[b"delta"]))


def _tally(flat: Sequence[bytes]) -> dict[Cost, int]:
    return {Cost.parse(cost.decode()): int(releases) for cost, releases in _pairs(flat)}
