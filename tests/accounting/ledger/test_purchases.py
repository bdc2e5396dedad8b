"""Models that are paid for once, by each client and by the lineage: both pay or neither."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import structs

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    ClientRevoked,
    CoinsExhausted,
    EmbeddedStore,
    Idempotency,
    IdempotencyConflict,
    Ledger,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    Purchase,
    ReleaseRequest,
    UnknownClient,
    UnknownLineage,
    key_digest,
)
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.receipts import Receipt, charge_terms
from dpserve.accounting.ledger.recovery import put_back, reconcile
from dpserve.accounting.ledger.values import LedgerRequest, Line
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss, LaplaceLoss

from .conftest import asking, budget, dump, new_lineage, open_accounts, read_journals

pytestmark = pytest.mark.anyio

COSTS = {name: Cost((GaussianLoss(mu),)) for name, mu in (("one", 0.1), ("two", 0.15), ("three", 0.3))}
PRICES = {name: cost.picorho for name, cost in COSTS.items()}
COST, PRICE = COSTS["one"], PRICES["one"]
WHOLE = budget(sum(PRICES.values()) * 10)
DRAWN = b"what was drawn, or a hash of it."


def buying(
    lineage: str, client: str, release: str = "one", *, key: str = "", body: str = "", time: float = 2.5
) -> ReleaseRequest:
    return ReleaseRequest(
        lineage=lineage,
        client=client,
        model=release,
        drawn=DRAWN,
        mechanism="weights",
        cost=COSTS[release],
        time=time,
        idempotency=Idempotency(key, key_digest(body)) if key else None,
    )


def together(*releases: ReleaseRequest) -> Purchase:
    """A purchase of the lineage of the first."""
    return Purchase(title="both", lineage=releases[0].lineage, unit=None, payers={"": None}, releases=releases)


async def spent(ledger: Ledger, lineage: str) -> dict[str, int]:
    account, clients, *_ = await ledger.snapshot(lineage)
    return {"": account.spent} | {client.client: client.spent for client in clients}


async def test_each_client_pays_once_and_the_lineage_once_for_all(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE, bob=WHOLE)

    assert (await ledger.quote(buying(lineage, "ann"))).total == PRICE
    assert (await ledger.charge(buying(lineage, "ann"))).charged == PRICE
    assert (await ledger.charge(buying(lineage, "bob"))).charged == PRICE
    assert (await ledger.quote(buying(lineage, "ann"))).total == 0
    assert (await ledger.charge(buying(lineage, "ann"))).charged == 0
    assert await spent(ledger, lineage) == {"": PRICE, "ann": PRICE, "bob": PRICE}

    account = await ledger.lineage(lineage)
    assert dict(account.tally) == {COST: 1}
    assert (await verify(ledger, lineage)).findings == ()


async def test_the_owner_holds_on_the_lineages_account_and_a_restart_charges_nothing(
    ledger: Ledger, lineage: str
) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)

    first = await ledger.charge(buying(lineage, ""))
    assert first.receipt is not None
    assert first.receipt.client == ""
    assert (await ledger.charge(buying(lineage, "", time=9.0))).receipt is None
    shared = await ledger.charge(buying(lineage, "ann"))

    assert shared.receipt is not None
    assert shared.receipt.lineage_releases == 0
    assert await spent(ledger, lineage) == {"": PRICE, "ann": PRICE}
    assert [receipt.lineage_releases for receipt in await ledger.receipts(lineage)] == [1, 0]
    assert [receipt.lineage_releases for receipt in await ledger.client_receipts(lineage, "ann")] == [0]
    assert (await verify(ledger, lineage)).findings == ()


async def test_another_release_of_the_same_price_is_paid_for_again(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(buying(lineage, "ann"))

    assert (await ledger.charge(replace(buying(lineage, "ann"), model="another"))).charged == PRICE
    assert await spent(ledger, lineage) == {"": 2 * PRICE, "ann": 2 * PRICE}


@pytest.mark.parametrize(("scope", "short"), [("client", {"ann": 1}), ("lineage", {"": 1})])
async def test_one_picorho_short_changes_nothing(
    ledger: Ledger, lineage: str, store_url: str, scope: str, short: dict[str, int]
) -> None:
    total = PRICES["three"]
    await open_accounts(ledger, lineage, budget(total - short.get("", 0)), ann=budget(total - short.get("ann", 0)))
    before = dump(store_url, lineage)

    with pytest.raises(BudgetExhausted) as refused:
        await ledger.charge(buying(lineage, "ann", "three", key="k", body="b"))

    assert (refused.value.scope, refused.value.cost, refused.value.remaining) == (scope, total, total - 1)
    assert dump(store_url, lineage) == before
    assert (await ledger.charge(buying(lineage, "ann", "two"))).charged == PRICES["two"]


async def test_refusals_of_a_row_are_refusals_of_a_hold(ledger: Ledger, lineage: str) -> None:
    with pytest.raises(UnknownLineage):
        await ledger.charge(buying(lineage, ""))
    await open_accounts(ledger, lineage, budget(sum(PRICES.values()), "gaussian"), ann=WHOLE, eve=WHOLE)
    await ledger.acting("owner").revoke(lineage, "eve")
    await ledger.charge(buying(lineage, "ann", key="k", body="one"))
    laplace = ReleaseRequest(lineage, "ann", "m", DRAWN, "x", Cost((LaplaceLoss(0.1),)), 1.0)

    for request, refusal in (
        (buying(lineage, "nobody"), UnknownClient),
        (buying(lineage, "eve"), ClientRevoked),
        (buying(lineage, "ann", key="k", body="other"), IdempotencyConflict),
        (laplace, MechanismNotAccepted),
    ):
        with pytest.raises(refusal):
            await ledger.charge(request)
        if refusal is not MechanismNotAccepted:
            with pytest.raises(refusal):
                await ledger.quote(request)
    assert isinstance((await ledger.quote(laplace)).refusal, MechanismNotAccepted)
    assert (await ledger.charge(buying(lineage, "ann", key="k", body="one"))).receipt is None


async def test_a_key_stands_for_the_release(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(buying(lineage, "ann", key="k", body="b"))

    again = await ledger.charge(buying(lineage, "ann", key="k", body="b"))

    assert (again.receipts, again.earlier) == ((), 1)
    with pytest.raises(IdempotencyConflict):
        await ledger.charge(buying(lineage, "ann", "two", key="k", body="b"))


async def test_a_key_of_a_hold_and_a_key_of_rows_are_the_same_key(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(asking(lineage, "ann", "row", cost=COST, key="k", body="rows"))

    with pytest.raises(IdempotencyConflict):
        await ledger.charge(buying(lineage, "ann", key="k", body="hold"))
    await ledger.charge(buying(lineage, "ann", key="other", body="hold"))
    with pytest.raises(IdempotencyConflict):
        await ledger.charge(asking(lineage, "ann", "row", cost=COST, key="other", body="rows"))


async def test_coins_are_counted_and_refused_beyond_what_delta_provides_for(ledger: Ledger, lineage: str) -> None:
    coin = Cost((ApproximateGaussianLoss(0.1, 2.0**-40),))
    await ledger.acting("owner").open_lineage(lineage, WHOLE, time=0.0)
    await ledger.acting("owner").add_client(lineage, "ann", WHOLE, key_digest(lineage), time=0.0)

    def request(client: str, model: str) -> ReleaseRequest:
        return ReleaseRequest(lineage, client, model, DRAWN, "dpsgd", coin, 1.0)

    assert (await ledger.charge(request("", "m"))).charged == coin.picorho
    account = await ledger.lineage(lineage)
    assert (account.coins_spent, account.coins) == (1, WHOLE.coins_allowed)
    await ledger.charge(request("ann", "m"))
    assert ((await ledger.lineage(lineage)).coins_spent, (await ledger.client(lineage, "ann")).coins_spent) == (1, 1)
    poor = Budget(WHOLE.limit, "any", 1e-9)  # which allows none
    with pytest.raises(ActRefused, check=lambda error: error.reason == "coins"):
        await ledger.acting("owner").set_budget(lineage, poor, client="ann")
    await ledger.acting("owner").add_client(lineage, "bob", poor, key_digest("bob"), time=0.0)
    with pytest.raises(CoinsExhausted) as refused:
        await ledger.charge(request("bob", "m"))
    assert refused.value.scope == "client"
    assert isinstance((await ledger.quote(request("bob", "m"))).refusal, CoinsExhausted)
    assert (await verify(ledger, lineage)).findings == ()


def test_what_no_budget_provides_for_is_no_request() -> None:
    with pytest.raises(ValueError, match="pay-once model must lie between"):
        ReleaseRequest("l", "ann", "m", DRAWN, "x", Cost((GaussianLoss(1e-3),)), 1.0)
    with pytest.raises(ValueError, match="32 bytes"):
        ReleaseRequest("l", "ann", "m", b"", "x", COST, 1.0)


# Any interleaving, against a reference


class Reference:
    """A model of what is paid for in ten lines."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.limits, self.spent = limits, dict.fromkeys(limits, 0)
        self.paid = set[tuple[str, str]]()

    def hold(self, client: str, release: str) -> int | None:
        costs = {name: 0 if (name, release) in self.paid else PRICES[release] for name in {client, ""}}
        if any(cost and self.spent[name] + cost > self.limits[name] for name, cost in costs.items()):
            return None
        for name, cost in costs.items():
            self.spent[name] += cost
            self.paid.add((name, release))
        return costs[client]


class Machine(RuleBasedStateMachine):
    url = ""

    @initialize(limits=st.lists(st.integers(0, 2 * sum(PRICES.values())), min_size=4, max_size=4))
    def open(self, limits: list[int]) -> None:
        self.loop = asyncio.new_event_loop()
        self.ledger = self.loop.run_until_complete(Ledger.connect(self.url))
        self.lineage = new_lineage()
        self.reference = Reference(dict(zip(["", "ann", "bob", "cid"], limits, strict=True)))
        clients = {name: budget(limit) for name, limit in self.reference.limits.items() if name}
        self.loop.run_until_complete(
            open_accounts(self.ledger, self.lineage, budget(self.reference.limits[""]), **clients)
        )

    @rule(
        client=st.sampled_from(["", "ann", "bob", "cid"]),
        release=st.sampled_from(list(PRICES)),
        times=st.integers(1, 2),
    )
    def hold(self, client: str, release: str, times: int) -> None:
        for _ in range(times):
            request = buying(self.lineage, client, release)
            quote = self.loop.run_until_complete(self.ledger.quote(request))
            expected = self.reference.hold(client, release)
            try:
                found = self.loop.run_until_complete(self.ledger.charge(request)).charged
            except LedgerRefusal:
                found = None
            assert found == expected
            assert (quote.refusal is None) == (expected is not None)
            assert expected is None or quote.total == expected

    @invariant()
    def the_books_are_right(self) -> None:
        if hasattr(self, "reference"):
            assert self.loop.run_until_complete(spent(self.ledger, self.lineage)) == self.reference.spent
            assert self.loop.run_until_complete(verify(self.ledger, self.lineage)).findings == ()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.ledger.close())
            self.loop.close()


def test_any_interleaving_of_clients_and_models_is_as_the_reference_has_it(embedded_url: str) -> None:
    machine = type("OnThisStore", (Machine,), {"url": embedded_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


# Concurrency


async def buy_everything(url: str, lineage: str) -> None:
    """Let four clients race through the models from several tasks."""
    async with await Ledger.connect(url) as ledger:

        async def one(task: int) -> None:
            for release in PRICES:
                await ledger.charge(buying(lineage, f"client{task % 4}", release))

        await asyncio.gather(*map(one, range(8)))


async def test_two_processes_at_once_charge_each_model_once(embedded_url: str, lineage: str) -> None:
    async with await Ledger.connect(embedded_url) as ledger:
        await open_accounts(ledger, lineage, WHOLE, **{f"client{number}": WHOLE for number in range(4)})
        code = (
            "import asyncio, sys; sys.path.insert(0, sys.argv[1]);"
            "from tests.accounting.ledger.test_purchases import buy_everything;"
            "asyncio.run(buy_everything(*sys.argv[2:]))"
        )
        words = [sys.executable, "-c", code, str(Path(__file__).parents[3]), embedded_url, lineage]
        racing = [subprocess.Popen(words) for _ in range(2)]
        assert [await asyncio.to_thread(process.wait) for process in racing] == [0, 0]

        total = sum(PRICES.values())
        expected = {"": total} | {f"client{number}": total for number in range(4)}
        assert await spent(ledger, lineage) == expected
        assert len(await ledger.receipts(lineage)) == 4 * len(PRICES)
        assert (await verify(ledger, lineage)).findings == ()


async def test_a_hold_whose_store_dies_on_the_way_is_charged_once(tmp_path: Path) -> None:
    """Each client asks, at once with the others, until the server dies, and again until it hears of its holding."""
    names = [f"client{number}" for number in range(6)]
    with EmbeddedStore(tmp_path) as store:
        async with await Ledger.connect(store.url) as ledger:
            await open_accounts(ledger, "lineage", WHOLE, **dict.fromkeys(names, WHOLE))
            with redis.Redis.from_url(store.url, protocol=2) as client:
                process = client.info()["process_id"]

            async def move(position: int) -> None:
                with contextlib.suppress(LedgerUnavailable):
                    for release in PRICES:
                        await ledger.charge(buying("lineage", names[position], release, key=release, body="b"))
                        if position == 3:
                            os.kill(process, signal.SIGKILL)

            await asyncio.gather(*map(move, range(len(names))))
    with EmbeddedStore(tmp_path) as store:
        async with await Ledger.connect(store.url) as ledger:
            for name in names:
                for release in ("three", "three", "two", "one"):
                    await ledger.charge(buying("lineage", name, release, key=release, body="b"))
            assert await spent(ledger, "lineage") == dict.fromkeys(["", *names], sum(PRICES.values()))
            assert (await verify(ledger, "lineage")).findings == ()


# Tampering, export, recovery


def _forged(request: ReleaseRequest, cheap: Cost) -> Receipt:
    """A receipt of the model that a request is for, at another cost."""
    return Receipt(
        lineage=request.lineage,
        client=request.client,
        sequence=1,
        number=1,
        terms=charge_terms(request.model, request.mechanism, cheap, 1, request.line.terms.release),
        microseconds=1,
        questions=request.line.questions,
        lineage_questions=1,
        service="somebody",
    )


async def test_no_receipt_marks_a_model_as_paid_for_less_than_it_costs(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    request = buying(lineage, "ann")
    forged, right = _forged(request, Cost((GaussianLoss(1e-6),))), _forged(request, COST)
    others = [
        forged,
        structs.replace(right, terms=charge_terms("two", "x", right.cost, 1, right.terms.release)),
        structs.replace(right, terms=structs.replace(right.terms, price=1)),
    ]
    for receipt in others:
        with pytest.raises(
            CannotRecover, match=r"receipt 1 of lineage .* (names a model|charges .*,) (that|which) .*: it was altered"
        ):
            await put_back(ledger, lineage, [receipt])
    assert await spent(ledger, lineage) == {"": 0, "ann": 0}
    # Whoever writes to the store by other ways than these is found out by `verify`.
    await ledger.apply([LedgerRequest(request.lineage, "ann", 10**6, (Line(forged.terms, forged.questions),))])
    said = "names a model that it does not pay for"
    assert f"receipt 1 was altered: it {said}" in (await verify(ledger, lineage)).findings
    with pytest.raises(CannotRecover, match=said):
        [line async for line in backup(ledger, [lineage])]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([0.1, 0.15, 0.3]), st.data())
def test_models_share_a_question_only_if_id_drawing_and_cost_are_equal(mu: float, data: st.DataObject) -> None:
    def request(mu: float, model: str, drawn: bytes) -> ReleaseRequest:
        return ReleaseRequest("l", "ann", model, drawn, "x", Cost((GaussianLoss(mu),)), 1.0)

    other = data.draw(st.sampled_from([0.1, 0.15, 0.3]))
    model, drawn = data.draw(st.sampled_from(["one", "two"])), data.draw(st.sampled_from([DRAWN, bytes(32)]))
    first, second = request(mu, "one", DRAWN), request(other, model, drawn)
    same = (model, drawn, other) == ("one", DRAWN, mu)
    assert (first.line.questions == second.line.questions) == same


async def test_another_drawing_under_the_same_id_is_paid_for_again(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(buying(lineage, "ann"))

    assert (await ledger.charge(replace(buying(lineage, "ann"), drawn=bytes(32)))).charged == PRICE
    assert await spent(ledger, lineage) == {"": 2 * PRICE, "ann": 2 * PRICE}


async def test_a_lineage_pays_for_several_releases_at_once_or_for_none(ledger: Ledger, lineage: str) -> None:
    both_cost = PRICES["one"] + PRICES["two"]
    both = together(*(buying(lineage, "", release) for release in ("one", "two")))
    await open_accounts(ledger, lineage, budget(both_cost - 1), ann=budget(1))
    assert isinstance((await ledger.quote(both)).refusal, BudgetExhausted)
    with pytest.raises(BudgetExhausted):
        await ledger.charge(both)
    assert (await spent(ledger, lineage))[""] == 0
    assert await ledger.receipts(lineage) == []

    await ledger.acting("owner").set_budget(lineage, budget(both_cost))
    assert (await ledger.charge(both)).charged == both_cost
    assert (await ledger.charge(both)).charged == 0
    assert (await ledger.charge(buying(lineage, "", "two"))).receipt is None
    assert [receipt.terms.model for receipt in await ledger.receipts(lineage)] == ["one", "two"]
    assert (await verify(ledger, lineage)).findings == ()


@pytest.mark.parametrize("others", [("elsewhere", ""), ("lineage", "ann")])
def test_only_an_owners_releases_in_one_lineage_are_paid_for_at_once(others: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="owner's, in one lineage"):
        together(buying("lineage", ""), buying(*others))


async def test_a_backup_restores_what_is_held(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "one") as ledger:
        await open_accounts(ledger, "lineage", WHOLE, ann=WHOLE, bob=WHOLE)
        await ledger.charge(buying("lineage", ""))
        await ledger.charge(asking("lineage", "bob", "row"))
        await ledger.charge(buying("lineage", "ann", "two"))
        await ledger.charge(buying("lineage", "bob", "three"))
        right = await spent(ledger, "lineage")
        lines = [line async for line in backup(ledger)]
    async with Ledger.open(tmp_path / "two") as ledger:
        await restore(ledger, lines)

        assert await spent(ledger, "lineage") == right
        assert (await verify(ledger, "lineage")).findings == ()
        assert (await ledger.charge(buying("lineage", "ann", "two"))).receipt is None


async def test_reconciling_puts_a_lost_holding_back_once(tmp_path: Path) -> None:
    store, copy, journals = tmp_path / "store", tmp_path / "copy", tmp_path / "journals"
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", WHOLE, ann=WHOLE, bob=WHOLE)
        await ledger.charge(buying("lineage", "ann"))
    shutil.copytree(store, copy)
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await ledger.charge(buying("lineage", "ann", "two"))
        await ledger.charge(buying("lineage", "ann", "three"))
        right = await spent(ledger, "lineage")
    async with Ledger.open(copy) as ledger:
        # Somebody else went on with the older store: the lineage pays for a model there, and must not pay again.
        await ledger.charge(buying("lineage", "bob", "two"))
        for _ in range(2):
            await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))

            assert await spent(ledger, "lineage") == right | {"bob": PRICES["two"]}
            assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()


async def test_what_is_held_together_is_charged_together_or_not_at_all(ledger: Ledger, lineage: str) -> None:
    both = together(buying(lineage, ""), replace(buying(lineage, ""), model="another"))
    await open_accounts(ledger, lineage, budget(2 * PRICE - 1))
    with pytest.raises(BudgetExhausted) as refused:
        await ledger.charge(both)
    assert refused.value.cost == 2 * PRICE
    assert isinstance((await ledger.quote(both)).refusal, BudgetExhausted)
    assert (await ledger.lineage(lineage)).spent == 0
    await ledger.acting("owner").set_budget(lineage, budget(2 * PRICE))
    charge = await ledger.charge(both)
    assert [receipt.model for receipt in charge.receipts] == [release.model for release in both.releases]
    assert charge.charged == (await ledger.lineage(lineage)).spent == 2 * PRICE
    assert (await ledger.charge(both)).charged == 0
    assert (await verify(ledger, lineage)).findings == ()
