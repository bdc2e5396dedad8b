"""Bodies by themselves: how long one may be, and how many bytes of them there may be at once."""

import asyncio
from contextlib import ExitStack

import pytest

from dpserve.service.errors import Overloaded
from dpserve.service.http.problems import Problem
from dpserve.service.http.requests import Bodies, ClientDisconnected, unless_gone
from dpserve.service.http.structure import SMALL

pytestmark = pytest.mark.anyio


def sending(*parts, ends=True):
    """Return what receives these parts; then the end, or that the client is gone."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b""} if ends else {"type": "http.disconnect"})

    async def receive():
        return messages.pop(0)

    return receive


FIELDS: dict[bytes, bytes] = {}


async def test_a_body_comes_in_parts_and_one_that_is_too_long_is_refused():
    bodies = Bodies()
    assert await bodies.read(FIELDS, sending(b"12345", b"67890"), 10) == b"1234567890"
    with pytest.raises(Problem) as refused:
        await bodies.read(FIELDS, sending(b"12345", b"678901", b"and more"), 10)
    assert refused.value.status == 413


async def test_bodies_that_are_too_long_together_are_refused_until_some_are_answered():
    bodies = Bodies(together=75)
    first = await bodies.read(FIELDS, sending(b"1234567890"), 10)
    with pytest.raises(Overloaded):
        await bodies.read(FIELDS, sending(b"1234", b"56"), 10)
    second = await bodies.read(FIELDS, sending(b"12345"), 10)  # what was refused takes no room
    bodies.release(len(first))
    third = await bodies.read(FIELDS, sending(b"1234567890"), 10)
    for body in (second, third):
        bodies.release(len(body))
    with pytest.raises(ClientDisconnected):
        await bodies.read(FIELDS, sending(b"1234567890", ends=False), 10)
    assert await bodies.read(FIELDS, sending(b"1234567890"), 10)


async def test_a_caller_has_a_fifth_of_the_room_and_leaves_the_others():
    bodies = Bodies(together=50)
    ann = await bodies.read(FIELDS, sending(b"123456"), 10, "ann")
    with pytest.raises(Overloaded):
        await bodies.read(FIELDS, sending(b"12", b"345"), 10, "ann")
    for caller in ("bob", "cy", "dora", "eve"):
        await bodies.read(FIELDS, sending(b"1234567890"), 10, caller)
    with pytest.raises(Overloaded):
        await bodies.read(FIELDS, sending(b"12345"), 10, "fay")
    bodies.release(len(ann), "ann")
    assert await bodies.read(FIELDS, sending(b"1234567890"), 10, "ann")


async def test_a_share_is_kept_for_small_bodies():
    large = SMALL + 10
    bodies = Bodies(together=5 * large)
    held = [await bodies.read(FIELDS, sending(bytes(large)), large, caller) for caller in range(4)]
    with pytest.raises(Overloaded):
        await bodies.read(FIELDS, sending(bytes(large)), large, "ann")
    assert await bodies.read(FIELDS, sending(b"1234567890"), large, "ann")
    bodies.release(len(held[0]), 0)
    assert await bodies.read(FIELDS, sending(bytes(SMALL)), large, "bob")


async def test_rows_count_as_bodies_do_until_they_are_answered():
    bodies = Bodies(together=50)
    with bodies.counting(4, "ann"):
        assert await bodies.read(FIELDS, sending(b"1234567890"), 10, "ann")
        with pytest.raises(Overloaded), bodies.counting(7, "ann"):
            pass
    with pytest.raises(ValueError), bodies.counting(10, "ann"):  # noqa: PT011
        raise ValueError
    with ExitStack() as counted:
        for caller in range(5):
            counted.enter_context(bodies.counting(10, caller))
        with pytest.raises(Overloaded), bodies.counting(1, "ann"):
            pass
    with bodies.counting(10, "ann"):
        pass


async def test_a_body_that_stays_away_is_refused_in_time_and_takes_no_room():
    bodies = Bodies(seconds=0.0, together=50)
    messages = [{"type": "http.request", "body": b"12345", "more_body": True}]

    async def receive():
        return messages.pop(0) if messages else await asyncio.Event().wait()

    with pytest.raises(Problem) as refused:
        await bodies.read(FIELDS, receive, 10)
    assert refused.value.status == 408
    assert await bodies.read(FIELDS, sending(b"1234567890"), 10) == b"1234567890"


async def test_work_ends_when_its_client_is_gone_and_else_its_outcome_is_given():
    begun, ended, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(seconds):
        try:
            begun.set()
            await asyncio.sleep(seconds)
            return "answered"
        finally:
            ended.set()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    assert await unless_gone(receive, work(0)) == "answered"
    begun.clear()
    asked = asyncio.create_task(unless_gone(receive, work(3600)))
    await begun.wait()
    ended.clear()
    gone.set()
    with pytest.raises(ClientDisconnected):
        await asked
    assert ended.is_set()
    gone.clear()
    begun.clear()
    ended.clear()
    asked = asyncio.create_task(unless_gone(receive, work(3600)))
    await begun.wait()
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()
    assert ended.is_set()


async def test_each_of_several_bodies_that_do_not_arrive_is_refused_and_one_that_is_cancelled_ends():
    bodies = Bodies(seconds=0.05)

    def begin():
        return asyncio.create_task(bodies.read(FIELDS, asyncio.Event().wait, 10))

    first, second = begin(), begin()
    await asyncio.sleep(0)
    cancelled = begin()
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(Problem) as refused:
        await first
    third = begin()  # while the second's time runs out, or after
    for late in (second, third):
        with pytest.raises(Problem):
            await late
    assert refused.value.status == 408
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await bodies.read(FIELDS, sending(b"1234567890"), 10) == b"1234567890"
