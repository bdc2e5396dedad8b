"""Connections that ask for nothing are closed, so that nobody can use them up by only opening them."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.http.parsing import RequestParser
from service.http.problems import Problem, ProblemType

SECONDS_FOR_HEADERS = 15.0
"""How long a header may take: the first one of a connection from when it opened, every other from its first byte."""

LARGEST_HEADER = 64 * 1024
"""Bytes of a request's header at most, to within what arrives at a time."""


SomeProtocol = TypeVar("SomeProtocol", bound="ImpatientProtocol")


class ImpatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a limit on open connections, a deadline for every header, short headers, and no other protocol."""

    most_connections: ClassVar[int] = 512

    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _in_header = True
    _refused_for = "this is not HTTP/1.1"
    _before: Sequence[RequestResponseCycle] = ()
    """What was not answered when another request came behind it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As uvicorn's, with a parser of ours."""
        super().__init__(*args, **kwargs)
        self.parser = RequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or close it at once if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.close()
            return
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Take the bytes in; a header that grows without end closes the connection, and so does one without end."""
        unfinished = self._in_header
        super().data_received(data)
        # Empty lines before a request begin no header, and end the time that an idle connection has all the same.
        if self._deadline is None and (self._in_header or not self._is_answering()):
            self._set_deadline()
        if unfinished and self._in_header:
            self._header_bytes += len(data)
            if self._header_bytes > LARGEST_HEADER:
                self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to count a header."""
        super().on_message_begin()
        self._in_header, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Lift the deadline; raise for what is not answered."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._is_no_request("this is no proxy")
            return  # the parser reads it again
        if self.parser.get_http_version() == "1.1" and [name for name, _ in self.headers].count(b"host") != 1:
            self._is_no_request("a request has one Host header")  # RFC 9112, section 3.2
        before = self.cycle
        super().on_headers_complete()
        self.header_is_complete()
        if before is not None and not before.response_complete:
            self._before = [cycle for cycle in (*self._before, before) if not cycle.response_complete]

    def on_message_complete(self) -> None:
        """End the request, unless the parser reads it again."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def head_without_upgrade(self) -> bytes:
        """Return the newest request's line and header fields, without its wish for another protocol."""
        version = self.parser.get_http_version().encode()
        fields = [name + b": " + value + b"\r\n" for name, value in self.headers if name != b"upgrade"]
        return b"".join([self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n", *fields, b"\r\n"])

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request with a problem, and close."""
        del msg
        problem = Problem(HTTPStatus.BAD_REQUEST, ProblemType.INVALID_REQUEST, self._refused_for).response()
        fields = [*self.server_state.default_headers, *problem.raw_headers, (b"connection", b"close")]
        lines = [name + b": " + value + b"\r\n" for name, value in fields]
        self.transport.write(b"".join([STATUS_LINE[problem.status_code], *lines, b"\r\n", bytes(problem.body)]))
        self.transport.close()

    def _is_no_request(self, why: str) -> None:
        self._refused_for = why
        raise httptools.HttpParserError(why)

    def header_is_complete(self) -> None:
        """Count the header no further, and lift the connection's deadline."""
        self._in_header = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(SECONDS_FOR_HEADERS, self._close_or_wait)

    def _close_or_wait(self) -> None:
        """Close the connection, but not while a request that came before has no answer yet."""
        if self._is_answering():
            self._set_deadline()
        else:
            self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and tell all who answer on it, not the newest alone as uvicorn does."""
        if self._deadline is not None:
            self._deadline.cancel()
        for cycle in self._before:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)


def protocol_with(protocol: type[SomeProtocol], **settings: object) -> type[SomeProtocol]:
    """Return the protocol with its settings; uvicorn makes one of it for each connection, and passes none on."""
    return type(protocol.__name__, (protocol,), settings)
