"""Connections: who hangs up with a request behind the first, and who never ends a header."""

import asyncio
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from accounting.losses import Cost, GaussianLoss
from service.errors import Overloaded
from service.http import bodies, impatience, short_way
from service.http.short_way import ShortWayProtocol

from .test_overload import held_ledger, rows

PRICE = Cost((GaussianLoss(0.1),)).picorho
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
BYE = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def connected(service):
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


TWICE = "X-A: 1\r\nX-A: 2\r\n"
"""Header fields that send a prediction past the short way."""


def prediction(key, fields=""):
    body = b'{"instances":[[0.2,0.2,0.2,0.2]]}'
    named = f"Host: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n{fields}"
    return f"POST /predict HTTP/1.1\r\n{named}\r\n".encode() + body


def heard_by(service, *parts, pause=0.02):
    """Return the status of each answer, and all that was heard until the service closes; the last part asks for it."""
    with connected(service) as connection:
        for part in parts:
            connection.sendall(part)
            threading.Event().wait(pause)  # so that the parts arrive apart; nothing depends on it
        heard = b""
        while more := connection.recv(65536):
            heard += more
    return [int(each) for each in re.findall(rb"HTTP/1.1 (\d+)", heard)], heard


def until(happened):
    for _ in range(60_000):
        if happened():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never happened")


@pytest.mark.parametrize("fields", ["", TWICE], ids=["short way", "long way"])
@pytest.mark.parametrize("behind", [b"", PROBE, 3 * PROBE], ids=["alone", "with another behind", "with three behind"])
def test_who_hangs_up_takes_back_what_waits_whatever_was_asked_behind_it(service, caplog, behind, fields):
    first, second = service.add_client("first"), service.add_client("second")
    ticks = service.predictor._ticks
    with ThreadPoolExecutor(1) as pool:
        with held_ledger(service) as came:
            answered = pool.submit(service.http(first).post, "/predict", json=rows(1))
            assert came.wait(60)
            with connected(service) as connection:
                connection.sendall(prediction(second, fields) + behind)
                until(lambda: ticks._waiting_rows == 1)
            until(lambda: ticks._waiting_rows == 0)
        assert answered.result(60).status_code == 200
    assert service.http(first).post("/predict", json=rows(3)).status_code == 200
    assert service.spent("second") == 0
    assert service.spent("first") == 2 * PRICE
    assert caplog.text == ""


UPGRADE = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


@pytest.mark.parametrize("behind", [UPGRADE, PROBE, UPGRADE + PROBE])
def test_what_was_refused_at_once_is_not_asked_again_by_a_request_behind_it(service, monkeypatch, behind):
    key, begin = service.add_client("ann"), service.predictor.begin
    assert service.http(key).post("/predict", json=rows(1)).status_code == 200
    refusals = iter([Overloaded(1)])

    def begin_or_refuse(*asked, **how):
        for refusal in refusals:
            raise refusal
        return begin(*asked, **how)

    monkeypatch.setattr(service.predictor, "begin", begin_or_refuse)
    statuses, heard = heard_by(service, prediction(key), behind, BYE)
    assert statuses == [503, *[200] * behind.count(b"GET"), 200], heard
    assert heard.count(b"predictions") == 0
    assert service.spent("ann") == PRICE
    statuses, heard = heard_by(service, prediction(key) + behind + prediction(key) + behind, BYE)
    assert statuses == [200] * (3 + 2 * behind.count(b"GET")), heard


@pytest.mark.parametrize("fields", ["", TWICE], ids=["short way", "long way"])
def test_a_body_that_does_not_come_is_counted_as_what_became_of_it(service, monkeypatch, fields):
    part = prediction(service.add_client("ann"), fields)[:-3]

    def counted(status):
        return service.metrics.registry.get_sample_value(
            "dpserve_requests_total", {"route": "/predict", "status": str(status)}
        )

    with connected(service) as connection:
        connection.sendall(PROBE)
        assert connection.recv(65536)
        connection.sendall(part)
    until(lambda: counted(499) == 1)
    for module in (bodies, short_way):
        monkeypatch.setattr(module, "SECONDS_FOR_BODY", 0.05)
    assert heard_by(service, part)[0] == [408]
    until(lambda: counted(408) == 1)
    assert counted(499) == 1


def test_a_plain_prediction_of_a_known_key_takes_no_task(service, monkeypatch):
    http = service.http(service.add_client("ann"))
    assert http.post("/predict", json=rows(1)).status_code == 200  # the first asks the ledger whose the key is
    monkeypatch.setattr(ShortWayProtocol, "_answer", None)
    assert http.post("/predict", json=rows(2)).status_code == 200
    assert service.spent("ann") == 2 * PRICE


def test_an_answer_waits_until_its_reader_reads(service, monkeypatch):
    key, made, seen = service.add_client("ann"), ShortWayProtocol.connection_made, []
    assert service.http(key).post("/predict", json=rows(1)).status_code == 200

    def full(protocol, transport):
        made(protocol, transport)
        protocol.flow.pause_writing()
        seen.append(protocol)

    monkeypatch.setattr(ShortWayProtocol, "connection_made", full)
    with connected(service) as connection:
        connection.sendall(prediction(key))
        until(lambda: seen and seen[0].cycle is not None and isinstance(seen[0].cycle.task, asyncio.Task))
        assert not seen[0].cycle.response_complete
        service.loop.call_soon_threadsafe(seen[0].flow.resume_writing)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("unfinished", [PROBE[:-2], b"\r\n"], ids=["a header", "empty lines"])
def test_a_header_that_does_not_end_closes_a_connection_that_was_good_before(service, monkeypatch, unfinished):
    with connected(service) as connection:
        connection.sendall(PROBE)
        heard = b""
        while b"live" not in heard:
            heard += connection.recv(65536)
        monkeypatch.setattr(impatience, "SECONDS_FOR_HEADERS", 0.05)
        connection.sendall(unfinished)
        assert connection.recv(65536) == b""


def test_a_header_that_does_not_end_takes_no_answer_from_the_request_before_it(service, monkeypatch):
    key = service.add_client()
    asked = prediction(key)
    monkeypatch.setattr(impatience, "SECONDS_FOR_HEADERS", 0.05)
    with connected(service) as connection:
        with held_ledger(service) as came:
            connection.sendall(asked + PROBE[:-2])
            assert came.wait(60)
            threading.Event().wait(0.2)  # its time has passed
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        while connection.recv(65536):
            pass
    assert service.spent() == PRICE


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("apart", [True, False])
def test_a_wish_for_another_protocol_is_ignored_and_the_body_stays_a_body(service, caplog, protocol, apart):
    wish = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: " + protocol
    head, _, body = prediction(service.add_client()).partition(b"\r\n\r\n")
    parts = [head + wish + b"\r\n\r\n", body, BYE]
    statuses, heard = heard_by(service, *(parts if apart else [b"".join(parts)]))
    assert statuses == [200, 200], heard
    assert service.spent() == PRICE
    smuggled = head.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % len(PROBE))
    parts = [smuggled + wish + b"\r\n\r\n", PROBE, BYE]
    statuses, heard = heard_by(service, *(parts if apart else [b"".join(parts)]))
    assert statuses == [400, 200], heard
    assert b"malformed-json" in heard
    chunked = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", head) + wish + b"\r\n\r\n"
    assert heard_by(service, chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), BYE)[0] == [200, 200]
    assert "pgrade" not in caplog.text


@pytest.mark.parametrize(
    "request_of",
    [
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01",
    ],
)
def test_what_is_no_request_is_refused_with_a_problem(service, request_of):
    statuses, heard = heard_by(service, request_of, pause=0)
    assert statuses == [400]
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(body)["type"] == "urn:dpserve:problem:invalid-request"


def test_http_1_0_needs_no_host(service):
    assert heard_by(service, b"GET /livez HTTP/1.0\r\n\r\n")[0] == [200]
