"""A plain model of what the ledger's calls mean, for one lineage."""

from dataclasses import dataclass, field

from dpserve.accounting.budgets import currency_of
from dpserve.accounting.currency import EPSILON, RHO, Currency
from dpserve.accounting.ledger import (
    BudgetExhausted,
    ChargeRequest,
    ClientRevoked,
    IdempotencyConflict,
    LedgerRefusal,
    MechanismNotAccepted,
    UnknownClient,
)
from dpserve.accounting.losses import Cost


@dataclass
class ModelAccount:
    """An account, the lineage's or a client's."""

    limit: int
    accepts: str
    spent: int = 0
    tally: dict[Cost, int] = field(default_factory=dict)
    revoked: bool = False
    keys: dict[str, tuple[bytes, Cost]] = field(default_factory=dict)
    questions: set[bytes] = field(default_factory=set)

    def price(self, cost: Cost) -> int | None:
        return cost.picoepsilon if self.accepts == "pure" else cost.picorho

    def refuses(self, cost: Cost, new: int) -> type[LedgerRefusal] | None:
        if not new:
            return None
        if (self.accepts == "gaussian" and not cost.is_gaussian) or (self.accepts != "unproven" and not cost.is_proven):
            return MechanismNotAccepted
        price = self.price(cost)
        if price is None:
            return MechanismNotAccepted
        total = new * price
        return BudgetExhausted if total and self.spent + total > self.limit else None

    def pay(self, cost: Cost, new: set[bytes]) -> None:
        self.questions |= new
        if new:
            self.spent += len(new) * (self.price(cost) or 0)
            self.tally[cost] = self.tally.get(cost, 0) + len(new)


@dataclass
class Model:
    """The accounts of a lineage. A charge returns a refusal, or the questions new to each account of the chain."""

    lineage: ModelAccount
    clients: dict[str, ModelAccount]
    groups: dict[str, ModelAccount] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)
    receipts: list[tuple[str, int, int, int, int]] = field(default_factory=list)

    def shared(self, client: str) -> list[ModelAccount]:
        """The accounts that a client shares with others."""
        group = self.group_of.get(client)
        return [*([self.groups[group]] if group else []), self.lineage]

    def shared_left(self, client: str) -> tuple[tuple[Currency, int], ...]:
        left: dict[Currency, int] = {}
        for account in self.shared(client):
            currency = currency_of(account.accepts)
            left[currency] = min(left.get(currency, 2**53), max(0, account.limit - account.spent))
        return tuple((currency, left[currency]) for currency in (RHO, EPSILON) if currency in left)

    def charge(self, request: ChargeRequest) -> type[LedgerRefusal] | list[set[bytes]]:
        account = self.clients.get(request.client)
        if account is None:
            return UnknownClient
        if account.revoked:
            return ClientRevoked
        named = request.idempotency
        if named and account.keys.get(named.key, (named.body_digest, request.terms.cost)) != (
            named.body_digest,
            request.terms.cost,
        ):
            return IdempotencyConflict
        chain = [account, *self.shared(request.client)]
        new = [set(request.questions) - each.questions for each in chain]
        for each in chain:
            # By what is new to the client: a refusal must not tell it what others asked.
            refusal = each.refuses(request.terms.cost, len(new[0]))
            if refusal:
                return refusal
        for each, questions in zip(chain, new, strict=True):
            each.pay(request.terms.cost, questions)
        if new[0]:
            number = 1 + sum(client == request.client for client, *_ in self.receipts)
            of_group = len(new[1]) if len(chain) > 2 else 0
            self.receipts.append((request.client, number, len(new[0]), of_group, len(new[-1])))
        if named:
            account.keys[named.key] = named.body_digest, request.terms.cost
        return new
