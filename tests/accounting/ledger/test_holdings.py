"""Releases that are paid for once: a client pays the difference, the lineage the finest, both or neither."""

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

from accounting.budgets import Budget
from accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    ClientRevoked,
    CoinsExhausted,
    EmbeddedStore,
    HoldRequest,
    Idempotency,
    IdempotencyConflict,
    JointHoldRequest,
    Ledger,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    UnknownClient,
    UnknownLineage,
    key_digest,
)
from accounting.ledger.backups import backup, restore
from accounting.ledger.errors import CannotRecover
from accounting.ledger.journal import read_journals
from accounting.ledger.receipts import Receipt, charge_terms
from accounting.ledger.recovery import put_back, reconcile
from accounting.ledger.values import LedgerRequest, Line
from accounting.ledger.verification import verify
from accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss, LaplaceLoss

from .conftest import asking, budget, dump, new_lineage, open_accounts

pytestmark = pytest.mark.anyio

STEPS = tuple(Cost((GaussianLoss(mu),)) for mu in (0.1, 0.15, 0.3))
PRICES = [cost.picorho for cost in STEPS]
WHOLE = budget(sum(PRICES) * 10)
DRAWN = b"what was drawn, or a hash of it."


def holding(
    lineage: str, client: str, level: int, *, release: str = "one", key: str = "", body: str = "", time: float = 2.5
) -> HoldRequest:
    return HoldRequest(
        lineage=lineage,
        client=client,
        model=release,
        drawn=DRAWN,
        mechanism=f"weights/{level}",
        steps=STEPS[:level],
        time=time,
        idempotency=Idempotency(key, key_digest(body)) if key else None,
    )


async def spent(ledger: Ledger, lineage: str) -> dict[str, int]:
    account, clients, *_ = await ledger.snapshot(lineage)
    return {"": account.spent} | {client.client: client.spent for client in clients}


async def test_a_client_pays_the_difference_and_the_lineage_the_finest(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE, bob=WHOLE)
    coarse, fine, finest = PRICES[0], sum(PRICES[:2]), sum(PRICES)

    first = await ledger.charge(holding(lineage, "ann", 1))
    second = await ledger.charge(holding(lineage, "bob", 2))
    assert (first.charged, second.charged) == (coarse, fine)
    assert await spent(ledger, lineage) == {"": fine, "ann": coarse, "bob": fine}

    assert (await ledger.quote(holding(lineage, "ann", 3))).total == finest - coarse
    assert (await ledger.charge(holding(lineage, "ann", 3))).charged == finest - coarse
    assert (await ledger.charge(holding(lineage, "ann", 2))).charged == 0
    assert await spent(ledger, lineage) == {"": finest, "ann": finest, "bob": fine}

    account = await ledger.lineage(lineage)
    assert dict(account.tally) == dict.fromkeys(STEPS, 1)
    assert (await verify(ledger, lineage)).findings == ()


async def test_the_owner_holds_on_the_lineages_account_and_a_restart_charges_nothing(
    ledger: Ledger, lineage: str
) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)

    first = await ledger.charge(holding(lineage, "", 1))
    assert first.receipt is not None
    assert first.receipt.client == ""
    assert (await ledger.charge(holding(lineage, "", 1, time=9.0))).receipt is None
    shared = await ledger.charge(holding(lineage, "ann", 1))

    assert shared.receipt is not None
    assert shared.receipt.lineage_releases == 0
    assert await spent(ledger, lineage) == {"": PRICES[0], "ann": PRICES[0]}
    assert [receipt.lineage_releases for receipt in await ledger.receipts(lineage)] == [1, 0]
    assert [receipt.lineage_releases for receipt in await ledger.client_receipts(lineage, "ann")] == [0]
    assert (await verify(ledger, lineage)).findings == ()


async def test_another_release_of_the_same_price_is_paid_for_again(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(holding(lineage, "ann", 1))

    assert (await ledger.charge(holding(lineage, "ann", 1, release="two"))).charged == PRICES[0]
    assert await spent(ledger, lineage) == {"": 2 * PRICES[0], "ann": 2 * PRICES[0]}


@pytest.mark.parametrize(("scope", "short"), [("client", {"ann": 1}), ("lineage", {"": 1})])
async def test_one_picorho_short_changes_nothing(
    ledger: Ledger, lineage: str, store_url: str, scope: str, short: dict[str, int]
) -> None:
    total = sum(PRICES)
    await open_accounts(ledger, lineage, budget(total - short.get("", 0)), ann=budget(total - short.get("ann", 0)))
    before = dump(store_url, lineage)

    with pytest.raises(BudgetExhausted) as refused:
        await ledger.charge(holding(lineage, "ann", 3, key="k", body="b"))

    assert (refused.value.scope, refused.value.cost, refused.value.remaining) == (scope, total, total - 1)
    assert dump(store_url, lineage) == before
    assert (await ledger.charge(holding(lineage, "ann", 2))).charged == sum(PRICES[:2])


async def test_refusals_of_a_row_are_refusals_of_a_hold(ledger: Ledger, lineage: str) -> None:
    with pytest.raises(UnknownLineage):
        await ledger.charge(holding(lineage, "", 1))
    await open_accounts(ledger, lineage, budget(sum(PRICES), "gaussian"), ann=WHOLE, eve=WHOLE)
    await ledger.revoke(lineage, "eve")
    await ledger.charge(holding(lineage, "ann", 1, key="k", body="one"))
    laplace = HoldRequest(lineage, "ann", "m", DRAWN, "x", (Cost((LaplaceLoss(0.1),)),), 1.0)

    for request, refusal in (
        (holding(lineage, "nobody", 1), UnknownClient),
        (holding(lineage, "eve", 1), ClientRevoked),
        (holding(lineage, "ann", 2, key="k", body="other"), IdempotencyConflict),
        (laplace, MechanismNotAccepted),
    ):
        with pytest.raises(refusal):
            await ledger.charge(request)
        if refusal is not MechanismNotAccepted:
            with pytest.raises(refusal):
                await ledger.quote(request)
    assert isinstance((await ledger.quote(laplace)).refusal, MechanismNotAccepted)
    assert (await ledger.charge(holding(lineage, "ann", 1, key="k", body="one"))).receipt is None


async def test_a_key_stands_for_the_release_and_for_whatever_tier_is_held(ledger: Ledger, lineage: str) -> None:
    """Who names no tier gets the finest that it holds, which may be another when it asks again; either is paid for."""
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(holding(lineage, "ann", 1, key="k", body="b"))
    await ledger.charge(holding(lineage, "ann", 2))

    again = await ledger.charge(holding(lineage, "ann", 2, key="k", body="b"))

    assert (again.receipts, again.earlier) == ((), 1)
    with pytest.raises(IdempotencyConflict):
        await ledger.charge(holding(lineage, "ann", 1, key="k", body="b", release="two"))


async def test_a_key_of_a_hold_and_a_key_of_rows_are_the_same_key(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(asking(lineage, "ann", "row", cost=STEPS[0], key="k", body="rows"))

    with pytest.raises(IdempotencyConflict):
        await ledger.charge(holding(lineage, "ann", 1, key="k", body="hold"))
    await ledger.charge(holding(lineage, "ann", 1, key="other", body="hold"))
    with pytest.raises(IdempotencyConflict):
        await ledger.charge(asking(lineage, "ann", "row", cost=STEPS[0], key="other", body="rows"))


async def test_coins_are_counted_and_refused_beyond_what_delta_provides_for(ledger: Ledger, lineage: str) -> None:
    coin = Cost((ApproximateGaussianLoss(0.1, 2.0**-40),))
    await ledger.open_lineage(lineage, WHOLE, time=0.0)
    await ledger.add_client(lineage, "ann", WHOLE, key_digest(lineage), time=0.0)

    def request(client: str, model: str) -> HoldRequest:
        return HoldRequest(lineage, client, model, DRAWN, "dpsgd", (coin,), 1.0)

    assert (await ledger.charge(request("", "m"))).charged == coin.picorho
    account = await ledger.lineage(lineage)
    assert (account.coins_spent, account.coins) == (1, WHOLE.coins_allowed)
    await ledger.charge(request("ann", "m"))
    assert ((await ledger.lineage(lineage)).coins_spent, (await ledger.client(lineage, "ann")).coins_spent) == (1, 1)
    poor = Budget(WHOLE.limit, "any", 1e-9)  # which allows none
    with pytest.raises(ActRefused, check=lambda error: error.reason == "coins"):
        await ledger.set_budget(lineage, poor, client="ann")
    await ledger.add_client(lineage, "bob", poor, key_digest("bob"), time=0.0)
    with pytest.raises(CoinsExhausted) as refused:
        await ledger.charge(request("bob", "m"))
    assert refused.value.scope == "client"
    assert isinstance((await ledger.quote(request("bob", "m"))).refusal, CoinsExhausted)
    assert (await verify(ledger, lineage)).findings == ()


def test_what_no_budget_provides_for_is_no_request() -> None:
    with pytest.raises(ValueError, match="pay-once model must lie between"):
        HoldRequest("l", "ann", "m", DRAWN, "x", (Cost((GaussianLoss(1e-3),)),), 1.0)
    with pytest.raises(ValueError, match="32 bytes"):
        HoldRequest("l", "ann", "m", b"", "x", STEPS, 1.0)
    with pytest.raises(ValueError, match="1 to 64 steps"):
        HoldRequest("l", "ann", "m", DRAWN, "x", (), 1.0)


# Any interleaving, against a reference


class Reference:
    """A model of holdings in ten lines."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.limits, self.spent = limits, dict.fromkeys(limits, 0)
        self.level = {(name, release): 0 for name in limits for release in ("one", "two")}

    def hold(self, client: str, release: str, level: int) -> int | None:
        before = {name: self.level[name, release] for name in {client, ""}}
        costs = {name: sum(PRICES[held:level]) for name, held in before.items()}
        if any(cost and self.spent[name] + cost > self.limits[name] for name, cost in costs.items()):
            return None
        for name, cost in costs.items():
            self.spent[name] += cost
            self.level[name, release] = max(level, before[name])
        return costs[client]


class Machine(RuleBasedStateMachine):
    url = ""

    @initialize(limits=st.lists(st.integers(0, 3 * sum(PRICES)), min_size=4, max_size=4))
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
        release=st.sampled_from(["one", "two"]),
        level=st.integers(1, 3),
        times=st.integers(1, 2),
    )
    def hold(self, client: str, release: str, level: int, times: int) -> None:
        for _ in range(times):
            request = holding(self.lineage, client, level, release=release)
            quote = self.loop.run_until_complete(self.ledger.quote(request))
            expected = self.reference.hold(client, release, level)
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


def test_any_interleaving_of_clients_and_tiers_is_as_the_reference_has_it(embedded_url: str) -> None:
    machine = type("OnThisStore", (Machine,), {"url": embedded_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


# Concurrency


async def hold_everything(url: str, lineage: str) -> None:
    """Let four clients race through the tiers from several tasks."""
    async with await Ledger.connect(url) as ledger:

        async def one(task: int) -> None:
            for level in (1, 2, 3):
                await ledger.charge(holding(lineage, f"client{task % 4}", level))

        await asyncio.gather(*map(one, range(8)))


async def test_two_processes_at_once_charge_each_step_once(embedded_url: str, lineage: str) -> None:
    async with await Ledger.connect(embedded_url) as ledger:
        await open_accounts(ledger, lineage, WHOLE, **{f"client{number}": WHOLE for number in range(4)})
        code = (
            "import asyncio, sys; sys.path.insert(0, sys.argv[1]);"
            "from tests.accounting.ledger.test_holdings import hold_everything;"
            "asyncio.run(hold_everything(*sys.argv[2:]))"
        )
        words = [sys.executable, "-c", code, str(Path(__file__).parents[3]), embedded_url, lineage]
        racing = [subprocess.Popen(words) for _ in range(2)]
        assert [await asyncio.to_thread(process.wait) for process in racing] == [0, 0]

        total = sum(PRICES)
        expected = {"": total} | {f"client{number}": total for number in range(4)}
        assert await spent(ledger, lineage) == expected
        assert len(await ledger.receipts(lineage)) == 4 * len(STEPS)
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
                    for level in (1, 2, 3):
                        await ledger.charge(holding("lineage", names[position], level, key="k" * level, body="b"))
                        if position == 3:
                            os.kill(process, signal.SIGKILL)

            await asyncio.gather(*map(move, range(len(names))))
    with EmbeddedStore(tmp_path) as store:
        async with await Ledger.connect(store.url) as ledger:
            for name in names:
                for level in (3, 3, 1):
                    await ledger.charge(holding("lineage", name, level, key="k" * level, body="b"))
            assert await spent(ledger, "lineage") == dict.fromkeys(["", *names], sum(PRICES))
            assert (await verify(ledger, "lineage")).findings == ()


# Tampering, export, recovery


def _forged(request: HoldRequest, cheap: Cost) -> list[Receipt]:
    """Receipts of the steps that a request wishes for, each at another cost."""
    return [
        Receipt(
            lineage=request.lineage,
            client=request.client,
            sequence=number,
            number=number,
            terms=charge_terms(request.model, request.mechanism, cheap, 1, line.terms.after),
            microseconds=1,
            questions=line.questions,
            lineage_questions=1,
            service="somebody",
        )
        for number, line in enumerate(request.lines, 1)
    ]


async def test_no_receipt_marks_a_step_as_held_for_less_than_it_costs(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    request = holding(lineage, "ann", 2)
    cheap = Cost((GaussianLoss(1e-6),))
    forged = _forged(request, cheap)
    others = [
        forged,
        [
            structs.replace(one, terms=charge_terms("two", "x", one.cost, 1, one.terms.after))
            for one in _forged(request, STEPS[0])
        ],
        [structs.replace(one, terms=structs.replace(one.terms, price=1)) for one in _forged(request, STEPS[0])[:1]],
    ]
    for receipts in others:
        with pytest.raises(
            CannotRecover, match=r"receipt 1 of lineage .* (names a step|charges .*,) (that|which) .*: it was altered"
        ):
            await put_back(ledger, lineage, receipts)
    assert await spent(ledger, lineage) == {"": 0, "ann": 0}
    # Whoever writes to the store by other ways than these is found out by `verify`.
    await ledger.apply(
        lineage, [LedgerRequest(request.lineage, "ann", 1.0, (Line(forged[0].terms, forged[0].questions),))]
    )
    assert "receipt 1 was altered: it names a step that it does not pay for" in (await verify(ledger, lineage)).findings
    with pytest.raises(CannotRecover, match="names a step that it does not pay for"):
        [line async for line in backup(ledger, [lineage])]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.15, 0.3, 0.9]), min_size=1, max_size=4), st.data())
def test_steps_share_an_id_only_if_release_and_all_costs_up_to_them_are_equal(
    mus: list[float], data: st.DataObject
) -> None:
    def request(costs: list[float], model: str, drawn: bytes) -> HoldRequest:
        return HoldRequest("l", "ann", model, drawn, "x", tuple(Cost((GaussianLoss(mu),)) for mu in costs), 1.0)

    others = data.draw(st.lists(st.sampled_from([0.1, 0.15, 0.3, 0.9]), min_size=1, max_size=4))
    model, drawn = data.draw(st.sampled_from(["one", "two"])), data.draw(st.sampled_from([DRAWN, bytes(32)]))
    one, other = request(mus, "one", DRAWN), request(others, model, drawn)
    for level, (first, second) in enumerate(zip(one.lines, other.lines, strict=False), start=1):
        same = (model, drawn) == ("one", DRAWN) and mus[:level] == others[:level]
        assert (first.questions == second.questions) == same


async def test_another_drawing_under_the_same_id_is_paid_for_again(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(holding(lineage, "ann", 1))

    assert (await ledger.charge(replace(holding(lineage, "ann", 1), drawn=bytes(32)))).charged == PRICES[0]
    assert await spent(ledger, lineage) == {"": 2 * PRICES[0], "ann": 2 * PRICES[0]}


async def test_a_lineage_pays_for_several_releases_at_once_or_for_none(ledger: Ledger, lineage: str) -> None:
    both = JointHoldRequest(tuple(holding(lineage, "", 1, release=release) for release in ("one", "two")))
    await open_accounts(ledger, lineage, budget(2 * PRICES[0] - 1), ann=budget(1))
    assert isinstance((await ledger.quote(both)).refusal, BudgetExhausted)
    with pytest.raises(BudgetExhausted):
        await ledger.charge(both)
    assert (await spent(ledger, lineage))[""] == 0
    assert await ledger.receipts(lineage) == []

    await ledger.set_budget(lineage, budget(2 * PRICES[0]))
    assert (await ledger.charge(both)).charged == 2 * PRICES[0]
    assert (await ledger.charge(both)).charged == 0
    assert (await ledger.charge(holding(lineage, "", 1, release="two"))).receipt is None
    assert [receipt.terms.model for receipt in await ledger.receipts(lineage)] == ["one", "two"]
    assert (await verify(ledger, lineage)).findings == ()


@pytest.mark.parametrize("others", [("elsewhere", ""), ("lineage", "ann")])
def test_only_an_owners_wishes_in_one_lineage_are_paid_for_at_once(others: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="owner's, in one lineage"):
        JointHoldRequest((holding("lineage", "", 1), holding(*others, 1)))


async def test_a_backup_restores_what_is_held(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "one") as ledger:
        await open_accounts(ledger, "lineage", WHOLE, ann=WHOLE, bob=WHOLE)
        await ledger.charge(holding("lineage", "", 1))
        await ledger.charge(asking("lineage", "bob", "row"))
        await ledger.charge(holding("lineage", "ann", 2))
        await ledger.charge(holding("lineage", "bob", 3))
        right = await spent(ledger, "lineage")
        lines = [line async for line in backup(ledger)]
    async with Ledger.open(tmp_path / "two") as ledger:
        await restore(ledger, lines)

        assert await spent(ledger, "lineage") == right
        assert (await verify(ledger, "lineage")).findings == ()
        assert (await ledger.charge(holding("lineage", "ann", 2))).receipt is None


async def test_reconciling_puts_a_lost_holding_back_once(tmp_path: Path) -> None:
    store, copy, journals = tmp_path / "store", tmp_path / "copy", tmp_path / "journals"
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", WHOLE, ann=WHOLE, bob=WHOLE)
        await ledger.charge(holding("lineage", "ann", 1))
    shutil.copytree(store, copy)
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await ledger.charge(holding("lineage", "ann", 3))
        right = await spent(ledger, "lineage")
    async with Ledger.open(copy) as ledger:
        # Somebody else went on with the older store: the lineage pays for step 2 there, and must not pay again.
        await ledger.charge(holding("lineage", "bob", 2))
        for _ in range(2):
            await reconcile(ledger, "lineage", read_journals(journals))

            assert await spent(ledger, "lineage") == right | {"bob": sum(PRICES[:2])}
            assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()


async def test_what_is_held_together_is_charged_together_or_not_at_all(ledger: Ledger, lineage: str) -> None:
    both = JointHoldRequest((holding(lineage, "", 1), holding(lineage, "", 1, release="another")))
    await open_accounts(ledger, lineage, budget(2 * PRICES[0] - 1))
    with pytest.raises(BudgetExhausted) as refused:
        await ledger.charge(both)
    assert refused.value.cost == 2 * PRICES[0]
    assert isinstance((await ledger.quote(both)).refusal, BudgetExhausted)
    assert (await ledger.lineage(lineage)).spent == 0
    await ledger.set_budget(lineage, budget(2 * PRICES[0]))
    charge = await ledger.charge(both)
    assert [receipt.model for receipt in charge.receipts] == [wish.model for wish in both.wishes]
    assert charge.charged == (await ledger.lineage(lineage)).spent == 2 * PRICES[0]
    assert (await ledger.charge(both)).charged == 0
    assert (await verify(ledger, lineage)).findings == ()


def test_what_two_lineages_pay_for_or_a_client_is_not_held_together() -> None:
    own = holding("one", "", 1)
    for other in (holding("two", "", 1), holding("one", "ann", 1)):
        with pytest.raises(ValueError, match="one lineage"):
            JointHoldRequest((own, other))
