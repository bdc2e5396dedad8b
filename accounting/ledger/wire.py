"""How the ledger's values are written in the store: the names of its keys, arguments, and how replies read.

All keys of a lineage carry the hash tag `{lineage}`, so that a cluster keeps them together; every key that a
function touches is handed to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from accounting.budgets import Accepts, Budget
from accounting.ledger.errors import (
    BudgetExhausted,
    ClientRevoked,
    IdempotencyConflict,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    RowNotCharged,
    Scope,
    UnknownClient,
    UnknownLineage,
)
from accounting.ledger.values import (
    Answered,
    Charge,
    ChargeRequest,
    ClientAccount,
    LineageAccount,
    Receipt,
    Unanswered,
    checked_name,
)
from accounting.losses import Cost

LINEAGES = "dpserve:lineages"
"""The key that lists every lineage of the store. The only one outside of a lineage."""

Argument = str | bytes | int

_LENGTH = Struct(">I")
_POSITION_AND_LENGTH = Struct(">II")


@dataclass(frozen=True)
class ClientKeys:
    """The names of one client's keys."""

    account: str
    tally: str
    receipts: str
    requests: str


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
    def rows(self) -> str:
        """Hash: row id to what became of the row."""
        return self._key("rows")

    @property
    def clients(self) -> str:
        """Set: the clients' names."""
        return self._key("clients")

    @property
    def api_keys(self) -> str:
        """Hash: API key digest to client."""
        return self._key("keys")

    def client(self, client: str) -> ClientKeys:
        """Return the names of a client's keys: account, tally, receipt numbers, idempotency keys."""
        checked_name(client, "client's name")
        name = f"client:{client}"
        return ClientKeys(
            self._key(name), self._key(f"{name}:tally"), self._key(f"{name}:receipts"), self._key(f"{name}:requests")
        )


def charge_call(lineage: str, requests: Sequence[ChargeRequest]) -> tuple[list[str], list[Argument]]:
    """Return the keys and arguments of one call of the function `charge`."""
    keys = LineageKeys(lineage)
    named = [keys.account, keys.tally, keys.receipts, keys.rows]
    places: dict[str, int] = {}
    arguments: list[Argument] = [lineage]
    for request in requests:
        if request.client not in places:
            places[request.client] = len(places) + 1
            client = keys.client(request.client)
            named += [client.account, client.tally, client.receipts, client.requests]
        idempotency = request.idempotency
        arguments += [
            places[request.client],
            request.client,
            request.model,
            request.mechanism,
            request.terms.text,
            "gaussian" if request.terms.is_gaussian else "other",
            request.terms.price,
            repr(request.time),
            idempotency.key if idempotency else "",
            idempotency.body_digest if idempotency else "",
            b"".join(request.row_ids),
        ]
    return named, arguments


def read_decision(request: ChargeRequest, reply: Sequence[Any]) -> Charge | LedgerRefusal:
    """Read what the function `charge` replied to one request."""
    match [reply[0].decode(), *reply[1:]]:
        case ["charged", number, releases, answers]:
            return _charge(request, int(number), int(releases), answers)
        case ["exhausted", scope, cost, spent, limit]:
            return BudgetExhausted(_scope(scope), int(cost), int(spent), int(limit))
        case ["not-accepted", scope]:
            return MechanismNotAccepted(_scope(scope), request.terms.text)
        case ["conflict"]:
            return IdempotencyConflict()
        case ["revoked"]:
            return ClientRevoked(request.client)
        case ["unknown-client"]:
            return UnknownClient(request.client)
        case ["unknown-lineage"]:
            return UnknownLineage(request.lineage)
    raise LedgerUnavailable("the ledger's store gave a reply that cannot be read")


def _charge(request: ChargeRequest, number: int, releases: int, answers: bytes) -> Charge:
    rows: list[Answered | Unanswered] = [Unanswered(row) for row in request.row_ids]
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
        )
    return Charge(receipt, tuple(rows))


def settle_call(settlements: Sequence[Sequence[tuple[bytes, bytes]]]) -> list[Argument]:
    """Return the arguments of one call of the function `settle`."""
    arguments: list[Argument] = []
    for settlement in settlements:
        arguments.append(b"".join(row for row, _ in settlement))
        arguments.append(b"".join(_LENGTH.pack(len(answer)) + answer for _, answer in settlement))
    return arguments


def read_standing(settlement: Sequence[tuple[bytes, bytes]], reply: Sequence[Any]) -> list[bytes] | RowNotCharged:
    """Read what the function `settle` replied to one settlement: every row's answer, by position."""
    if reply[0] == b"uncharged":
        return RowNotCharged(int(reply[1]) - 1)
    answers = [answer for _, answer in settlement]
    for position, answer in _unpacked(reply[1]):
        answers[position - 1] = answer
    return answers


def budget_arguments(budget: Budget) -> list[Argument]:
    """Return a budget as the three arguments that the functions take."""
    return [budget.picorho, budget.accepts, repr(budget.delta)]


def read_lineage(lineage: str, reply: Sequence[Any]) -> LineageAccount | None:
    """Read what the function `read` replied of a lineage's account, None if there is none."""
    fields = _fields(reply[0])
    if not fields:
        return None
    return LineageAccount(
        lineage=lineage,
        budget=_budget(fields),
        spent=int(fields[b"spent"]),
        tally=_tally(reply[1]),
        created=float(fields[b"created"]),
        newest_receipt=int(fields[b"seq"]),
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
        revoked=fields[b"revoked"] == b"1",
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
    )


def _scope(word: bytes) -> Scope:
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
    accepts: Accepts = "gaussian" if fields[b"accepts"] == b"gaussian" else "any"
    return Budget(int(fields[b"limit"]), accepts, float(fields[b"delta"]))


def _tally(flat: Sequence[bytes]) -> dict[Cost, int]:
    return {Cost.parse(cost.decode()): int(releases) for cost, releases in _pairs(flat)}
