"""What a connection's replies promise, against a store that breaks every rule."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions as refused

from accounting.ledger.replies import Replies

pytestmark = pytest.mark.anyio

Says = Callable[[asyncio.StreamWriter, int], Awaitable[None]]


async def _against(path: Path, says: Says, ask: Callable[[Replies], Awaitable[None]]) -> None:
    """Ask a server that runs `says` after each PING that it gets, with the number of it."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        with suppress(ConnectionError):
            while await reader.readline():
                number += 1
                await says(writer, number)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_unix_server(serve, path / "s"):
        transport, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, str(path / "s"))
        await ask(Replies(transport))
        transport.close()
        await asyncio.wait_for(ended.wait(), 10)


async def _while_asked(path: Path, ask: Callable[[Replies, "asyncio.Task[list[Any]]"], Awaitable[None]]) -> None:
    """Run `ask` when a PING has reached a server that says nothing, with the exchange that waits for its reply."""
    asked = asyncio.Event()

    async def says(writer: asyncio.StreamWriter, number: int) -> None:
        del writer, number
        asked.set()

    async def begin(replies: Replies) -> None:
        task = asyncio.create_task(replies.exchange(b"PING\r\n", 1, 10))
        await asked.wait()
        await ask(replies, task)

    await _against(path, says, begin)


async def _number(writer: asyncio.StreamWriter, number: int) -> None:
    writer.write(b":%d\r\n" % number)


async def test_replies_come_in_order_and_refusals_are_values(tmp_path: Path) -> None:
    async def says(writer: asyncio.StreamWriter, number: int) -> None:
        # In two pieces, between which the other end reads.
        for piece in (b"*2\r\n:1\r\n", b"-READONLY no\r\n") if number == 2 else (b"$3\r\nab", b"c\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    async def ask(replies: Replies) -> None:
        first, second = await replies.exchange(b"PING\r\nPING\r\n", 2, 10)
        assert first == b"abc"
        assert second[0] == 1
        assert isinstance(second[1], refused.ReadOnlyError)
        assert replies.whole

    await _against(tmp_path, says, ask)


async def test_a_late_reply_is_given_to_nobody(tmp_path: Path) -> None:
    said = asyncio.Event()

    async def says(writer: asyncio.StreamWriter, number: int) -> None:
        await said.wait()
        await _number(writer, number)

    async def ask(replies: Replies) -> None:
        with pytest.raises(TimeoutError):
            await replies.exchange(b"PING\r\n", 1, 0.01)
        assert not replies.whole
        said.set()

    await _against(tmp_path, says, ask)


async def test_who_is_cancelled_leaves_a_connection_that_nobody_uses(tmp_path: Path) -> None:
    async def ask(replies: Replies, task: "asyncio.Task[list[Any]]") -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not replies.whole

    await _while_asked(tmp_path, ask)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b":1\r\n:2\r\n", refused.InvalidResponse),  # one reply too many
        (b":1\r\n$9\r\nab", refused.InvalidResponse),  # and a part of one
        (b"what?\r\n", refused.InvalidResponse),
        (b"-LOADING not yet\r\n", refused.BusyLoadingError),
        (b"", refused.ConnectionError),  # and the connection ends
        (b"$9\r\nabc", refused.ConnectionError),
    ],
)
async def test_what_no_store_says_ends_the_connection(tmp_path: Path, said: bytes, error: type[Exception]) -> None:
    async def says(writer: asyncio.StreamWriter, number: int) -> None:
        del number
        writer.write(said)
        if error is refused.ConnectionError:
            writer.close()

    async def ask(replies: Replies) -> None:
        with pytest.raises(error):
            await replies.exchange(b"PING\r\n", 1, 10)
        assert not replies.whole

    await _against(tmp_path, says, ask)


@pytest.mark.parametrize("more", [b":2\r\n", b"$9\r\nab", b"what?\r\n"])
async def test_a_reply_too_many_is_noticed_also_when_it_comes_before_the_replies_are_taken(
    tmp_path: Path, more: bytes
) -> None:
    """Two pieces may be read before whoever waits for the first goes on."""

    async def ask(replies: Replies, task: "asyncio.Task[list[Any]]") -> None:
        replies.data_received(b":1\r\n")
        replies.data_received(more)
        with pytest.raises(refused.InvalidResponse):
            await task
        assert not replies.whole

    await _while_asked(tmp_path, ask)


async def test_a_connection_that_ends_after_the_replies_has_replied(tmp_path: Path) -> None:
    async def ask(replies: Replies, task: "asyncio.Task[list[Any]]") -> None:
        replies.data_received(b":1\r\n")
        replies.connection_lost(None)
        assert await task == [1]
        assert not replies.whole

    await _while_asked(tmp_path, ask)


async def test_a_connection_that_speaks_unasked_is_not_whole(tmp_path: Path) -> None:
    async def says(writer: asyncio.StreamWriter, number: int) -> None:
        await _number(writer, number)
        await writer.drain()
        await asyncio.sleep(0.01)
        await _number(writer, number)

    async def ask(replies: Replies) -> None:
        assert await replies.exchange(b"PING\r\n", 1, 10) == [1]
        async with asyncio.timeout(10):
            while replies.whole:
                await asyncio.sleep(0.001)

    await _against(tmp_path, says, ask)
