"""Any interleaving of the ledger's calls, against a plain model of what they mean."""

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from accounting.ledger import (
    AcceptsTooLate,
    Answered,
    BudgetExhausted,
    Charge,
    ChargeRequest,
    ClientRevoked,
    IdempotencyConflict,
    Ledger,
    LedgerRefusal,
    MechanismNotAccepted,
    RowNotCharged,
    TermsChanged,
    UnknownClient,
)
from accounting.ledger.verification import verify
from accounting.losses import ClaimedGaussianLoss, Cost, GaussianLoss, LaplaceLoss

from .conftest import asking, budget, dump, new_lineage, open_accounts

COSTS = [Cost((GaussianLoss(0.25),)), Cost((LaplaceLoss(0.5),)), Cost((ClaimedGaussianLoss(0.25),)), Cost()]
UNIT = COSTS[0].picorho
CLIENTS = ["ann", "bob"]

clients = st.sampled_from([*CLIENTS, "nobody"])
rows = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6)
limits = st.integers(0, 12).map(lambda units: units * UNIT + units % 3 - 1 if units else 0)
accepts = st.sampled_from(["gaussian", "any"])
bodies = st.sampled_from(["", "", "one", "two"])


@dataclass
class ModelAccount:
    limit: int
    accepts: str
    spent: int = 0
    tally: dict[Cost, int] = field(default_factory=dict)
    revoked: bool = False
    keys: dict[str, tuple[bytes, Cost]] = field(default_factory=dict)

    def refuses(self, cost: Cost, total: int) -> type[LedgerRefusal] | None:
        if (self.accepts == "gaussian" and not cost.is_gaussian) or (self.accepts != "unproven" and not cost.is_proven):
            return MechanismNotAccepted
        return BudgetExhausted if self.spent + total > self.limit else None

    def pay(self, cost: Cost, releases: int) -> None:
        self.spent += releases * cost.picorho
        self.tally[cost] = self.tally.get(cost, 0) + releases


@dataclass
class Model:
    """What the ledger means, for one lineage."""

    lineage: ModelAccount
    clients: dict[str, ModelAccount]
    answers: dict[bytes, bytes | None] = field(default_factory=dict)
    receipts: list[tuple[str, int, int]] = field(default_factory=list)

    def charge(self, request: ChargeRequest) -> type[LedgerRefusal] | list[bytes | None]:
        account = self.clients.get(request.client)
        if account is None:
            return UnknownClient
        if account.revoked:
            return ClientRevoked
        named = request.idempotency
        if named and named.key in account.keys:
            body, cost = account.keys[named.key]
            if body != named.body_digest:
                return IdempotencyConflict
            if cost != request.cost:
                answers = [self.answers.get(row) for row in replace(request, cost=cost).row_ids]
                return TermsChanged if None in answers else answers
            if not set(request.row_ids) <= set(self.answers):
                return TermsChanged
        new = set(request.row_ids) - set(self.answers)
        if new:
            total = len(new) * request.cost.picorho
            refusal = account.refuses(request.cost, total) or self.lineage.refuses(request.cost, total)
            if refusal:
                return refusal
            account.pay(request.cost, len(new))
            self.lineage.pay(request.cost, len(new))
            self.receipts.append((request.client, len(new), total))
            self.answers.update(dict.fromkeys(new))
        if named:
            account.keys[named.key] = named.body_digest, request.cost
        return [self.answers[row] for row in request.row_ids]

    def settle(self, answers: list[tuple[bytes, bytes]]) -> list[bytes] | None:
        if any(row not in self.answers for row, _ in answers):
            return None
        winners = []
        for row, answer in answers:
            standing = self.answers[row]
            self.answers[row] = answer if standing is None else standing
            winners.append(self.answers[row] or b"")
        return winners


class LedgerAgainstModel(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ledger = self.runner.run(Ledger.connect(self.url))
        self.lineage = new_lineage()
        self.seen: list[ChargeRequest] = []
        self.answer = 0

    def teardown(self) -> None:
        if hasattr(self, "model"):
            assert self.runner.run(verify(self.ledger, self.lineage)).findings == ()
        self.runner.run(self.ledger.close())
        self.runner.close()

    @initialize(whole=limits, quotas=st.tuples(limits, limits), kinds=st.tuples(accepts, accepts, accepts))
    def open(self, whole: int, quotas: tuple[int, int], kinds: tuple[str, str, str]) -> None:
        limit, *client_limits = (budget(amount, kind) for amount, kind in zip((whole, *quotas), kinds, strict=True))
        named = dict(zip(CLIENTS, client_limits, strict=True))
        self.runner.run(open_accounts(self.ledger, self.lineage, limit, **named))
        self.model = Model(
            ModelAccount(limit.picorho, limit.accepts),
            {client: ModelAccount(quota.picorho, quota.accepts) for client, quota in named.items()},
        )

    def request(self, client: str, asked: list[str], cost: Cost, body: str) -> ChargeRequest:
        return asking(self.lineage, client, *asked, cost=cost, key=body and "key", body=body)

    def check(self, request: ChargeRequest, got: Charge | LedgerRefusal) -> None:
        receipts = len(self.model.receipts)
        expected = self.model.charge(request)
        if isinstance(expected, type):
            assert type(got) is expected
            return
        assert isinstance(got, Charge)
        named = request.idempotency
        paid_at = self.model.clients[request.client].keys[named.key][1] if named else request.cost
        assert [row.row_id for row in got.rows] == list(replace(request, cost=paid_at).row_ids)
        assert [row.answer if isinstance(row, Answered) else None for row in got.rows] == expected
        assert (got.receipt is not None) == (len(self.model.receipts) > receipts)

    @rule(client=clients, asked=rows, cost=st.sampled_from(COSTS), body=bodies)
    def charge(self, client: str, asked: list[str], cost: Cost, body: str) -> None:
        request = self.request(client, asked, cost, body)
        self.seen.append(request)
        before = dump(self.url, self.lineage)
        (got,) = self.runner.run(self.ledger.charge_batch([request]))
        self.check(request, got)
        if isinstance(got, LedgerRefusal):
            assert dump(self.url, self.lineage) == before

    @rule(asked=st.lists(st.tuples(clients, rows, st.sampled_from(COSTS), bodies), min_size=2, max_size=4))
    def charge_several(self, asked: list[tuple[str, list[str], Cost, str]]) -> None:
        requests = [self.request(*one) for one in asked]
        self.seen += requests
        for request, got in zip(requests, self.runner.run(self.ledger.charge_batch(requests)), strict=True):
            self.check(request, got)

    @rule(client=clients, asked=rows, cost=st.sampled_from(COSTS), body=bodies)
    def quote(self, client: str, asked: list[str], cost: Cost, body: str) -> None:
        request = self.request(client, asked, cost, body)
        before = dump(self.url, self.lineage)
        expected = deepcopy(self.model).charge(request)
        if expected in (UnknownClient, ClientRevoked, IdempotencyConflict, TermsChanged):
            with pytest.raises(expected):
                self.runner.run(self.ledger.quote(request))
            return
        quote = self.runner.run(self.ledger.quote(request))
        assert dump(self.url, self.lineage) == before
        named = request.idempotency
        known = named and self.model.clients[client].keys.get(named.key)
        ids = replace(request, cost=known[1] if known else cost).row_ids
        free = [row in self.model.answers or row in ids[:at] for at, row in enumerate(ids)]
        assert (list(quote.free), quote.total) == (free, free.count(False) * cost.picorho)
        assert (expected if isinstance(expected, type) else None) is (quote.refusal and type(quote.refusal))

    @rule(which=st.integers(0, 100))
    def retry(self, which: int) -> None:
        if self.seen:
            request = self.seen[which % len(self.seen)]
            (got,) = self.runner.run(self.ledger.charge_batch([request]))
            self.check(request, got)

    @rule(which=st.integers(0, 100), chosen=st.lists(st.integers(0, 5), min_size=1, max_size=6))
    def settle(self, which: int, chosen: list[int]) -> None:
        if not self.seen:
            return
        ids = self.seen[which % len(self.seen)].row_ids
        answers = []
        for place in chosen:
            self.answer += 1
            answers.append((ids[place % len(ids)], b"answer %d" % self.answer))
        before = dump(self.url, self.lineage)
        try:
            got = self.runner.run(self.ledger.settle(self.lineage, answers))
        except RowNotCharged:
            assert self.model.settle(answers) is None
            assert dump(self.url, self.lineage) == before
        else:
            assert got == self.model.settle(answers)

    @rule(client=st.sampled_from(CLIENTS), really=st.integers(0, 4))
    def revoke(self, client: str, really: int) -> None:
        if really == 0:
            self.runner.run(self.ledger.revoke(self.lineage, client))
            self.model.clients[client].revoked = True

    @rule(client=st.sampled_from([*CLIENTS, None]), limit=limits, kind=accepts)
    def set_budget(self, client: str | None, limit: int, kind: str) -> None:
        account = self.model.clients[client] if client else self.model.lineage
        call = (
            self.ledger.set_client_budget(self.lineage, client, budget(limit, kind))
            if client
            else self.ledger.set_lineage_budget(self.lineage, budget(limit, kind))
        )
        if kind == "gaussian" and account.accepts == "any" and account.tally:
            with pytest.raises(AcceptsTooLate):
                self.runner.run(call)
        else:
            self.runner.run(call)
            account.limit, account.accepts = limit, kind

    @invariant()
    def the_accounts_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        found = {None: self.runner.run(self.ledger.lineage(self.lineage))}
        found |= {one.client: one for one in self.runner.run(self.ledger.clients(self.lineage))}
        for name, account in {None: self.model.lineage, **self.model.clients}.items():
            assert found[name].spent == account.spent == sum(c.picorho * n for c, n in account.tally.items())
            assert dict(found[name].tally) == account.tally
            assert (found[name].budget.picorho, found[name].budget.accepts) == (account.limit, account.accepts)
        assert found[None].spent == sum(account.spent for account in self.model.clients.values())
        receipts = self.runner.run(self.ledger.receipts(self.lineage, count=1000))
        assert [(r.client, r.rows, r.total) for r in receipts] == self.model.receipts
        assert [r.sequence for r in receipts] == list(range(1, len(receipts) + 1))


def test_every_interleaving_means_what_the_model_says(store_url: str) -> None:
    machine = type("Machine", (LedgerAgainstModel,), {"url": store_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30,
            phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes longer than to read it
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
