"""HTTPS connections that never shake hands count and end, and workers share those that come."""

import asyncio
import select
import socket
import ssl
import struct
import threading
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import uvicorn
import uvloop

from service.http.accepting import _AHEAD, BACKLOG, Accepting, LimitedServer, _Noticed
from service.http.impatience import ImpatientProtocol
from service.http.waiting import answering_that_it_is_not_ready
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
def running(tls, loop_factory, sockets=1):
    """A server of at most MOST connections; gives the addresses of its sockets."""
    protocol = type("Few", (ImpatientProtocol,), {"most_connections": MOST})
    server = LimitedServer(
        uvicorn.Config(hello, http=protocol, lifespan="off", log_config=None, **tls.for_uvicorn(), date_header=False)
    )
    started = threading.Event()

    async def run(listening):
        serving = asyncio.create_task(server.serve(sockets=listening))
        while not server.started:
            await asyncio.sleep(0.01)
        started.set()
        await serving

    def main():
        with asyncio.Runner(loop_factory=loop_factory) as runner, ExitStack() as opened:
            listening = [opened.enter_context(bind(ServiceSettings(port=0))) for _ in range(sockets)]
            addresses.extend(each.getsockname() for each in listening)
            runner.run(run(listening))

    addresses = []
    thread = threading.Thread(target=main)
    thread.start()
    assert started.wait(60)
    try:
        yield addresses
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
    with running(tls, loop_factory) as (address,):
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
    with running(tls, loop_factory) as (address,):
        with socket.create_connection(address, timeout=60) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while plain.recv(4096):
                pass
        silent = socket.create_connection(address, timeout=60)
    assert silent.recv(1) == b""
    silent.close()


def test_the_connections_of_several_sockets_are_counted_together(tls, loop_factory, monkeypatch):
    monkeypatch.setattr("service.http.impatience.SECONDS_FOR_HEADERS", 3600.0)  # nobody is closed for being silent
    with running(tls, loop_factory, sockets=2) as addresses, ExitStack() as opened:
        silent = {
            opened.enter_context(socket.create_connection(addresses[number % 2], timeout=60))
            for number in range(MOST + 2)
        }
        for _ in range(2):  # whichever of them were accepted last
            refused = next(iter(select.select(silent, [], [], 60)[0]))
            assert refused.recv(1) == b""
            silent.remove(refused)


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
def test_workers_share_connections_and_close_none_that_another_could_take(loop_factory, monkeypatch, most):
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
            assert len(first) + len(second) == 24
            assert abs(len(first) - len(second)) <= _AHEAD + 1
            if most == 12:
                assert {len(first), len(second)} == {12}
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


def most_that_may_wait(listening):
    """What the kernel holds `listening` to; of a socket that listens it says so in the place of `tcpi_sacked`."""
    return struct.unpack_from("I", listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)[0]


def test_a_crowd_may_wait_while_a_service_starts_and_when_it_is_ready(loop_factory, tls):
    expected = min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))

    async def starting(listening, tls):
        async with answering_that_it_is_not_ready(listening, tls):
            return most_that_may_wait(listening)

    with bind(ServiceSettings(port=0)) as listening, asyncio.Runner(loop_factory=loop_factory) as runner:
        assert most_that_may_wait(listening) == expected
        for each in None, tls:
            assert runner.run(starting(listening, each)) == expected
        listening.listen(7)
        assert most_that_may_wait(listening) == 7
        with accepting(listening.dup(), OpenConnections(1).of(0), loop_factory):
            assert most_that_may_wait(listening) == expected


@asynccontextmanager
async def accepting_when_told(listening, place, most):
    """A worker that accepts in this event loop, and so no sooner than it is told or waited for."""
    connections = _Noticed()

    class Entering(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
            connections.add(self)

        def connection_lost(self, error):
            connections.discard(self)

    worker = Accepting([listening], None, Entering, connections, most, place=place)
    try:
        yield worker
    finally:
        while worker._shaking:
            await asyncio.sleep(0)
        worker.close()
        await worker.wait_closed()
        for each in list(connections):
            each.transport.abort()
        while connections:
            await asyncio.sleep(0)


def taken_by_another(listening):
    """Accept all who wait, as another worker; return how many there were."""
    taken = 0
    with suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            taken += 1
    return taken


@pytest.mark.parametrize(("most", "takes"), [(100, _AHEAD + 1), (3, 3)], ids=["with room", "full"])
def test_a_worker_takes_a_few_more_than_another_has_and_leaves_the_rest(loop_factory, monkeypatch, most, takes):
    monkeypatch.setattr("service.http.accepting._MOST_TIMES_LEFT", 10**9)
    counts = OpenConnections(2)
    counts.of(1).has(0)

    async def run(listening):
        async with accepting_when_told(listening, counts.of(0), most) as worker:
            with ExitStack() as opened:
                for _ in range(12):
                    opened.enter_context(socket.create_connection(listening.getsockname(), timeout=60))
                worker._accept(listening)
                return counts.of(1).fewest_elsewhere(), taken_by_another(listening)

    with bind(ServiceSettings(port=0)) as listening, asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(run(listening)) == (takes, 12 - takes)


@pytest.mark.parametrize("takes", [False, True], ids=["nobody waits", "another takes who waits"])
def test_a_worker_is_away_only_if_it_leaves_who_waits(loop_factory, takes):
    counts = OpenConnections(2)

    async def run(listening):
        async with accepting_when_told(listening, counts.of(0), 100) as worker:
            with ExitStack() as opened:

                def connect():
                    opened.enter_context(socket.create_connection(listening.getsockname(), timeout=60))

                for _ in range(_AHEAD + 1):
                    connect()
                worker._accept(listening)
                counts.of(1).has(0)
                for _ in range(30):  # three times as often as who waits is left to one that is away
                    if takes:
                        connect()
                    worker._accept(listening)
                    assert taken_by_another(listening) == takes
                    while takes and worker._again is not None:
                        await asyncio.sleep(0)
                connect()
                worker._accept(listening)
                return taken_by_another(listening)

    with bind(ServiceSettings(port=0)) as listening, asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(run(listening)) == 1


def test_a_connection_that_takes_no_option_is_closed(loop_factory, tmp_path):
    async def run(listening):
        async with accepting_when_told(listening, OpenConnections(1).of(0), 100) as worker:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(listening.getsockname())
                worker._accept(listening)
                return client.recv(1), worker._open

    with socket.socket(socket.AF_UNIX) as listening, asyncio.Runner(loop_factory=loop_factory) as runner:
        listening.bind(str(tmp_path / "socket"))  # which knows nothing of TCP
        listening.listen()
        assert runner.run(run(listening)) == (b"", 0)
