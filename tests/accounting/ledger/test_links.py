"""The connections of a way to a store: which are used again, and how those that are not are left."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import redis.exceptions as refused

from accounting.ledger.links import Exchange, Link, link_to

pytestmark = pytest.mark.anyio

Says = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


async def _inspect(exchange: Exchange) -> None:
    del exchange


@asynccontextmanager
async def _link(says: Says, *, deadline: float) -> AsyncIterator[Link]:
    """A way to a server that greets as a store does and runs `says` for each line of anything else."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while line := await reader.readline():
            if b"SETINFO" in line.upper():
                writer.write(b"+OK\r\n")
            else:
                await says(line, writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = link_to(f"redis://127.0.0.1:{port}/0", _inspect, deadline=deadline, connections=4)
        try:
            yield link
        finally:
            await link.close()
            for writer in writers:
                writer.transport.abort()


async def _pong(line: bytes, writer: asyncio.StreamWriter) -> None:
    if line == b"PING\r\n":
        writer.write(b"+PONG\r\n")


async def test_a_connection_that_is_being_closed_is_not_used_again() -> None:
    async with _link(_pong, deadline=10) as link:
        assert await link.send("", [("PING",)]) == [b"PONG"]
        ((connection, _),) = link._idle  # type: ignore[attr-defined]
        connection._writer.transport.close()  # of which it hears in the loop's next turn
        assert await link.send("", [("PING",)]) == [b"PONG"]


async def test_a_call_whose_connection_breaks_does_not_wait_for_a_peer_of_another_that_does_not_read() -> None:
    """The deadline, to which closing a connection may take, is far beyond what the test waits."""
    unread = asyncio.Event()

    async def says(line: bytes, writer: asyncio.StreamWriter) -> None:
        if line == b"BIG\r\n":
            unread.set()
            await asyncio.Event().wait()
        if line == b"BREAK\r\n":
            end = writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        await _pong(line, writer)

    async with _link(says, deadline=600) as link, asyncio.timeout(20):
        long = asyncio.create_task(link.send("", [("BIG", b"x" * 20_000_000)]))
        await unread.wait()
        with pytest.raises((refused.ConnectionError, ConnectionError)):
            await link.send("", [("BREAK",)])
        with pytest.raises(refused.ConnectionError):
            await long
        assert await link.send("", [("PING",)]) == [b"PONG"]


async def test_who_is_abandoned_fails_at_once_and_whoever_comes_after_does_not() -> None:
    asked = asyncio.Event()

    async def says(line: bytes, writer: asyncio.StreamWriter) -> None:
        if line == b"NEVER\r\n":
            asked.set()
        await _pong(line, writer)

    async with _link(says, deadline=600) as link, asyncio.timeout(20):
        call = asyncio.create_task(link.send("", [("NEVER",)]))
        await asked.wait()
        link.abandon()
        assert await link.send("", [("PING",)]) == [b"PONG"]
        with pytest.raises(refused.ConnectionError):
            await call
        assert await asyncio.gather(*[link.send("", [("PING",)]) for _ in range(9)]) == [[b"PONG"]] * 9
