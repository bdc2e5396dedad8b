"""Several worker processes of one service on one machine: forked, replaced when they die, and drained together.

The supervisor holds the listening sockets and does nothing else: it has no event loop, no thread and no connection, so
that forking it at any time is safe. What it has loaded before is shared by all workers until one writes to it. Each
worker is a service of its own, as a replica on another machine is: with its own connections to the ledger, its own
journal, and noise keyed anew for every draw (`mechanisms.randomness`). The first worker alone has what there must be
one of: the owner's port and the service's own audit.

All workers accept from one socket. One per worker (SO_REUSEPORT) spreads connections by a hash, whoever is busy: 32 at
once fell as unevenly as 21 to 11, and on one socket 18 to 14 nearly always, 27 to 5 once in eight. It leaves the
connections of a worker that died or hangs waiting, and lets two services take one port unnoticed.

uvicorn's own supervisor was not taken: it starts every worker from nothing, replaces without end or pause, and lets the
first answer before the last is ready.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess

from service import memory
from service.errors import CannotServe

MOST_DEATHS, WITHIN_SECONDS = 5, 60.0
"""So many workers may die within so long; with one more, the service ends."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
"""Seconds until a worker that died is replaced; doubled with every other death of late."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_READY, _GO = b"r", b"g"

_log = logging.getLogger("dpserve")


@dataclass(frozen=True)
class Worker:
    """One process that answers. line: to its supervisor; None for a service that is one process.

    again: whether it takes the place of one that died.
    """

    number: int = 0
    again: bool = False
    line: socket.socket | None = None

    @property
    def first(self) -> bool:
        """Whether it has what there must be one of."""
        return self.number == 0

    @property
    def opens(self) -> bool:
        """Whether it is this process that starts the service, before any other."""
        return self.first and not self.again

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Give what says that this worker is ready and waits until all are, for as long as the block lasts.

        A worker whose supervisor is gone drains and ends, as if it had been told to.
        """
        if self.line is None:
            yield _alone
            return
        reader, writer = await asyncio.open_connection(sock=self.line)
        go = asyncio.Event()
        listening = asyncio.create_task(_listen(reader, go))

        async def all_ready() -> None:
            writer.write(_READY)
            await go.wait()

        try:
            yield all_ready
        finally:
            listening.cancel()
            writer.close()


async def _alone() -> None:
    """Wait for nobody."""


async def _listen(reader: asyncio.StreamReader, go: asyncio.Event) -> None:
    with suppress(OSError):
        if await reader.read(1):
            go.set()
            await reader.read(1)
    _log.warning("the supervisor of this worker is gone: it ends")
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass(eq=False)
class _Running:
    process: ForkProcess
    line: socket.socket
    number: int
    ready: bool = False
    heard: bool = True

    def hear(self) -> bytes:
        """Return what the worker said; nothing if it closed its line, which it does not open again."""
        said = b""
        with suppress(OSError):
            said = self.line.recv(4096)
        self.heard = bool(said)
        return said

    def go(self) -> None:
        """Let the worker answer. One that is dead by now is seen to when its process has ended."""
        with suppress(OSError):
            self.line.send(_GO)


class Supervisor:
    """Keeps workers running until told to stop. Make one before any thread, event loop or connection."""

    def __init__(
        self,
        count: int,
        work: Callable[[Worker], None],
        shared: Sequence[socket.socket],
        for_the_first: Sequence[socket.socket] = (),
    ) -> None:
        """work: what a worker does from its start to its end; what it raises ends that worker.

        shared: the sockets that all accept from. for_the_first: those of the first worker alone. Raises CannotServe
        where processes are not forked safely.
        """
        if sys.platform != "linux":
            raise CannotServe("--workers needs Linux: here a process must not fork; start several services instead")
        self._count = count
        self._work = work
        self._shared = shared
        self._for_the_first = for_the_first
        self._workers: dict[int, _Running] = {}
        self._due: dict[int, float] = {}
        self._deaths: deque[float] = deque()
        self._failed_starts: dict[int, int] = {}
        self._answering = self._stopping = False
        self._status = 0
        self._woken, self._waking = socket.socketpair()
        self._told: list[int] = []

    def run(self) -> int:
        """Run the workers; return the status to exit with: 0 if they were told to stop and did, else 1."""
        memory.settle()  # what is there is shared, and a collection would write to every page of it
        with self._hearing_signals():
            try:
                self._start(0)
                while self._workers or self._due:
                    self._look()
            finally:
                self._stop(signal.SIGTERM)
                for running in self._workers.values():
                    running.process.join()
        return self._status

    def _look(self) -> None:
        """Wait until something happens, and do what it asks for."""
        now = time.monotonic()
        until = max(0.0, min(self._due.values()) - now) if self._due else None
        unready = [running.line for running in self._workers.values() if running.heard and not running.ready]
        sentinels = [running.process.sentinel for running in self._workers.values()]
        happened = wait([self._woken, *unready, *sentinels], until)
        if self._woken in happened:
            self._obey()
        for running in list(self._workers.values()):
            if running.line in happened and _READY in running.hear():
                running.ready = True
                self._failed_starts.pop(running.number, None)
                if self._answering:
                    running.go()
            if running.process.sentinel in happened:
                self._bury(running)
        self._start_what_is_due()

    def _start_what_is_due(self) -> None:
        for number in [number for number, due in self._due.items() if due <= time.monotonic()]:
            del self._due[number]
            self._start(number)
        if self._answering or self._stopping or not all(running.ready for running in self._workers.values()):
            return
        if len(self._workers) < self._count:
            # The first found that all is well, and says alone what is not.
            for number in range(1, self._count):
                self._start(number)
        else:
            self._answering = True
            for running in self._workers.values():
                running.go()

    def _start(self, number: int) -> None:
        mine, its = socket.socketpair()
        worker = Worker(number, self._answering, its)
        others = [running.line for running in self._workers.values()]
        process = multiprocessing.get_context("fork").Process(
            target=self._be_worker, args=(worker, [*others, mine]), name=f"dpserve-worker-{number}"
        )
        # A signal that came between the fork and the worker's own handlers would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        its.close()
        self._workers[number] = _Running(process, mine, number)

    def _be_worker(self, worker: Worker, others: Iterable[socket.socket]) -> None:
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.setpgid(0, 0)  # an interrupt from the terminal is the supervisor's, which passes it on once
        for held in (*others, self._woken, self._waking, *(() if worker.first else self._for_the_first)):
            held.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        self._work(worker)

    def _bury(self, running: _Running) -> None:
        """See to what comes after a worker's end."""
        running.process.join()
        running.line.close()
        del self._workers[running.number]
        code = running.process.exitcode or 0
        if self._stopping:
            self._status = self._status or int(code not in (0, *(-number for number in _SIGNALS)))
            return
        if not self._answering:
            self._status = 1  # and it said why
            self._stop(signal.SIGTERM)
            return
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        pause = self._pause_after(running)
        if pause is None:
            _log.error("worker %d ended by %s, the last of too many: the service ends", running.number, how)
            self._status = 1
            self._stop(signal.SIGTERM)
            return
        _log.error("worker %d ended by %s; another takes its place in %.1f s", running.number, how, pause)
        self._due[running.number] = time.monotonic() + pause

    def _pause_after(self, ended: _Running) -> float | None:
        """Return how long to wait before a worker is replaced; None if it was the last of too many.

        What never got ready is tried again without end while others answer: they need not end for that it cannot start,
        as where the ledger is away.
        """
        if ended.ready or not any(running.ready for running in self._workers.values()):
            now = time.monotonic()
            self._deaths.append(now)
            while self._deaths[0] < now - WITHIN_SECONDS:
                self._deaths.popleft()
            times = len(self._deaths)
            if times > MOST_DEATHS:
                return None
        else:
            times = self._failed_starts[ended.number] = self._failed_starts.get(ended.number, 0) + 1
        return float(min(_SHORTEST_PAUSE * 2 ** min(times - 1, 30), _LONGEST_PAUSE))

    def _obey(self) -> None:
        """Pass on the signals that came. A second one is a worker's to understand, as it is a lone service's."""
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._told:
            self._stop(self._told.pop(0))

    def _stop(self, number: int) -> None:
        self._stopping = True
        self._due.clear()
        for listening in (*self._shared, *self._for_the_first):
            listening.close()  # or whoever comes now would wait for an answer that nobody gives
        for running in self._workers.values():
            if running.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(running.process.pid, number)

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        self._woken.setblocking(False)
        self._waking.setblocking(False)
        former_fd = signal.set_wakeup_fd(self._waking.fileno())
        former = {number: signal.signal(number, lambda told, _: self._told.append(told)) for number in _SIGNALS}
        try:
            yield
        finally:
            signal.set_wakeup_fd(former_fd)
            for number, handler in former.items():
                signal.signal(number, handler)
            self._woken.close()
            self._waking.close()
