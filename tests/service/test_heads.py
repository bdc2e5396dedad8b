"""A request's head, byte by byte over a socket: what is a header, and how long a head may be."""

import asyncio
import json
import socket
import struct
import sys
from urllib.parse import urlsplit

import pytest
import uvloop

from dpserve.service.http import protocol
from dpserve.service.http.protocol import LONGEST_HEAD, MOST_UNANSWERED, _JoinedWrites

from .test_http import PRICE

BODY = json.dumps({"instances": [[0.1, 0.2, 0.3, 0.4]]}).encode()


@pytest.fixture(scope="module")
def running(start_for_module, head):
    return start_for_module(head)


class Connection:
    def __init__(self, url):
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        self._file = self._socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()
        self._socket.close()

    def send(self, *parts):
        self._socket.sendall(b"".join(parts))

    def answer(self):
        """Return the status and the body of the next answer."""
        status, length = int(self._file.readline().split()[1]), 0
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status, self._file.read(length)

    def ended(self):
        return self._file.read(1) == b""


def post(key, *fields):
    authorization = [b"Authorization: Bearer " + key.encode()] if key else []
    return b"\r\n".join([b"POST /predict HTTP/1.1", b"Host: x", *authorization, *fields, b"", b""])


CHUNKED = b"Transfer-Encoding: chunked"


def in_chunks(*trailers):
    return b"\r\n".join([b"%x" % len(BODY), BODY, b"0", *trailers, b"", b""])


@pytest.mark.parametrize("together", [True, False], ids=["in one packet", "after the service began to answer"])
@pytest.mark.parametrize(
    ("shown", "trailer", "status"),
    [
        (False, b"Authorization: Bearer {}", 401),
        (True, b"Authorization: Bearer nobody's", 200),
        (True, b"Idempotency-Key: " + 300 * b"k", 200),
        (True, b"Prefer: wait=0", 200),
        (True, b"Upgrade: x", 200),
        (True, b"Content-Type: application/xml", 200),
    ],
    ids=lambda value: value.split(b":")[0].decode() if isinstance(value, bytes) else "",
)
def test_a_trailer_is_no_header_whenever_it_comes(running, request, together, shown, trailer, status):
    key = running.add_client(f"c{abs(hash(request.node.nodeid))}", rho=2 * PRICE / 1e12)
    trailer = trailer.replace(b"{}", key.encode())
    with Connection(running.url) as connection:
        head = post(key if shown else None, CHUNKED)
        if together:
            connection.send(head, in_chunks(trailer))
        else:
            # "100 Continue" comes when the service reads the body, and so after it has read the headers; a request
            # that is refused for its head alone is answered in its place.
            connection.send(post(key if shown else None, CHUNKED, b"Expect: 100-continue"))
            if (early := connection.answer())[0] != 100:
                assert early[0] == status
                return
            connection.send(in_chunks(trailer))
        assert connection.answer()[0] == status


def test_the_request_after_a_trailer_has_headers_of_its_own(running):
    key = running.add_client("pipelined", rho=2 * PRICE / 1e12)
    with Connection(running.url) as connection:
        other = post(key, b"Content-Length: %d" % len(BODY))
        connection.send(post(key, CHUNKED), in_chunks(b"Authorization: Bearer x"), other, BODY)
        assert [connection.answer()[0] for _ in range(2)] == [200, 200]


ENDLESS = {
    "a header": (b"POST /predict HTTP/1.1\r\nX: ", b"a" * 4096),
    "many headers": (b"POST /predict HTTP/1.1\r\n", b"a:b\r\n" * 1000),
    "a path": (b"POST /", b"a" * 4096),
    "a name": (b"POST / HTTP/1.1\r\n", b"a" * 4096),
    "a method": (b"", b"POST" * 1024),
    "a trailer": (post(None, CHUNKED) + b"1\r\nx\r\n0\r\nX: ", b"a" * 4096),
    "many trailers": (post(None, CHUNKED) + b"1\r\nx\r\n0\r\n", b"a:b\r\n" * 1000),
    "a chunk's extension": (post(None, CHUNKED) + b"1;", b"a" * 4096),
}


@pytest.mark.parametrize("which", ENDLESS)
def test_a_head_without_end_is_cut_off(running, which):
    start, part = ENDLESS[which]
    sent = 0
    with Connection(running.url) as connection:
        connection.send(start)
        try:
            while True:
                connection.send(part)
                sent += len(part)
                assert sent < 2**26, "the service reads on"
        except (BrokenPipeError, ConnectionResetError):
            pass


def test_the_longest_head_is_answered_and_one_more_byte_is_refused(running):
    key = running.add_client("long", rho=2 * PRICE / 1e12)
    for length, status in ((LONGEST_HEAD - 1024, 200), (LONGEST_HEAD, 400)):
        with Connection(running.url) as connection:
            connection.send(post(key, b"X: " + length * b"a", b"Content-Length: %d" % len(BODY)), BODY)
            assert connection.answer()[0] == status


def asked(*paths):
    return b"".join(b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in paths)


def test_a_few_requests_at_once_are_answered_in_their_order(running):
    with Connection(running.url) as connection:
        connection.send(asked(*[b"livez", b"nothing"] * (MOST_UNANSWERED // 2)))
        assert [connection.answer()[0] for _ in range(MOST_UNANSWERED)] == [200, 404] * (MOST_UNANSWERED // 2)
        connection.send(asked(b"livez"))
        assert connection.answer()[0] == 200


@pytest.mark.parametrize("port", ["clients'", "owner's"])
def test_a_connection_with_too_many_unanswered_requests_is_closed(port, request):
    of = request.getfixturevalue("owner" if port == "owner's" else "running")
    url = str(getattr(of, "base_url", None) or of.url)
    answered = 0
    with Connection(url) as connection:
        connection.send(asked(*[b"openapi.json"] * (MOST_UNANSWERED + 1)))
        # Answers that were written before the close may come, or a reset in their place; never one to each request.
        try:
            while not connection.ended():
                connection.answer()
                answered += 1
        except (ConnectionResetError, IndexError):
            pass
    assert answered <= MOST_UNANSWERED
    with Connection(url) as connection:
        connection.send(asked(b"livez"))
        assert connection.answer()[0] in (200, 401, 404)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_nothing_is_written_to_a_connection_that_was_aborted(loop, caplog):
    """asyncio logs what is written to a lost connection, or keeps it and waits to send it."""

    async def write_after_the_end():
        here, there = socket.socketpair()
        with there:
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=here)
            writes = _JoinedWrites(transport)
            transport.abort()
            for _ in range(MOST_UNANSWERED):
                writes.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
                writes.write(b"{}")
            return transport.get_write_buffer_size()

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(write_after_the_end()) == 0
    assert caplog.records == []


def segments_with_data(connection):
    """Return how many packets with data came in over a socket, as Linux counts them (`struct tcp_info`)."""
    information = connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return struct.unpack_from("=I", information, 152)[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux counts packets")
def test_an_answer_is_one_packet_with_its_head(running):
    key = running.add_client("one packet", rho=2 * PRICE / 1e12)
    questions = [post(key, b"Content-Length: %d" % len(BODY)) + BODY, asked(b"livez"), asked(b"nothing"), post(None)]
    with Connection(running.url) as connection:
        for number, question in enumerate(questions, 1):
            connection.send(question)
            connection.answer()
            assert segments_with_data(connection) == number


def test_an_answer_without_a_body_is_sent_before_the_next_is_asked_for(running):
    with Connection(running.url) as connection:
        for path in (b"/livez", b"/nothing"):
            connection.send(b"HEAD %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            status, *fields = iter(connection._file.readline, b"\r\n")
            assert status.startswith(b"HTTP/1.1 ")
            assert any(field.startswith(b"content-length: ") for field in fields)
        connection.send(asked(b"livez"))
        assert connection.answer() == (200, b'{"status":"live"}')


def test_an_answer_without_a_body_is_sent_where_the_connection_closes_behind_it(running):
    with Connection(running.url) as connection:
        connection.send(b"HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert connection._file.read().startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"POST /predict HT", b"POST /predict HTTP/1.1\r\nHost: x\r\nX-"])
@pytest.mark.parametrize("before", [False, True], ids=["first", "after an answer"])
def test_a_head_that_does_not_come_is_waited_for_no_longer(running, request, monkeypatch, begun, before):
    monkeypatch.setattr(protocol, "SECONDS_FOR_HEAD", 0.2)
    with Connection(running.url) as connection:
        if before:
            connection.send(post("", b"Content-Length: 2"), b"{}")
            assert connection.answer()[0] == 401
        connection.send(begun)
        assert connection.ended()


def test_a_connection_that_waits_for_its_answer_is_not_closed_for_its_next_head(running, request, monkeypatch):
    """The body of the first comes after the time for a head is over; the second's head never does."""
    key = running.add_client(request.node.name)
    monkeypatch.setattr(protocol, "SECONDS_FOR_HEAD", 0.2)
    with Connection(running.url) as connection, Connection(running.url) as other:
        connection.send(post(key, b"Content-Length: %d" % len(BODY)), BODY[:5])
        assert other.ended()  # so the time is over
        connection.send(BODY[5:], b"POST /predict HT")
        assert connection.answer()[0] == 200
        assert connection.ended()
