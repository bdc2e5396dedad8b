"""Ticks by themselves: what goes together, what is taken back, what is refused; by a clock that stands still."""

import asyncio
from collections.abc import Sequence

import pytest

from accounting.ledger import LedgerUnavailable
from service.errors import DeadlinePassed, Overloaded
from service.ticks import MOST_UNDER_WAY, QueueLimits, Ticks

pytestmark = pytest.mark.anyio


class Line:
    """Stages that go on when they are told to. A request is a number; its result is ten times that."""

    def __init__(self, limits: QueueLimits | None = None, capacity: int = 100) -> None:
        self.now = 0.0
        self.charged: list[list[int]] = []
        self.finished: list[list[int]] = []
        self.charge_gates: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.finish_gates: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.ticks: Ticks[int, str, int] = Ticks(
            self._charge,
            self._finish,
            weight=lambda asked: 1,
            client=lambda asked: asked,
            capacity=capacity,
            limits=limits,
            clock=lambda: self.now,
        )

    async def _charge(self, asked: Sequence[int]) -> str:
        self.charged.append(list(asked))
        if error := await self.charge_gates.get():
            raise error
        return "charged"

    async def _finish(self, asked: Sequence[int], charged: str) -> list[int | Exception]:
        assert charged == "charged"
        self.finished.append(list(asked))
        if error := await self.finish_gates.get():
            raise error
        return [ValueError(one) if one < 0 else 10 * one for one in asked]


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_comes_while_a_tick_is_charged_goes_together_in_the_next() -> None:
    line = Line()
    first = line.ticks.submit(1)
    await turns()
    assert line.charged == [[1]]
    others = [line.ticks.submit(number) for number in (2, 3, -4)]
    await turns()
    assert line.charged == [[1]]
    line.charge_gates.put_nowait(None)
    await turns()
    assert line.charged == [[1], [2, 3, -4]]  # while the first is still being finished
    line.charge_gates.put_nowait(None)
    late = line.ticks.submit(5)
    await turns()
    assert len(line.finished) == MOST_UNDER_WAY
    assert len(line.charged) == 2  # two are under way, and a third would be small
    for _ in range(3):
        line.finish_gates.put_nowait(None)
    line.charge_gates.put_nowait(None)
    assert [await first, await others[0], await others[1], await late] == [10, 20, 30, 50]
    with pytest.raises(ValueError, match="-4"):
        await others[2]
    await line.ticks.drain()


async def test_what_is_given_up_before_its_tick_is_not_charged_and_after_it_is_finished() -> None:
    line = Line()
    begun = line.ticks.submit(1)
    await turns()
    waiting, kept = line.ticks.submit(2), line.ticks.submit(3)
    waiting.cancel()
    begun.cancel()
    for _ in range(2):
        line.charge_gates.put_nowait(None)
        line.finish_gates.put_nowait(None)
    assert await kept == 30
    assert line.charged == line.finished == [[1], [3]]


async def test_a_deadline_takes_back_what_is_not_charged_and_nothing_else() -> None:
    line = Line()
    begun = line.ticks.submit(1, deadline=0.0)
    await turns()
    line.charge_gates.put_nowait(None)
    waiting = line.ticks.submit(2, deadline=0.0)
    with pytest.raises(DeadlinePassed):
        await asyncio.wait_for(waiting, 60)
    line.finish_gates.put_nowait(None)
    assert await begun == 10
    assert line.charged == [[1]]


async def test_what_would_wait_too_long_is_refused_with_when_to_come_again() -> None:
    line = Line(QueueLimits(rows=5, seconds=2.0), capacity=1)
    first = line.ticks.submit(1)
    await turns()
    line.now = 10.0  # a tick took ten seconds, of which the newest counts a fifth
    line.charge_gates.put_nowait(None)
    line.finish_gates.put_nowait(None)
    assert await first == 10
    second = line.ticks.submit(2)
    await turns()
    third, fourth = line.ticks.submit(3), line.ticks.submit(4)
    with pytest.raises(Overloaded) as refused:
        line.ticks.submit(5)
    assert refused.value.retry_after == 4
    for _ in range(3):
        line.charge_gates.put_nowait(None)
        line.finish_gates.put_nowait(None)
    assert [await second, await third, await fourth] == [20, 30, 40]
    many = Line(QueueLimits(rows=100, seconds=2.0))
    slow = many.ticks.submit(1)
    await turns()
    many.now = 10.0
    many.charge_gates.put_nowait(None)
    many.finish_gates.put_nowait(None)
    assert await slow == 10
    together = [many.ticks.submit(number) for number in range(50)]  # one tick, however many they are
    many.charge_gates.put_nowait(None)
    many.finish_gates.put_nowait(None)
    assert [await one for one in together] == [10 * number for number in range(50)]
    crowd = Line(QueueLimits(rows=5, seconds=2.0))
    accepted = [crowd.ticks.submit(number) for number in range(5)]
    with pytest.raises(Overloaded):
        crowd.ticks.submit(6)
    crowd.charge_gates.put_nowait(None)
    crowd.finish_gates.put_nowait(None)
    assert [await one for one in accepted] == [0, 10, 20, 30, 40]


async def test_a_ledger_that_fails_fails_all_who_wait_and_a_finish_its_own_tick() -> None:
    line = Line()
    first = line.ticks.submit(1)
    await turns()
    second = line.ticks.submit(2)
    line.charge_gates.put_nowait(LedgerUnavailable("gone"))
    for one in (first, second):
        with pytest.raises(LedgerUnavailable, match="gone"):
            await one
    third = line.ticks.submit(3)
    await turns()
    fourth = line.ticks.submit(4)
    for _ in range(2):
        line.charge_gates.put_nowait(None)
    line.finish_gates.put_nowait(ZeroDivisionError())
    line.finish_gates.put_nowait(None)
    with pytest.raises(ZeroDivisionError):
        await third
    assert await fourth == 40


async def test_what_a_request_fails_by_itself_before_its_charge_fails_nobody_who_waits() -> None:
    line = Line()
    first = line.ticks.submit(1)
    await turns()
    stranger = line.ticks.submit(2)
    line.charge_gates.put_nowait(OverflowError("features"))
    line.charge_gates.put_nowait(None)
    line.finish_gates.put_nowait(None)
    with pytest.raises(OverflowError):
        await first
    assert await stranger == 20


async def test_what_is_given_up_leaves_its_room_to_others_at_once() -> None:
    line = Line(QueueLimits(rows=2))
    first = line.ticks.submit(1)
    await turns()
    given_up = [line.ticks.submit(2), line.ticks.submit(3, deadline=0.0)]
    with pytest.raises(Overloaded):
        line.ticks.submit(4)
    given_up[0].cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    await turns()
    others = [line.ticks.submit(5), line.ticks.submit(6)]
    with pytest.raises(Overloaded):
        line.ticks.submit(7)
    for _ in range(2):
        line.charge_gates.put_nowait(None)
        line.finish_gates.put_nowait(None)
    assert [await first, *[await one for one in others]] == [10, 50, 60]
    assert line.charged == [[1], [5, 6]]


async def test_the_next_tick_is_as_large_as_the_one_before_or_waits_for_its_end() -> None:
    line = Line()
    for _ in range(2):
        line.charge_gates.put_nowait(None)
    first = [line.ticks.submit(number) for number in range(3)]
    await turns()
    early = [line.ticks.submit(number) for number in (3, 4)]
    await turns()
    assert line.charged == [[0, 1, 2]]
    early.append(line.ticks.submit(5))
    await turns()
    assert line.charged == [[0, 1, 2], [3, 4, 5]]
    last = line.ticks.submit(6)
    for _ in range(2):
        line.finish_gates.put_nowait(None)
    assert [await one for one in (*first, *early)] == [0, 10, 20, 30, 40, 50]
    line.charge_gates.put_nowait(None)
    line.finish_gates.put_nowait(None)
    assert await last == 60  # nobody is under way any more: it waits for a moment at most
    assert line.charged[2:] == [[6]]


async def test_a_tick_holds_no_more_than_its_capacity() -> None:
    line = Line(capacity=2)
    for _ in range(3):
        line.charge_gates.put_nowait(None)
        line.finish_gates.put_nowait(None)
    assert await asyncio.gather(*map(line.ticks.submit, range(5))) == [0, 10, 20, 30, 40]
    assert line.charged == [[0, 1], [2, 3], [4]]


async def crowd_answered(line: Line, crowd: Sequence[int]) -> None:
    """Let ticks take long, and the newest be one of a crowd that was answered; what comes is let through."""
    answers = [line.ticks.submit(number) for number in crowd]
    await turns()  # it has begun
    line.now += 1.0
    for _ in range(6):
        line.charge_gates.put_nowait(None)
        line.finish_gates.put_nowait(None)
    assert await asyncio.gather(*answers) == [10 * number for number in crowd]
    await turns()
    assert line.charged == [list(crowd)]


async def test_after_a_crowd_the_next_tick_is_held_until_it_came_back_and_for_a_moment_only() -> None:
    line = Line()
    crowd = range(MOST_UNDER_WAY * 4)
    await crowd_answered(line, crowd)
    back = [line.ticks.submit(number) for number in crowd[:-1]]
    await turns()
    assert line.charged[1:] == []  # the last of the crowd is still to come
    back.append(line.ticks.submit(crowd[-1]))
    assert await asyncio.gather(*back) == [10 * number for number in crowd]
    assert line.charged[1:] == [list(crowd)]
    # This clock stands still: a timer of the event loop's ends the moment.
    assert await line.ticks.submit(1) == 10
    assert line.charged[2:] == [[1]]
    assert await line.ticks.submit(2) == 20


async def test_a_stranger_takes_those_who_are_held_with_it_at_once() -> None:
    line = Line()
    await crowd_answered(line, range(4))
    held = line.ticks.submit(1)
    await turns()
    assert line.charged[1:] == []
    stranger = line.ticks.submit(7)
    await turns()
    assert line.charged[1:] == [[1, 7]]
    assert [await held, await stranger] == [10, 70]


async def test_a_stranger_who_came_during_the_tick_is_not_held_after_it_unless_it_gave_up() -> None:
    for gives_up in (False, True):
        line = Line()
        for _ in range(2):
            line.charge_gates.put_nowait(None)
        crowd = [line.ticks.submit(number) for number in range(4)]
        await turns()
        stranger, known = line.ticks.submit(7), line.ticks.submit(1)
        await turns()
        assert line.charged == [[0, 1, 2, 3]]
        if gives_up:
            stranger.cancel()
        line.now += 1.0
        line.finish_gates.put_nowait(None)
        await asyncio.gather(*crowd)
        await turns()
        assert line.charged[1:] == ([] if gives_up else [[7, 1]])
        line.finish_gates.put_nowait(None)
        assert await known == 10


async def test_a_request_that_is_given_up_while_it_is_held_did_not_come_back() -> None:
    line = Line()
    await crowd_answered(line, range(4))
    back = [line.ticks.submit(number) for number in range(3)]
    back[0].cancel()
    assert await asyncio.gather(*back[1:]) == [10, 20]
    await turns()
    # Three of four would have been enough. Two are too few, and the next crowd is not waited for.
    last = line.ticks.submit(1)
    await turns()
    assert line.charged[1:] == [[1, 2], [1]]
    assert await last == 10
