"""The ledger's values as the store has them: names of keys, arguments of functions, and their replies.

All keys of a lineage begin with its name between braces; every key that a function touches is handed to it. A client's
name is percent-encoded in the names of its keys, so that no name can reach into another's keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, starmap
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import msgspec

from dpserve.accounting.budgets import Accepts, Budget
from dpserve.accounting.currency import EPSILON, RHO
from dpserve.accounting.ledger.api_keys import KEY, ApiKey, read_key
from dpserve.accounting.ledger.errors import (
    BudgetExhausted,
    ClientRevoked,
    CoinsExhausted,
    IdempotencyConflict,
    KeyExpired,
    LedgerError,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    Scope,
    ScopeMissing,
    UnknownBlock,
    UnknownClient,
    UnknownGroup,
    UnknownKey,
    UnknownLineage,
    WrongFormat,
)
from dpserve.accounting.ledger.receipts import (
    GENESIS,
    Numbers,
    Receipt,
    Terms,
    account_subject,
    checked_blocks,
    pairs,
    paying,
    read_terms,
)
from dpserve.accounting.ledger.store import FORGOTTEN, FORMAT, binary, said_by_library
from dpserve.accounting.ledger.values import (
    Account,
    Balance,
    BlockAccount,
    Charge,
    ClientAccount,
    GroupAccount,
    LedgerRequest,
    LineageAccount,
    Quote,
    checked_client,
    checked_lineage,
)
from dpserve.accounting.losses import Cost

LINEAGES = "dpserve:lineages"
"""The key that lists every lineage of the store. The only one outside of a lineage."""

IDEMPOTENCY_KEYS = 20_000
"""Largest number of idempotency keys remembered for a client; the oldest are forgotten first."""

TALLY = b"n:"
"""Prefix of the fields of an account that count its releases; the cost follows."""

Fields = dict[bytes, bytes]


Kind = TypeVar("Kind", bound=Account, covariant=True)


@dataclass(frozen=True)
class AccountKeys(Generic[Kind]):
    """The names of the keys of one account, of which there are four kinds: see `call.lua`.

    `contents` are those of every key but the account: none of them is there before it is opened. questions: the set of
    those that a client or group paid for after somebody else. receipts: the index of a client's. requests: a client's
    younger idempotency keys, old_requests the older ones.
    """

    kind: type[Kind]
    lineage: str
    name: str
    account: str
    contents: tuple[str, ...]
    questions: str = ""
    receipts: str = ""
    requests: str = ""
    old_requests: str = ""

    @property
    def id(self) -> str:
        """The account's name in the store's functions: the key's name within the lineage."""
        return self.account.partition("}:")[2]

    @property
    def subject(self) -> str:
        """The account's name in acts."""
        return account_subject(self.kind.scope, self.name)

    @property
    def title(self) -> str:
        """The account, in words."""
        return f"the account of {self.name}" if self.name else "the lineage's account"

    @property
    def unknown(self) -> LedgerRefusal:
        """The error to raise where there is no such account."""
        kinds = {"client": UnknownClient, "group": UnknownGroup, "block": UnknownBlock, "lineage": UnknownLineage}
        return kinds[self.kind.scope](self.name or self.lineage)


class LineageKeys:
    """The names of a lineage's keys. Raises ValueError for a name that cannot be one.

    services: hash, service to its number and the number of its writes; the first key of every function. account: hash.
    receipts: stream, an id is the lineage's number and the client's. acts: stream, by number. questions: hash, question
    to the numbers of the client who paid for it first and its group. terms: hash, what receipts were charged at to its
    number. clients, groups, blocks: hashes, name to number. api_keys: hash, digest to terms and client. own: those of
    the lineage's own account.
    """

    def __init__(self, lineage: str) -> None:
        """Refuse a name that would reach outside of the lineage's keys."""
        checked_lineage(lineage)
        self._lineage, self._prefix = lineage, f"dpserve:{{{lineage}}}:"
        names = ("services", "account", "receipts", "acts", "questions", "terms", "clients", "groups", "blocks", "keys")
        self.services, self.account, self.receipts, self.acts, *others = (self._prefix + name for name in names)
        self.questions, self.terms, self.clients, self.groups, self.blocks, self.api_keys = others
        self.contents = (self.acts, self.receipts, *others, self.services)
        self.own = AccountKeys(LineageAccount, lineage, "", self.account, self.contents)

    def client(self, client: str) -> AccountKeys[ClientAccount]:
        """Return a client's keys."""
        return self._account_keys(ClientAccount, client, "questions", "receipts", "requests", "requests:old")

    def group(self, group: str) -> AccountKeys[GroupAccount]:
        """Return a group's keys."""
        return self._account_keys(GroupAccount, group, "questions")

    def account_of(self, subject: str) -> AccountKeys[Account]:
        """Return the keys of the account of a subject (`account_subject`)."""
        scope, _, name = subject.partition(":")
        return {"client": self.client, "group": self.group, "block": self.block}[scope](name) if name else self.own

    def block(self, block: str) -> AccountKeys[BlockAccount]:
        """Return a block's keys: of its questions the lineage's own say that they are paid for."""
        checked_blocks((block,))
        return self._account_keys(BlockAccount, block)

    def payer(self, block: str) -> AccountKeys[LineageAccount | BlockAccount]:
        """Return the keys of a block's account: of that without a name the lineage's own."""
        return self.block(block) if block else self.own

    def _account_keys(self, kind: type[Kind], name: str, *parts: str) -> AccountKeys[Kind]:
        account = f"{self._prefix}{kind.scope}:{quote(checked_client(name), safe='')}"
        contents = tuple(f"{account}:{part}" for part in parts)
        return AccountKeys(kind, self._lineage, name, account, contents, *contents)


@lru_cache(maxsize=256)
def services_key(lineage: str) -> str:
    """Return the first key of every function: a lineage's services. Raises ValueError as `LineageKeys` does."""
    return LineageKeys(lineage).services


@lru_cache(maxsize=256)
def _keys_of_charges(lineage: str) -> tuple[str, ...]:
    keys = LineageKeys(lineage)
    return keys.account, keys.receipts, keys.questions, keys.terms, keys.clients, keys.groups, keys.blocks


@lru_cache(maxsize=4096)
def _keys_of_payer(lineage: str, client: str, group: str) -> tuple[str, ...]:
    keys = LineageKeys(lineage)
    accounts: list[AccountKeys[Account]] = [keys.client(client), *([keys.group(group)] if group else [])]
    return tuple(key for account in accounts for key in (account.account, *account.contents))


@lru_cache(maxsize=4096)
def _keys_of_blocks(lineage: str, blocks: tuple[str, ...]) -> tuple[str, ...]:
    keys = LineageKeys(lineage)
    return tuple(keys.payer(block).account for block in paying(blocks))


Groups = Mapping[tuple[str, str], str]
"""The known group of each client, by lineage and client; a client that is not here belongs to none."""


def charge_call(
    requests: Sequence[LedgerRequest], groups: Groups, *, writes: int = 0, link: bytes = b"", covered: bytes = b""
) -> tuple[list[str], dict[str, Any], list[str]]:
    """Return the keys, without the services, and arguments of `charge`, `apply` and `quote`, for requests of one
    lineage; and the group that pays for each request, or nothing.

    `writes`, `link` and `covered`: of the service that asks. What requests have in common is sent once.
    """
    lineage = requests[0].lineage
    keys = dict.fromkeys(_keys_of_charges(lineage))
    payers: dict[tuple[str, str, bytes], int] = {}
    terms: dict[Terms, int] = {}
    asked: list[Any] = []
    questions: list[bytes] = []
    groups_paying: list[str] = []
    for request in requests:
        client, group = request.client, request.group
        if group is None:
            group = groups.get((lineage, client), "")
        groups_paying.append(group)
        payer = (client, group, request.key_digest)
        if payer not in payers:
            payers[payer] = len(payers) + 1
            if client:
                keys |= dict.fromkeys(_keys_of_payer(lineage, client, group))
        key, body = (binary(request.key), binary(request.fingerprint)) if request.key else ("", "")
        asked += (payers[payer], str(request.microseconds), body, key, len(request.lines))
        for line in request.lines:
            number = terms.setdefault(line.terms, len(terms) + 1)
            asked += (number, len(line.questions))
            questions += line.questions
    for line_terms in terms:
        keys |= dict.fromkeys(_keys_of_blocks(lineage, line_terms.blocks))
    arguments = {
        "writes": writes,
        "covered": binary(covered),
        "link": binary(link),
        "remembered": IDEMPOTENCY_KEYS // 2,
        "payers": list(starmap(_payer, payers)),
        "terms": list(map(attrgetter("arguments"), terms)),
        "questions": binary(b"".join(questions)),
        "requests": asked,
    }
    return list(keys), arguments, groups_paying


@lru_cache(maxsize=4096)
def _payer(client: str, group: str, digest: bytes) -> msgspec.Raw:
    """Return who pays as the functions take it, packed."""
    named = {"client": client, "group": group, "digest": binary(digest) if digest else None}
    return msgspec.Raw(msgspec.msgpack.encode({name: value for name, value in named.items() if value}))


PARTS = 4
"""Parts of the reply of `charge` to one request."""


def read_charge(
    request: LedgerRequest,
    group: str,
    reply: Sequence[Any],
    digits: bytes,
    stood: Sequence[bytes],
    service: str,
    link: bytes,
) -> Charge | LedgerError:
    """Read the parts of what `charge` replied to one request of a client in `group`.

    digits: of its questions. stood: how accounts stand. `link`: of the call, if no receipt before has it.
    """
    outcome, place, first, own = reply
    if isinstance(outcome, list):
        return _undecided_reply(request, outcome)
    balance, charged = _balance(stood[place - 1]), 0
    currency = balance.budget.currency
    sequence, number, receipts, end = int(first), int(own), list[Receipt](), 0
    for line in request.lines:
        start, end = end, end + len(line.questions)
        bits = digits[start:end]
        free = bits.count(b"0")
        if free == len(bits):
            continue
        new = tuple(compress(line.questions, map(_FREE.__ne__, bits))) if free else line.questions
        price = line.terms.price if currency is RHO else currency.price(line.terms.cost)
        charged += (price or 0) * line.terms.times * len(new)
        receipts.append(
            Receipt(
                lineage=request.lineage,
                client=request.client,
                sequence=sequence,
                number=number,
                terms=line.terms,
                microseconds=request.microseconds,
                questions=new,
                lineage_questions=bits.count(b"3" if group else b"2" if request.client else b"1"),
                group=group,
                group_questions=len(new) - bits.count(b"1") if group else 0,
                service=service,
                link=link,
            )
        )
        sequence, number, link = sequence + 1, number + bool(request.client), b""
    if len(digits) != end:
        raise ValueError("the reply has another number of questions")
    is_free = tuple(map(_FREE.__eq__, digits))
    return Charge(tuple(receipts), is_free, int(outcome) if outcome else None, balance, charged)


def read_quote(request: LedgerRequest, reply: Sequence[Any]) -> Quote | LedgerError:
    """Read what the function `quote` replied."""
    if reply[0] != b"quoted":
        return _undecided_reply(request, reply)
    _, refused, standing, digits = reply
    balance, total, start = _balance(standing), 0, 0
    currency = balance.budget.currency
    if any(currency.price(line.terms.cost) is None for line in request.lines):
        currency = RHO  # it is refused; what it costs is said all the same
    for line in request.lines:
        bits = digits[start : start + len(line.questions)]
        start += len(bits)
        total += (currency.price(line.terms.cost) or 0) * line.terms.times * (len(bits) - bits.count(b"0"))
    free = tuple(map(_FREE.__eq__, digits))
    pays = all(balance.budget.pays_for(line.terms.cost) for line in request.lines)
    shown_cost, words = None, f"costs {currency.words(total)}"
    if pays:
        shown_cost = balance.budget.growth(balance.spent, total)
        words, _ = balance.budget.words_of_cost(balance.spent, total)
    return Quote(total, free, _refusal(request, refused) if refused else None, currency, shown_cost, words)


_FREE = ord("0")
"""The digit of a question that is new to no account."""


def _undecided_reply(request: LedgerRequest, reply: Sequence[Any]) -> LedgerError:
    if reply[0].isupper():
        return said_by_library(request.lineage, reply[0].decode(), reply[1].decode(errors="replace"))
    return _refusal(request, reply)


def _refusal(request: LedgerRequest, reply: Sequence[Any]) -> LedgerRefusal:
    """Read a refusal of a request. Raises LedgerUnavailable for anything else."""
    word, *words = (part.decode() for part in reply)
    if word not in _REFUSALS:
        raise LedgerUnavailable("the ledger's store gave a reply that cannot be read")
    return _REFUSALS[word](request, *words)


_REFUSALS: Mapping[str, Callable[..., LedgerRefusal]] = {
    "exhausted": lambda _, scope, *words: _exhaustion(scope, *words),
    "not-accepted": lambda _, scope, cost, name: MechanismNotAccepted(scope, cost, _block(scope, name)),
    "coins": lambda request, scope, name: CoinsExhausted(scope, request.lines[-1].terms.cost_text, _block(scope, name)),
    "unknown-block": lambda _, name: UnknownBlock(name),
    "conflict": lambda _: IdempotencyConflict(),
    "revoked": lambda request: ClientRevoked(request.client),
    "unknown-client": lambda request: UnknownClient(request.client),
    "unknown-lineage": lambda request: UnknownLineage(request.lineage),
    "unknown-key": lambda _: UnknownKey(),
    "key-expired": lambda _: KeyExpired(),
    "key-scope": lambda _, scope: ScopeMissing(scope),
}


def _exhaustion(scope: str, accepts: str, delta: str, cost: str, spent: str, limit: str, name: str) -> LedgerRefusal:
    budget, block = _budget_of(int(limit), accepts, delta), _block(scope, name)
    return BudgetExhausted.of_budget(cast(Scope, scope), budget, int(cost), int(spent), block)


def _block(scope: str, name: str) -> str:
    """Return the block whose account refused, or nothing for another account."""
    return name if scope == "block" else ""


@lru_cache(maxsize=4096)
def _budget_of(limit: int, accepts: str, delta: str) -> Budget:
    return Budget(limit, cast(Accepts, accepts), float(delta))


@lru_cache(maxsize=4096)
def _balance(text: bytes) -> Balance:
    spent, limit, accepts, delta, highest, rho, epsilon = text.decode().split(" ")
    budget = _budget_of(int(limit), accepts, delta)
    shared = [(RHO, int(rho))] if rho != "-" else []
    if epsilon != "-":
        shared.append((EPSILON, int(epsilon)))
    return Balance(budget, int(spent), max(int(limit), int(highest)), tuple(shared))


def budget_arguments(budget: Budget) -> dict[str, Any]:
    """Return a budget as the functions take it and acts write it: limit, what it accepts, delta and coins."""
    return {
        "limit": budget.limit,
        "accepts": budget.accepts,
        "delta": repr(budget.delta),
        "coins": budget.coins_allowed,
    }


def read_budget(fields: Mapping[str, Any]) -> Budget:
    """Read what `budget_arguments` wrote. Raises ValueError, KeyError or TypeError."""
    return _budget_of(int(fields["limit"]), fields["accepts"], fields["delta"])


def key_arguments(key: ApiKey) -> dict[str, Any]:
    """Return an API key as the functions take it."""
    expires, scopes = key.terms
    return {"digest": binary(key.digest), "expires": expires, "scopes": scopes}


def read_account(keys: AccountKeys[Kind], fields: Fields) -> Kind | None:
    """Read the fields of an account, None if there is none. Raises WrongFormat."""
    if not fields:
        return None
    if keys.kind is LineageAccount:
        written = fields.get(b"format", b"none").decode(errors="replace")
        if written not in (FORMAT, FORGOTTEN):
            raise WrongFormat(keys.lineage, written, FORMAT)
        own: dict[str, Any] = {"newest_act": int(fields[b"acts"]), "acts_head": fields.get(b"acts_head", GENESIS)}
        own["unit"] = fields[b"unit"].decode() if b"unit" in fields else None
        own["is_forgotten"] = written == FORGOTTEN
        own["blocks"] = int(fields[b"blocks"])
    else:
        own = {"number": int(fields[b"number"]), "display": fields.get(b"display", b"").decode()}
    if keys.kind is ClientAccount:
        own |= {
            "revoked": {b"0": False, b"1": True}[fields[b"revoked"]],
            "api_keys": tuple(
                read_key(name.removeprefix(KEY), terms)
                for name, terms in sorted(fields.items())
                if name.startswith(KEY)
            ),
            "group": fields.get(b"group", b"").decode(),
        }
    own |= {"lineage": keys.lineage, str(keys.kind.scope): keys.name or keys.lineage}
    return keys.kind(**_account(fields), **own)


def _account(fields: Fields) -> dict[str, Any]:
    words = (fields.get(name, b"").decode() for name in (b"accepts", b"delta"))
    raises, settled = map(int, fields.get(b"raised", b"0 0").split(b" "))
    limit, spent = int(fields[b"limit"]), int(fields[b"spent"])
    highest = max(limit, int(fields[b"highest"]))
    if spent > highest:  # receipts that were put back: the store has lost that the limit was raised
        raises, settled = raises + 1, settled if raises else highest
    return {
        "budget": _budget_of(limit, *words),
        "spent": spent,
        "highest_limit": highest,
        "raises": raises,
        "settled_limit": settled,
        "coins": int(fields[b"coins"]),
        "coins_spent": int(fields[b"coined"]),
        "tally": {
            Cost.parse(name.removeprefix(TALLY).decode()): int(releases)
            for name, releases in fields.items()
            if name.startswith(TALLY)
        },
        "created": float(fields[b"created"]),
        "newest_receipt": int(fields[b"seq"]),
        "questions": int(fields[b"asked"]),
    }


def read_numbers(terms: Fields, clients: Fields, groups: Fields, services: Fields) -> Numbers:
    """Return what the numbers in a lineage's receipts stand for, from the fields of the four hashes."""
    return {
        "terms": {number: read_terms(packed) for packed, number in terms.items()},
        "client": {number: name.decode() for name, number in clients.items()} | {b"0": ""},
        "group": {number: name.decode() for name, number in groups.items()} | {b"0": ""},
        "service": {entry.split(b" ")[0]: service.decode() for service, entry in services.items()},
    }


def fields_of(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the fields of a hash, or of a stream's entry, as the store replies them."""
    return dict(pairs(flat))
