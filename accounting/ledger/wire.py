"""How the ledger's values are written in the store: the names of its keys, arguments, and how replies read.

All keys of a lineage carry the hash tag `{lineage}`, so that a cluster keeps them together; every key that a function
touches is handed to it. A client's name is percent-encoded in the names of its keys, so that no name can reach into
another's keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

from accounting.budgets import Accepts, Budget
from accounting.ledger.api_keys import read_keys
from accounting.ledger.chain import GENESIS
from accounting.ledger.errors import (
    BudgetExhausted,
    ClientRevoked,
    CoinsExhausted,
    IdempotencyConflict,
    KeyExpired,
    LedgerDamaged,
    LedgerError,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    Scope,
    ScopeMissing,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
    WrongFormat,
)
from accounting.ledger.store import FORMAT
from accounting.ledger.values import (
    QUESTION,
    Act,
    Asked,
    Charge,
    ClientAccount,
    LineageAccount,
    Quote,
    Receipt,
    Standing,
    Terms,
    checked_client,
    checked_lineage,
    microseconds,
)
from accounting.losses import Cost

LINEAGES = "dpserve:lineages"
"""The key that lists every lineage of the store. The only one outside of a lineage."""

IDEMPOTENCY_KEYS = 20_000
"""How many idempotency keys of a client are remembered at most; the oldest are forgotten first."""

TALLY = b"n:"
"""What the fields of an account that count its releases begin with; the cost follows."""

Argument = str | bytes | int

_UNREADABLE = "the ledger's store gave a reply that cannot be read"


@dataclass(frozen=True)
class ClientKeys:
    """The names of one client's keys: see `charge.lua`."""

    account: str
    receipts: str
    questions: str
    requests: str
    old_requests: str

    @property
    def contents(self) -> list[str]:
        """Every key but the account: none of them is there before it is opened."""
        return [self.receipts, self.questions, self.requests, self.old_requests]


class LineageKeys:
    """The names of a lineage's keys. Raises ValueError for a name that cannot be one.

    services: hash, service to its number and the number of its writes; the first key of every function. account: hash.
    receipts: stream, an id is the lineage's number and the client's. acts: stream, by number. questions: hash, question
    to the number of the client who paid for it first. terms: hash, what receipts were charged at to its number.
    clients: hash, name to number. api_keys: hash, digest to terms and client.
    """

    def __init__(self, lineage: str) -> None:
        """Refuse a name that would reach outside of the lineage's keys."""
        checked_lineage(lineage)
        self._prefix = f"dpserve:{{{lineage}}}:"
        names = ("services", "account", "receipts", "acts", "questions", "terms", "clients", "keys")
        self.services, self.account, self.receipts, self.acts, *others = (self._prefix + name for name in names)
        self.questions, self.terms, self.clients, self.api_keys = others

    @property
    def contents(self) -> list[str]:
        """Every key of the lineage itself but the account: none of them is there before it is opened."""
        return [self.acts, self.receipts, self.questions, self.terms, self.clients, self.api_keys, self.services]

    def client(self, client: str) -> ClientKeys:
        """Return a client's keys."""
        name = f"{self._prefix}client:{quote(checked_client(client), safe='')}"
        return ClientKeys(name, *(f"{name}:{part}" for part in ("receipts", "questions", "requests", "requests:old")))


@lru_cache(maxsize=256)
def _keys_of_charges(lineage: str) -> tuple[str, ...]:
    keys = LineageKeys(lineage)
    return keys.account, keys.receipts, keys.questions, keys.terms, keys.clients, keys.api_keys


@lru_cache(maxsize=4096)
def _keys_of_payer(lineage: str, client: str) -> tuple[str, ...]:
    keys = LineageKeys(lineage).client(client)
    return keys.account, keys.receipts, keys.questions, keys.requests, keys.old_requests


def charge_call(requests: Sequence[Asked], *, writes: int = 0, link: bytes = b"") -> tuple[list[str], list[Argument]]:
    """Return the keys, without the services, and arguments of `charge`, `apply` and `quote`, for requests of one
    lineage.

    `writes` and `link`: of the service that asks. What requests have in common is sent once.
    """
    lineage = requests[0].lineage
    keys = list(_keys_of_charges(lineage))
    places: dict[str, int] = {"": 0}
    payers: dict[tuple[Argument, ...], int] = {}
    terms: dict[Terms, int] = {}
    asked: list[Argument] = []
    for request in requests:
        client = request.client
        if client not in places:
            places[client] = len(places)
            keys += _keys_of_payer(lineage, client)
        payer = payers.setdefault((places[client], client, request.key_digest), len(payers) + 1)
        lines = request.lines
        asked += (payer, microseconds(request.time), request.fingerprint, request.key)
        asked.append(len(lines))
        for line in lines:
            asked += (terms.setdefault(line.terms, len(terms) + 1), b"".join(line.questions))
    arguments: list[Argument] = [writes, link, IDEMPOTENCY_KEYS // 2, len(payers), len(terms)]
    for named in payers:
        arguments += named
    for one in terms:
        arguments += one.arguments
    return keys, arguments + asked


def read_charge(request: Asked, reply: Sequence[Any], service: str, link: bytes) -> Charge | LedgerError:
    """Read what the function `charge` replied to one request. `link`: of the call, if no receipt before has it."""
    match _words(reply):
        case ["charged", earlier, standing, first, own, *letters]:
            sequence, number, receipts = int(first), int(own), list[Receipt]()
            free: list[bool] = []
            for line, said in zip(request.lines, letters, strict=True):
                new = tuple(one for one, letter in zip(line.questions, said, strict=True) if letter in b"nc")
                free += [letter not in b"nc" for letter in said]
                if not new:
                    continue
                receipts.append(
                    Receipt(
                        lineage=request.lineage,
                        client=request.client,
                        sequence=sequence,
                        number=number,
                        terms=line.terms,
                        price=line.terms.price,
                        microseconds=microseconds(request.time),
                        questions=new,
                        lineage_questions=said.count(b"n"),
                        service=service,
                        link=link,
                    )
                )
                sequence, number, link = sequence + 1, number + bool(request.client), b""
            return Charge(tuple(receipts), tuple(free), int(earlier) if earlier else None, _standing(standing))
        case others:
            return _undecided(request, others)


def read_quote(request: Asked, reply: Sequence[Any]) -> Quote | LedgerError:
    """Read what the function `quote` replied."""
    match _words(reply):
        case ["quoted", refused, *letters]:
            lines = list(zip(request.lines, letters, strict=True))
            new = [sum(letter in b"nc" for letter in said) for _, said in lines]
            total = sum(
                line.terms.price * line.terms.times * count for (line, _), count in zip(lines, new, strict=True)
            )
            free = tuple(letter not in b"nc" for _, said in lines for letter in said)
            return Quote(total, free, _refusal(request, _words(refused)) if refused else None)
        case others:
            return _undecided(request, others)


def _words(reply: Any) -> list[Any]:
    if not isinstance(reply, list) or not reply or not isinstance(reply[0], bytes):
        raise LedgerUnavailable(_UNREADABLE)
    return [reply[0].decode(), *reply[1:]]


def _undecided(request: Asked, reply: list[Any]) -> LedgerError:
    match reply:
        case ["damaged", what]:
            return LedgerDamaged(request.lineage, what.decode(errors="replace"))
        case ["malformed", what]:
            return LedgerUnavailable(f"the ledger's store cannot read the request: {what.decode(errors='replace')}")
        case ["failed", what]:
            return LedgerUnavailable(f"the ledger's store reports: {what.decode(errors='replace')}")
        case ["format", what]:
            return WrongFormat(request.lineage, FORMAT, what.decode(errors="replace"))
    return _refusal(request, reply)


def _refusal(request: Asked, reply: Sequence[Any]) -> LedgerRefusal:
    """Read a refusal of a request, its first word as text. Raises LedgerUnavailable for anything else."""
    match list(reply):
        case ["exhausted", scope, cost, spent, limit]:
            return BudgetExhausted(_scope(scope), int(cost), int(spent), int(limit))
        case ["not-accepted", scope, cost]:
            return MechanismNotAccepted(_scope(scope), cost.decode())
        case ["coins", scope, _]:
            return CoinsExhausted(_scope(scope), str(request.lines[-1].terms.cost))
        case ["conflict"]:
            return IdempotencyConflict()
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


def _scope(word: bytes) -> Scope:
    return "client" if word == b"client" else "lineage"


@lru_cache(maxsize=4096)
def _budget_of(limit: int, accepts: str, delta: str) -> Budget:
    return Budget(limit, cast(Accepts, accepts), float(delta))


def _standing(said: bytes) -> Standing:
    spent, limit, accepts, delta, whole_spent, whole_limit = said.decode().split(" ")
    return Standing(_budget_of(int(limit), accepts, delta), int(spent), max(0, int(whole_limit) - int(whole_spent)))


def budget_arguments(budget: Budget) -> list[Argument]:
    """Return a budget as the functions take it: its limit, what it accepts, its delta and how many coins it allows."""
    return [budget.picorho, budget.accepts, repr(budget.delta), budget.coins_allowed]


def read_lineage(lineage: str, flat: Sequence[bytes]) -> LineageAccount | None:
    """Read the fields of a lineage's account, None if there is none. Raises WrongFormat."""
    fields = fields_of(flat)
    if not fields:
        return None
    if fields.get(b"format") != b"%d" % FORMAT:
        raise WrongFormat(lineage, FORMAT, fields.get(b"format", b"1").decode(errors="replace"))
    return LineageAccount(
        lineage=lineage,
        **_account(fields),
        newest_act=int(fields[b"acts"]),
        acts_head=fields.get(b"acts_head", GENESIS),
    )


def read_client(lineage: str, client: str, flat: Sequence[bytes]) -> ClientAccount | None:
    """Read the fields of a client's account, None if there is none."""
    fields = fields_of(flat)
    if not fields:
        return None
    return ClientAccount(
        lineage=lineage,
        client=client,
        number=int(fields[b"number"]),
        **_account(fields),
        revoked={b"0": False, b"1": True}[fields[b"revoked"]],
        api_keys=read_keys(fields[b"api_keys"]),
    )


def _account(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    return {
        "budget": _budget_of(int(fields[b"limit"]), fields[b"accepts"].decode(), fields[b"delta"].decode()),
        "spent": int(fields[b"spent"]),
        "coins": int(fields[b"coins"]),
        "coined": int(fields[b"coined"]),
        "tally": {
            Cost.parse(name.removeprefix(TALLY).decode()): int(releases)
            for name, releases in fields.items()
            if name.startswith(TALLY)
        },
        "created": float(fields[b"created"]),
        "newest_receipt": int(fields[b"seq"]),
        "asked": int(fields[b"asked"]),
    }


@dataclass(frozen=True)
class Names:
    """What the numbers in a lineage's receipts stand for."""

    terms: Mapping[bytes, tuple[Terms, int]]
    clients: Mapping[bytes, str]
    services: Mapping[bytes, str]

    @classmethod
    def read(cls, terms: Sequence[bytes], clients: Sequence[bytes], services: Sequence[bytes]) -> "Names":
        """Read them from the fields of the three hashes."""
        return cls(
            {number: Terms.unpacked(packed) for packed, number in _pairs(terms)},
            {number: name.decode() for name, number in _pairs(clients)} | {b"0": ""},
            {entry.split(b" ")[0]: service.decode() for service, entry in _pairs(services)},
        )


def read_receipt(lineage: str, entry: Sequence[Any], names: Names) -> Receipt:
    """Read one entry of the stream of receipts."""
    id_, words = entry
    fields = fields_of(words)
    sequence, number = map(int, id_.split(b"-"))
    terms, price = names.terms[fields[b"t"]]
    packed = fields[b"q"]
    if len(packed) % QUESTION:
        raise ValueError("a receipt's questions are cut off")
    return Receipt(
        lineage=lineage,
        client=names.clients[fields[b"c"]],
        sequence=sequence,
        number=number,
        terms=terms,
        price=price,
        microseconds=int(fields[b"w"]),
        questions=tuple(packed[at : at + QUESTION] for at in range(0, len(packed), QUESTION)),
        lineage_questions=int(fields[b"l"]),
        service=names.services[fields[b"s"]],
        link=fields[b"k"],
    )


def words_of_receipt(receipt: Receipt, terms: bytes, client: bytes, service: bytes) -> list[Argument]:
    """Return the fields and values of a receipt's entry, with these numbers, as `write_receipts` writes them."""
    fields: dict[str, Argument] = {
        "t": terms,
        "c": client,
        "w": receipt.microseconds,
        "l": receipt.lineage_questions,
        "s": service,
        "q": b"".join(receipt.questions),
        "k": receipt.link,
    }
    return [word for pair in fields.items() for word in pair]


def words_of_act(act: Act) -> list[Argument]:
    """Return the fields and values of an act's entry."""
    words = ("kind", act.kind, "subject", act.subject, "detail", act.detail, "time", act.time, "hash", act.hash)
    return list(words)


def read_act(entry: Sequence[Any]) -> Act:
    """Read one entry of a stream of acts."""
    number, words = entry
    fields = fields_of(words)
    return Act(
        sequence=int(number.split(b"-")[0]),
        kind=fields[b"kind"].decode(),
        subject=fields[b"subject"].decode(),
        detail=fields[b"detail"].decode(),
        time=fields[b"time"].decode(),
        hash=fields[b"hash"],
    )


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def fields_of(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the fields of a hash, or of a stream's entry, as the store replies them."""
    return dict(_pairs(flat))
