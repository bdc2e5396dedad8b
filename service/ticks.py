"""Ticks: concurrent requests gathered, charged in one call, finished together, answered each by itself.

A lone request goes at once. While a tick is being charged all who come gather for the next, which is charged while the
one before it is finished, once it is as large: what a tick costs is shared by its requests, and two of equal size share
it best. After a tick of several the next is held back for a moment, until those clients who were answered have come
again (`service.gathering`), and not if anybody else's request waits; but for that, nobody waits for more than the end
of the tick before.

Promises: a tick is charged after the one before it was; a request that was given up, or whose deadline passed, before
its tick began is not part of it; one that is part of it is finished whoever still waits for it; who would have to wait
too long is told so at once.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from accounting.ledger import LedgerError
from accounting.ledger.micro_batches import another, deliver
from service.errors import DeadlinePassed, Overloaded
from service.gathering import MOST_ROWS, Gathering

Asked = TypeVar("Asked")
Charged = TypeVar("Charged")
Got = TypeVar("Got")

Clock = Callable[[], float]

MOST_UNDER_WAY = 2
"""Ticks at a time: one being charged, one being finished. More would be smaller, and smaller ticks cost more."""

_SHARE_OF_NEWEST = 0.2


@dataclass(frozen=True)
class QueueLimits:
    """How much may wait."""

    rows: int = 100_000
    seconds: float = 2.0
    """What comes when the ticks before it are expected to take longer is refused: never is sooner known than late."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Asked, Got]):
    asked: Asked
    result: "asyncio.Future[Got]"
    weight: int
    begun: bool = False
    awaited: bool = False
    timer: asyncio.TimerHandle | None = None


class Ticks(Generic[Asked, Charged, Got]):
    """Runs `charge` and then `finish` on what is submitted, tick by tick.

    `charge` is called for one tick at a time, in order; `finish` gets the same requests and what `charge` returned, and
    returns one result for each, in order: one that is an exception is raised to who asked, and an exception that either
    raises to everyone in the tick. A LedgerError that `charge` raises is raised to all who wait, too: the ledger would
    fail them alike, and nothing of theirs was sent.
    """

    def __init__(
        self,
        charge: Callable[[Sequence[Asked]], Awaitable[Charged]],
        finish: Callable[[Sequence[Asked], Charged], Awaitable[Sequence[Got | Exception]]],
        *,
        weight: Callable[[Asked], int],
        client: Callable[[Asked], Hashable],
        capacity: int,
        limits: QueueLimits | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """weight: how many rows a request has; a tick holds at most `capacity`, or one request with more.

        client: whose request it is.
        """
        self._charge = charge
        self._finish = finish
        self._weight = weight
        self._client = client
        self._capacity = capacity
        self._limits = limits or QueueLimits()
        self._clock = clock
        self._waiting: deque[_Waiting[Asked, Got]] = deque()
        self._waiting_rows = self._newest_rows = 0
        self._newest_clients: list[Hashable] = []
        self._charging = False
        self._scheduled = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._seconds_per_tick = 0.0
        self._ended = -math.inf
        self._gathering = Gathering(clock)
        self._held: asyncio.TimerHandle | None = None

    def submit(self, asked: Asked, *, deadline: float = math.inf) -> "asyncio.Future[Got]":
        """Put `asked` into the next tick; return its result to come. Cancel that to take back what has no tick yet.

        deadline: by the clock, when it is taken back by itself, with DeadlinePassed, unless its tick has begun. Raises
        Overloaded, with nothing done.
        """
        loop = asyncio.get_running_loop()
        weight = self._weight(asked)
        self._check_room(weight)
        waiting: _Waiting[Asked, Got] = _Waiting(asked, loop.create_future(), weight)
        if deadline < math.inf:
            waiting.timer = loop.call_later(max(0.0, deadline - self._clock()), self._give_up, waiting)
        waiting.result.add_done_callback(lambda _: self._make_room(waiting))
        self._waiting.append(waiting)
        self._waiting_rows += weight
        waiting.awaited = self._gathering.came(self._client(asked))
        self._schedule()
        return waiting.result

    @property
    def expected_wait(self) -> float:
        """How many seconds the ticks that the waiting rows fill are expected to take, by how long the newest ones took.

        By the tick and not by the row: a tick of one row takes nearly as long as one of many.
        """
        return math.ceil(self._waiting_rows / self._capacity) * self._seconds_per_tick

    async def drain(self) -> None:
        """Wait until everything that was submitted has its result."""
        while self._waiting or self._under_way:
            await (asyncio.wait(self._under_way) if self._under_way else asyncio.sleep(0))

    def _check_room(self, weight: int) -> None:
        if not self._waiting_rows:
            return
        expected = self.expected_wait
        if self._waiting_rows + weight > self._limits.rows or expected > self._limits.seconds:
            raise Overloaded(max(1, math.ceil(expected)))

    def _give_up(self, waiting: _Waiting[Asked, Got]) -> None:
        if not waiting.begun and not waiting.result.done():
            waiting.result.set_exception(DeadlinePassed())

    def _make_room(self, waiting: _Waiting[Asked, Got]) -> None:
        """Count no longer what has its result: who was given up before its tick still stands in the line."""
        if waiting.timer is not None:
            waiting.timer.cancel()
        if not waiting.begun:
            self._waiting_rows -= waiting.weight
            waiting.weight = 0
            if waiting.awaited:
                self._gathering.left()

    def _schedule(self) -> None:
        """Begin a tick once whatever else arrived by now has been read."""
        if self._charging or self._scheduled or not self._waiting or len(self._under_way) >= MOST_UNDER_WAY:
            return
        if self._waiting_rows < self._newest_rows if self._under_way else self._is_held():
            return
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._begin)

    def _is_held(self) -> bool:
        seconds = self._gathering.seconds(self._waiting_rows)
        if seconds and self._held is None:
            self._held = asyncio.get_running_loop().call_later(seconds, self._look_again)
        return seconds > 0.0

    def _look_again(self) -> None:
        self._held = None
        self._gathering.look()
        self._schedule()

    def _begin(self) -> None:
        self._scheduled = False
        if self._held is not None:
            self._held.cancel()
            self._held = None
        batch = self._next_batch()
        if batch:
            self._charging = True
            self._newest_rows = sum(waiting.weight for waiting in batch)
            self._newest_clients = [self._client(waiting.asked) for waiting in batch]
            self._gathering.begun(self._newest_clients)
            task = asyncio.get_running_loop().create_task(self._tick(batch))
            self._under_way.add(task)
            task.add_done_callback(self._ended_one)

    def _ended_one(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if not self._under_way and self._waiting_rows < MOST_ROWS:
            live = [self._client(waiting.asked) for waiting in self._waiting if not waiting.result.done()]
            self._gathering.answered(self._newest_clients, live, self._seconds_per_tick)
        self._schedule()

    def _next_batch(self) -> list[_Waiting[Asked, Got]]:
        batch: list[_Waiting[Asked, Got]] = []
        room = self._capacity
        while self._waiting:
            first = self._waiting[0]
            if not first.result.done():
                room -= first.weight
                if batch and room < 0:
                    break
                first.begun = True
                batch.append(first)
            self._waiting.popleft()
            self._waiting_rows -= first.weight
            if not first.begun:
                first.weight = 0
        return batch

    async def _tick(self, batch: list[_Waiting[Asked, Got]]) -> None:
        began = self._clock()
        asked = [waiting.asked for waiting in batch]
        try:
            try:
                charged = await self._charge(asked)
            except LedgerError as error:
                self._fail_waiting(error)
                raise
            finally:
                self._charging = False
            self._schedule()
            results = await self._finish(asked, charged)
            for waiting, got in zip(batch, results, strict=True):
                deliver(waiting.result, got)
            self._learn(began)
        except Exception as error:  # noqa: BLE001 - it is passed on to everyone who asked
            for waiting in batch:
                deliver(waiting.result, another(error))
        except BaseException:  # the loop is being shut down
            for waiting in batch:
                waiting.result.cancel()
            raise

    def _fail_waiting(self, error: LedgerError) -> None:
        """Fail whoever waits: they would wait for the same failure, one deadline after the other."""
        for waiting in self._waiting:
            deliver(waiting.result, another(error))
            waiting.weight = 0
        self._waiting.clear()
        self._waiting_rows = 0

    def _learn(self, began: float) -> None:
        """Note how long a tick took: what passed since the one before ended, where the two overlapped."""
        now = self._clock()
        took = now - max(began, self._ended)
        self._ended = now
        self._seconds_per_tick += _SHARE_OF_NEWEST * (took - self._seconds_per_tick)
