"""Blocks: the parts of a lineage's records that have budgets of their own, opened, charged, lost and brought back."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    Ledger,
    LedgerDamaged,
    LedgerUnavailable,
    MechanismNotAccepted,
)
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.export import export
from dpserve.accounting.ledger.receipts import MOST_BLOCKS, charge_terms
from dpserve.accounting.ledger.recovery import DeclaredLoss, reconcile
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys
from dpserve.accounting.losses import Cost, LaplaceLoss
from dpserve.accounting.sampling_error import PURE_DELTA

from .conftest import COST, asking, open_accounts, read_journals, releases

pytestmark = pytest.mark.anyio

PRICE = COST.picorho
SEPTEMBER, OCTOBER = "2026-09", "2026-10"
BOTH = (SEPTEMBER, OCTOBER)
KEYS = LineageKeys("lineage")


async def _open(ledger: Ledger, lineage: str = "lineage", *, september: int = 3, october: int = 5) -> None:
    await open_accounts(ledger, lineage, releases(1), ann=releases(50), bob=releases(50))
    await ledger.acting("owner").open_block(lineage, SEPTEMBER, releases(september), time=0.0)
    await ledger.acting("owner").open_block(lineage, OCTOBER, releases(october), time=0.0)


async def _spent(ledger: Ledger, lineage: str = "lineage") -> dict[str, int]:
    return {block.block: block.spent // PRICE for block in await ledger.blocks(lineage)}


def _raw(folder: Path) -> "redis.Redis":
    return redis.Redis(unix_socket_path=(folder / "socket").read_text().strip())


async def test_a_spent_block_refuses_and_models_without_it_go_on(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    await ledger.charge(asking(lineage, "ann", "1", "2", model="all", blocks=BOTH))
    with pytest.raises(BudgetExhausted) as caught:
        await ledger.charge(asking(lineage, "ann", "3", "4", model="all", blocks=BOTH))
    refused = caught.value
    assert (refused.scope, refused.block, refused.remaining) == ("block", SEPTEMBER, PRICE)
    assert str(refused) == "the block 2026-09's budget does not pay for the request"
    charge = await ledger.charge(asking(lineage, "ann", "3", "4", model="new", blocks=(OCTOBER,)))
    assert charge.balance.shared_left[0][1] == PRICE
    assert await _spent(ledger, lineage) == {SEPTEMBER: 2, OCTOBER: 4}
    assert (await ledger.lineage(lineage)).spent == 0  # which is that of its other records
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_budget_that_others_used_was_settled_before_the_first_answer(ledger: Ledger, lineage: str) -> None:
    """The limit of records in no named block may be chosen after other blocks paid: that says nothing of them."""
    await open_accounts(ledger, lineage, replace(releases(0), accepts="any"), ann=releases(50))
    await ledger.acting("owner").open_block(lineage, SEPTEMBER, releases(3), time=0.0)
    await ledger.charge(asking(lineage, "ann", "1", blocks=(SEPTEMBER,)))
    await ledger.acting("owner").set_budget(lineage, replace(releases(2), accepts="gaussian"))
    account = await ledger.lineage(lineage)
    assert (account.raises, account.highest_limit, account.remaining) == (0, 2 * PRICE, 2 * PRICE)
    await ledger.charge(asking(lineage, "ann", "2"))
    await ledger.acting("owner").set_budget(lineage, releases(3))
    assert ((account := await ledger.lineage(lineage)).raises, account.settled_limit) == (1, 2 * PRICE)
    with pytest.raises(ActRefused, check=lambda refused: refused.reason == "other-currency"):
        await ledger.acting("owner").set_budget(lineage, Budget.pure(1))
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_block_counts_what_its_lineage_counts(ledger: Ledger, lineage: str) -> None:
    pure = Budget(10**12, "pure", PURE_DELTA)
    await open_accounts(ledger, lineage, pure, ann=pure)
    await ledger.acting("owner").open_block(lineage, OCTOBER, pure, time=0.0)
    for call in (
        ledger.acting("owner").open_block(lineage, SEPTEMBER, releases(3), time=0.0),
        ledger.acting("owner").set_budget(lineage, releases(3), block=OCTOBER),
    ):
        with pytest.raises(ActRefused, check=lambda error: error.reason == "other-currency"):
            await call
    assert [block.block for block in await ledger.blocks(lineage)] == [OCTOBER]
    laplace = Cost((LaplaceLoss(0.5),))
    await ledger.charge(asking(lineage, "ann", "1", cost=laplace, blocks=(OCTOBER,)))
    assert (await ledger.block(lineage, OCTOBER)).spent == 5 * 10**11
    with pytest.raises(MechanismNotAccepted):
        await ledger.charge(asking(lineage, "ann", "2", blocks=(OCTOBER,)))


async def test_a_block_accepts_what_its_own_budget_says(ledger: Ledger, lineage: str) -> None:
    any_charge = Budget(10**13, "any", 1e-6)
    gaussian = Budget(PRICE // 2, "gaussian", 1e-6)
    await open_accounts(ledger, lineage, gaussian, ann=any_charge)
    await ledger.acting("owner").open_block(lineage, SEPTEMBER, any_charge, time=0.0)
    await ledger.acting("owner").open_block(lineage, OCTOBER, gaussian, time=0.0)
    laplace = Cost((LaplaceLoss(0.5),))
    for blocks in ((), (OCTOBER,)):
        with pytest.raises(MechanismNotAccepted):
            await ledger.charge(asking(lineage, "ann", "1", cost=laplace, blocks=blocks))
    await ledger.charge(asking(lineage, "ann", "1", cost=laplace, blocks=(SEPTEMBER,)))
    assert (await verify(ledger, lineage)).findings == ()


@pytest.mark.parametrize(
    "blocks", [("b", "a"), ("a", "a"), ("",), ("{a}",), tuple(f"{n:04}" for n in range(MOST_BLOCKS + 1))]
)
def test_terms_name_blocks_in_order_once_and_by_names_that_are_keys(blocks: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="block"):
        charge_terms("model", "gaussian", COST, blocks=blocks)


async def test_a_backup_brings_blocks_back(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        await ledger.charge(asking("lineage", "ann", "1", blocks=(SEPTEMBER,)))
        await ledger.charge(asking("lineage", "bob", "1", "2", model="both", blocks=BOTH))
        before = await ledger.snapshot("lineage")
        lines = [line async for line in backup(ledger)]
    async with Ledger.open(tmp_path / "new") as ledger:
        await restore(ledger, lines)
        assert await ledger.snapshot("lineage") == before
        assert (await verify(ledger, "lineage")).findings == ()
        with pytest.raises(BudgetExhausted):
            await ledger.charge(asking("lineage", "ann", "3", blocks=(SEPTEMBER,)))


async def test_an_export_names_the_blocks_that_paid(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        await ledger.charge(asking("lineage", "ann", "1", blocks=BOTH))
        rows = [json.loads(line) async for line in export(ledger.acting("owner"), "lineage")]
    assert rows[-1]["blocks"] == "2026-09 2026-10"
    opened = [row for row in rows if row["kind"] == "add-block"]
    assert [(row["scope"], row["name"]) for row in opened] == [("block", SEPTEMBER), ("block", OCTOBER)]


@pytest.mark.parametrize(
    "damage",
    [
        ("DEL", KEYS.blocks),
        ("HDEL", KEYS.blocks, SEPTEMBER),
        ("DEL", KEYS.block(SEPTEMBER).account),
        ("HSET", KEYS.block(SEPTEMBER).account, "number", "9"),
        ("HSET", KEYS.account, "blocks", "1"),
        ("HDEL", KEYS.account, "blocks"),
    ],
    ids=" ".join,
)
async def test_a_damaged_block_lets_nothing_be_charged(tmp_path: Path, damage: tuple[str, ...]) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        await ledger.charge(asking("lineage", "ann", "1", blocks=BOTH))
        with _raw(tmp_path / "store") as raw:
            raw.execute_command(*damage)
        with pytest.raises((LedgerDamaged, LedgerUnavailable)):
            await ledger.charge(asking("lineage", "ann", "2", blocks=BOTH))
        assert (await verify(ledger, "lineage")).findings


@pytest.mark.parametrize("field", ["spent", "limit", "seq", "asked", "coined"])
async def test_verify_finds_a_block_whose_figures_were_changed(tmp_path: Path, field: str) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        await ledger.charge(asking("lineage", "ann", "1", blocks=BOTH))
        assert (await verify(ledger, "lineage")).findings == ()
        with _raw(tmp_path / "store") as raw:
            raw.hset(KEYS.block(OCTOBER).account, field, "7")
        assert (await verify(ledger, "lineage")).findings


async def test_a_declared_loss_names_the_blocks_that_lost_it(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        lost = DeclaredLoss(2, COST)
        with pytest.raises(CannotRecover, match="has blocks"):
            await reconcile(ledger.acting("owner"), "lineage", [], lost)
        with pytest.raises(CannotRecover, match="no block '2026-11'"):
            await reconcile(ledger.acting("owner"), "lineage", [], replace(lost, blocks=("2026-11",)))
        assert await _spent(ledger) == {SEPTEMBER: 0, OCTOBER: 0}
        await reconcile(ledger.acting("owner"), "lineage", [], replace(lost, blocks=BOTH))
        assert await _spent(ledger) == {SEPTEMBER: 2, OCTOBER: 2}
        assert (await verify(ledger, "lineage")).findings == ()


def test_a_block_that_is_gone_lost_something() -> None:
    with pytest.raises(ValueError, match="none of those"):
        DeclaredLoss(2, COST, blocks=(OCTOBER,), gone=(SEPTEMBER,))


NOVEMBER = "2026-11"


@asynccontextmanager
async def _serving(folder: Path, journals: Path) -> AsyncIterator[Ledger]:
    """A service of the lineage, with a journal of its own."""
    async with Ledger.open(folder, journals=journals) as ledger:
        await ledger.join("lineage")
        yield ledger


async def test_a_loss_is_declared_for_a_block_that_the_store_lost_and_an_unknown_one_is_taken_for_a_slip(
    tmp_path: Path,
) -> None:
    """Restored to before the block was opened. The journal that names the block is enough; without it the owner is."""
    store, older, bare, journals = (tmp_path / name for name in ("store", "older", "bare", "journals"))
    async with Ledger.open(store) as ledger:
        await _open(ledger)
    for copy in (older, bare):
        shutil.copytree(store, copy)
    async with _serving(store, journals) as service:
        await service.acting("owner").open_block("lineage", NOVEMBER, releases(4), time=0.0)
        await service.charge(asking("lineage", "ann", "1", blocks=(NOVEMBER,)))
    lost = DeclaredLoss(2, COST, blocks=(OCTOBER, NOVEMBER))

    async with Ledger.open(older) as ledger:
        with pytest.raises(CannotRecover, match="`lost_block_accounts`"):
            await reconcile(
                ledger.acting("owner"), "lineage", read_journals(journals), replace(lost, blocks=("2026-1l",))
            )
        assert await _spent(ledger) == {SEPTEMBER: 0, OCTOBER: 0}
        done = await reconcile(ledger.acting("owner"), "lineage", read_journals(journals), lost)
        assert (done.put_back, done.declared, done.blocks_without_budget) == (1, 2, (NOVEMBER,))
        assert await _spent(ledger) == {SEPTEMBER: 0, OCTOBER: 2, NOVEMBER: 3}
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()

    async with Ledger.open(bare) as ledger:
        with pytest.raises(CannotRecover, match="no block '2026-11'"):
            await reconcile(ledger.acting("owner"), "lineage", [], lost)
        with pytest.raises(CannotRecover, match="has the block 2026-10"):
            await reconcile(ledger.acting("owner"), "lineage", [], replace(lost, gone=(OCTOBER, NOVEMBER)))
        assert await _spent(ledger) == {SEPTEMBER: 0, OCTOBER: 0}
        await reconcile(ledger.acting("owner"), "lineage", [], replace(lost, gone=(NOVEMBER,)))
        assert await _spent(ledger) == {SEPTEMBER: 0, OCTOBER: 2, NOVEMBER: 2}
        question = asking("lineage", "ann", "2", blocks=(NOVEMBER,))
        with pytest.raises(BudgetExhausted, check=lambda refused: refused.block == NOVEMBER):
            await ledger.charge(question)
        await ledger.acting("owner").set_budget("lineage", releases(4), block=NOVEMBER)
        await ledger.charge(question)
        assert (await verify(ledger, "lineage")).findings == ()


async def test_a_loss_without_blocks_is_refused_before_journals_bring_blocks_back(tmp_path: Path) -> None:
    store, copy, journals = tmp_path / "store", tmp_path / "copy", tmp_path / "journals"
    async with Ledger.open(store) as ledger:
        await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
    shutil.copytree(store, copy)
    async with _serving(store, journals) as service:
        await service.acting("owner").open_block("lineage", SEPTEMBER, releases(4), time=0.0)
        await service.charge(asking("lineage", "ann", "1", blocks=(SEPTEMBER,)))
    async with Ledger.open(copy) as ledger:
        with pytest.raises(CannotRecover, match="has blocks"):
            await reconcile(ledger.acting("owner"), "lineage", read_journals(journals), DeclaredLoss(2, COST))
        assert ((await ledger.lineage("lineage")).newest_receipt, await _spent(ledger)) == (0, {})
        await reconcile(
            ledger.acting("owner"), "lineage", read_journals(journals), DeclaredLoss(2, COST, blocks=(SEPTEMBER,))
        )
        assert await _spent(ledger) == {SEPTEMBER: 3}
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()


async def test_receipts_are_put_back_into_the_blocks_that_they_name(tmp_path: Path) -> None:
    """Receipts that name none go into the unnamed one, whatever other blocks the store has by now."""
    store, copy, journals = tmp_path / "store", tmp_path / "copy", tmp_path / "journals"
    async with Ledger.open(store) as ledger:
        await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
    shutil.copytree(store, copy)
    async with _serving(store, journals) as service:
        await service.charge(asking("lineage", "ann", "1", "2", model="without"))
        await service.acting("owner").open_block("lineage", SEPTEMBER, releases(4), time=0.0)
        await service.charge(asking("lineage", "ann", "1", blocks=(SEPTEMBER,)))
    async with Ledger.open(copy) as ledger:
        await ledger.acting("owner").open_block("lineage", OCTOBER, releases(4), time=0.0)
        read = read_journals(journals)
        with pytest.raises(CannotRecover, match=r"2026-09, 2026-10.*`lost_blocks`"):
            await reconcile(ledger.acting("owner"), "lineage", read, DeclaredLoss(1, COST))
        assert (await ledger.lineage("lineage")).newest_receipt == 0
        done = await reconcile(ledger.acting("owner"), "lineage", read, DeclaredLoss(1, COST, blocks=()))
        assert (done.put_back, done.blocks_without_budget) == (2, (SEPTEMBER,))
        assert (await ledger.lineage("lineage")).spent == 3 * PRICE
        assert await _spent(ledger) == {SEPTEMBER: 1, OCTOBER: 0}
        assert (await verify(ledger, "lineage", read)).findings == ()
