"""HTTPS connections that never shake hands count and end, and workers share those that come."""

import asyncio
import socket
import ssl
import threading
from contextlib import ExitStack, contextmanager

import httpx
import pytest
import uvicorn
import uvloop

from service.http.accepting import LimitedServer
from service.http.impatience import ImpatientProtocol
from service.open_connections import OpenConnections
from service.run import ServiceSettings, bind
from service.tls import Tls
from tests.dpserve.test_https import write_certificate

MOST = 5


async def hello(scope, receive, send):
    """Answer everything alike."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@contextmanager
def running(tls, loop_factory):
    """A server of at most MOST connections; gives its port."""
    protocol = type("Few", (ImpatientProtocol,), {"most_connections": MOST})
    server = LimitedServer(
        uvicorn.Config(hello, http=protocol, lifespan="off", log_config=None, **tls.for_uvicorn(), date_header=False)
    )
    started = threading.Event()

    async def run(listening):
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        started.set()
        await serving

    def main():
        with asyncio.Runner(loop_factory=loop_factory) as runner, bind(ServiceSettings(port=0)) as listening:
            address.append(listening.getsockname())
            runner.run(run(listening))

    address = []
    thread = threading.Thread(target=main)
    thread.start()
    assert started.wait(60)
    try:
        yield address[0]
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop_factory(request):
    return request.param


@pytest.fixture
def tls(tmp_path):
    return Tls(*write_certificate(tmp_path, "own"))


def test_who_never_shakes_hands_is_counted_and_in_the_end_closed(tls, loop_factory, monkeypatch):
    with running(tls, loop_factory) as address:
        url = f"https://127.0.0.1:{address[1]}"
        silent = [socket.create_connection(address, timeout=60) for _ in range(MOST)]
        with socket.create_connection(address, timeout=60) as refused:
            assert refused.recv(1) == b""
        silent.pop().close()
        with httpx.Client(verify=ssl.create_default_context(cafile=tls.certificate)) as http:
            for _ in range(1000):
                try:
                    assert [http.get(url).text for _ in range(2)] == ["hi", "hi"]
                    break
                except httpx.TransportError:
                    threading.Event().wait(0.01)
            else:
                raise AssertionError("the place of who hung up stays taken")
        monkeypatch.setattr("service.http.impatience.SECONDS_FOR_HEADERS", 0.05)
        with socket.create_connection(address, timeout=60) as late:
            assert late.recv(1) == b""
        for each in silent:
            each.close()


def test_who_speaks_no_tls_is_closed_and_a_server_that_ends_waits_for_nobody(tls, loop_factory):
    with running(tls, loop_factory) as address:
        with socket.create_connection(address, timeout=60) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while plain.recv(4096):
                pass
        silent = socket.create_connection(address, timeout=60)
    assert silent.recv(1) == b""
    silent.close()


@contextmanager
def accepting(listening, place, loop_factory, most=MOST):
    """A worker at `place`, of at most `most` connections."""
    protocol = type("Few", (ImpatientProtocol,), {"most_connections": most})
    config = uvicorn.Config(hello, http=protocol, lifespan="off", log_config=None, date_header=False)
    server, started = LimitedServer(config, place), threading.Event()

    async def run():
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        started.set()
        await serving

    def main():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(run())

    thread = threading.Thread(target=main)
    thread.start()
    assert started.wait(60)
    try:
        yield server.server_state.connections
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def asked(connection):
    """Return what a connection hears that asks; nothing if it was closed."""
    connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    heard = b""
    while b"hi" not in heard and (more := connection.recv(4096)):
        heard += more
    return heard


@pytest.mark.parametrize("most", [20, 12], ids=["with room", "full together"])
def test_workers_share_connections_evenly_and_close_none_that_another_could_take(loop_factory, monkeypatch, most):
    monkeypatch.setattr("service.http.accepting._MOST_TIMES_LEFT", 10**9)  # whoever is slow is not taken to be away
    counts = OpenConnections(2)
    with bind(ServiceSettings(port=0)) as listening:
        address = listening.getsockname()
        with (
            accepting(listening.dup(), counts.of(0), loop_factory, most) as first,
            accepting(listening.dup(), counts.of(1), loop_factory, most) as second,
            ExitStack() as opened,
        ):
            open_now = [opened.enter_context(socket.create_connection(address, timeout=60)) for _ in range(24)]
            assert all(b"hi" in asked(connection) for connection in open_now)
            assert {len(first), len(second)} == {12}
            if most == 12:
                with socket.create_connection(address, timeout=60) as refused:
                    assert refused.recv(1) == b""


def test_a_worker_that_takes_nobody_keeps_nobody_waiting(loop_factory):
    counts = OpenConnections(3)
    counts.of(1).has(0)
    with bind(ServiceSettings(port=0)) as listening:
        address = listening.getsockname()
        with accepting(listening.dup(), counts.of(0), loop_factory) as connections, ExitStack() as opened:
            open_now = [opened.enter_context(socket.create_connection(address, timeout=60)) for _ in range(MOST)]
            assert all(b"hi" in asked(connection) for connection in open_now)
            assert len(connections) == MOST
            with socket.create_connection(address, timeout=60) as refused:
                assert refused.recv(1) == b""
        assert counts.of(2).fewest_elsewhere() == 0  # what is away says so no more
        counts.of(1).closes()
        assert counts.of(2).fewest_elsewhere() > 10**9  # who ended accepts nobody
