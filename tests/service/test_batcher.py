"""The batcher by itself: what goes together, what is withdrawn, what is refused; by a clock that stands still."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from dpserve.accounting.ledger import LedgerUnavailable
from dpserve.service.batcher import Batcher, BatchLimits, Waiting
from dpserve.service.errors import DeadlinePassed, Overloaded

pytestmark = pytest.mark.anyio


class Number(Waiting, kw_only=True, weakref=True):
    number: int


class Gated:
    """A batcher whose batches end when they are told to. A request is a number; its result is ten times that."""

    def __init__(self, **limits: float) -> None:
        self.now = 0.0
        self.batches: list[list[int]] = []
        self.gates: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.batcher: Batcher[Number, int] = Batcher(self._process, BatchLimits(**limits), clock=lambda: self.now)

    async def _process(self, requests: Sequence[Number]) -> list[int | Exception]:
        numbers = [each.number for each in requests]
        self.batches.append(numbers)
        if error := await self.gates.get():
            raise error
        return [ValueError(number) if number < 0 else 10 * number for number in numbers]

    def submit(self, number: int, rows: int = 1, client: str = "", **settings: float) -> "asyncio.Future[int]":
        return self.batcher.submit(Number(number=number, rows=rows, client=client, **settings))

    def end(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.gates.put_nowait(None)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_was_refused_is_free_at_once() -> None:
    gated = Gated()

    async def asked() -> "weakref.ref[Number]":
        request = Number(number=-1, rows=1)
        gated.end()
        with pytest.raises(ValueError, match="-1"):
            await refused(request)
        return weakref.ref(request)

    async def refused(request: Number) -> int:
        return await gated.batcher.submit(request)

    gc.disable()
    try:
        held = await asked()
        await turns()
        assert held() is None
    finally:
        gc.enable()


async def test_a_lone_request_goes_at_once_and_what_comes_meanwhile_goes_together() -> None:
    gated = Gated()
    first = gated.submit(1)
    await turns()
    assert gated.batches == [[1]]
    others = [gated.submit(number) for number in (2, 3, -4)]
    await turns()
    assert gated.batches == [[1]]
    gated.end(2)
    assert [await first, await others[0], await others[1]] == [10, 20, 30]
    with pytest.raises(ValueError, match="-4"):
        await others[2]
    assert gated.batches == [[1], [2, 3, -4]]
    await gated.batcher.drain()


async def test_a_request_that_is_cancelled_while_it_waits_is_not_processed() -> None:
    gated = Gated()
    begun = gated.submit(1)
    await turns()
    withdrawn, kept = gated.submit(2), gated.submit(3)
    withdrawn.cancel()
    begun.cancel()
    gated.end(2)
    assert await kept == 30
    assert gated.batches == [[1], [3]]


async def test_a_request_whose_deadline_passed_while_it_waited_is_not_processed() -> None:
    gated = Gated()
    begun = gated.submit(1, deadline=0.0)
    await asyncio.sleep(0)
    late, kept = gated.submit(2, deadline=0.0), gated.submit(3, deadline=60.0)
    with pytest.raises(DeadlinePassed):
        await late
    gated.end(2)
    assert [await begun, await kept] == [10, 30]
    assert gated.batches == [[1], [3]]


async def test_a_batch_holds_no_more_rows_than_its_size_and_any_single_request() -> None:
    gated = Gated(max_batch_size=4)
    gated.end(4)
    sizes = (3, 1, 2, 9, 1)
    results = await asyncio.gather(*(gated.submit(number, rows) for number, rows in enumerate(sizes)))
    assert results == [0, 10, 20, 30, 40]
    assert gated.batches == [[0, 1], [2], [3], [4]]


async def test_a_batch_time_lets_others_join(monkeypatch: pytest.MonkeyPatch) -> None:
    over, sleep = asyncio.Event(), asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: over.wait() if seconds else sleep(0))
    gated = Gated(max_batch_time=0.001)
    gated.end()
    first = gated.submit(1)
    await turns()
    assert gated.batches == []
    second = gated.submit(2)
    over.set()
    assert [await first, await second] == [10, 20]
    assert gated.batches == [[1, 2]]


async def test_a_full_queue_refuses_and_one_client_fills_no_more_than_a_quarter() -> None:
    gated = Gated(max_waiting_rows=8)
    waiting = [gated.submit(number, client="ann") for number in range(2)]
    with pytest.raises(Overloaded):
        gated.submit(2, client="ann")
    waiting.append(gated.submit(2, rows=6, client="bob"))  # a first request is a client's own affair
    with pytest.raises(Overloaded):
        gated.submit(3, client="cy")
    gated.end()
    assert await asyncio.gather(*waiting) == [0, 10, 20]


async def test_clients_take_turns_and_each_ones_requests_go_in_order() -> None:
    gated = Gated(max_batch_size=2)
    waiting = [gated.submit(number, rows=2, client="ann") for number in range(5)]
    waiting += [gated.submit(number, client="bob") for number in (5, 6)]
    waiting.append(gated.submit(7, client="cy"))
    gated.end(7)
    assert await asyncio.gather(*waiting) == [10 * number for number in range(8)]
    assert gated.batches == [[0], [5, 7], [1], [6], [2], [3], [4]]


async def test_whose_turn_is_soon_is_not_refused_for_what_one_client_has_waiting() -> None:
    gated = Gated(max_batch_size=1, max_waiting_seconds=3.0)
    first = gated.submit(0)
    await turns()
    gated.now = 5.0
    gated.end()
    await first
    waiting = [gated.submit(1, client="ann")]
    await turns()
    waiting += [gated.submit(number, client="ann") for number in range(2, 6)]
    with pytest.raises(Overloaded):
        gated.submit(6, client="ann")
    waiting.append(gated.submit(7, client="bob"))
    gated.end(6)
    assert await asyncio.gather(*waiting) == [10, 20, 30, 40, 50, 70]
    assert gated.batches.index([7]) <= 3


async def test_a_request_that_would_wait_too_long_is_told_when_to_retry() -> None:
    gated = Gated(max_batch_size=1, max_waiting_seconds=3.0)
    first = gated.submit(1)
    await turns()
    gated.now = 10.0  # a batch took ten seconds, of which the newest counts a fifth
    gated.end()
    assert await first == 10
    second = gated.submit(2)
    await turns()
    third, fourth = gated.submit(3), gated.submit(4)
    with pytest.raises(Overloaded) as refused:
        gated.submit(5)
    assert refused.value.retry_after == 4
    gated.end(3)
    assert [await second, await third, await fourth] == [20, 30, 40]


async def test_a_ledger_that_fails_fails_all_who_wait() -> None:
    gated = Gated()
    first = gated.submit(1)
    await turns()
    second = gated.submit(2)
    gated.gates.put_nowait(LedgerUnavailable("gone"))
    raised = []
    for waiting in (first, second):
        with pytest.raises(LedgerUnavailable) as error:
            await waiting
        raised.append(error.value)
    assert raised[0] is not raised[1]
    assert gated.batches == [[1]]


async def test_any_other_error_fails_its_own_batch_alone() -> None:
    gated = Gated()
    first = gated.submit(1)
    await turns()
    stranger = gated.submit(2)
    gated.gates.put_nowait(OverflowError("features"))
    gated.end()
    with pytest.raises(OverflowError):
        await first
    assert await stranger == 20
