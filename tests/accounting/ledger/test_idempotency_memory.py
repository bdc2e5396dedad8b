"""The memory that a client can fill with idempotency keys, which cost no budget: docs/ledger.md states it."""

import os
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger.wire import IDEMPOTENCY_KEYS

pytestmark = pytest.mark.anyio

BYTES = 1_500_000
"""The most that the keys of one client take, as docs/ledger.md says."""


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
