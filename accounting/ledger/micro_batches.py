"""Group commit: what arrives while a call to the store is under way goes out together in the next call.

A lone request is sent at once, by whoever asks. Under load each call carries all that came during the one before, so
that the store's durable write, which costs the same for one as for many, is shared.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from accounting.ledger.errors import LedgerBusy

Asked = TypeVar("Asked")
Got = TypeVar("Got")


class MicroBatches(Generic[Asked, Got]):
    """Sends what is submitted in batches, one batch under way at a time, first come first served.

    `send` returns one result for each request, in order; a result that is an exception is raised to the one
    who asked, and an exception that `send` raises to everyone in the batch, each of whom gets one of its own. `weight`
    says how heavy a request is; a batch holds at most `capacity` of it, or one request that is heavier. An exception of
    `send` is also raised to everyone who is still waiting: nothing of theirs was sent. At most `most_waiting` of weight
    waits; whoever comes then is told that the ledger is busy.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Asked]], Awaitable[Sequence[Got | Exception]]],
        *,
        weight: Callable[[Asked], int],
        capacity: int,
        most_waiting: int = 100_000,
    ) -> None:
        """Send nothing yet."""
        self._send = send
        self._weight = weight
        self._capacity = capacity
        self._most_waiting = most_waiting
        self._waiting: deque[tuple[Asked, asyncio.Future[Got]]] = deque()
        self._waiting_weight = 0
        self._sending: asyncio.Future[None] | None = None
        self._crowded = False

    async def submit(self, request: Asked) -> Got:
        """Send `request` with the next batch and return its result. Raises LedgerBusy, having sent nothing.

        Cancelling the caller takes back what was not sent yet, and nothing of anyone else's.
        """
        if self._sending is None and not self._crowded:
            return await self._send_alone(request)
        weight = self._weight(request)
        if self._waiting and self._waiting_weight + weight > self._most_waiting:
            raise LedgerBusy
        result: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, result))
        self._waiting_weight += weight
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return await result

    async def drain(self) -> None:
        """Wait until everything that was submitted has its result."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send_alone(self, request: Asked) -> Got:
        """Send one request from its caller's own task, which spares the event loop two turns."""
        sending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sending = sending
        try:
            (got,) = await self._send([request])
        except Exception as error:
            self._fail_waiting(error)
            raise
        finally:
            sending.set_result(None)
            self._crowded = bool(self._waiting)
            self._sending = asyncio.create_task(self._send_all()) if self._waiting else None
        if isinstance(got, Exception):
            raise got
        return got

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                if not batch:
                    continue
                self._crowded = len(batch) > 1
                try:
                    results = await self._send([request for request, _ in batch])
                except Exception as error:  # noqa: BLE001 - it is passed on to everyone who asked
                    results = [another(error) for _ in batch]
                    self._fail_waiting(error)
                except BaseException:  # the loop is being shut down
                    for _, result in (*batch, *self._waiting):
                        result.cancel()
                    self._waiting.clear()
                    self._waiting_weight = 0
                    raise
                for (_, result), got in zip(batch, results, strict=True):
                    deliver(result, got)
        finally:
            self._sending = None

    def _fail_waiting(self, error: Exception) -> None:
        """Fail whoever waits: they would wait for the same failure, one deadline after the other."""
        for _, result in self._waiting:
            deliver(result, another(error))
        self._waiting.clear()
        self._waiting_weight = 0

    def _next_batch(self) -> list[tuple[Asked, asyncio.Future[Got]]]:
        batch: list[tuple[Asked, asyncio.Future[Got]]] = []
        room = self._capacity
        while self._waiting:
            request, result = self._waiting[0]
            if not result.cancelled():
                room -= self._weight(request)
                if batch and room < 0:
                    break
                batch.append((request, result))
            self._waiting.popleft()
            self._waiting_weight -= self._weight(request)
        return batch


def deliver(result: "asyncio.Future[Got]", got: Got | Exception) -> None:
    """Give what was got to who waits for `result`; an exception is raised there. Who gave up gets nothing."""
    if result.done():
        return
    if isinstance(got, Exception):
        result.set_exception(got)
    else:
        result.set_result(got)


def another(error: Exception) -> Exception:
    """Return an exception like this one, for one of several who hear of it: to raise one adds to its traceback."""
    another = error.__class__.__new__(error.__class__, *error.args)
    another.__dict__.update(error.__dict__)
    another.__cause__ = error
    return another
