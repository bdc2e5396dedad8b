"""Connections that ask for nothing are closed, so that nobody can use them up by only opening them."""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_FOR_HEADERS = 15.0
"""How long a new connection may take until the header of its first request is complete."""


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 with a limit on open connections and a deadline for a connection's first header."""

    most_connections: ClassVar[int] = 512

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or close it at once if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.close()
            return
        self._deadline = self.loop.call_later(SECONDS_FOR_HEADERS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Take the bytes in; a complete header lifts the deadline."""
        super().data_received(data)
        if self._deadline is not None and self.cycle is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)


def impatient_protocol(most_connections: int) -> type[ImpatientProtocol]:
    """Return the protocol for at most so many open connections: one more is closed as soon as it is accepted."""
    return type("ImpatientProtocol", (ImpatientProtocol,), {"most_connections": most_connections})
