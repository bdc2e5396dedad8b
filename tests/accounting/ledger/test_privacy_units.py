"""A lineage's privacy unit: settled once, by its first model, kept in every copy, and verified."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import Ledger, LedgerDamaged, OtherUnit, UnitLost, UnknownLineage
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.recovery import reconcile
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys

from .conftest import asking, open_accounts, read_journals, releases

pytestmark = pytest.mark.anyio


async def _open(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(10), ann=releases(5))


async def _unit(ledger: Ledger, lineage: str) -> str | None:
    return (await ledger.lineage(lineage)).unit


async def test_the_first_model_settles_the_unit_and_another_is_refused(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    assert await _unit(ledger, lineage) is None
    await ledger.acting("owner").settle_unit(lineage, "person")
    newest = (await ledger.lineage(lineage)).newest_act
    await ledger.acting("owner").settle_unit(lineage, "person")
    for other in ("", "age"):
        with pytest.raises(OtherUnit) as refused:
            await ledger.acting("owner").settle_unit(lineage, other)
        assert (refused.value.unit, refused.value.other) == ("person", other)
    assert (await ledger.lineage(lineage)).newest_act == newest
    assert await _unit(ledger, lineage) == "person"
    with pytest.raises(UnknownLineage):
        await ledger.acting("owner").settle_unit(f"{lineage}-of-nobody", "person")


async def test_of_many_at_once_one_settles_it(store_url: str, lineage: str) -> None:
    ledgers = [await Ledger.connect(store_url) for _ in range(6)]
    try:
        await _open(ledgers[0], lineage)
        names = ["", "person", "age", "", "person", "age"]
        calls = (ledger.acting("owner").settle_unit(lineage, name) for ledger, name in zip(ledgers, names, strict=True))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        settled = await _unit(ledgers[0], lineage)
        assert [name for name, outcome in zip(names, outcomes, strict=True) if outcome is None] == 2 * [settled]
        assert sum(isinstance(outcome, OtherUnit) for outcome in outcomes) == 4
        assert (await verify(ledgers[0], lineage)).findings == ()
    finally:
        for each in ledgers:
            await each.close()


async def test_what_was_charged_before_any_unit_was_settled_is_taken_for_records(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    await ledger.charge(asking(lineage, "ann", "1"))
    with pytest.raises(OtherUnit) as refused:
        await ledger.acting("owner").settle_unit(lineage, "person")
    assert refused.value.unit == ""
    await ledger.acting("owner").settle_unit(lineage, "")
    assert await _unit(ledger, lineage) == ""


@pytest.fixture
async def embedded(store_url: str) -> AsyncIterator[Ledger]:
    async with await Ledger.connect(store_url) as opened:
        yield opened


async def test_a_unit_that_no_act_settled_is_found(embedded: Ledger, store_url: str, lineage: str) -> None:
    await _open(embedded, lineage)
    await embedded.acting("owner").settle_unit(lineage, "person")
    account = LineageKeys(lineage).account
    with redis.Redis.from_url(store_url) as store:
        for alter in (lambda: store.hset(account, "unit", "age"), lambda: store.hdel(account, "unit")):
            alter()
            assert (await verify(embedded, lineage)).findings == (
                "the lineage protects another privacy unit than was settled",
            )
            with pytest.raises(CannotRecover):
                _ = [line async for line in backup(embedded, [lineage])]


async def test_a_backup_keeps_the_unit(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "first") as ledger:
        await _open(ledger, "lineage")
        await ledger.acting("owner").settle_unit("lineage", "person")
        lines = [line async for line in backup(ledger)]
    async with Ledger.open(tmp_path / "second") as ledger:
        await restore(ledger, lines)
        assert await _unit(ledger, "lineage") == "person"
        assert (await verify(ledger, "lineage")).findings == ()
        with pytest.raises(OtherUnit):
            await ledger.acting("owner").settle_unit("lineage", "")


@pytest.mark.parametrize(("unit", "other"), [("", "person"), ("person", "")])
async def test_a_restored_lineage_has_the_unit_under_which_it_was_charged(
    tmp_path: Path, unit: str, other: str
) -> None:
    """A restored store took any unit after `reconcile`, and `verify` found nothing in a lineage of two."""
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "first", journals=journals) as ledger:
        await ledger.join("lineage")
        await _open(ledger, "lineage")
        early = [line async for line in backup(ledger)]
        await ledger.acting("owner").settle_unit("lineage", unit)
        await ledger.charge(asking("lineage", "ann", "1"))
    async with Ledger.open(tmp_path / "second", journals=journals) as ledger:
        await restore(ledger, early)
        assert any(
            "privacy unit" in line for line in (await verify(ledger, "lineage", read_journals(journals))).findings
        )
        with pytest.raises(CannotRecover):
            await reconcile(ledger.acting("owner"), "lineage", read_journals(journals), unit=other)
        assert (await ledger.lineage("lineage")).spent == 0
    async with Ledger.open(tmp_path / "third", journals=journals) as ledger:
        await restore(ledger, early)
        await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))
        await ledger.join("lineage")
        assert await _unit(ledger, "lineage") == unit
        with pytest.raises(OtherUnit):
            await ledger.acting("owner").settle_unit("lineage", other)
        await ledger.acting("owner").settle_unit("lineage", unit)
        await ledger.charge(asking("lineage", "ann", "2"))
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()


async def test_the_owner_states_a_unit_that_no_journal_knows(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await ledger.join("lineage")
        await _open(ledger, "lineage")
        await ledger.charge(asking("lineage", "ann", "1"))
        await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))
        for unit in ("", "person"):
            with pytest.raises(UnitLost):
                await ledger.acting("owner").settle_unit("lineage", unit)
        await reconcile(ledger.acting("owner"), "lineage", read_journals(journals), unit="person")
        await ledger.acting("owner").settle_unit("lineage", "person")
        with pytest.raises(OtherUnit):
            await ledger.acting("owner").settle_unit("lineage", "")
        with pytest.raises(CannotRecover):
            await reconcile(ledger.acting("owner"), "lineage", read_journals(journals), unit="")


async def test_a_service_that_runs_on_settles_a_lost_unit_and_charges_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    async with Ledger.open(folder) as running:
        await _open(running, "lineage")
        await running.acting("owner").settle_unit("lineage", "person")
        await running.charge(asking("lineage", "ann", "1"))
        with redis.Redis(unix_socket_path=(folder / "socket").read_text().strip()) as store:
            store.hdel(LineageKeys("lineage").account, "unit")
            running.store.forget("lineage")  # as a store that comes back makes it
            await running.charge(asking("lineage", "ann", "2"))
            assert await _unit(running, "lineage") == "person"
            store.hset(LineageKeys("lineage").account, "unit", "age")
            running.store.forget("lineage")
            with pytest.raises(LedgerDamaged):
                await running.charge(asking("lineage", "ann", "3"))
