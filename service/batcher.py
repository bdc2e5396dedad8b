"""One batcher: what arrives while a batch is under way goes into the next one.

A lone request goes at once. `max_batch_time` holds a batch back for longer, so that more may join it. Promises: a batch
is processed after the one before it; clients take turns, and each one's requests go in order of arrival; a request that
was cancelled, or whose deadline passed, before its batch began is no part of it; the queue is bounded, a quarter of it
is for one client at most, and a request that would have to wait too long is refused at once.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Self, TypeVar
from weakref import WeakMethod

from msgspec import Struct

from dpserve.accounting.ledger import LedgerError
from dpserve.service.errors import DeadlinePassed, Overloaded

Result = TypeVar("Result")

USUAL_BATCH_SIZE = 1000
"""Rows of a batch, unless told otherwise: enough to share costs, not enough to keep others waiting."""

DEEP_BATCH_SIZE = 64
"""Rows of a batch where a deep network computes the features: what it takes at a time. A row may be a megabyte."""

_BATCH_BYTES = 64 * 2**20
"""The most bytes of rows and features in a batch; a single request may have more."""

_WEIGHT_OF_NEWEST = 0.2
"""Weight of the newest batch in the moving average of a batch's duration."""


@dataclass(frozen=True)
class BatchLimits:
    """Limits on the size of a batch and on the requests that wait."""

    max_batch_size: int = USUAL_BATCH_SIZE
    """Rows; a single request may have more."""
    max_batch_time: float = 0.0
    """Seconds that a batch waits for more requests. 0: it takes what waits when the batch before it ends."""
    max_waiting_rows: int = 100_000
    max_waiting_seconds: float = 2.0
    """A request is refused when the batches before it are expected to take longer."""

    @classmethod
    def of(cls, numbers: int, size: int | None, seconds: float, *, most: int = USUAL_BATCH_SIZE) -> Self:
        """Return the limits of batches of at most `size` rows that wait for `seconds`.

        numbers: of a row, its features among them. size: None for as many rows as fit, `most` at most.
        """
        return cls(size or max(1, min(most, _BATCH_BYTES // (8 * numbers))), seconds)


class Waiting(Struct, eq=False, kw_only=True):
    """A request of `rows` rows that is to go into a batch, before its `deadline` by the batcher's clock.

    Derive from it what a batch needs to know. client: who takes turns with others. result: a future, made by `submit`.
    begun: whether a batch has it.
    """

    rows: int
    client: Hashable = None
    deadline: float = math.inf
    result: Any = None
    begun: bool = False


Request = TypeVar("Request", bound=Waiting)


class _Queue(deque[Request]):
    """The requests of a client that wait. rows: of all of them."""

    rows = 0


class Batcher(Generic[Request, Result]):
    """Calls `process` with one batch of requests at a time, in the order in which they came, clients in turn.

    `process` returns one result for each request, in order. A result that is an exception is raised to its caller; an
    exception that `process` raises, to every caller of the batch. A LedgerError that it raises is raised to all who
    wait, too: the ledger would fail them alike, and nothing of theirs was sent.
    """

    def __init__(
        self,
        process: Callable[[Sequence[Request]], Awaitable[Sequence[Result | Exception]]],
        limits: BatchLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """process: a method; what it belongs to has the batcher. clock: seconds, as deadlines have them."""
        self._process = WeakMethod(process)  # no circle: a model that is removed is to be free at once
        self._limits = limits or BatchLimits()
        self._clock = clock
        self._waiting: OrderedDict[Hashable, _Queue[Request]] = OrderedDict()
        """The requests of each client; whose turn is next comes first."""
        self._waiting_rows = self._waiting_requests = 0
        self._running: asyncio.Task[None] | None = None
        self._seconds_per_batch = 0.0

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests that wait for a batch."""
        return self._waiting_rows

    def submit(self, request: Request) -> "asyncio.Future[Result]":
        """Put a request into the next batch and return its result to come.

        Cancel that to withdraw the request from the queue. Raises Overloaded, with nothing done.
        """
        own = self._waiting.get(request.client)
        if self._waiting_rows:
            self._check_room(request.rows, own or _Queue())
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()
        request.result = result
        if own is None:
            own = self._waiting[request.client] = _Queue()
        own.append(request)
        own.rows += request.rows
        self._waiting_rows += request.rows
        self._waiting_requests += 1
        if request.deadline < math.inf:
            timer = loop.call_later(max(0.0, request.deadline - self._clock()), _expire, request)
            result.add_done_callback(lambda _: timer.cancel())
        if self._running is None:
            # A task begins in the next turn of the loop, with whatever else was read in this one.
            self._running = loop.create_task(self._run())
        return result

    async def drain(self) -> None:
        """Wait until everything that was submitted has its result."""
        while self._running is not None:
            await asyncio.wait([self._running])

    def _check_room(self, rows: int, own: "_Queue[Request]") -> None:
        # As many turns as the client has requests, and in each about as many rows of every client.
        turns, mean = len(own) + 1, self._waiting_rows / self._waiting_requests
        ahead = min(self._waiting_rows, turns * len(self._waiting) * mean)
        expected = math.ceil(ahead / self._limits.max_batch_size) * self._seconds_per_batch
        most = self._limits.max_waiting_rows
        full = self._waiting_rows + rows > most or (own.rows > 0 and own.rows + rows > most // 4)
        if full or expected > self._limits.max_waiting_seconds:
            raise Overloaded(max(1, math.ceil(expected)))

    async def _run(self) -> None:
        try:
            while self._waiting:
                if self._limits.max_batch_time and self._waiting_rows < self._limits.max_batch_size:
                    await asyncio.sleep(self._limits.max_batch_time)
                if not (batch := self._next_batch()):
                    continue
                began = self._clock()
                try:
                    process = self._process()
                    assert process is not None  # the caller of a request that waits has it
                    results: Sequence[Result | Exception] = await process(batch)
                except Exception as error:  # noqa: BLE001 - it is passed on to every caller
                    results = [copy_of(error) for _ in batch]
                    if isinstance(error, LedgerError):
                        self._fail_waiting(error)
                for waiting, result in zip(batch, results, strict=True):
                    # A refusal's traceback has the frames that have the request: a circle, if it had its result still.
                    asked, waiting.result = waiting.result, None
                    if asked.done():
                        continue
                    if isinstance(result, Exception):
                        asked.set_exception(result)
                    else:
                        asked.set_result(result)
                # A moving average, for `_check_room`: a service that slows down refuses earlier.
                self._seconds_per_batch += _WEIGHT_OF_NEWEST * (self._clock() - began - self._seconds_per_batch)
        finally:
            self._running = None

    def _next_batch(self) -> list[Request]:
        batch: list[Request] = []
        room = self._limits.max_batch_size
        # A request larger than a batch goes alone, and none overtakes whose turn it is: a stream of small ones would
        # keep it waiting.
        while self._waiting:
            client = next(iter(self._waiting))
            own = self._waiting[client]
            if batch and own[0].rows > room:
                break
            first = own.popleft()
            own.rows -= first.rows
            if own:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            self._waiting_rows -= first.rows
            self._waiting_requests -= 1
            # Whoever was cancelled, or ran out of time in the queue, is not charged.
            if not first.result.done():
                first.begun = True
                room -= first.rows
                batch.append(first)
        return batch

    def _fail_waiting(self, error: LedgerError) -> None:
        for waiting in chain.from_iterable(self._waiting.values()):
            if not waiting.result.done():
                waiting.result.set_exception(copy_of(error))
        self._waiting.clear()
        self._waiting_rows = self._waiting_requests = 0


def _expire(waiting: Waiting) -> None:
    if not (waiting.begun or waiting.result.done()):
        waiting.result.set_exception(DeadlinePassed())


def copy_of(error: Exception) -> Exception:
    """Return an exception like this one: to raise it adds to its traceback, and several callers do so."""
    copied = error.__class__.__new__(error.__class__, *error.args)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error
    return copied
