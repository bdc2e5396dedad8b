"""A plain model of what the ledger's calls mean, for one lineage."""

from dataclasses import dataclass, field

from accounting.ledger import (
    BudgetExhausted,
    ChargeRequest,
    ClientRevoked,
    IdempotencyConflict,
    LedgerRefusal,
    MechanismNotAccepted,
    UnknownClient,
)
from accounting.losses import Cost


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

    def refuses(self, cost: Cost, new: int) -> type[LedgerRefusal] | None:
        if not new:
            return None
        if (self.accepts == "gaussian" and not cost.is_gaussian) or (self.accepts != "unproven" and not cost.is_proven):
            return MechanismNotAccepted
        total = new * cost.picorho
        return BudgetExhausted if total and self.spent + total > self.limit else None

    def pay(self, cost: Cost, new: set[bytes]) -> None:
        self.questions |= new
        self.spent += len(new) * cost.picorho
        if new:
            self.tally[cost] = self.tally.get(cost, 0) + len(new)


@dataclass
class Model:
    """The accounts of a lineage. A charge returns a refusal, or the questions new to the client and to the lineage."""

    lineage: ModelAccount
    clients: dict[str, ModelAccount]
    receipts: list[tuple[str, int, int, int]] = field(default_factory=list)

    def charge(self, request: ChargeRequest) -> type[LedgerRefusal] | tuple[set[bytes], set[bytes]]:
        account = self.clients.get(request.client)
        if account is None:
            return UnknownClient
        if account.revoked:
            return ClientRevoked
        named = request.idempotency
        if named and account.keys.get(named.key, (named.body_digest, request.cost)) != (
            named.body_digest,
            request.cost,
        ):
            return IdempotencyConflict
        own = set(request.questions) - account.questions
        shared = own - self.lineage.questions
        # By what is new to the client: a refusal must not tell it what others asked.
        refusal = account.refuses(request.cost, len(own)) or self.lineage.refuses(request.cost, len(own))
        if refusal:
            return refusal
        account.pay(request.cost, own)
        self.lineage.pay(request.cost, shared)
        if own:
            number = 1 + sum(client == request.client for client, *_ in self.receipts)
            self.receipts.append((request.client, number, len(own), len(shared)))
        if named:
            account.keys[named.key] = named.body_digest, request.cost
        return own, shared
