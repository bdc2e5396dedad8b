"""Accepting connections for HTTPS: who has not shaken hands yet counts, and has a deadline.

asyncio's own server tells a protocol of a connection when the handshake is done. A limit on open connections that
counts there counts nobody who only opened one, and each of those takes a file descriptor that the ledger may need.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Collection
from contextlib import suppress

import uvicorn

from service.http import impatience

_AT_A_TIME = 64
_PAUSE = 1.0
"""Seconds without accepting, after the operating system refused to."""
_log = logging.getLogger("dpserve.connections")


class Accepting:
    """Accepts at a listening socket from now on, until closed.

    make: of a connection's protocol. connections: those whose handshake is done. most: open at a time, of both kinds;
    more are closed at once.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        connections: Collection[object],
        most: int,
    ) -> None:
        """Begin."""
        self._listening = listening
        self._context = context
        self._make = make
        self._connections = connections
        self._most = most
        self._shaking: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Accept nobody more, and leave who has not shaken hands."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)
        for task in self._shaking:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until those have been left."""
        await asyncio.gather(*self._shaking, return_exceptions=True)

    def _watch(self) -> None:
        self._again = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_A_TIME):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                self._again = self._loop.call_later(_PAUSE, self._watch)
                return
            if len(self._shaking) + len(self._connections) >= self._most:
                connection.close()
                continue
            task = self._loop.create_task(self._shake_hands(connection))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        seconds = impatience.SECONDS_FOR_HEADERS
        with suppress(OSError):  # which has closed it
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=self._context, ssl_handshake_timeout=seconds
            )


class LimitedServer(uvicorn.Server):
    """A server of an `ImpatientProtocol`, whose limit counts over TLS too from when a connection is accepted."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept at `sockets`."""
        context = self.config.ssl
        if context is None or sockets is None:
            await super().startup(sockets=sockets)
            return
        await super().startup(sockets=[])
        most: int = self.config.http_protocol_class.most_connections  # type: ignore[attr-defined]
        connections = self.server_state.connections
        self.servers = [Accepting(each, context, self._protocol, connections, most) for each in sockets]  # type: ignore[misc]

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made
