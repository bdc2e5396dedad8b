"""A model that remembers, as a bundle in this process and as a service over HTTP with the same noise."""

import asyncio
import socket
import threading
import time

import numpy as np
import pytest
import uvicorn

from dpserve.accounting.budgets import Budget, accepts_for
from dpserve.accounting.ledger import Ledger, key_digest, new_api_key
from dpserve.audit.in_process import BundleEndpoint, Lineage
from dpserve.audit.membership.candidates import Candidates, Labelled
from dpserve.endpoint import ServiceEndpoint
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.randomness import NoiseKey
from dpserve.service.http.app import create_app
from dpserve.service.metered import MeteredPredictor
from dpserve.service.models import Models
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

DELTA = 1e-6
CLASSES, FEATURES = 3, 12
DECLARATION = Declaration(
    tuple(f"x{i}" for i in range(FEATURES)), (0.0,) * FEATURES, (1.0,) * FEATURES, ("red", "green", "blue")
)


def draw(n, seed):
    """Records whose labels are partly noise, so that a model can only remember them."""
    generator = np.random.default_rng(seed)
    y = generator.integers(CLASSES, size=n)
    return Labelled(0.8 * generator.random((n, FEATURES)) + 0.2 * np.eye(CLASSES, FEATURES)[y], y)


def trained_head(members, strong_convexity=0.5):
    feature_map = Identity(lower=DECLARATION.lower, upper=DECLARATION.upper, clip_norm=1.0, bias=0.1)
    records = Records(members.X, members.y, DECLARATION, ())
    return train_head(records, Recipe("colours", feature_map, strong_convexity), "colours-lineage")


def forget(endpoint):
    """Have the endpoint of a bundle draw other noise for every question, and charge again."""
    endpoint.asked.clear()
    endpoint.lineage.asked.clear()
    endpoint.noise_key = NoiseKey.fresh()


@pytest.fixture(scope="session")
def candidates():
    return Candidates(draw(60, 1), draw(60, 2))


@pytest.fixture(scope="session")
def head(candidates):
    return trained_head(candidates.members)


@pytest.fixture
def bundle(head):
    """Returns endpoints on the bundle: one for each key, of a lineage that may be limited."""

    def make(mechanism=None, keys=1, rho=None, lineage_rho=None, largest_batch=50):
        chosen = mechanism or Gaussian(10.0)
        budget = None if rho is None else Budget.from_rho(rho, DELTA, accepts_for(chosen.cost))
        lineage = Lineage(None if lineage_rho is None else int(lineage_rho * 10**12))
        return [
            BundleEndpoint(head, chosen, head.noise_key, budget, lineage, largest_batch, key) for key in range(keys)
        ]

    return make


class Service:
    """The head behind a real ledger and real HTTP, in a thread; its noise is the bundle's."""

    def __init__(self, head, folder, mechanism, lineage_rho):
        self._ready, self._failure = threading.Event(), []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._lineage = head.certificate.lineage
        self._accepts = accepts_for(mechanism.cost)
        self._thread = threading.Thread(target=self._main, args=(head, folder, mechanism, lineage_rho), daemon=True)
        self._endpoints = []
        self._thread.start()
        assert self._ready.wait(60)
        assert not self._failure

    def _main(self, *arguments):
        try:
            asyncio.run(self._run(*arguments))
        except BaseException as error:
            self._failure.append(error)
            self._ready.set()
            raise

    async def _run(self, head, folder, mechanism, lineage_rho):
        async with Ledger.open(str(folder / "ledger")) as self._ledger:
            budget = Budget.from_rho(lineage_rho, DELTA, self._accepts)
            await self._ledger.acting("owner").open_lineage(self._lineage, budget, time=time.time())
            predictor = MeteredPredictor(head, mechanism, self._ledger, largest_batch=50)
            app = create_app(Models([predictor]), self._ledger)
            self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._server.serve(sockets=[self._listening])

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def endpoint(self, name="alice", rho=10.0):
        key = new_api_key()
        budget = Budget.from_rho(rho, DELTA, self._accepts)
        self.call(
            self._ledger.acting("owner").add_client(self._lineage, name, budget, key_digest(key), time=time.time())
        )
        self._endpoints.append(ServiceEndpoint(self.url, key, attempts=2))
        return self._endpoints[-1]

    def revoke(self, name="alice"):
        self.call(self._ledger.acting("owner").revoke(self._lineage, name))

    def stop(self):
        for endpoint in self._endpoints:
            endpoint.close()
        self._endpoints = []
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def serve(head, tmp_path):
    started = []

    def start(mechanism=None, lineage_rho=100.0):
        started.append(Service(head, tmp_path, mechanism or Gaussian(10.0), lineage_rho))
        return started[-1]

    yield start
    for service in started:
        if service._thread.is_alive():
            service.stop()
