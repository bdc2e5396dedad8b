"""HTTP as uvicorn and httptools speak it, with bounds that they lack.

Promises: a request's headers are those of its head. A field behind a chunked body (a trailer, RFC 9112, section 7.1.2)
is never one of them, whether it comes in the same packet or later. Nothing that a client sends without end is gathered:
httptools joins the parts of a field as they come, in time that grows with the square of its length. A connection has
few requests that are not answered: uvicorn queues all that one read brings, and a queued one takes a hundred times its
bytes. A head comes within SECONDS_FOR_HEAD, or its connection is closed: uvicorn waits for ever for the rest of one.
The head of an answer waits for the first part of its body, so that both take one call of the system and one
packet: uvicorn writes them one after the other, and uvloop sends each at once.

The class is derived from uvicorn's, for uvicorn has no option that bounds a head which httptools reads:
`h11_max_incomplete_event_size` is for h11 alone, and what it answers beyond `limit_concurrency` says neither what is
wrong nor when to ask again. What the class relies on in uvicorn (`app`, `connections`, `cycle`, `headers`,
`limit_concurrency`, `pipeline`, `transport`, `url`, `send_400_response` and the callbacks) is no interface:
tests/service/test_heads.py holds it, and pyproject.toml keeps uvicorn to versions that it was tried with.
"""

import asyncio
from collections import deque
from http import HTTPStatus
from itertools import chain
from typing import Any, cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dpserve.service.http.middleware import response_to
from dpserve.service.http.problems import Problem, ProblemType

LONGEST_HEAD = 64 * 1024
"""Bytes of a request's line and header fields, trailers included."""
_PIECE = 16 * 1024
"""Bytes that are read at a time where a head may be among them: one in one packet is not much longer than one in
several before it is refused."""
_AROUND_FIELD = len(": \r\n")
SECONDS_FOR_HEAD = 30.0
"""Seconds for which a connection may have nothing to answer and a head that is not complete."""
FULL = "there are as many connections as this worker may have; nothing was charged: ask again later"
MOST_UNANSWERED = 16
"""Requests of one connection that are begun and not answered."""


class _TooManyRequests(Exception):
    """Ends the parsing of a connection that was closed for its requests."""


class _HeadTooLong(Exception):
    """Raised in a callback of httptools, which passes it on as an error of its own that uvicorn answers."""


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request of a connection beyond the limit, and close it."""
    response = response_to(scope["path"], Problem(ProblemType.OVERLOADED, FULL))
    response.headers["Connection"] = "close"
    await response(scope, receive, send)


class _JoinedWrites:
    """A connection's transport, which sends the head of an answer with the first part of its body.

    Only a head that says how long its body is waits, for then the body is ready. All else goes on at once, among it
    what tells a client to continue, and the head of a stream. What looks like such a head in the middle of a body waits
    as well, until the next part or the end.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.head = b""
        """The head that waits."""
        self.abort, self.is_closing, self.set_protocol = transport.abort, transport.is_closing, transport.set_protocol
        self.get_extra_info = transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def write(self, data: bytes) -> None:
        """Send what waits, and this; or have a head wait. A connection that is closing takes nothing more.

        `writelines` of asyncio's own loop has a lost connection waited for again, in Python 3.12 and early 3.13
        (gh-136234), and the next connection with its number is then never read.
        """
        if self._transport.is_closing():
            return
        if self.head:
            head, self.head = self.head, b""
            if data:
                self._transport.writelines((head, data))
            else:
                self._transport.write(head)
        elif data.startswith(b"HTTP/1.1 ") and b"\r\ncontent-length: " in data and data.endswith(b"\r\n\r\n"):
            self.head = data
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what waits, and close."""
        self.write(b"")
        self._transport.close()


class BoundedHttp(HttpToolsProtocol):
    """A connection. uvicorn makes it (`http=` of its settings) and calls it."""

    _ungathered = 0
    """Bytes since the last of which something came of."""
    _in_body = False
    """Whether the last that came was a part of a body, so that more of it is likely to follow."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """Make one as uvicorn makes it."""
        super().__init__(*given, **named)
        self._most_connections, self.limit_concurrency = self.limit_concurrency, None
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._late: asyncio.TimerHandle | None = None
        """Closes a connection whose head does not come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to read. Answers are written through `_JoinedWrites`."""
        self._writes = _JoinedWrites(transport)
        super().connection_made(cast(asyncio.Transport, self._writes))
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Read on, a piece after the other. Refuse what goes on for too long without becoming a head or a body."""
        start = 0
        while start < len(data):
            piece = data[start:] if self._in_body else data[start : start + _PIECE]
            start += len(piece)
            self._ungathered += len(piece)
            super().data_received(piece)
            if self.transport.is_closing():
                return
            if self._ungathered > LONGEST_HEAD:
                self.send_400_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE.phrase)
                return
        if self._late is None and not self._unanswered:
            self._expect_head()

    def _expect_head(self) -> None:
        """Close the connection unless a head is complete in time."""
        self._late = self.loop.call_later(SECONDS_FOR_HEAD, self._end_late)

    def _end_late(self) -> None:
        self._late = None
        if not self._unanswered:  # or the last answer begins to wait for the next request
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Answer what this head asks. Close a connection with too many requests: their answers are not kept."""
        if len(self._unanswered) >= MOST_UNANSWERED:
            self.pipeline.clear()
            self.transport.abort()
            raise _TooManyRequests
        fields = sum(map(len, chain.from_iterable(self.headers))) + len(self.headers) * _AROUND_FIELD
        if len(self.url) + _AROUND_FIELD + fields > LONGEST_HEAD:
            raise _HeadTooLong
        self._ungathered, self._in_body = 0, False
        if self._late is not None:
            self._late.cancel()
            self._late = None
        before, app = self.cycle, self.app
        if self._most_connections is not None and len(self.connections) > self._most_connections:
            self.app = _refuse
        super().on_headers_complete()
        self.app = app
        self.headers = []  # where trailers go, which nobody reads
        if self.cycle is not before:
            self._unanswered.append(self.cycle)

    def on_response_complete(self) -> None:
        """Go on to the next request that waits."""
        if self._writes.head:  # of an answer without a body
            self._writes.write(b"")
        if self._unanswered:  # none of a connection that is lost
            self._unanswered.popleft()
        self._in_body = False
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request. uvicorn tells the last, and the one being answered then fails at writing."""
        if self._late is not None:
            self._late.cancel()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered.clear()
        self.pipeline.clear()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, if the connection is open."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._ungathered, self._in_body = 0, True
        super().on_body(body)
