"""Any interleaving of the ledger's calls, by two services, against a plain model of what they mean."""

import asyncio
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    ActRefused,
    Charge,
    ChargeRequest,
    ClientRevoked,
    IdempotencyConflict,
    Ledger,
    LedgerError,
    LedgerRefusal,
    UnknownClient,
)
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import ClaimedGaussianLoss, Cost, GaussianLoss, LaplaceLoss
from dpserve.accounting.sampling_error import PURE_DELTA

from .conftest import asking, budget, dump, new_lineage, open_accounts
from .model import Model, ModelAccount

COSTS = [Cost((GaussianLoss(0.25),)), Cost((LaplaceLoss(0.5),)), Cost((ClaimedGaussianLoss(0.25),)), Cost()]
UNIT = COSTS[0].picorho
CLIENTS = ["ann", "bob@example.org", "eve"]
TEAM = "team/7"
MEMBERS = CLIENTS[:2]

clients = st.sampled_from([*CLIENTS, "nobody"])
rows = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6)
limits = st.integers(0, 12).map(lambda units: units * UNIT + units % 3 - 1 if units else 0)
accepts = st.sampled_from(["gaussian", "any", "any", "pure"])
bodies = st.sampled_from(["", "", "one", "two"])
services = st.integers(0, 1)


def _budget(amount: int, kind: str) -> Budget:
    """A budget of so many units, of rho or of the epsilon that the Laplace noise among COSTS has."""
    return Budget(amount * 16, "pure", PURE_DELTA) if kind == "pure" else budget(amount, kind)


class LedgerAgainstModel(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ledgers = [self.runner.run(Ledger.connect(self.url)) for _ in range(2)]
        self.lineage = new_lineage()
        self.seen: list[ChargeRequest] = []

    def teardown(self) -> None:
        try:
            if hasattr(self, "model"):
                assert self.runner.run(verify(self.ledgers[0], self.lineage)).findings == ()
        finally:
            for ledger in self.ledgers:
                self.runner.run(ledger.close())
            self.runner.close()

    @initialize(amounts=st.tuples(*[limits] * 5), kinds=st.tuples(*[accepts] * 5))
    def open(self, amounts: tuple[int, ...], kinds: tuple[str, ...]) -> None:
        limit, shared, *client_limits = map(_budget, amounts, kinds)
        named = dict(zip(CLIENTS, client_limits, strict=True))
        self.runner.run(open_accounts(self.ledgers[0], self.lineage, limit, **named))
        self.runner.run(self.ledgers[0].acting("owner").add_group(self.lineage, TEAM, shared, time=0.0))
        for member in MEMBERS:
            self.runner.run(self.ledgers[0].acting("owner").set_group(self.lineage, member, TEAM))
        self.model = Model(
            ModelAccount(limit.limit, limit.accepts),
            {client: ModelAccount(quota.limit, quota.accepts) for client, quota in named.items()},
            {TEAM: ModelAccount(shared.limit, shared.accepts)},
            dict.fromkeys(MEMBERS, TEAM),
        )

    def request(self, client: str, asked: list[str], cost: Cost, body: str) -> ChargeRequest:
        return asking(self.lineage, client, *asked, cost=cost, key=body and "key", body=body)

    def check(self, request: ChargeRequest, got: Charge | LedgerError) -> None:
        expected = self.model.charge(request)
        if isinstance(expected, type):
            assert type(got) is expected
            return
        assert isinstance(got, Charge), got
        own, *_, shared = expected
        new = set().union(*(receipt.questions for receipt in got.receipts))
        new_to_lineage = sum(receipt.lineage_questions for receipt in got.receipts)
        assert (new, got.free.count(False), new_to_lineage) == (own, len(own), len(shared))
        free = [one not in own or one in request.questions[:place] for place, one in enumerate(request.questions)]
        assert list(got.free) == free

    def check_balance(self, request: ChargeRequest, got: Charge | LedgerError) -> None:
        """It is as the account stands after the call."""
        if isinstance(got, Charge):
            assert got.balance.spent == self.model.clients[request.client].spent
            assert got.balance.shared_left == self.model.shared_left(request.client)

    @rule(service=services, client=clients, asked=rows, cost=st.sampled_from(COSTS), body=bodies)
    def charge(self, service: int, client: str, asked: list[str], cost: Cost, body: str) -> None:
        request = self.request(client, asked, cost, body)
        self.seen.append(request)
        before = dump(self.url, self.lineage)
        (got,) = self.runner.run(self.ledgers[service].charge_batch([request]))
        self.check(request, got)
        self.check_balance(request, got)
        if isinstance(got, LedgerRefusal):
            assert dump(self.url, self.lineage) == before

    @rule(
        service=services,
        asked=st.lists(st.tuples(clients, rows, st.sampled_from(COSTS), bodies), min_size=2, max_size=4),
    )
    def charge_several(self, service: int, asked: list[tuple[str, list[str], Cost, str]]) -> None:
        requests = [self.request(*one) for one in asked]
        self.seen += requests
        decisions = self.runner.run(self.ledgers[service].charge_batch(requests))
        for check in (self.check, self.check_balance):
            for request, got in zip(requests, decisions, strict=True):
                check(request, got)

    @rule(client=clients, asked=rows, cost=st.sampled_from(COSTS), body=bodies)
    def quote(self, client: str, asked: list[str], cost: Cost, body: str) -> None:
        request = self.request(client, asked, cost, body)
        before = dump(self.url, self.lineage)
        expected = deepcopy(self.model).charge(request)
        if expected in (UnknownClient, ClientRevoked, IdempotencyConflict):
            with pytest.raises(expected):
                self.runner.run(self.ledgers[0].quote(request))
            return
        quote = self.runner.run(self.ledgers[0].quote(request))
        assert dump(self.url, self.lineage) == before
        paid = self.model.clients[client].questions
        free = [one in paid or one in request.questions[:place] for place, one in enumerate(request.questions)]
        price = self.model.clients[client].price(cost)
        each = cost.picorho if price is None else price
        assert (list(quote.free), quote.total) == (free, free.count(False) * each)
        assert (expected if isinstance(expected, type) else None) is (quote.refusal and type(quote.refusal))

    @rule(service=services, which=st.integers(0, 100))
    def retry(self, service: int, which: int) -> None:
        if self.seen:
            request = self.seen[which % len(self.seen)]
            (got,) = self.runner.run(self.ledgers[service].charge_batch([request]))
            self.check(request, got)

    @rule(client=st.sampled_from(CLIENTS), really=st.integers(0, 4))
    def revoke(self, client: str, really: int) -> None:
        if really == 0:
            self.runner.run(self.ledgers[0].acting("owner").revoke(self.lineage, client))
            self.model.clients[client].revoked = True

    @rule(name=st.sampled_from([*CLIENTS, TEAM, None]), limit=limits, kind=accepts)
    def set_budget(self, name: str | None, limit: int, kind: str) -> None:
        ledger, given = self.ledgers[1], _budget(limit, kind)
        if name is None:
            account, call = self.model.lineage, ledger.acting("owner").set_budget(self.lineage, given)
        elif name == TEAM:
            account, call = self.model.groups[TEAM], ledger.acting("owner").set_budget(self.lineage, given, group=TEAM)
        else:
            account, call = (
                self.model.clients[name],
                ledger.acting("owner").set_budget(self.lineage, given, client=name),
            )
        narrowed = kind == "gaussian" and account.accepts == "any"
        if account.spent and (narrowed or (kind == "pure") != (account.accepts == "pure")):
            with pytest.raises(ActRefused, check=lambda error: error.reason == "too-late"):
                self.runner.run(call)
        else:
            self.runner.run(call)
            account.limit, account.accepts = given.limit, kind

    @invariant()
    def the_accounts_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        ledger = self.ledgers[0]
        found = {None: self.runner.run(ledger.lineage(self.lineage))}
        found |= {one.client: one for one in self.runner.run(ledger.clients(self.lineage))}
        found |= {one.group: one for one in self.runner.run(ledger.groups(self.lineage))}
        for name, account in {None: self.model.lineage, **self.model.clients, **self.model.groups}.items():
            total = sum((account.price(cost) or 0) * count for cost, count in account.tally.items())
            assert found[name].spent == account.spent == total
            assert dict(found[name].tally) == account.tally
            assert (found[name].budget.limit, found[name].budget.accepts) == (account.limit, account.accepts)
        receipts = self.runner.run(ledger.receipts(self.lineage, count=1000))
        said = [(r.client, r.number, r.releases, r.group_releases, r.lineage_releases) for r in receipts]
        assert said == self.model.receipts
        assert [r.sequence for r in receipts] == list(range(1, len(receipts) + 1))


def run(url: str, examples: int) -> None:
    machine = type("Machine", (LedgerAgainstModel,), {"url": url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes longer than to read it
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )


@pytest.mark.parametrize("examples", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_every_interleaving_means_what_the_model_says(store_url: str, examples: int) -> None:
    run(store_url, examples)
