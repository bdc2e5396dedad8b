"""Signals that reach a service before its server is there."""

import signal
from contextlib import asynccontextmanager

import pytest
import uvicorn

from dpserve.service.listener import Application, ServiceSettings, bind, run

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def handlers():
    """See to it that the signals' handlers are afterwards what they were."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_signal_before_the_server_has_handlers_of_its_own_ends_it(monkeypatch):
    served = uvicorn.Server.serve
    ended = []

    async def told_first(server, sockets=None):
        signal.raise_signal(signal.SIGTERM)
        ended.append(server.should_exit)
        server.should_exit = True  # so that the test ends where the signal is lost
        await served(server, sockets)

    @asynccontextmanager
    async def opening():
        yield None

    monkeypatch.setattr(uvicorn.Server, "serve", told_first)
    settings = ServiceSettings()
    with bind() as listening:
        application = Application(opening())
        assert run(lambda: application, settings, listening) == 0
    assert ended == [True]
