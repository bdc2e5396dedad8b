"""Accepting connections for HTTPS, where who has not shaken hands yet counts and has a deadline, and among workers.

asyncio's own server tells a protocol of a connection when the handshake is done. A limit on open connections that
counts there counts nobody who only opened one, and each of those takes a file descriptor that the ledger may need.
And it accepts all who wait, also where another worker has nobody: here who has more leaves them for a moment to those
who have fewer, and so a worker that is full closes nothing that another could take.
"""

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from service.http import impatience
from service.open_connections import Place

_AT_A_TIME = 64
_PAUSE = 1.0
"""Seconds without accepting, after the operating system refused to."""

_LEFT_SECONDS, _MOST_TIMES_LEFT = 0.001, 10
"""For how long who waits is left to another worker, and how often in a row, until that one is taken to be away."""

_AWAY_SECONDS = 0.1
"""For how long nobody is left to it then."""

_log = logging.getLogger("dpserve.connections")


class Accepting:
    """Accepts at a listening socket from now on, until closed.

    context: what HTTPS is spoken with; plain HTTP without it. make: of a connection's protocol. connections: those
    whose handshake is done. most: open at a time, of both kinds; more are closed at once. place: among
    workers, if it is one.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext | None,
        make: Callable[[], asyncio.Protocol],
        connections: "_Noticed",
        most: int,
        place: Place | None = None,
    ) -> None:
        """Begin."""
        self._listening = listening
        self._context = context
        self._make = make
        self._connections = connections
        self._most = most
        self._place = place
        self._times_left = 0
        self._fewest = math.inf
        self._leaves_nobody_until = 0.0
        self._shaking: dict[asyncio.Task[None], asyncio.Protocol] = {}
        connections.notice = self._say_how_many
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._say_how_many()
        self._watch()

    def close(self) -> None:
        """Accept nobody more, and leave who has not shaken hands."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)
        if self._place is not None:
            self._place.closes()
            self._place = None
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
            if self._leaves_who_waits():
                return
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                self._again = self._loop.call_later(_PAUSE, self._watch)
                return
            if self._open >= self._most:
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            protocol = self._make()
            task = self._loop.create_task(self._shake_hands(connection, protocol))
            self._shaking[task] = protocol
            task.add_done_callback(self._shaken)
            self._say_how_many()

    @property
    def _open(self) -> int:
        return len(self._connections) + sum(each not in self._connections for each in self._shaking.values())

    def _shaken(self, task: asyncio.Task[None]) -> None:
        del self._shaking[task]
        self._say_how_many()

    def _say_how_many(self) -> None:
        if self._place is not None:
            self._place.has(self._open)

    def _leaves_who_waits(self) -> bool:
        """Look away for a moment if another worker has fewer connections, unless it took nobody of late."""
        fewest = math.inf if self._place is None else self._place.fewest_elsewhere()
        if fewest >= self._open:
            return False
        if fewest != self._fewest:
            self._fewest, self._times_left = fewest, 0
        now = self._loop.time()
        if self._times_left >= _MOST_TIMES_LEFT:
            self._times_left = 0
            self._leaves_nobody_until = now + _AWAY_SECONDS
        if now < self._leaves_nobody_until:
            return False
        self._times_left += 1
        self._loop.remove_reader(self._listening)
        self._again = self._loop.call_later(_LEFT_SECONDS, self._watch)
        return True

    async def _shake_hands(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        connection.setblocking(False)
        seconds = impatience.SECONDS_FOR_HEADERS if self._context is not None else None
        with suppress(OSError):  # which has closed it
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=seconds
            )


class _Noticed(set[Any]):
    """The connections that protocols enter and leave by themselves; `notice` is called when they do."""

    def __init__(self) -> None:
        super().__init__()
        self.notice: Callable[[], object] = bool

    def add(self, element: object) -> None:
        super().add(element)
        self.notice()

    def discard(self, element: object) -> None:
        super().discard(element)
        self.notice()


class LimitedServer(uvicorn.Server):
    """A server of an `ImpatientProtocol`, whose limit counts over TLS too from when a connection is accepted."""

    def __init__(self, config: uvicorn.Config, place: Place | None = None) -> None:
        """place: among the workers that accept from the same sockets, if it is one of them."""
        super().__init__(config)
        self._place = place

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept at `sockets`."""
        context = self.config.ssl
        if sockets is None or (context is None and self._place is None):
            await super().startup(sockets=sockets)
            return
        await super().startup(sockets=[])
        most: int = self.config.http_protocol_class.most_connections  # type: ignore[attr-defined]
        self.server_state.connections = connections = _Noticed()
        accepting = [Accepting(each, context, self._protocol, connections, most, self._place) for each in sockets]
        self.servers = accepting  # type: ignore[assignment]

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made
