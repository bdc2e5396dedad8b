"""Connections: who hangs up with a request behind the first, and who never ends a header."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from accounting.losses import Cost, GaussianLoss
from service.http import impatience

from .test_overload import held_ledger, rows

PRICE = Cost((GaussianLoss(0.1),)).picorho
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def connected(service):
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def prediction(key):
    body = b'{"instances":[[0.2,0.2,0.2,0.2]]}'
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def until(happened):
    for _ in range(60_000):
        if happened():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never happened")


@pytest.mark.parametrize("behind", [b"", PROBE], ids=["alone", "with another behind"])
def test_who_hangs_up_takes_back_what_waits_whatever_was_asked_behind_it(service, behind):
    first, second = service.add_client("first"), service.add_client("second")
    ticks = service.data_plane._ticks
    with ThreadPoolExecutor(1) as pool:
        with held_ledger(service) as came:
            answered = pool.submit(service.http(first).post, "/predict", json=rows(1))
            assert came.wait(60)
            with connected(service) as connection:
                connection.sendall(prediction(second) + behind)
                until(lambda: ticks._waiting_rows == 1)
            until(lambda: ticks._waiting_rows == 0)
        assert answered.result(60).status_code == 200
    assert service.http(first).post("/predict", json=rows(3)).status_code == 200
    assert service.spent("second") == 0
    assert service.spent("first") == 2 * PRICE


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
