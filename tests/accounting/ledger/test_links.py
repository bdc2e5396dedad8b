"""The connections of a way to a store: which are used again, and how those that are not are left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

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
