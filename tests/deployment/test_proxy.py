"""The protection that the service leaves to a proxy, in deploy/nginx.conf: slow clients, floods, forged addresses."""

import socket
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from benchmarks.replicas import NGINX, replicas

from .test_replicas import small_bundle

BUDGET = ("--rho", 1, "--delta", 1e-6)
BODY = {"instances": [[0.5, 0.5]]}
LARGE_FILE = b"GET /page/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A service behind nginx, whose time-outs are a second each, and the key of a client."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp("proxied")
    options = ("--price", "rho:0.001", "--trusted-proxies", "127.0.0.1", "--failed-tries", 1, *BUDGET)
    with replicas(folder, small_bundle(folder), 1, *options, timeouts="1s") as running:
        yield running, running.new_key("ann", *BUDGET)


def connect(running):
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


@contextmanager
def attackers(running, count, sent):
    """So many connections from one address, on each of which this was sent."""
    with ExitStack() as opened:
        connections = [opened.enter_context(connect(running)) for _ in range(count)]
        for connection in connections:
            connection.sendall(sent)
        yield connections


def closes(connection):
    """Whether the connection is closed from the other side, whatever is said before."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return True


def is_answered(running, key):
    """Ask from another address."""
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(base_url=running.url, transport=transport, timeout=60) as http:
        response = http.post("/predict", json=BODY, headers={"Authorization": f"Bearer {key}"})
    return response.status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Endless: ",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["silence", "a slow header", "a slow body"],
)
def test_slow_senders_keep_nobody_out_and_are_disconnected(proxied, sent):
    running, key = proxied
    with attackers(running, 512, sent) as connections:
        assert is_answered(running, key)
        assert all(map(closes, connections[::64]))


@pytest.mark.slow
def test_who_pipelines_requests_for_a_large_file_and_never_reads_keeps_nobody_out_and_is_disconnected(proxied):
    running, key = proxied
    with attackers(running, 512, 50 * LARGE_FILE) as connections:
        assert is_answered(running, key)
        for connection in connections[::64]:
            # Reset while unread bytes wait in the kernel: those are read, and then there is an end.
            assert closes(connection)


def test_a_header_without_end_is_refused(proxied):
    running, key = proxied
    with attackers(running, 1, b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 70_000) as (connection,):
        assert b" 400 " in connection.recv(1 << 16)
    assert is_answered(running, key)


def test_an_address_that_a_client_makes_up_is_not_believed(proxied):
    running, _ = proxied
    statuses = []
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        headers = {"Authorization": "Bearer not-a-key-of-anybody", "X-Forwarded-For": address}
        statuses.append(httpx.post(f"{running.url}/predict", json=BODY, headers=headers).status_code)
    assert statuses[1:] == [429, 429], "tries of one address, whatever it says"
