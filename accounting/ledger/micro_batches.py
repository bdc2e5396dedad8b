"""Group commit: what arrives while a call to the store is under way goes out together in the next call.

A lone request is sent at once. Under load each call carries all that came during the one before, so that the
store's durable write, which costs the same for one as for many, is shared.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Got = TypeVar("Got")


class MicroBatches(Generic[Asked, Got]):
    """Sends what is submitted in batches, one batch under way at a time, first come first served.

    `send` returns one result for each request, in order; a result that is an exception is raised to the one
    who asked, and an exception that `send` raises to everyone in the batch. `weight` says how heavy a request
    is; a batch holds at most `capacity` of it, or one request that is heavier. An exception of `send` is also
    raised to everyone who is still waiting: nothing of theirs was sent.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Asked]], Awaitable[Sequence[Got | Exception]]],
        *,
        weight: Callable[[Asked], int],
        capacity: int,
    ) -> None:
        """Send nothing yet."""
        self._send = send
        self._weight = weight
        self._capacity = capacity
        self._waiting: deque[tuple[Asked, asyncio.Future[Got]]] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def submit(self, request: Asked) -> Got:
        """Send `request` with the next batch and return its result.

        Cancelling the caller takes back what was not sent yet, and nothing else.
        """
        result: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, result))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return await result

    async def drain(self) -> None:
        """Wait until everything that was submitted has its result."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                if not batch:
                    continue
                try:
                    results = await self._send([request for request, _ in batch])
                except Exception as error:  # noqa: BLE001 - it is passed on to everyone who asked
                    # Whoever waits would wait for the same failure, one deadline after the other.
                    batch += self._waiting
                    self._waiting.clear()
                    results = [error] * len(batch)
                except BaseException:  # the loop is being shut down
                    for _, result in (*batch, *self._waiting):
                        result.cancel()
                    self._waiting.clear()
                    raise
                for (_, result), got in zip(batch, results, strict=True):
                    if result.done():
                        continue
                    if isinstance(got, Exception):
                        result.set_exception(got)
                    else:
                        result.set_result(got)
        finally:
            self._sending = None

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
        return batch
