"""Acknowledged charges survive the store's sudden death."""

import asyncio
import itertools
import os
import signal
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import ChargeRequest, EmbeddedStore, Ledger, LedgerUnavailable

from .conftest import COST, asking, open_accounts, releases

pytestmark = pytest.mark.anyio

TRIALS = 2


async def _charge_until_it_dies(ledger: Ledger, lineage: str, trial: int, process: int) -> list[str]:
    """Charge from several tasks, kill the server in the middle, return what was acknowledged."""
    answers: list[str] = []

    async def one(task: int) -> None:
        for turn in itertools.count():
            row = f"{trial}/{task}/{turn}"
            try:
                await ledger.charge(asking(lineage, "ann", row))
            except LedgerUnavailable:
                return
            answers.append(row)
            if len(answers) == 40 + trial:
                os.kill(process, signal.SIGKILL)

    await asyncio.gather(*map(one, range(8)))
    return answers


async def test_no_acknowledged_charge_is_lost_with_the_server(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for trial in range(TRIALS):
        with EmbeddedStore(tmp_path) as store:
            async with await Ledger.connect(store.url) as ledger:
                if trial == 0:
                    await open_accounts(ledger, "lineage", releases(10_000), ann=releases(10_000))
                with redis.Redis.from_url(store.url, protocol=2) as client:
                    process = client.info()["process_id"]
                acknowledged += await _charge_until_it_dies(ledger, "lineage", trial, process)
        with EmbeddedStore(tmp_path) as store:
            async with await Ledger.connect(store.url) as ledger:
                request: ChargeRequest = asking("lineage", "ann", *acknowledged)
                replay = await ledger.charge(request)
                assert replay.receipt is None
                assert all(replay.free)
                account = await ledger.lineage("lineage")
                receipts = await ledger.receipts("lineage", count=10_000)
                assert account.releases >= len(acknowledged)
                assert account.spent == account.releases * COST.picorho == sum(r.price * r.releases for r in receipts)
                assert account.newest_receipt == len(receipts)
                assert account.spent == (await ledger.client("lineage", "ann")).spent


async def test_a_tail_torn_by_the_crash_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        async with await Ledger.connect(store.url) as ledger:
            await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
            await ledger.charge(asking("lineage", "ann", "1", "2"))
            await ledger.charge(asking("lineage", "ann", "3"))
    (log,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 7)
    with EmbeddedStore(tmp_path) as store:
        async with await Ledger.connect(store.url) as ledger:
            account = await ledger.lineage("lineage")
            assert account.releases == 2
            assert account.spent == (await ledger.client("lineage", "ann")).spent == 2 * COST.picorho
            assert account.newest_receipt == len(await ledger.receipts("lineage")) == 1
