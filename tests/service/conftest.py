"""A real service over real HTTP with a real embedded ledger, in a thread of the test."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Ledger, key_digest, new_api_key
from dpserve.accounting.ledger.purchases import buy
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.answer_noise import UnknownNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.service.admin.app import AdminPort, admin_port
from dpserve.service.http.app import create_app
from dpserve.service.listener import Application, ServiceSettings, bind, server_config, url_of
from dpserve.service.metered import MeteredPredictor
from dpserve.service.models import Models
from dpserve.service.pay_once import PayOncePredictor
from dpserve.service.predictor import Predictor
from dpserve.service.telemetry.metrics import Metrics
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.purchases import model_purchase
from tests.service.people import head_on_columns

TESTS = itertools.count()
LARGEST_BATCH = 50
DELTA = 1e-6
KEY = "the-owner's-key-of-these-tests"
METRICS_KEY = "the-key-for-metrics-of-these-tests"


@pytest.fixture(scope="session")
def head() -> CertifiedHead:
    generator = np.random.default_rng(0)
    y = generator.integers(3, size=120)
    X = np.clip(0.15 + 0.7 * np.eye(3, 4)[y] + 0.1 * generator.standard_normal((120, 4)), 0, 1)
    declaration = Declaration(("a", "b", "c", "d"), (0.0,) * 4, (1.0,) * 4, ("red", "green", "blue"))
    feature_map = Identity(lower=declaration.lower, upper=declaration.upper, clip_norm=1.0, bias=0.0)
    return train_head(Records(X, y, declaration, ()), Recipe("colours", feature_map, 1.0), "colours-lineage")


@pytest.fixture(scope="session")
def by_columns() -> CertifiedHead:
    """A head on columns of every kind."""
    return head_on_columns()


class Plain(Mechanism):
    """No privacy at all, so that every answer betrays its row."""

    name = "plain"
    status = "unproven"
    cost = Cost((GaussianLoss(1e-3),))

    def release(self, logits, sensitivity, randomness):
        return softmax(logits)

    def answer_noise(self, sensitivity, classes):
        return UnknownNoise("the answer does not say which")


@dataclass
class RunningService:
    """A service in a thread; `call` runs the ledger's coroutines where the service runs them."""

    url: str
    ledger: Ledger
    predictor: Predictor
    models: Models
    loop: asyncio.AbstractEventLoop
    metrics: Metrics
    clients: list[httpx.Client] = field(default_factory=list)
    of_test: str = ""
    """The end of the names of a test's own clients, where several tests share the service."""

    def counts(self):
        return [self.metrics.registry]

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def add_client(self, name="alice", rho=1.0, accepts="gaussian", epsilon=None):
        key = new_api_key()
        budget = Budget.from_rho(rho, DELTA, accepts)
        if epsilon is not None:
            budget = Budget.from_epsilon_delta(epsilon, DELTA, accepts)
        lineage, name = self.predictor.lineage, self.named(name)
        self.call(self.ledger.acting("owner").add_client(lineage, name, budget, key_digest(key), time=time.time()))
        return key

    def named(self, name="alice"):
        """Return the whole name of a client of this test's."""
        return name + self.of_test

    def spent(self, name="alice"):
        return self.call(self.ledger.client(self.predictor.lineage, self.named(name))).spent

    def http(self, key=None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.clients.append(httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False))
        return self.clients[-1]

    def close_clients(self):
        for client in self.clients:
            client.close()


class Starter:
    """Starts services and stops them at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[tuple[uvicorn.Server, threading.Thread]] = []
        self._services: list[RunningService] = []

    def __call__(
        self,
        head,
        mechanism=None,
        lineage_rho=100.0,
        accepts="gaussian",
        options=None,
        settings=None,
        more=None,
        seconds_idle=None,
    ):
        """more: returns further predictors of a ledger. seconds_idle: how long a connection that asks nothing lives."""

        def make(ledger):
            return MeteredPredictor(head, mechanism or Gaussian(10.0), ledger, largest_batch=LARGEST_BATCH)

        return self.start(
            make,
            head.certificate.lineage,
            lineage_rho,
            accepts,
            options=options,
            settings=settings,
            more=more,
            seconds_idle=seconds_idle,
        )

    def release(self, model, lineage_rho=1.0, largest_batch=LARGEST_BATCH):
        """Start a service of a model that is paid for once, as `dpserve serve` does."""

        def make(ledger):
            return PayOncePredictor(model, ledger, largest_batch=largest_batch)

        async def held(ledger):
            await buy(ledger, [model_purchase(model.certificate)], by="a test")

        return self.start(make, model.certificate.lineage, lineage_rho, "gaussian", held)

    def start(
        self,
        make,
        lineage,
        lineage_rho,
        accepts,
        before=None,
        options=None,
        settings=None,
        more=None,
        seconds_idle=None,
    ):
        started: list[RunningService] = []
        ready = threading.Event()
        failure: list[BaseException] = []
        listening = bind()

        @asynccontextmanager
        async def opening(ledger):
            predictor = make(ledger)
            if before is not None:
                await before(ledger)
            metrics = Metrics()
            models = Models([predictor, *(more(ledger) if more else ())], default=predictor.certificate.name)
            url = url_of(listening)
            started.append(RunningService(url, ledger, predictor, models, asyncio.get_running_loop(), metrics))
            ready.set()
            async with metrics.sampled(lambda: models.waiting_rows):
                yield create_app(models, ledger, metrics=metrics, options=options)

        async def run():
            async with Ledger.open(str(self._folder / "ledger")) as ledger:
                budget = Budget.from_rho(lineage_rho, DELTA, accepts)
                await ledger.acting("owner").open_lineage(lineage, budget, time=time.time())
                application = Application(opening(ledger))
                config = server_config(lambda: application, settings or ServiceSettings())
                config.timeout_keep_alive = seconds_idle or config.timeout_keep_alive
                server = uvicorn.Server(config)
                self._running.append((server, threading.current_thread()))
                await server.serve(sockets=[listening])

        def main():
            try:
                asyncio.run(run())
            except BaseException as error:
                failure.append(error)
                ready.set()
                raise

        threading.Thread(target=main, daemon=True).start()
        assert ready.wait(60)
        if failure:
            raise failure[0]
        self._services += started
        return started[0]

    def stop(self):
        for service in self._services:
            service.close_clients()
        for server, thread in self._running:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def start(tmp_path):
    starter = Starter(tmp_path)
    yield starter
    starter.stop()


@pytest.fixture(scope="module")
def start_for_module(tmp_path_factory):
    """As `start`, for services that all tests of a module share."""
    starter = Starter(tmp_path_factory.mktemp("service"))
    yield starter
    starter.stop()


@pytest.fixture(scope="module")
def shared_service(start_for_module, head) -> RunningService:
    return start_for_module(head)


@pytest.fixture
def service(shared_service) -> Iterator[RunningService]:
    """A service that a module shares, as a test with clients of its own sees it."""
    found = replace(shared_service, clients=[], of_test=f"-{next(TESTS)}")
    yield found
    found.close_clients()


@pytest.fixture
def own_service(start, head) -> RunningService:
    """A service of the test's own, for what is counted or listed of all clients."""
    return start(head)


@pytest.fixture
def owner(service):
    """An HTTP client of the owner's port, with its key."""
    listening = bind()
    admin = AdminPort(listening, key_digest(KEY), key_digest(METRICS_KEY))
    opened = admin_port(admin, service.models, service.ledger, service.metrics, service.counts)
    service.call(opened.__aenter__())
    http = service.http(KEY)
    http.base_url = url_of(listening)
    yield http
    service.call(opened.__aexit__(None, None, None))
    listening.close()
