"""What waits for a ledger that is slow: deadlines, a bounded queue, and a service that is told to stop meanwhile."""

import asyncio
import socket
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager

import pytest

from accounting.losses import Cost, GaussianLoss
from mechanisms.gaussian import Gaussian
from mechanisms.randomness import SystemRandomness
from service.data_plane import DataPlane
from service.ticks import QueueLimits

from .conftest import LARGEST_BATCH

PRICE = Cost((GaussianLoss(0.1),)).picorho


@contextmanager
def held_ledger(service):
    """Let no charge through until the block ends; yields what is set once one came."""
    charge, came, gate = service.ledger.charge_batch, threading.Event(), asyncio.Event()

    async def held(requests):
        came.set()
        await gate.wait()
        return await charge(requests)

    service.ledger.charge_batch = held
    try:
        yield came
    finally:
        service.ledger.charge_batch = charge
        service.loop.call_soon_threadsafe(gate.set)


def rows(number):
    return {"instances": [[number / 100] * 4]}


def test_what_is_not_charged_by_its_deadline_is_not_charged(service):
    key = service.add_client()
    with ThreadPoolExecutor(1) as pool:
        with held_ledger(service) as came:
            first = pool.submit(service.http(key).post, "/predict", json=rows(1), headers={"Prefer": "wait=0.01"})
            assert came.wait(60)
            refused = service.http(key).post("/predict", json=rows(2), headers={"Prefer": "wait=0.01"})
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:dpserve:problem:deadline-passed"
        assert first.result(60).status_code == 200  # its charge was on its way
    assert service.spent() == PRICE


@pytest.fixture
def crowded(start, head):
    def make(ledger):
        return DataPlane(
            head,
            Gaussian(10.0),
            ledger,
            SystemRandomness(),
            largest_batch=LARGEST_BATCH,
            limits=QueueLimits(rows=1),
        )

    return start.start(make, head.certificate.lineage, 100.0, "gaussian")


def test_what_would_wait_too_long_is_refused_at_once(crowded):
    key = crowded.add_client()
    with ThreadPoolExecutor(3) as pool:
        with held_ledger(crowded) as came:
            first = pool.submit(crowded.http(key).post, "/predict", json=rows(1))
            assert came.wait(60)
            others = {pool.submit(crowded.http(key).post, "/predict", json=rows(number)) for number in (2, 3)}
            (ended,), (waiting,) = wait(others, timeout=60, return_when=FIRST_COMPLETED)
            refused = ended.result()
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:dpserve:problem:overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert first.result(60).status_code == waiting.result(60).status_code == 200
    assert crowded.spent() == 2 * PRICE


def test_a_service_that_is_told_to_stop_answers_what_it_has(start, head):
    service = start(head)
    key = service.add_client()
    with ThreadPoolExecutor(1) as pool:
        with held_ledger(service) as came:
            under_way = pool.submit(service.http(key).post, "/predict", json=rows(1))
            assert came.wait(60)
            server, _ = start._running[-1]
            server.should_exit = True
            assert _stops_listening(service.url)
        answer = under_way.result(60)
    assert answer.status_code == 200
    assert answer.json()["receipt"]["charged_rows"] == 1
    assert answer.headers["connection"] == "close"


def _stops_listening(url):
    host, port = url.removeprefix("http://").split(":")
    last = time.monotonic() + 60
    while time.monotonic() < last:
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError:
            return True
    return False
