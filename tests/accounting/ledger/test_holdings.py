"""Releases that are paid for once: a client pays the difference, the lineage the finest, both or neither."""

import asyncio
import contextlib
import hashlib
import json
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
    BudgetExhausted,
    ClientRevoked,
    CoinsNotProvidedFor,
    EmbeddedStore,
    HoldRequest,
    Idempotency,
    IdempotencyConflict,
    Ledger,
    LedgerError,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    UnknownClient,
    UnknownLineage,
    chain,
    key_digest,
)
from accounting.ledger.export import export
from accounting.ledger.holdings import LEAST_DELTA_PER_PICORHO, apply_held_call
from accounting.ledger.journal import describe_receipt, read_journals
from accounting.ledger.recovery import CannotRestore, StepNotPaidFor, apply, backup, reconcile, restore
from accounting.ledger.values import Receipt
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
    account, clients = await ledger.snapshot(lineage)
    return {"": account.spent} | {client.client: client.spent for client in clients}


async def test_a_client_pays_the_difference_and_the_lineage_the_finest(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE, bob=WHOLE)
    coarse, fine, finest = PRICES[0], sum(PRICES[:2]), sum(PRICES)

    first = await ledger.hold(holding(lineage, "ann", 1))
    second = await ledger.hold(holding(lineage, "bob", 2))
    assert (first.charged, second.charged) == (coarse, fine)
    assert await spent(ledger, lineage) == {"": fine, "ann": coarse, "bob": fine}

    assert (await ledger.quote_hold(holding(lineage, "ann", 3))).total == finest - coarse
    assert (await ledger.hold(holding(lineage, "ann", 3))).charged == finest - coarse
    assert (await ledger.hold(holding(lineage, "ann", 2))).charged == 0
    assert await spent(ledger, lineage) == {"": finest, "ann": finest, "bob": fine}

    account = await ledger.lineage(lineage)
    assert dict(account.tally) == dict.fromkeys(STEPS, 1)
    assert (await verify(ledger, lineage)).findings == ()


async def test_the_owner_holds_on_the_lineages_account_and_a_restart_charges_nothing(
    ledger: Ledger, lineage: str
) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)

    first = await ledger.hold(holding(lineage, "", 1))
    assert first.receipt is not None
    assert first.receipt.client == ""
    assert (await ledger.hold(holding(lineage, "", 1, time=9.0))).receipt is None
    shared = await ledger.hold(holding(lineage, "ann", 1))

    assert shared.receipt is not None
    assert shared.receipt.shared
    assert await spent(ledger, lineage) == {"": PRICES[0], "ann": PRICES[0]}
    assert [receipt.lineage_rows for receipt in await ledger.receipts(lineage)] == [1, 0]
    assert [receipt.shared for receipt in await ledger.receipts(lineage, client="ann")] == [True]
    assert (await verify(ledger, lineage)).findings == ()


async def test_another_release_of_the_same_price_is_paid_for_again(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.hold(holding(lineage, "ann", 1))

    assert (await ledger.hold(holding(lineage, "ann", 1, release="two"))).charged == PRICES[0]
    assert await spent(ledger, lineage) == {"": 2 * PRICES[0], "ann": 2 * PRICES[0]}


@pytest.mark.parametrize(("scope", "short"), [("client", {"ann": 1}), ("lineage", {"": 1})])
async def test_one_picorho_short_changes_nothing(
    ledger: Ledger, lineage: str, store_url: str, scope: str, short: dict[str, int]
) -> None:
    total = sum(PRICES)
    await open_accounts(ledger, lineage, budget(total - short.get("", 0)), ann=budget(total - short.get("ann", 0)))
    before = dump(store_url, lineage)

    with pytest.raises(BudgetExhausted) as refused:
        await ledger.hold(holding(lineage, "ann", 3, key="k", body="b"))

    assert (refused.value.scope, refused.value.cost, refused.value.remaining) == (scope, total, total - 1)
    assert dump(store_url, lineage) == before
    assert (await ledger.hold(holding(lineage, "ann", 2))).charged == sum(PRICES[:2])


async def test_refusals_of_a_row_are_refusals_of_a_hold(ledger: Ledger, lineage: str) -> None:
    with pytest.raises(UnknownLineage):
        await ledger.hold(holding(lineage, "", 1))
    await open_accounts(ledger, lineage, budget(sum(PRICES), "gaussian"), ann=WHOLE, eve=WHOLE)
    await ledger.revoke(lineage, "eve")
    await ledger.hold(holding(lineage, "ann", 1, key="k", body="one"))
    laplace = HoldRequest(lineage, "ann", "m", DRAWN, "x", (Cost((LaplaceLoss(0.1),)),), 1.0)

    for request, refusal in (
        (holding(lineage, "nobody", 1), UnknownClient),
        (holding(lineage, "eve", 1), ClientRevoked),
        (holding(lineage, "ann", 2, key="k", body="other"), IdempotencyConflict),
        (laplace, MechanismNotAccepted),
    ):
        with pytest.raises(refusal):
            await ledger.hold(request)
        if refusal is not MechanismNotAccepted:
            with pytest.raises(refusal):
                await ledger.quote_hold(request)
    assert isinstance((await ledger.quote_hold(laplace)).refusal, MechanismNotAccepted)
    assert (await ledger.hold(holding(lineage, "ann", 1, key="k", body="one"))).receipt is None


async def test_a_request_that_is_sent_again_stays_what_was_decided_at_first(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.hold(holding(lineage, "ann", 1, key="k", body="b"))
    await ledger.hold(holding(lineage, "ann", 2))

    again = await ledger.hold(holding(lineage, "ann", 2, key="k", body="b"))
    finer = await ledger.hold(holding(lineage, "ann", 3, key="k", body="b"))

    assert (again.decided, again.receipts) == (finer.decided, finer.receipts) == ("weights/1", ())
    assert (await ledger.hold(holding(lineage, "ann", 1, key="k", body="b"))).decided is None
    assert await spent(ledger, lineage) == {"": sum(PRICES[:2]), "ann": sum(PRICES[:2])}
    with pytest.raises(IdempotencyConflict):
        await ledger.hold(holding(lineage, "ann", 1, key="k", body="b", release="two"))


async def test_a_key_of_a_hold_and_a_key_of_rows_are_the_same_key(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.charge(asking(lineage, "ann", "row", cost=STEPS[0], key="k", body="rows"))

    with pytest.raises(IdempotencyConflict):
        await ledger.hold(holding(lineage, "ann", 1, key="k", body="hold"))
    await ledger.hold(holding(lineage, "ann", 1, key="other", body="hold"))
    with pytest.raises(IdempotencyConflict):
        await ledger.charge(asking(lineage, "ann", "row", cost=STEPS[0], key="other", body="rows"))


async def test_coins_are_held_only_where_delta_provides_for_all_that_could_be_bought(
    ledger: Ledger, lineage: str
) -> None:
    coin = Cost((ApproximateGaussianLoss(0.1, 2.0**-40),))
    fitting = next(units for units in range(10_000) if not Budget(units * 10**9, "any", 1e-7).pays_for(coin)) - 1
    await ledger.open_lineage(lineage, Budget(fitting * 10**9, "any", 1e-7), time=0.0)
    strict = Budget((fitting + 1) * 10**9, "any", 1e-7)
    await ledger.add_client(lineage, "ann", strict, key_digest(lineage), time=0.0)

    def request(client: str) -> HoldRequest:
        return HoldRequest(lineage, client, "m", DRAWN, "dpsgd", (coin,), 1.0)

    assert LEAST_DELTA_PER_PICORHO > 0
    assert (await ledger.hold(request(""))).charged == coin.picorho
    with pytest.raises(MechanismNotAccepted):
        await ledger.hold(request("ann"))
    with pytest.raises(CoinsNotProvidedFor, match="give it a larger delta or a smaller budget"):
        await ledger.set_lineage_budget(lineage, strict)
    await ledger.set_lineage_budget(lineage, Budget(strict.picorho, "any", 1e-5))
    assert (await verify(ledger, lineage)).findings == ()


def test_what_no_budget_provides_for_is_no_request() -> None:
    with pytest.raises(ValueError, match="paid for once must lie between"):
        HoldRequest("l", "ann", "m", DRAWN, "x", (Cost((GaussianLoss(1e-3),)),), 1.0)
    two = Cost((ApproximateGaussianLoss(0.1, 2.0**-40), ApproximateGaussianLoss(0.1, 2.0**-40)))
    with pytest.raises(ValueError, match="at most one coin"):
        HoldRequest("l", "ann", "m", DRAWN, "x", (two,), 1.0)
    with pytest.raises(ValueError, match="32 bytes"):
        HoldRequest("l", "ann", "m", b"", "x", STEPS, 1.0)
    with pytest.raises(ValueError, match="1 to 64 steps"):
        HoldRequest("l", "ann", "m", DRAWN, "x", (), 1.0)


# Any interleaving, against a reference


class Reference:
    """What holding means, in ten lines."""

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
            quote = self.loop.run_until_complete(self.ledger.quote_hold(request))
            expected = self.reference.hold(client, release, level)
            try:
                found = self.loop.run_until_complete(self.ledger.hold(request)).charged
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
                await ledger.hold(holding(lineage, f"client{task % 4}", level))

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
                        await ledger.hold(holding("lineage", names[position], level, key="k" * level, body="b"))
                        if position == 3:
                            os.kill(process, signal.SIGKILL)

            await asyncio.gather(*map(move, range(len(names))))
    with EmbeddedStore(tmp_path) as store:
        async with await Ledger.connect(store.url) as ledger:
            for name in names:
                for level in (3, 3, 1):
                    await ledger.hold(holding("lineage", name, level, key="k" * level, body="b"))
            assert await spent(ledger, "lineage") == dict.fromkeys(["", *names], sum(PRICES))
            assert (await verify(ledger, "lineage")).findings == ()


# Tampering, export, recovery


async def test_verify_finds_tampering(embedded_url: str) -> None:
    async with await Ledger.connect(embedded_url) as ledger:
        with redis.Redis.from_url(embedded_url, protocol=2) as store:

            async def findings(spoil: str) -> str:
                lineage = new_lineage()
                await open_accounts(ledger, lineage, WHOLE, ann=WHOLE, bob=WHOLE)
                await ledger.hold(holding(lineage, "ann", 2))
                await ledger.hold(holding(lineage, "bob", 1))
                key = f"dpserve:{{{lineage}}}:"
                match spoil:
                    case "forgotten":
                        store.delete(key + "client:ann:held")
                    case "slipped in":
                        store.hset(key + "client:bob:held", b"x" * 32, "1")
                    case "taken back":
                        store.hincrby(key + "account", "spent", -PRICES[0])
                    case "shared":
                        receipts = store.xrange(key + "receipts")
                        store.delete(key + "receipts")
                        for number, fields in receipts:
                            store.xadd(key + "receipts", fields | {b"shared": b"0"}, id=number)
                return "; ".join((await verify(ledger, lineage)).findings)

            assert await findings("nothing") == ""
            assert "what client ann holds is not in its receipts" in await findings("forgotten")
            assert "what client bob holds is not in its receipts" in await findings("slipped in")
            assert "the lineage has spent" in await findings("taken back")
            assert "receipt 3 was altered" in await findings("shared")


def forged_from(request: HoldRequest, cheap: Cost) -> list[Receipt]:
    """Receipts of the steps that a request wishes for, each at another cost, chained and hashed as they should be."""
    receipts, previous = [], chain.GENESIS
    for number, (step, after) in enumerate(zip(request.step_ids, request.befores, strict=True), start=1):
        receipt = Receipt(
            sequence=number,
            lineage=request.lineage,
            client=request.client,
            model=request.model,
            mechanism=request.mechanism,
            cost=cheap,
            price=cheap.picorho,
            rows=1,
            total=cheap.picorho,
            time=1.0,
            previous=previous,
            hash=b"",
            held=step,
            after=after,
        )
        receipts.append(structs.replace(receipt, hash=receipt.hash_from_contents()))
        previous = receipts[-1].hash
    return receipts


async def test_no_receipt_marks_a_step_as_held_for_less_than_it_costs(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    request = holding(lineage, "ann", 2)
    forged = forged_from(request, Cost((GaussianLoss(1e-6),)))

    with pytest.raises(StepNotPaidFor, match=r"receipt 1 of lineage .* names a step that it does not pay for"):
        await apply(ledger, lineage, forged)
    with pytest.raises(LedgerError, match="must have the id that its model and its cost give"):
        await ledger.call(lineage, "apply_held", *apply_held_call(forged[0]), durably=True)
    with pytest.raises(StepNotPaidFor):
        await apply(
            ledger, lineage, [structs.replace(receipt, model="two") for receipt in forged_from(request, STEPS[0])]
        )

    assert await spent(ledger, lineage) == {"": 0, "ann": 0}
    assert (await ledger.hold(request)).charged == sum(PRICES[:2])
    assert (await verify(ledger, lineage)).findings == ()


async def test_verify_finds_a_step_that_its_receipt_does_not_pay_for(
    embedded_url: str, lineage: str, tmp_path: Path
) -> None:
    """The receipts and every balance are made to agree with each other: only the steps' ids are the dear ones."""
    request = holding(lineage, "ann", 2)
    async with await Ledger.connect(embedded_url) as ledger:
        await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
        cheap = tuple(Cost((GaussianLoss(mu),)) for mu in (0.03, 0.04))
        await ledger.hold(replace(request, steps=cheap))
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            key, previous = f"dpserve:{{{lineage}}}:", chain.GENESIS
            receipts = await ledger.receipts(lineage)
            store.delete(key + "receipts", key + "held", key + "client:ann:held")
            for receipt, step, after in zip(receipts, request.step_ids, request.befores, strict=True):
                forged = structs.replace(receipt, held=step, after=after, previous=previous)
                previous = forged.hash_from_contents()
                described = {"held": step, "after": after, "previous": forged.previous, "hash": previous}
                words = {"lineage": lineage, "client": "ann", "model": "one", "mechanism": receipt.mechanism}
                words |= {"cost": str(receipt.cost), "price": receipt.price, "rows": 1, "total": receipt.total}
                words |= {"time": repr(receipt.time), "shared": "0"} | described
                store.xadd(key + "receipts", words, id=f"{receipt.sequence}-0")
                for held in ("held", "client:ann:held"):
                    store.hset(key + held, step, str(receipt.sequence))
            store.hset(key + "account", "head", previous)

        findings = [f"receipt {number} names a step that it does not pay for" for number in (1, 2)]
        assert list((await verify(ledger, lineage)).findings) == findings
        # A backup of such books is refused, before anything is restored.
        lines = [line async for line in backup(ledger, [lineage])]
    body = [lines[0], *(line for line in lines if lineage in line)]
    body.append(json.dumps({"end": hashlib.sha256("".join(body).encode()).hexdigest()}) + "\n")
    async with Ledger.open(tmp_path) as other:
        with pytest.raises(CannotRestore, match="names a step that it does not pay for"):
            await restore(other, body)
        assert await other.lineages() == []


async def test_a_journal_whose_receipt_does_not_pay_for_its_step_is_not_read(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", WHOLE, ann=WHOLE)
        await ledger.hold(holding("lineage", "ann", 1))
    (journal,) = read_journals(journals)
    (receipt,) = journal.receipts
    (forged,) = forged_from(holding("lineage", "ann", 1), Cost((GaussianLoss(1e-6),)))
    (path,) = [path for path in journals.rglob("*") if path.is_file() and receipt.hash.hex() in path.read_text()]
    words = [json.dumps(describe_receipt(each)) for each in (receipt, forged)]
    text = path.read_text()
    assert all(word[1:-1].replace(" ", "") in text.replace(" ", "") for word in words[:1])
    path.write_text(text.replace(" ", "").replace(words[0].replace(" ", ""), words[1].replace(" ", "")))

    with pytest.raises(ValueError, match="receipt 1 names a step that it does not pay for"):
        read_journals(journals)


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
    for level, (first, second) in enumerate(zip(one.step_ids, other.step_ids, strict=False), start=1):
        same = (model, drawn) == ("one", DRAWN) and mus[:level] == others[:level]
        assert (first == second) == same


async def test_another_drawing_under_the_same_id_is_paid_for_again(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=WHOLE)
    await ledger.hold(holding(lineage, "ann", 1))

    assert (await ledger.hold(replace(holding(lineage, "ann", 1), drawn=bytes(32)))).charged == PRICES[0]
    assert await spent(ledger, lineage) == {"": 2 * PRICES[0], "ann": 2 * PRICES[0]}


async def test_an_export_says_what_is_held_and_who_paid(embedded_url: str, lineage: str) -> None:
    async with await Ledger.connect(embedded_url) as ledger:
        await open_accounts(ledger, lineage, WHOLE, ann=WHOLE, bob=WHOLE)
        await ledger.hold(holding(lineage, "ann", 1))
        await ledger.hold(holding(lineage, "bob", 1))
        header, *lines = [line.strip().split(",") async for line in export(ledger, lineage, "csv")]

    rows = [dict(zip(header, line, strict=True)) for line in lines]
    assert [row["shared"] for row in rows] == ["False", "True"]
    assert rows[0]["held"] == rows[1]["held"] == holding(lineage, "ann", 1).step_ids[0].hex()


async def test_a_backup_restores_what_is_held(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "one") as ledger:
        await open_accounts(ledger, "lineage", WHOLE, ann=WHOLE, bob=WHOLE)
        await ledger.hold(holding("lineage", "", 1))
        await ledger.charge(asking("lineage", "bob", "row"))
        await ledger.hold(holding("lineage", "ann", 2))
        await ledger.hold(holding("lineage", "bob", 3))
        right = await spent(ledger, "lineage")
        lines = [line async for line in backup(ledger)]
    async with Ledger.open(tmp_path / "two") as ledger:
        await restore(ledger, lines)

        assert await spent(ledger, "lineage") == right
        assert (await verify(ledger, "lineage")).findings == ()
        assert (await ledger.hold(holding("lineage", "ann", 2))).receipt is None


async def test_reconciling_puts_a_lost_holding_back_once(tmp_path: Path) -> None:
    store, copy, journals = tmp_path / "store", tmp_path / "copy", tmp_path / "journals"
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", WHOLE, ann=WHOLE, bob=WHOLE)
        await ledger.hold(holding("lineage", "ann", 1))
    shutil.copytree(store, copy)
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await ledger.hold(holding("lineage", "ann", 3))
        right = await spent(ledger, "lineage")
    async with Ledger.open(copy) as ledger:
        # Somebody else went on with the older store: the lineage pays for step 2 there, and must not pay again.
        await ledger.hold(holding("lineage", "bob", 2))
        for _ in range(2):
            await reconcile(ledger, "lineage", read_journals(journals))

            assert await spent(ledger, "lineage") == right | {"bob": sum(PRICES[:2])}
            assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()
