"""Several worker processes of one service on one machine: forked, replaced when they die, and drained together.

The supervisor holds the listening sockets, hears from every worker once a second, and does nothing else: it has no
event loop, no thread and no connection, so that forking it at any time is safe. What it has loaded before is shared by
all workers until one writes to it. Each worker is a service of its own, as a replica on another machine is: with its
own connections to the ledger, its own journal, and noise keyed anew for every draw (`mechanisms.randomness`). The first
worker alone has what there must be one of: the owner's port and the service's own audit.

All workers accept from one socket, each leaving who waits to those that have fewer by a few, unless they are away
(`service.open_connections`): 32 at once fell 18 to 14 or closer in 57 of 60 tries. One socket per worker (SO_REUSEPORT)
spreads connections by a hash, whoever is busy, 32 at once as unevenly as 21 to 11. It leaves the connections of a
worker that died or hangs waiting, and lets two services take one port unnoticed.

uvicorn's own supervisor was not taken: it starts every worker from nothing, replaces without end or pause, and lets the
first answer before the last is ready.
"""

import asyncio
import ctypes
import logging
import math
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess

from service import memory
from service.errors import CannotServe
from service.open_connections import OpenConnections
from service.stopping import STOPPING_SIGNALS

MOST_DEATHS, WITHIN_SECONDS = 5, 60.0
"""So often may the worker in one place die within so long; with once more, the service ends."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
"""Seconds until a worker that died is replaced; doubled with every other death of late in its place."""

BEAT_SECONDS, SILENCE_SECONDS = 1.0, 30.0
"""How often the event loop of a worker says that it turns, and after how long without a word the worker is killed."""

LONGEST_START_SECONDS = 600.0
"""How long a replacement may take until it is ready; then it is killed too."""

MARGIN_SECONDS = 10.0
"""How long after the time to drain a worker that still runs is killed, and after a second interrupt."""

_SAID_WHY = 1  # the status of a process that has said what it met
_READY, _GO, _BEAT = b"r", b"g", b"b"
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>

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
        tasks = asyncio.create_task(_listen(reader, go)), asyncio.create_task(_beat(writer))

        async def all_ready() -> None:
            writer.write(_READY)
            await go.wait()

        try:
            yield all_ready
        finally:
            for task in tasks:
                task.cancel()
            writer.close()


async def _alone() -> None:
    """Wait for nobody."""


async def _beat(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(_BEAT)
        await asyncio.sleep(BEAT_SECONDS)


async def _listen(reader: asyncio.StreamReader, go: asyncio.Event) -> None:
    with suppress(OSError):
        if await reader.read(1):
            go.set()
            await reader.read(1)
    _log.warning("the supervisor of this worker is gone: it ends")
    os.kill(os.getpid(), signal.SIGTERM)


def _end_without_supervisor(line: socket.socket, seconds: float) -> None:
    """Kill this process so long after its supervisor went, if it could not end by itself.

    A process that was stopped continues when the supervisor goes, and a thread ends what hangs in another.
    """
    with suppress(OSError, AttributeError):  # which only Linux has
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGCONT)

    def watch() -> None:
        hung_up = select.poll()
        hung_up.register(line, 0)
        hung_up.poll()
        time.sleep(seconds)
        _log.error("this worker has not ended %g s after its supervisor: it is killed", seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="without-supervisor", daemon=True).start()


@dataclass(eq=False)
class _Running:
    process: ForkProcess
    line: socket.socket
    number: int
    ready: bool = False
    heard: bool = True
    killed: bool = False
    started: float = field(default_factory=time.monotonic)
    last_word: float = field(default_factory=time.monotonic)

    def hear(self) -> bytes:
        """Return what the worker said; nothing if it closed its line, which it does not open again."""
        said = b""
        with suppress(OSError):
            said = self.line.recv(4096)
        self.heard = bool(said)
        if said:
            self.last_word = time.monotonic()
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
        *,
        drain_seconds: float = 20.0,
        open_connections: OpenConnections | None = None,
    ) -> None:
        """work: what a worker does from its start to its end; what it raises ends that worker.

        shared: the sockets that all accept from. for_the_first: those of the first worker alone. drain_seconds: how
        long a worker may take to end, but for a margin.
        open_connections: where those of a worker that died are struck out.
        Raises CannotServe where processes are not forked safely.
        """
        if sys.platform != "linux":
            raise CannotServe("--workers needs Linux: here a process must not fork; start several services instead")
        self._count = count
        self._open_connections = open_connections
        self._work = work
        self._shared = shared
        self._for_the_first = for_the_first
        self._end_seconds = drain_seconds + MARGIN_SECONDS
        self._end_by = math.inf
        self._looked = math.inf
        self._workers: dict[int, _Running] = {}
        self._due: dict[int, float] = {}
        self._deaths: defaultdict[int, deque[float]] = defaultdict(deque)
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
                    running.process.join(max(0.0, self._end_by - time.monotonic()))
                    running.process.kill()
                    running.process.join()
        return self._status

    def _look(self) -> None:
        """Wait until something happens, and do what it asks for."""
        until = min([BEAT_SECONDS, *(due - time.monotonic() for due in self._due.values())])
        lines = [running.line for running in self._workers.values() if running.heard]
        sentinels = [running.process.sentinel for running in self._workers.values()]
        happened = wait([self._woken, *lines, *sentinels], max(0.0, until))
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
        self._kill_what_hangs()
        self._start_what_is_due()

    def _kill_what_hangs(self) -> None:
        now = time.monotonic()
        if now - self._looked > SILENCE_SECONDS / 2:
            # This process stood still itself, as all of a container does that is paused: silence says nothing.
            for running in self._workers.values():
                running.last_word = now
        self._looked = now
        for running in self._workers.values():
            why = self._why_it_hangs(running, now)
            if why is not None and not running.killed:
                running.killed = True
                _log.error("worker %d %s: it is killed", running.number, why)
                running.process.kill()

    def _why_it_hangs(self, running: _Running, now: float) -> str | None:
        if self._stopping:
            return "has not ended in time" if now > self._end_by else None
        if running.ready:
            return f"said nothing for {SILENCE_SECONDS:g} s" if now - running.last_word > SILENCE_SECONDS else None
        late = self._answering and now - running.started > LONGEST_START_SECONDS
        return f"was not ready in {LONGEST_START_SECONDS:g} s" if late else None

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
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)
        its.close()
        self._workers[number] = _Running(process, mine, number)

    def _be_worker(self, worker: Worker, others: Iterable[socket.socket]) -> None:
        signal.set_wakeup_fd(-1)
        for number in STOPPING_SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # until it has handlers of its own: what did not start just ends
        os.setpgid(0, 0)  # an interrupt from the terminal is the supervisor's, which passes it on once
        for held in (*others, self._woken, self._waking, *(() if worker.first else self._for_the_first)):
            held.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)
        assert worker.line is not None
        _end_without_supervisor(worker.line.dup(), self._end_seconds)
        self._work(worker)

    def _bury(self, running: _Running) -> None:
        """See to what comes after a worker's end."""
        running.process.join()
        running.line.close()
        if self._open_connections is not None:
            self._open_connections.of(running.number).closes()  # or others would leave connections to it
        del self._workers[running.number]
        code = running.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        if self._stopping:
            if code not in (0, *(-number for number in STOPPING_SIGNALS)):
                self._status = 1
                _log.error("worker %d ended by %s after it was told to end", running.number, how)
            return
        if not self._answering:
            self._status = 1
            if code != _SAID_WHY:
                _log.error("worker %d ended by %s before it answered: the service ends", running.number, how)
            self._stop(signal.SIGTERM)
            return
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
            deaths = self._deaths[ended.number]
            deaths.append(now)
            while deaths[0] < now - WITHIN_SECONDS:
                deaths.popleft()
            times = len(deaths)
            if times > MOST_DEATHS:
                return None
        else:
            times = self._failed_starts[ended.number] = self._failed_starts.get(ended.number, 0) + 1
        return float(min(_SHORTEST_PAUSE * 2 ** min(times - 1, 30), _LONGEST_PAUSE))

    def _obey(self) -> None:
        """Pass on the signals that came. A second one is a worker's to understand, as it is a lone service's.

        A second interrupt leaves the worker less time for that.
        """
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._told:
            told = self._told.pop(0)
            if self._stopping and told == signal.SIGINT:
                self._end_by = min(self._end_by, time.monotonic() + MARGIN_SECONDS)
            self._stop(told)

    def _stop(self, number: int) -> None:
        if not self._stopping:
            self._stopping = True
            self._end_by = time.monotonic() + self._end_seconds
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
        former = {number: signal.signal(number, lambda told, _: self._told.append(told)) for number in STOPPING_SIGNALS}
        try:
            yield
        finally:
            signal.set_wakeup_fd(former_fd)
            for number, handler in former.items():
                signal.signal(number, handler)
            self._woken.close()
            self._waking.close()
