"""Requests that wait for a slow ledger: deadlines, a bounded queue, and a service that is told to stop meanwhile."""

import asyncio
import math
import socket
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager

import numpy as np
import pytest

from dpserve.accounting.ledger import key_digest
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.service.batcher import Batcher, BatchLimits
from dpserve.service.errors import DeadlinePassed, InvalidRows
from dpserve.service.http.problems import ProblemType
from dpserve.service.http.protocol import FULL
from dpserve.service.listener import ServiceSettings
from dpserve.service.metered import MeteredPredictor
from dpserve.service.predictor import Caller, RowsRequest
from dpserve.training.kinds.head.bundle import CertifiedHead
from tests.topologies import wait_until

from .conftest import LARGEST_BATCH

PRICE = Cost((GaussianLoss(0.1),)).picorho


@pytest.fixture
def service(own_service):
    return own_service


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
            first = pool.submit(service.http(key).post, "/predict", json=rows(1))
            assert came.wait(60)
            refused = service.http(key).post("/predict", json=rows(2), headers={"Prefer": "wait=0.01"})
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:dpserve:problem:deadline-passed"
        sent = [("Prefer", "wait=0"), ("Prefer", "return=minimal")]
        assert service.http(key).post("/predict", json=rows(2), headers=sent).status_code == 503
        assert first.result(60).status_code == 200
    assert service.spent() == PRICE


class Unhurried(CertifiedHead):
    """A head that waits for a gate before it gives features; in a thread, as an encoder does."""

    on_encoder = True
    came, gate = threading.Event(), threading.Event()

    def features(self, X):
        self.came.set()
        assert self.gate.wait(60)
        return super().features(X)


def test_a_deadline_that_passes_while_features_are_computed_is_kept(start, head):
    slow = Unhurried(head.certificate, head.weights, head.tensors, head.noise_key)
    service = start(slow)
    http = service.http(service.add_client())
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(http.post, "/predict", json=rows(1), headers={"Prefer": "wait=0.01"})
        assert slow.came.wait(60)
        threading.Event().wait(0.02)  # it has passed
        slow.gate.set()
        refused = late.result(60)
    assert refused.status_code == 503
    assert refused.json()["type"] == "urn:dpserve:problem:deadline-passed"
    assert service.spent() == 0
    assert http.post("/predict", json=rows(1), headers={"Prefer": "wait=60"}).status_code == 200


def test_a_request_that_is_refused_shifts_nobody_elses_rows(start, head):
    service = start(head, Gaussian(0.25))
    key = service.add_client(rho=50.0)
    plane, caller = service.predictor, Caller("alice", key_digest(key))
    X = plane.check_rows((0.15 + 0.7 * np.eye(3, 4)).tolist())

    async def ask():
        asked = ((X[:1], 0.0), (X[1:], math.inf), (X[:1], math.inf), (X[2:], 0.0))
        return await asyncio.gather(
            *(plane.predict(caller, RowsRequest(of, deadline=deadline)) for of, deadline in asked),
            return_exceptions=True,
        )

    late, others, first, last = service.call(ask())
    assert isinstance(late, DeadlinePassed)
    assert isinstance(last, DeadlinePassed)
    certain = head.logits(head.features(X)).argmax(axis=1).tolist()
    assert [*first.values.argmax(axis=1), *others.values.argmax(axis=1)] == certain
    assert sorted(certain) == [0, 1, 2]
    assert service.spent() == 3 * Gaussian(0.25).cost.picorho


class Unbounded(CertifiedHead):
    """A head that has, with the first column at its upper bound, a sensitivity that no noise can hide."""

    def logit_sensitivity(self, phi):
        return np.where(phi[:, 0] >= phi[:, 0].max(), np.inf, super().logit_sensitivity(phi))


def test_a_row_that_no_noise_hides_is_refused_alone_and_before_it_is_charged(start, head):
    service = start(Unbounded(head.certificate, head.weights, head.tensors, head.noise_key))
    key = service.add_client()
    plane, caller = service.predictor, Caller("alice", key_digest(key))

    async def ask():
        asked = ([[0.1] * 4], [[0.1] * 4, [1.0, 0.0, 0.0, 0.0]])
        return await asyncio.gather(
            *(plane.predict(caller, RowsRequest(plane.check_rows(of))) for of in asked), return_exceptions=True
        )

    answered, refused = service.call(ask())
    assert answered.charged_rows == 1
    assert isinstance(refused, InvalidRows)
    assert refused.row == 1
    assert service.spent() == PRICE


@pytest.fixture
def crowded(start, head):
    def make(ledger):
        predictor = MeteredPredictor(head, Gaussian(10.0), ledger, largest_batch=LARGEST_BATCH)
        predictor._batcher = Batcher(predictor._answer_batch, BatchLimits(max_waiting_rows=1))
        return predictor

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


@pytest.mark.parametrize("path", ["/models", "/v2/models/colours"])
def test_a_connection_beyond_the_limit_is_told_when_to_ask_again(start, head, path):
    service = start(head, settings=ServiceSettings(max_connections=2))
    held = [service.http(), service.http()]
    for http in held:
        assert http.get("/models").status_code == 200
    refused = service.http().get(path)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"
    if path == "/models":
        assert refused.json()["type"] == ProblemType.OVERLOADED
    else:
        assert refused.json() == {"error": FULL}
    assert held[0].get("/models").status_code == 200
    held[1].close()
    wait_until(lambda: service.http().get("/models").status_code == 200)
