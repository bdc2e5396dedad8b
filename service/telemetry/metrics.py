"""Counts of what the service did, for Prometheus and for the owner's page. docs/metrics.md lists every one.

Promises: a label's values come from fixed lists (routes, models, statuses, problem types), never from a request;
nothing is observed that was computed from logits or from private records. Several workers write their counts to files
in a folder that they share, as prometheus_client does where `PROMETHEUS_MULTIPROC_DIR` names one; `counts_in` reads
them together.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import Message, Scope

from dpserve.accounting.disclosure import ASKED, DECLARED, Disclosure

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Set for the workers of a service that has several: prometheus_client looks at it when it is imported."""

PROBLEM_HEADER = b"dpserve-problem"
"""In every response that refuses: the last word of the problem's type."""

DISCONNECTED = 499
"""Status that is counted where the client closed the connection before its answer."""

PREFLIGHT = "preflight"
"""The route of every OPTIONS request: a page of another origin asks whether it may ask, and for no rows."""

OTHER = "other"
"""The route of a request that none answers."""

METRICS: Mapping[str, Disclosure] = {
    "dpserve_info": DECLARED,
    "dpserve_requests": ASKED,
    "dpserve_request_seconds": ASKED,
    "dpserve_rows": ASKED,
    "dpserve_refusals": ASKED,
    "dpserve_admin_requests": ASKED,
    "dpserve_requests_in_flight": ASKED,
    "dpserve_waiting_rows": ASKED,
    "dpserve_ledger_up": ASKED,
    "dpserve_lineage_spent": ASKED,
    "dpserve_lineage_limit": DECLARED,
    "dpserve_store_can_promote": ASKED,
    "dpserve_store_memory_bytes": ASKED,
    "dpserve_store_memory_limit_bytes": ASKED,
    "dpserve_store_file_bytes": ASKED,
    "dpserve_store_writes_ok": ASKED,
    "dpserve_store_replicas": ASKED,
    "dpserve_store_replicas_needed": DECLARED,
    "dpserve_upkeep_timestamp_seconds": ASKED,
    "dpserve_folder_free_bytes": ASKED,
    "dpserve_folder_size_bytes": ASKED,
}
"""Every metric, with what it may follow from: neither records nor answers."""


def metric(name: str) -> str:
    """Return the name of a metric. Raises KeyError for one that is not in `METRICS`."""
    METRICS[name]
    return name


_SECONDS_BETWEEN_SAMPLES = 0.5
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def route_of(scope: Scope) -> str:
    """Return which route answers a request, as a label: one of those that there are, whatever a stranger asks for."""
    if scope["method"] == "OPTIONS":
        return PREFLIGHT
    return getattr(scope.get("route"), "path", OTHER)


class InFlight:
    """The requests that one process is answering. Whoever answers adds them and takes them away."""

    def __init__(self) -> None:
        """Count none."""
        self.requests = 0


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        """Make counters that nothing has been counted in."""
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = CollectorRegistry()
        self.requests = Counter(
            metric("dpserve_requests"),
            "Requests answered, by route, model and status.",
            ("route", "model", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            metric("dpserve_request_seconds"),
            "How long requests took, by route and model.",
            ("route", "model"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.rows = Counter(
            metric("dpserve_rows"), "Rows answered, charged or free.", ("model", "outcome"), registry=self.registry
        )
        self.refusals = Counter(
            metric("dpserve_refusals"),
            "Requests refused or failed, by model and type of problem.",
            ("model", "type"),
            registry=self.registry,
        )
        self.owners_requests = Counter(
            metric("dpserve_admin_requests"),
            "Requests answered at the owner's port, by route and status.",
            ("route", "status"),
            registry=self.registry,
        )
        self.in_flight = InFlight()
        self._by_route: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._by_model: dict[str, tuple[Counter, Counter]] = {}

    @asynccontextmanager
    async def sampled(self, waiting: Callable[[], Mapping[str, int]]) -> AsyncIterator[None]:
        """Say twice a second how much is under way, and how much waits, for as long as the block lasts.

        waiting: rows that wait, by model. One process of several says its own share.
        """
        from prometheus_client import Gauge

        under_way = Gauge(
            metric("dpserve_requests_in_flight"),
            "Requests that are being answered.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        rows = Gauge(
            metric("dpserve_waiting_rows"),
            "Rows that wait for a batch, by model.",
            ("model",),
            registry=self.registry,
            multiprocess_mode="livesum",
        )

        def sample() -> None:
            under_way.set(self.in_flight.requests)
            now = waiting()
            for model in gone | now.keys():
                rows.labels(model).set(now.get(model, 0))
            gone.update(now)

        async def sample_on() -> None:
            while True:
                sample()
                await asyncio.sleep(_SECONDS_BETWEEN_SAMPLES)

        gone = set[str]()
        sample()
        sampling = asyncio.create_task(sample_on())
        try:
            yield
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
            self.registry.unregister(under_way)
            self.registry.unregister(rows)

    def answered(self, model: str, rows: int, charged: int) -> None:
        """Count the rows of one answered request: those that were charged, and the others, which cost nothing."""
        counted = self._by_model.get(model)
        if counted is None:
            counted = self.rows.labels(model, "charged"), self.rows.labels(model, "free")
            self._by_model[model] = counted
        if charged:
            counted[0].inc(charged)
        if rows > charged:
            counted[1].inc(rows - charged)

    def count(self, route: str, model: str, status: int, seconds: float, refused: str | None = None) -> None:
        """Count a request that ended. model: the name of the one that was asked for an answer, or empty.

        refused: the last word of the type of problem it was answered with, if any.
        """
        counted = self._by_route.get((route, model, status))
        if counted is None:
            counted = self.requests.labels(route, model, str(status)), self.seconds.labels(route, model)
            self._by_route[route, model, status] = counted
        counted[0].inc()
        counted[1].observe(seconds)
        if refused is not None:
            self.refusals.labels(model, refused).inc()

    def count_owners(self, route: str, model: str, status: int, seconds: float, refused: str | None = None) -> None:
        """Count a request of the owner's port that ended, apart from those of clients."""
        del model, seconds, refused
        self.owners_requests.labels(route, str(status)).inc()


def problem_of(message: Message) -> str:
    """Return the last word of the type of problem that a response starts to tell of."""
    for name, value in message.get("headers", ()):
        if name == PROBLEM_HEADER:
            return str(value.decode("latin-1"))
    return "other"


def counts_in(folder: str) -> "CollectorRegistry":
    """Return the counts of all processes that share a folder."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

    for file in Path(folder).glob("gauge_live*.db"):  # a worker that was killed has nothing under way
        process = int(re.sub(r"\D", "", file.name))
        if not _is_alive(process):
            mark_process_dead(process, folder)  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    return registry


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
