"""A connection that closes after it was taken for a call: the ledger is unavailable, on each event loop."""

import asyncio
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from dpserve.accounting.ledger import Ledger, LedgerUnavailable

from .conftest import ON_EACH_LOOP, asking, new_lineage, open_accounts, releases

pytestmark = [pytest.mark.anyio, ON_EACH_LOOP]


async def test_a_call_on_a_connection_that_closed_is_unavailable_and_the_next_one_is_charged(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage, send = new_lineage(), AbstractConnection.send_packed_command

    async def close_and_send(connection: Any, *words: Any, **more: Any) -> None:
        monkeypatch.undo()
        connection._writer.transport.abort()
        for _ in range(5):  # turns of the loop, in which it is told
            await asyncio.sleep(0)
        await send(connection, *words, **more)

    async with await Ledger.connect(store_url) as ledger:
        await open_accounts(ledger, lineage, releases(3), ann=releases(3))
        monkeypatch.setattr(AbstractConnection, "send_packed_command", close_and_send)
        with pytest.raises(LedgerUnavailable):
            await ledger.charge(asking(lineage, "ann", "1"))
        assert (await ledger.charge(asking(lineage, "ann", "1"))).charged
