"""How the ledger's values are written in the store: the names of its keys, arguments, and how replies read.

All keys of a lineage carry the hash tag `{lineage}`, so that a cluster keeps them together; every key that a function
touches is handed to it. A client's name is percent-encoded in the names of its keys, so that no name can reach into
another's keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

from accounting.budgets import Accepts, Budget
from accounting.ledger.api_keys import KEY, read_key
from accounting.ledger.errors import (
    BudgetExhausted,
    ClientRevoked,
    CoinsExhausted,
    IdempotencyConflict,
    KeyExpired,
    LedgerError,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    ScopeMissing,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
    WrongFormat,
)
from accounting.ledger.receipts import GENESIS, Numbers, Receipt, Terms, microseconds, pairs, read_terms
from accounting.ledger.store import FORMAT, said_by_library
from accounting.ledger.values import (
    Asked,
    Charge,
    ClientAccount,
    LineageAccount,
    Quote,
    Standing,
    checked_client,
    checked_lineage,
)
from accounting.losses import Cost

LINEAGES = "dpserve:lineages"
"""The key that lists every lineage of the store. The only one outside of a lineage."""

IDEMPOTENCY_KEYS = 20_000
"""How many idempotency keys of a client are remembered at most; the oldest are forgotten first."""

TALLY = b"n:"
"""What the fields of an account that count its releases begin with; the cost follows."""

Argument = str | bytes | int
Fields = dict[bytes, bytes]


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
    return keys.account, keys.receipts, keys.questions, keys.terms, keys.clients


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
    if reply[0] != b"charged":
        return _undecided(request, reply)
    _, earlier, standing, first, own, *letters = reply
    sequence, number, receipts = int(first), int(own), list[Receipt]()
    for line, said in zip(request.lines, letters, strict=True):
        new = tuple(one for one, letter in zip(line.questions, said, strict=True) if letter in _NEW)
        if not new:
            continue
        receipts.append(
            Receipt(
                lineage=request.lineage,
                client=request.client,
                sequence=sequence,
                number=number,
                terms=line.terms,
                microseconds=microseconds(request.time),
                questions=new,
                lineage_questions=said.count(b"n"),
                service=service,
                link=link,
            )
        )
        sequence, number, link = sequence + 1, number + bool(request.client), b""
    return Charge(tuple(receipts), _free(letters), int(earlier) if earlier else None, _standing(standing))


def read_quote(request: Asked, reply: Sequence[Any]) -> Quote | LedgerError:
    """Read what the function `quote` replied."""
    if reply[0] != b"quoted":
        return _undecided(request, reply)
    _, refused, *letters = reply
    total = 0
    for line, said in zip(request.lines, letters, strict=True):
        total += line.terms.price * line.terms.times * sum(letter in _NEW for letter in said)
    return Quote(total, _free(letters), _refusal(request, refused) if refused else None)


_NEW = b"nc"
"""The letters of questions that are new to the client."""


def _free(letters: Sequence[bytes]) -> tuple[bool, ...]:
    return tuple(letter not in _NEW for said in letters for letter in said)


def _undecided(request: Asked, reply: Sequence[Any]) -> LedgerError:
    if reply[0].isupper():
        return said_by_library(request.lineage, reply[0].decode(), reply[1].decode(errors="replace"))
    return _refusal(request, reply)


def _refusal(request: Asked, reply: Sequence[Any]) -> LedgerRefusal:
    """Read a refusal of a request. Raises LedgerUnavailable for anything else."""
    word, *words = (part.decode() for part in reply)
    if word not in _REFUSALS:
        raise LedgerUnavailable("the ledger's store gave a reply that cannot be read")
    return _REFUSALS[word](request, *words)


_REFUSALS: Mapping[str, Callable[..., LedgerRefusal]] = {
    "exhausted": lambda _, scope, *amounts: BudgetExhausted(scope, *map(int, amounts)),
    "not-accepted": lambda _, scope, cost: MechanismNotAccepted(scope, cost),
    "coins": lambda request, scope: CoinsExhausted(scope, request.lines[-1].terms.cost_text),
    "conflict": lambda _: IdempotencyConflict(),
    "revoked": lambda request: ClientRevoked(request.client),
    "unknown-client": lambda request: UnknownClient(request.client),
    "unknown-lineage": lambda request: UnknownLineage(request.lineage),
    "unknown-key": lambda _: UnknownKey(),
    "key-expired": lambda _: KeyExpired(),
    "key-scope": lambda _, scope: ScopeMissing(scope),
}


@lru_cache(maxsize=4096)
def _budget_of(limit: int, accepts: str, delta: str) -> Budget:
    return Budget(limit, cast(Accepts, accepts), float(delta))


def _standing(said: bytes) -> Standing:
    spent, limit, accepts, delta, highest, whole_spent, whole_limit = said.decode().split(" ")
    left = max(0, int(whole_limit) - int(whole_spent))
    return Standing(_budget_of(int(limit), accepts, delta), int(spent), max(int(limit), int(highest)), left)


def budget_arguments(budget: Budget) -> list[Argument]:
    """Return a budget as the functions take it: its limit, what it accepts, its delta and how many coins it allows."""
    return [budget.picorho, budget.accepts, repr(budget.delta), budget.coins_allowed]


def read_lineage(lineage: str, fields: Fields) -> LineageAccount | None:
    """Read the fields of a lineage's account, None if there is none. Raises WrongFormat."""
    if not fields:
        return None
    if fields.get(b"format") != b"%d" % FORMAT:
        raise WrongFormat(lineage, fields.get(b"format", b"1").decode(errors="replace"), FORMAT)
    return LineageAccount(
        lineage=lineage,
        **_account(fields),
        newest_act=int(fields[b"acts"]),
        acts_head=fields.get(b"acts_head", GENESIS),
    )


def read_client(lineage: str, client: str, fields: Fields) -> ClientAccount | None:
    """Read the fields of a client's account, None if there is none."""
    if not fields:
        return None
    return ClientAccount(
        lineage=lineage,
        client=client,
        number=int(fields[b"number"]),
        **_account(fields),
        revoked={b"0": False, b"1": True}[fields[b"revoked"]],
        api_keys=tuple(
            read_key(name.removeprefix(KEY), terms) for name, terms in sorted(fields.items()) if name.startswith(KEY)
        ),
    )


def _account(fields: Fields) -> dict[str, Any]:
    return {
        "budget": _budget_of(int(fields[b"limit"]), fields[b"accepts"].decode(), fields[b"delta"].decode()),
        "spent": int(fields[b"spent"]),
        "highest_limit": max(int(fields[b"limit"]), int(fields[b"highest"])),
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


def read_numbers(terms: Fields, clients: Fields, services: Fields) -> Numbers:
    """Return what the numbers in a lineage's receipts stand for, from the fields of the three hashes."""
    return {
        "terms": {number: read_terms(packed) for packed, number in terms.items()},
        "client": {number: name.decode() for name, number in clients.items()} | {b"0": ""},
        "service": {entry.split(b" ")[0]: service.decode() for service, entry in services.items()},
    }


def fields_of(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the fields of a hash, or of a stream's entry, as the store replies them."""
    return dict(pairs(flat))
