"""The chains: the store's SHA-256 is hashlib's, what is foreseen is what the store would compute, forgery shows."""

import asyncio
import random

import pytest
import redis

from accounting.ledger import BudgetExhausted, Charge, Ledger
from accounting.ledger.verification import verify

from .conftest import COST, asking, budget, open_accounts, releases

pytestmark = pytest.mark.anyio


async def _is_right(ledger: Ledger, lineage: str) -> None:
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_receipt_carries_the_hash_before_it_and_its_own(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    receipts = [(await ledger.charge(asking(lineage, "ann", str(number)))).receipt for number in range(3)]
    assert receipts == await ledger.receipts(lineage)
    assert [receipt.previous for receipt in receipts if receipt] == [bytes(32), receipts[0].hash, receipts[1].hash]
    assert all(receipt.hash == receipt.hash_from_contents() for receipt in receipts if receipt)
    assert (await ledger.lineage(lineage)).head == receipts[-1].hash
    await _is_right(ledger, lineage)


async def test_two_writers_with_refusals_and_replays_keep_one_chain(
    ledger: Ledger, lineage: str, store_url: str
) -> None:
    """What one service foresees is wrong whenever the other charged, or a request is refused or partly paid for."""
    await open_accounts(ledger, lineage, releases(80), ann=releases(70), bob=releases(20))
    turns = random.Random(7)
    async with await Ledger.connect(store_url) as other:
        for _ in range(25):
            calls = []
            for writer in (ledger, other):
                requests = [
                    asking(lineage, turns.choice(["ann", "bob"]), *(str(turns.randrange(60)) for _ in range(3)))
                    for _ in range(turns.randrange(1, 5))
                ]
                calls.append(writer.charge_batch(requests))
            decisions = [one for each in await asyncio.gather(*calls) for one in each]
            assert all(isinstance(one, Charge | BudgetExhausted) for one in decisions)
    await _is_right(ledger, lineage)


async def test_every_length_and_byte_hashes_as_in_hashlib(ledger: Ledger, lineage: str) -> None:
    """An act is hashed by the store alone, over words of any length: names up to their longest."""
    await ledger.open_lineage(lineage, releases(1), time=0.0)
    for length in (*range(1, 128, 3), 128):
        name = "c" * length
        await ledger.add_client(lineage, name, budget(length), bytes([length]) * 32, time=0.0)
        await ledger.set_client_budget(lineage, name, budget(10**12 + length))
    await _is_right(ledger, lineage)


@pytest.mark.parametrize(
    ("forge", "finding"),
    [
        (("HINCRBY", "account", "spent", "-1"), "the lineage has spent"),
        (("HINCRBY", "client:ann", "spent", "-1"), "client ann has spent"),
        (("HSET", "client:ann", "limit", "99999999999999"), "the budget of ann is not the one that was last set"),
        (("HSET", "client:ann", "revoked", "1"), "client ann is revoked without an act"),
        (("XDEL", "receipts", "2-0"), "receipt 2 is missing"),
        (("XDEL", "receipts", "3-0"), "the account counts 3 receipts, and there are 2"),
        (("XDEL", "acts", "1-0"), "act 1 was altered or is missing"),
        (("HINCRBY", "tally", str(COST), "1"), "the tally of the lineage"),
        (("HSET", "account", "head", "x" * 32), "the newest receipt's hash is not"),
    ],
)
async def test_what_is_forged_is_found(embedded_url: str, lineage: str, forge: tuple[str, ...], finding: str) -> None:
    async with await Ledger.connect(embedded_url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
        for number in range(3):
            await ledger.charge(asking(lineage, "ann", str(number)))
        await _is_right(ledger, lineage)
        command, key, *rest = forge
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            store.execute_command(command, f"dpserve:{{{lineage}}}:{key}", *rest)
        assert any(line.startswith(finding) for line in (await verify(ledger, lineage)).findings)


async def test_a_receipt_that_was_rewritten_is_found(embedded_url: str, lineage: str) -> None:
    async with await Ledger.connect(embedded_url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
        for number in range(3):
            await ledger.charge(asking(lineage, "ann", str(number)))
        key = f"dpserve:{{{lineage}}}:receipts"
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            entries = store.xrange(key)
            store.delete(key)
            for number, fields in entries:
                store.xadd(key, fields | ({b"model": b"another"} if number == b"2-0" else {}), id=number)
        assert (await verify(ledger, lineage)).findings == ("receipt 2 was altered",)
