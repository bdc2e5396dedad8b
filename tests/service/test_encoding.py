"""Turns of clients at a deep network, and how much of its time a request has."""

import asyncio

import pytest

from dpserve.service.encoding import Encoding
from dpserve.service.errors import DeadlinePassed, InvalidRows, Overloaded

pytestmark = pytest.mark.anyio


class Network:
    """A network that takes as many seconds for a part as it is told to, by a clock of its own."""

    def __init__(self, seconds):
        self.now, self.seconds, self.computed = 0.0, seconds, []
        self.encoding = Encoding(lambda: self.now)

    async def ask(self, client, parts, **more):
        async def compute(place):
            self.computed.append(client)
            await asyncio.sleep(0)
            self.now += self.seconds
            return client, place

        return await self.encoding.in_parts(client, parts, [1] * parts, compute, **more)


async def test_clients_take_turns_and_each_gets_what_is_its_own():
    network = Network(0.01)
    asked = [network.ask(client, 50) for client in ("ann", "ann", "bob")]
    *_, (victim,) = await asyncio.gather(*asked, network.ask("victim", 1))
    assert victim == ("victim", 0)
    assert network.computed.index("victim") <= 3  # one part of each of the others before
    assert network.computed.count("ann") == 100


async def test_a_request_is_refused_by_the_time_that_it_takes_itself_as_soon_as_its_pace_is_known():
    network = Network(0.049)
    with pytest.raises(InvalidRows):
        await network.ask("ann", 1000)
    assert len(network.computed) == 11
    assert len(await network.ask("ann", 40)) == 40
    network.seconds = 3.0
    assert len(await network.ask("ann", 1)) == 1


async def test_what_is_not_limited_takes_its_turns_and_is_not_refused():
    network = Network(0.049)
    assert len(await network.ask("ann", 1000, limited=False)) == 1000


async def test_one_client_has_a_quarter_of_the_places_and_leaves_the_others():
    network = Network(0.001)
    asked = [asyncio.create_task(network.ask("ann", 3)) for _ in range(64)]
    await asyncio.sleep(0)
    assert await network.ask("bob", 3)
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    assert len(refused) == 64 - 16


async def test_nothing_is_computed_behind_a_deadline_or_for_a_client_that_is_gone():
    network = Network(1.0)
    with pytest.raises(DeadlinePassed):
        await network.ask("ann", 2, deadline=0.5)
    gone = asyncio.create_task(network.ask("bob", 2))
    while "bob" not in network.computed:
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert network.computed == ["ann", "bob"]
