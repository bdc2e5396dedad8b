"""The promises of a service by itself, without a proxy: a body in time, and answers for others beside slow clients."""

import re
import socket
from contextlib import ExitStack

import pytest

from dpserve.service.http.app import HttpOptions

from .test_http import PRICE, ROW

PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LARGE_FILE = b"GET /page/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def service(own_service):
    return own_service


@pytest.fixture
def impatient(start, head):
    """A service that waits for a body for a twentieth of a second."""
    return start(head, options=HttpOptions(seconds_for_body=0.05))


def connect(service):
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def prediction(key, *fields, row=ROW):
    body = f'{{"instances":[{row}]}}'.encode()
    lines = ["POST /predict HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *fields, "", ""]).encode() + body


def heard(connection):
    """Return the statuses of all answers until the service closes, and everything that it said."""
    said = b""
    while more := connection.recv(1 << 16):
        said += more
    return [int(each) for each in re.findall(rb"HTTP/1.1 (\d+)", said)], said


def counted(service, status):
    labels = {"route": "/predict", "model": "colours", "status": str(status)}
    return service.metrics.registry.get_sample_value("dpserve_requests_total", labels)


def test_a_body_that_does_not_arrive_in_time_is_refused_and_its_connection_closed(impatient):
    key = impatient.add_client()
    with connect(impatient) as connection:
        connection.sendall(prediction(key)[:-3])
        statuses, said = heard(connection)
    assert statuses == [408]
    assert b"connection: close" in said.lower()
    assert impatient.spent() == 0


def test_who_disconnects_before_the_body_is_complete_is_charged_nothing(service, caplog):
    key = service.add_client()
    with connect(service) as connection:
        connection.sendall(PROBE)
        assert connection.recv(1 << 16)
        connection.sendall(prediction(key)[:-3])
    for _ in range(1000):
        if counted(service, 499):
            break
        assert service.http().get("/livez").status_code == 200
    assert counted(service, 499) == 1
    assert service.spent() == 0
    assert caplog.text == ""


@pytest.mark.parametrize(
    "sent",
    [b"", PROBE[:-2], prediction("a key")[:-3], 20 * LARGE_FILE],
    ids=["silence", "slow headers", "slow bodies", "unread answers"],
)
def test_two_hundred_slow_clients_keep_nobody_else_out(service, sent):
    http = service.http(service.add_client())
    with ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(connect(service)).sendall(sent)
        assert http.post("/predict", json={"instances": [ROW]}).status_code == 200


def test_pipelined_requests_are_answered_in_order_and_each_is_charged_once(service):
    key = service.add_client()
    requests = [prediction(key, row=[0.1 * place] * 4) for place in range(5)]
    with connect(service) as connection:
        connection.sendall(
            b"".join([*requests, requests[0], PROBE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")])
        )
        statuses, said = heard(connection)
    assert statuses == [200] * 7
    assert [int(each) for each in re.findall(rb'"charged_rows":(\d)', said)] == [1, 1, 1, 1, 1, 0]
    assert service.spent() == 5 * PRICE


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_a_wish_for_another_protocol_is_refused_and_what_follows_is_no_request(start, head, protocol):
    service = start(head, seconds_idle=1)
    wish = prediction(service.add_client(), "Connection: Upgrade", f"Upgrade: {protocol}")
    with connect(service) as connection:
        connection.sendall(wish + prediction("another key"))
        statuses, _ = heard(connection)
    assert statuses == [400]
    assert service.spent() == 0
