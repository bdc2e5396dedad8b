import asyncio
from collections.abc import Sequence

import pytest

from accounting.ledger import LedgerBusy, StoreBehind, UnsafeStore
from accounting.ledger.micro_batches import MicroBatches, another

pytestmark = pytest.mark.anyio


class _Link:
    """Sends nothing: keeps the batches, and answers one each time it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.let = asyncio.Semaphore(0)

    async def send(self, batch: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(batch))
        await asyncio.sleep(0)  # as a call to a store does, and lets the others come
        await self.let.acquire()
        return [ValueError(f"{number}") if number < 0 else 10 * number for number in batch]


def _batches(link: _Link, capacity: int = 100) -> MicroBatches[int, int]:
    return MicroBatches(link.send, weight=abs, capacity=capacity)


async def test_what_arrives_during_a_call_goes_out_together_in_the_next_in_order() -> None:
    link = _Link()
    batches = _batches(link)
    first = asyncio.create_task(batches.submit(1))
    while not link.batches:
        await asyncio.sleep(0)
    rest = [asyncio.create_task(batches.submit(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    link.let.release()
    assert await first == 10
    link.let.release()
    assert await asyncio.gather(*rest) == [20, 30, 40]
    assert link.batches == [[1], [2, 3, 4]]


async def test_one_requests_exception_is_its_own() -> None:
    link = _Link()
    batches = _batches(link)
    for _ in range(2):
        link.let.release()
    results = await asyncio.gather(*map(batches.submit, (1, -2, 3)), return_exceptions=True)
    assert results[0] == 10
    assert isinstance(results[1], ValueError)
    assert results[2] == 30


async def test_a_failed_call_is_everyones_and_the_next_call_is_made() -> None:
    calls = []

    async def send(batch: Sequence[int]) -> list[int]:
        calls.append(list(batch))
        await asyncio.sleep(0)
        if len(calls) == 1:
            raise OSError("down")
        return list(batch)

    batches: MicroBatches[int, int] = MicroBatches(send, weight=abs, capacity=100)
    failed = await asyncio.gather(batches.submit(1), batches.submit(2), return_exceptions=True)
    assert [str(error) for error in failed] == ["down", "down"]
    assert failed[0] is not failed[1]
    assert await batches.submit(3) == 3


async def test_batches_keep_within_their_capacity_unless_one_request_is_heavier() -> None:
    link = _Link()
    batches = _batches(link, capacity=5)
    for _ in range(4):
        link.let.release()
    await asyncio.gather(*map(batches.submit, (2, 3, 1, 9, 5)))
    assert link.batches == [[2], [3, 1], [9], [5]]


async def test_a_cancelled_caller_leaves_the_others_theirs() -> None:
    link = _Link()
    batches = _batches(link)
    tasks = [asyncio.create_task(batches.submit(number)) for number in (1, 2, 3)]
    while not link.batches:
        await asyncio.sleep(0)
    tasks[1].cancel()
    for _ in range(2):
        link.let.release()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[0] == 10
    assert isinstance(results[1], asyncio.CancelledError)
    assert results[2] == 30


async def test_draining_waits_for_what_was_submitted() -> None:
    link = _Link()
    batches = _batches(link)
    task = asyncio.create_task(batches.submit(7))
    await asyncio.sleep(0)
    link.let.release()
    await batches.drain()
    assert task.done() or await task == 70
    await batches.drain()


async def test_a_crowd_shares_one_call_after_another() -> None:
    """Once several came at a time, the first of the next ones waits for the others."""
    link = _Link()
    batches = _batches(link)
    for _ in range(3):
        link.let.release()
    await asyncio.gather(*map(batches.submit, (1, 2, 3)))
    await asyncio.gather(*map(batches.submit, (4, 5, 6)))
    assert link.batches == [[1], [2, 3], [4, 5, 6]]


async def test_a_lone_caller_who_is_cancelled_lets_the_others_go_on() -> None:
    link = _Link()
    batches = _batches(link)
    tasks = [asyncio.create_task(batches.submit(number)) for number in (1, 2, 3)]
    while not link.batches:
        await asyncio.sleep(0)
    tasks[0].cancel()
    link.let.release()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [20, 30]


async def test_more_than_may_wait_are_told_so_at_once_and_nothing_of_theirs_is_sent() -> None:
    link = _Link()
    batches = MicroBatches(link.send, weight=abs, capacity=5, most_waiting=10)
    tasks = [asyncio.create_task(batches.submit(number)) for number in (1, 4, 6)]
    while not link.batches:
        await asyncio.sleep(0)
    with pytest.raises(LedgerBusy):
        await batches.submit(2)
    for _ in range(4):
        link.let.release()
    assert await asyncio.gather(*tasks) == [10, 40, 60]
    assert await batches.submit(2) == 20
    assert link.batches == [[1], [4], [6], [2]]


def test_an_exception_for_another_says_the_same() -> None:
    for error in (StoreBehind("lineage", 1, 2), UnsafeStore(("one", "two")), OSError(28, "full"), LedgerBusy()):
        other = another(error)
        assert other is not error
        assert (type(other), str(other), other.__dict__) == (type(error), str(error), error.__dict__)
