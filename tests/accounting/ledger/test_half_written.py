"""A store whose writes fail in the middle of a call: whichever is the last, nobody gets what nobody paid for."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis

from dpserve.accounting.ledger import (
    ActRefused,
    Charge,
    Ledger,
    LedgerDamaged,
    LedgerUnavailable,
    UnknownClient,
    key_digest,
)
from dpserve.accounting.ledger.store import FunctionLibrary, our_library
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import Cost, GaussianLoss

from .conftest import BINARY, DURABLE, asking, new_lineage, open_accounts, releases, running_server

pytestmark = pytest.mark.anyio

_LEFT = "writes that are left"
_SPOILT = f"""
local writes = {{HSET = true, SADD = true, XADD = true, UNLINK = true, RENAME = true}}
local function counted(command, ...)
  if writes[command] and redis.call('EXISTS', '{_LEFT}') == 1 and redis.call('DECR', '{_LEFT}') < 0 then
    error('no further write')
  end
  return redis.call(command, ...)
end
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("half"), BINARY, **DURABLE) as address:
        yield address


@pytest.fixture
def store(url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(url, protocol=2) as client:
        yield client
        client.delete(_LEFT)
        client.execute_command("FUNCTION", "FLUSH")


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our library, under a name of its own, whose writes fail once what is under `_LEFT` is used up."""
    ours = our_library()
    first, _, others = ours.source.partition("\n")
    code = others.replace("redis.call(", "counted(")
    library = FunctionLibrary(first + _SPOILT + code)
    monkeypatch.setattr("dpserve.accounting.ledger.store.our_library", lambda: library)


_BATCH = [("ann", "1"), ("bob", "2"), ("ann", "3"), ("bob", "4"), ("ann", "5")]


async def _half_written(ledger: Ledger, lineage: str, store: "redis.Redis[bytes]", writes: int) -> bool:
    """Charge a call of two clients, one of whom needs room, with so many writes. Returns whether it came to its end."""
    await open_accounts(ledger, lineage, releases(40), ann=releases(20), bob=releases(20))
    await ledger.charge(asking(lineage, "ann", "0", key="0"))
    await ledger.charge(asking(lineage, "bob", "3", key="0"))
    store.set(_LEFT, writes)
    try:
        decisions = await ledger.charge_batch([asking(lineage, *one, key=one[1]) for one in _BATCH])
        return all(isinstance(decision, Charge) for decision in decisions)
    except LedgerUnavailable:
        return False
    finally:
        store.delete(_LEFT)


@pytest.mark.usefixtures("spoilt")
async def test_whichever_write_of_a_call_is_the_last_nothing_is_given_that_is_not_counted(
    url: str, store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpserve.accounting.ledger.wire.IDEMPOTENCY_KEYS", 4)
    blocked = 0
    async with await Ledger.connect(url) as ledger:
        for writes in range(40):
            lineage = new_lineage()
            whole = await _half_written(ledger, lineage, store, writes)
            # Whoever asks again gets an answer only if both accounts count the question.
            granted = {"ann": {"0"}, "bob": {"3"}}
            for client, row in _BATCH:
                with suppress(LedgerDamaged):
                    await ledger.charge(asking(lineage, client, row))
                    granted[client].add(row)
            for client, rows in granted.items():
                assert (await ledger.client(lineage, client)).releases >= len(rows), writes
            assert (await ledger.lineage(lineage)).releases >= len(granted["ann"] | granted["bob"]), writes
            # What is charged further stands in the receipts and in both accounts, or nothing is.
            try:
                await ledger.charge(asking(lineage, "ann", "6"))
                assert (await verify(ledger, lineage)).findings == (), writes
            except LedgerDamaged:
                blocked += 1
                assert not whole
            if whole:
                break
    assert whole
    assert blocked > 5


@pytest.mark.usefixtures("spoilt")
async def test_clients_share_no_number_when_adding_one_failed_half_way(url: str, store: "redis.Redis[bytes]") -> None:
    whole = False
    async with await Ledger.connect(url) as ledger:
        for writes in range(20):
            lineage = new_lineage()
            await open_accounts(ledger, lineage, releases(9))
            store.set(_LEFT, writes)
            with suppress(LedgerUnavailable):
                await ledger.acting("owner").add_client(
                    lineage, "ann", releases(9), key_digest(f"{lineage}/ann"), time=0.0
                )
                whole = True
            store.delete(_LEFT)
            granted = []
            for client in ("ann", "bob"):
                with suppress(LedgerUnavailable, UnknownClient, ActRefused):
                    if client == "bob":
                        await ledger.acting("owner").add_client(lineage, client, releases(9), bytes(32), time=0.0)
                    await ledger.charge(asking(lineage, client, "1"))
                    granted.append(client)
            for client in granted:
                assert (await ledger.client(lineage, client)).releases == 1, writes
            if whole:
                break
    assert whole


@pytest.mark.slow
async def test_a_call_of_more_costs_than_one_command_can_write_is_charged(url: str) -> None:
    lineage, count = new_lineage(), 4200
    async with await Ledger.connect(url) as ledger:
        await open_accounts(ledger, lineage, releases(count), ann=releases(count), bob=releases(count))
        costs = [Cost((GaussianLoss(0.001 + i * 1e-6),)) for i in range(count)]
        decisions = await ledger.charge_batch(
            [asking(lineage, "ann" if i % 2 else "bob", str(i), cost=cost) for i, cost in enumerate(costs)]
        )
        assert all(isinstance(decision, Charge) and decision.receipt for decision in decisions)
        total = sum(cost.picorho for cost in costs)
        assert (await ledger.lineage(lineage)).spent == total
        assert sum([(await ledger.client(lineage, client)).spent for client in ("ann", "bob")]) == total
        assert (await verify(ledger, lineage)).findings == ()
