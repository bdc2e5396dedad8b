"""Any interleaving of charges to a lineage with blocks, against a model of what they mean in exact fractions.

The model knows none of the ledger's code but its requests: a release costs mu^2 / 2 of a mu that is a fraction, an
account pays for what is new to it, each release rounded up to 1e-12, and what the records of a block lost is the exact
sum over every question whose model was trained on that block.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    BudgetExhausted,
    Charge,
    ChargeRequest,
    Ledger,
    LedgerError,
    LedgerRefusal,
    Purchase,
    ReleaseRequest,
    UnknownBlock,
)
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import Cost, GaussianLoss

from .conftest import asking, budget, decided, dump, new_lineage, open_accounts

MUS = (0.25, 0.3, 0.7)
COSTS = {mu: Cost((GaussianLoss(mu),)) for mu in MUS}
EXACT = {cost: Fraction(mu) ** 2 / 2 for mu, cost in COSTS.items()}
PICO = 10**12

CLIENTS = ("ann", "bob", "eve")
MEMBERS = CLIENTS[:2]
BLOCKS = ("2026-09", "2026-10", "2026-11", "2026-12")
MODELS = ("heads", "sums", "trees")

clients = st.sampled_from(CLIENTS)
rows = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5)
costs = st.sampled_from([*COSTS.values(), COSTS[0.25], COSTS[0.25]])
limits = st.integers(0, 24).map(lambda units: max(0, units * PICO // 32 + units % 3 - 1))
some_blocks = st.lists(st.sampled_from(BLOCKS), max_size=2, unique=True).map(lambda names: tuple(sorted(names)))
services = st.integers(0, 1)


def price(cost: Cost) -> int:
    return ceil(EXACT[cost] * PICO)


@dataclass
class ExactAccount:
    """An account: its limit in 1e-12, the questions that it paid for with their costs."""

    limit: int
    paid: dict[bytes, Cost] = field(default_factory=dict)

    @property
    def spent(self) -> int:
        return sum(map(price, self.paid.values()))


@dataclass(frozen=True)
class ExactLine:
    """Questions at one cost, of a model of these blocks. is_model: of a model that is paid for once."""

    questions: tuple[bytes, ...]
    cost: Cost
    blocks: tuple[str, ...]
    is_model: bool


NewQuestions = tuple[ExactLine, list[set[bytes]]]
"""A line, and which of its questions are new to each account of a chain."""


def _new_to(chain: Sequence[ExactAccount], lines: Sequence[ExactLine]) -> Iterator[NewQuestions]:
    seen = set[bytes]()
    for line in lines:
        asked = set(line.questions) - seen
        yield line, [asked - account.paid.keys() for account in chain]
        seen |= asked


def _cost(pairs: Iterable[NewQuestions], place: int) -> int:
    # By what is new to the client, whose refusal must not tell what others asked; of a pay-once model, by what is
    # new to the account itself.
    return sum(price(line.cost) * len(each[place if line.is_model else 0]) for line, each in pairs)


@dataclass
class ExactLedger:
    """The accounts of a lineage, by their names, and what the records of each block lost."""

    inner: dict[str, ExactAccount]
    group: ExactAccount
    whole: ExactAccount = field(default_factory=lambda: ExactAccount(0))
    """The questions that any block has paid for; it refuses nothing."""
    blocks: dict[str, ExactAccount] = field(default_factory=dict)
    losses: defaultdict[str, Fraction] = field(default_factory=lambda: defaultdict(Fraction))

    def charge(self, client: str, lines: Sequence[ExactLine]) -> tuple[type[LedgerRefusal], str] | list[int]:
        """Return a refusal and the block that it is of, if of any; or how many questions are new to the lineage."""
        named = list(dict.fromkeys(block for line in lines for block in line.blocks or ("",)))
        if unknown := [block for block in named if block not in self.blocks]:
            return UnknownBlock, unknown[0]
        own = [self.inner[client]] if client else []
        chain = [*own, *([self.group] if client in MEMBERS else []), self.whole]
        pairs = list(_new_to(chain, lines))
        for place, account in enumerate(chain[:-1]):
            if (total := _cost(pairs, place)) and account.spent + total > account.limit:
                return BudgetExhausted, ""
        for block in named:
            total = _cost([pair for pair in pairs if block in (pair[0].blocks or ("",))], -1)
            if total and self.blocks[block].spent + total > self.blocks[block].limit:
                return BudgetExhausted, block
        self._pay(chain, pairs)
        return [len(each[-1]) for _, each in pairs]

    def _pay(self, chain: Sequence[ExactAccount], pairs: Sequence[NewQuestions]) -> None:
        for line, each in pairs:
            for account, questions in zip(chain, each, strict=True):
                account.paid |= dict.fromkeys(questions, line.cost)
            for block in line.blocks or ("",):
                self.blocks[block].paid |= dict.fromkeys(each[-1], line.cost)
                self.losses[block] += len(each[-1]) * EXACT[line.cost]


AnyRequest = ChargeRequest | ReleaseRequest | Purchase


def lines_of(request: AnyRequest) -> list[ExactLine]:
    """A request's lines, by what it was made of."""
    if isinstance(request, Purchase):
        return [line for release in request.releases for line in lines_of(release)]
    if isinstance(request, ChargeRequest):
        return [ExactLine(request.questions, request.terms.cost, request.terms.blocks, is_model=False)]
    return [ExactLine(request.line.questions, request.cost, request.blocks, is_model=True)]


class BlocksAgainstModel(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ledgers = [self.runner.run(Ledger.connect(self.url)) for _ in range(2)]
        self.lineage = new_lineage()
        self.blocks_of: Mapping[str, tuple[str, ...]] = {}

    def teardown(self) -> None:
        try:
            if self.blocks_of:
                assert self.runner.run(verify(self.ledgers[0], self.lineage)).findings == ()
        finally:
            for ledger in self.ledgers:
                self.runner.run(ledger.close())
            self.runner.close()

    @initialize(
        amounts=st.tuples(*[limits.map(lambda amount: 4 * amount)] * 4),
        first=st.tuples(*[limits] * 4),
        trained=st.tuples(*[some_blocks] * len(MODELS)),
    )
    def open(self, amounts: tuple[int, ...], first: tuple[int, ...], trained: tuple[tuple[str, ...], ...]) -> None:
        shared, *own = amounts
        unnamed, *named = first
        given = {client: budget(amount) for client, amount in zip(CLIENTS, own, strict=True)}
        self.runner.run(open_accounts(self.ledgers[0], self.lineage, budget(unnamed), **given))
        self.runner.run(self.ledgers[0].acting("owner").add_group(self.lineage, "team", budget(shared), time=0.0))
        for member in MEMBERS:
            self.runner.run(self.ledgers[0].acting("owner").set_group(self.lineage, member, "team"))
        self.model = ExactLedger(
            {client: ExactAccount(amount) for client, amount in zip(CLIENTS, own, strict=True)}, ExactAccount(shared)
        )
        self.blocks_of = dict(zip(MODELS, trained, strict=True))
        self.model.blocks[""] = ExactAccount(unnamed)
        for block, limit in zip(BLOCKS, named, strict=False):
            self.open_block(block, limit)

    @rule(block=st.sampled_from(BLOCKS), limit=limits)
    def open_block(self, block: str, limit: int) -> None:
        opened = self.runner.run(
            self.ledgers[1].acting("owner").open_block(self.lineage, block, budget(limit), time=1.0)
        )
        assert opened.budget.limit == self.model.blocks.setdefault(block, ExactAccount(limit)).limit

    def set_budget(self, block: str, limit: int) -> None:
        call = self.ledgers[1].acting("owner").set_budget(self.lineage, budget(limit), block=block)
        if block in self.model.blocks:
            self.runner.run(call)
            self.model.blocks[block].limit = limit
        else:
            with pytest.raises(UnknownBlock):
                self.runner.run(call)

    @rule(block=st.sampled_from(("", *BLOCKS)), cost=costs, count=st.integers(1, 3), less=st.integers(0, 1))
    def set_budget_to_the_edge(self, block: str, cost: Cost, count: int, less: int) -> None:
        """Leave what pays for so many releases exactly, or one unit less."""
        spent = self.model.blocks[block].spent if block in self.model.blocks else 0
        self.set_budget(block, spent + count * price(cost) - less)

    def request(self, client: str, model: str, asked: list[str], cost: Cost) -> ChargeRequest:
        return asking(self.lineage, client, *asked, cost=cost, model=model, blocks=self.blocks_of[model])

    def release(self, client: str, model: str, cost: Cost) -> ReleaseRequest:
        return ReleaseRequest(
            self.lineage,
            client,
            model,
            model.encode().ljust(32),
            "weights",
            cost,
            1.5,
            None,
            b"",
            self.blocks_of[model],
        )

    def check(self, request: AnyRequest, got: Charge | LedgerError) -> None:
        client = "" if isinstance(request, Purchase) else request.client
        expected = self.model.charge(client, lines_of(request))
        if isinstance(expected, tuple):
            assert type(got) is expected[0], got
            if expected[0] is BudgetExhausted:
                assert isinstance(got, BudgetExhausted)
                assert got.block == expected[1]
            return
        assert isinstance(got, Charge), got
        assert sum(receipt.lineage_questions for receipt in got.receipts) == sum(expected)

    def charge_alone(self, service: int, request: AnyRequest) -> None:
        before = dump(self.url, self.lineage)
        (got,) = self.runner.run(decided(self.ledgers[service], [request]))
        self.check(request, got)
        if isinstance(got, LedgerRefusal):
            assert dump(self.url, self.lineage) == before

    @rule(service=services, client=clients, model=st.sampled_from(MODELS), asked=rows, cost=costs)
    def charge(self, service: int, client: str, model: str, asked: list[str], cost: Cost) -> None:
        self.charge_alone(service, self.request(client, model, asked, cost))

    @rule(service=services, client=clients, asked=rows, cost=costs)
    def charge_without_blocks(self, service: int, client: str, asked: list[str], cost: Cost) -> None:
        self.charge_alone(service, asking(self.lineage, client, *asked, cost=cost))

    @rule(
        service=services,
        client=st.sampled_from(["", *CLIENTS]),
        model=st.sampled_from(MODELS),
        cost=costs,
    )
    def buy(self, service: int, client: str, model: str, cost: Cost) -> None:
        self.charge_alone(service, self.release(client, model, cost))

    @rule(service=services, models=st.permutations(MODELS), prices=st.tuples(costs, costs))
    def buy_two(self, service: int, models: list[str], prices: tuple[Cost, Cost]) -> None:
        """Have the owner pay for two models at once, which may be of other blocks."""
        releases = tuple(self.release("", model, cost) for model, cost in zip(models, prices, strict=False))
        payers: dict[str, Budget | None] = dict.fromkeys(self.blocks_of[models[0]] + self.blocks_of[models[1]])
        both = Purchase(title="both", lineage=self.lineage, unit=None, payers=payers, releases=releases)
        self.charge_alone(service, both)

    @rule(
        service=services,
        asked=st.lists(st.tuples(clients, st.sampled_from(MODELS), rows, costs), min_size=2, max_size=4),
    )
    def charge_several(self, service: int, asked: list[tuple[str, str, list[str], Cost]]) -> None:
        requests = [self.request(*one) for one in asked]
        for request, got in zip(requests, self.runner.run(decided(self.ledgers[service], requests)), strict=True):
            self.check(request, got)

    @rule(client=clients, model=st.sampled_from(MODELS), asked=rows, cost=costs)
    def quote(self, client: str, model: str, asked: list[str], cost: Cost) -> None:
        request = self.request(client, model, asked, cost)
        unknown = set(request.terms.blocks) - self.model.blocks.keys()
        before = dump(self.url, self.lineage)
        if unknown:
            with pytest.raises(UnknownBlock):
                self.runner.run(self.ledgers[0].quote(request))
        else:
            quote = self.runner.run(self.ledgers[0].quote(request))
            account = self.model.inner[client]
            assert quote.total == price(cost) * len(set(request.questions) - account.paid.keys())
        assert dump(self.url, self.lineage) == before

    @invariant()
    def no_record_lost_more_than_its_block_paid(self) -> None:
        if not self.blocks_of:
            return
        whole, members, (team,), blocks = self.runner.run(self.ledgers[0].snapshot(self.lineage))
        assert (whole.blocks, whole.questions) == (len(blocks), len(self.model.whole.paid))
        found = {account.name: account for account in (*members, whole, *blocks)}
        assert found.keys() == {*CLIENTS, *self.model.blocks}
        for name, account in {**self.model.inner, **self.model.blocks}.items():
            assert (found[name].spent, found[name].budget.limit) == (account.spent, account.limit)
            assert found[name].releases == len(account.paid)
        assert team.spent == self.model.group.spent
        for block in (whole, *blocks):
            lost = self.model.losses[block.name]
            assert 0 <= block.spent - lost * PICO < max(1, block.releases)
            assert block.spent <= block.highest_limit
        assert all(block.questions == block.releases for block in blocks)


def run(url: str, examples: int) -> None:
    machine = type("Machine", (BlocksAgainstModel,), {"url": url})
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


@pytest.mark.parametrize("examples", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_every_interleaving_means_what_the_model_says(store_url: str, examples: int) -> None:
    run(store_url, examples)
