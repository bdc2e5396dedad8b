"""What the service's port answers before the bundle and the ledger are verified: that it lives and is not ready."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from service.http.accepting import BACKLOG
from service.http.problems import MEDIA_TYPE, ProblemType
from service.tls import Tls

_LARGEST_HEADER = 16 * 1024
_SECONDS = 5.0


@asynccontextmanager
async def answering_that_it_is_not_ready(listening: socket.socket, tls: Tls | None = None) -> AsyncIterator[None]:
    """Answer 503 to everything but `GET /livez` while the block lasts. The socket goes on listening after it."""
    context = None if tls is None else tls.context()
    # Closing a server closes its socket: it gets one of its own.
    server = await asyncio.start_server(
        _answer, sock=listening.dup(), limit=_LARGEST_HEADER, ssl=context, backlog=BACKLOG
    )
    try:
        yield
    finally:
        server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_SECONDS):
                header = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(header))
                await writer.drain()
    finally:
        writer.close()


def _response(header: bytes) -> bytes:
    lives = header.split(b" ", 2)[:2] in ([b"GET", b"/livez"], [b"HEAD", b"/livez"])
    status = HTTPStatus.OK if lives else HTTPStatus.SERVICE_UNAVAILABLE
    content: dict[str, object] = {"status": "live"}
    if not lives:
        content = {
            "type": ProblemType.NOT_READY,
            "title": status.phrase,
            "status": int(status),
            "detail": "the service is starting: its bundle and its ledger are not verified yet",
        }
    body = json.dumps(content).encode()
    lines = [
        f"HTTP/1.1 {int(status)} {status.phrase}",
        f"Content-Type: {'application/json' if lives else MEDIA_TYPE}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if not lives:
        lines += ["Retry-After: 1", "dpserve-problem: not-ready"]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if header.startswith(b"HEAD ") else body)
