"""Places by themselves, and what goes on in a thread for a caller that is gone."""

import asyncio
import threading

import pytest

from dpserve.service.errors import Overloaded
from dpserve.service.places import Places, in_thread

pytestmark = pytest.mark.anyio


async def test_a_caller_has_a_quarter_of_the_places_and_the_last_one_is_anybodys():
    places = Places(8)
    async with places.at_once("ann"), places.at_once("ann"):
        with pytest.raises(Overloaded):
            async with places.at_once("ann"):
                pass
        async with places.at_once("bob"):
            pass
    async with places.at_once("ann"):
        pass


async def test_callers_take_turns():
    places, order = Places(1), []

    async def take(caller):
        async with places.in_turn(caller):
            order.append(caller)
            await asyncio.sleep(0)

    await asyncio.gather(*map(take, ["ann"] * 3 + ["bob"]))
    assert order.index("bob") == 1


async def test_a_place_is_given_up_when_its_thread_has_ended():
    began, allowed = threading.Event(), threading.Event()

    def work():
        began.set()
        assert allowed.wait(60)

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(began.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    allowed.set()
    await asyncio.wait([task])
    assert task.cancelled()
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)
