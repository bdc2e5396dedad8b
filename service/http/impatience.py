"""Connections that ask for nothing are closed, so that nobody can use them up by only opening them."""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SECONDS_FOR_HEADERS = 15.0
"""How long a header may take: the first one of a connection from when it opened, every other from its first byte."""

LARGEST_HEADER = 64 * 1024
"""Bytes of a request's header at most, to within what arrives at a time."""


class ImpatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a limit on open connections, a deadline for every header, and short headers."""

    most_connections: ClassVar[int] = 512

    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _in_header = True

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
        """Lift the deadline."""
        super().on_headers_complete()
        self.header_is_complete()

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
        """Forget the connection."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)
