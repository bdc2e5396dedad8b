"""The memory that a client can fill with idempotency keys, which cost no budget: docs/ledger.md states it."""

import os
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import Charge, Ledger
from dpserve.accounting.ledger.wire import IDEMPOTENCY_KEYS

from .conftest import asking, open_accounts, releases

pytestmark = pytest.mark.anyio

BYTES = 1_500_000
"""The most that the keys of one client take, as docs/ledger.md says."""


@pytest.mark.slow
async def test_a_clients_keys_stop_taking_memory_at_the_bound(store_url: str, lineage: str) -> None:
    """Each request repeats the one question that was paid for, under a new key: nothing is charged for it."""
    batch, names = 1000, [f"dpserve:{{{lineage}}}:client:ann:requests{end}" for end in ("", ":old")]
    most = held = 0
    async with await Ledger.connect(store_url, deadline=30.0) as ledger:
        await open_accounts(ledger, lineage, releases(1), ann=releases(1))
        with redis.Redis.from_url(store_url, protocol=2) as store:
            for first in range(0, IDEMPOTENCY_KEYS + 2 * batch, batch):
                keys = [f"{number:0>255}" for number in range(first, first + batch)]
                requests = [asking(lineage, "ann", "row", key=key, body=key) for key in keys]
                assert all(isinstance(each, Charge) for each in await ledger.charge_batch(requests))
                held = sum(store.hlen(name) for name in names)
                assert min(first + batch, IDEMPOTENCY_KEYS // 2) <= held <= IDEMPOTENCY_KEYS
                most = max(most, held)
                taken = sum(store.memory_usage(name, samples=0) or 0 for name in names)
                assert taken <= BYTES
        assert most == IDEMPOTENCY_KEYS
        assert held < IDEMPOTENCY_KEYS
        assert (await ledger.lineage(lineage)).releases == 1


async def test_no_number_of_receipts_takes_keys_past_the_bound(store_url: str) -> None:
    """With each key stands the number of a receipt, of 16 digits at most."""
    with redis.Redis.from_url(store_url, protocol=2) as store:
        for digits in (1, 4, 16):
            taken = 0
            for half in ("young", "old"):
                store.delete(half)
                for _ in range(10):
                    entries = {os.urandom(16): os.urandom(16) + b"9" * digits for _ in range(IDEMPOTENCY_KEYS // 20)}
                    store.hset(half, mapping=entries)
                taken += store.memory_usage(half, samples=0) or 0
                store.delete(half)
            assert taken <= BYTES


def test_the_page_says_the_bound() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text()
    assert f"the newest {IDEMPOTENCY_KEYS // 2:,} always, and never more than {IDEMPOTENCY_KEYS:,}" in page
    assert f"less than {BYTES / 1e6} MB of the store's memory a client" in page
