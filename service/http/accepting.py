"""Accepting connections for HTTPS, where who has not shaken hands yet counts and has a deadline, and among workers.

asyncio's own server tells a protocol of a connection when the handshake is done. A limit on open connections that
counts there counts nobody who only opened one, and each of those takes a file descriptor that the ledger may need.
And it accepts all who wait, also where another worker has nobody: here who has more by a few leaves them for a moment
to those who have fewer, and so a worker that is full closes nothing that another could take that is not away.
"""

import asyncio
import logging
import math
import select
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import uvicorn

from service.http import impatience
from service.open_connections import Place

BACKLOG = 2048
"""How many may wait until they are accepted. Who listens at a socket anew sets it for all who have the socket."""

_AT_A_TIME = 64
_PAUSE = 1.0
"""Seconds without accepting, after the operating system refused to."""

_AHEAD = 4
"""How many more a worker with room may have than another, before it leaves who waits: a few are taken at a time."""

_LEFT_SECONDS, _MOST_TIMES_LEFT = 0.001, 10
"""For how long who waits is left to another worker, and how often in a row, until that one is taken to be away."""

_AWAY_SECONDS = 0.1
"""For how long nobody is left to it then."""

_log = logging.getLogger("dpserve.connections")


class Accepting:
    """Accepts at listening sockets from now on, until closed.

    context: what HTTPS is spoken with; plain HTTP without it. make: of a connection's protocol. connections: those
    whose handshake is done. most: open at a time, of both kinds and at all sockets; more are closed at once. backlog:
    how many may wait at each socket. place: among workers, if it is one.
    """

    def __init__(
        self,
        listening: Iterable[socket.socket],
        context: ssl.SSLContext | None,
        make: Callable[[], asyncio.Protocol],
        connections: "_Noticed",
        most: int,
        backlog: int = BACKLOG,
        place: Place | None = None,
    ) -> None:
        """Begin."""
        self._listening = tuple(listening)
        self._context = context
        self._make = make
        self._connections = connections
        self._most = most
        self._place = place
        self._times_left = 0
        self._fewest = math.inf
        self._leaves_nobody_until = 0.0
        self._shaking: dict[asyncio.Task[None], asyncio.Protocol] = {}
        self._not_entered: set[object] = set()
        connections.notice = self._entered_or_left
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        for each in self._listening:
            each.listen(backlog)
            each.setblocking(False)
        self._say_how_many()
        self._watch()

    def close(self) -> None:
        """Accept nobody more, and leave who has not shaken hands."""
        if self._again is not None:
            self._again.cancel()
        self._look_away()
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
        if not any(map(_somebody_waits, self._listening)):
            self._times_left = 0  # whoever was left has been taken
        for each in self._listening:
            self._loop.add_reader(each, self._accept, each)

    def _look_away(self, seconds: float | None = None) -> None:
        for each in self._listening:
            self._loop.remove_reader(each)
        if seconds is not None:
            self._again = self._loop.call_later(seconds, self._watch)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_A_TIME):
            if self._leaves_who_waits(listening):
                return
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("no connection can be accepted: %s", error.strerror)
                self._look_away(_PAUSE)
                return
            if self._open >= self._most or not _sends_at_once(connection):
                connection.close()
                continue
            protocol = self._make()
            task = self._loop.create_task(self._shake_hands(connection, protocol))
            self._shaking[task] = protocol
            self._not_entered.add(protocol)
            task.add_done_callback(self._shaken)
            self._say_how_many()

    @property
    def _open(self) -> int:
        return len(self._connections) + len(self._not_entered)

    def _shaken(self, task: asyncio.Task[None]) -> None:
        self._entered_or_left(self._shaking.pop(task))

    def _entered_or_left(self, protocol: object) -> None:
        self._not_entered.discard(protocol)
        self._say_how_many()

    def _say_how_many(self) -> None:
        if self._place is not None:
            self._place.has(self._open)

    def _leaves_who_waits(self, listening: socket.socket) -> bool:
        """Look away for a moment if another worker has fewer connections, unless it took nobody of late.

        A worker that is full leaves who waits to any that has fewer, one with room to those that have fewer by many.
        """
        if self._place is None:
            return False
        fewest, count = self._place.fewest_elsewhere(), self._open
        if fewest >= (count if count >= self._most else count - _AHEAD):
            return False
        if not _somebody_waits(listening):
            return True  # nobody is left, and nobody who could take them is away
        if fewest != self._fewest:
            self._fewest, self._times_left = fewest, 0
        now = self._loop.time()
        if self._times_left >= _MOST_TIMES_LEFT:
            self._times_left = 0
            self._leaves_nobody_until = now + _AWAY_SECONDS
        if now < self._leaves_nobody_until:
            return False
        self._times_left += 1
        self._look_away(_LEFT_SECONDS)
        return True

    async def _shake_hands(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        connection.setblocking(False)
        seconds = impatience.SECONDS_FOR_HEADERS if self._context is not None else None
        with suppress(OSError):  # which has closed it
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=seconds
            )


def _somebody_waits(listening: socket.socket) -> bool:
    looking = select.poll()
    looking.register(listening, select.POLLIN)
    return bool(looking.poll(0))


def _sends_at_once(connection: socket.socket) -> bool:
    """See to it that nothing written waits for an acknowledgement; say whether that could be."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        return False
    return True


class _Noticed(set[Any]):
    """The connections that protocols enter and leave by themselves; `notice` is called with each that does."""

    def __init__(self) -> None:
        super().__init__()
        self.notice: Callable[[object], object] = bool

    def add(self, element: object) -> None:
        super().add(element)
        self.notice(element)

    def discard(self, element: object) -> None:
        super().discard(element)
        self.notice(element)


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
        accepting = Accepting(
            sockets, context, self._protocol, connections, most, backlog=self.config.backlog, place=self._place
        )
        self.servers = [accepting]  # type: ignore[list-item]

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made
