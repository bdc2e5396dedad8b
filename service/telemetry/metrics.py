"""Counts of what the service did, for Prometheus and for the owner's page. docs/metrics.md lists every one.

Promises: a label's values come from a fixed list (routes, statuses, problem types), never from a request; nothing is
observed that was computed from logits or from private records. With several worker processes that share the folder of
`share_between_processes`, the counts of all of them are read together.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

ROUTES = (
    "/predict",
    "/budget",
    "/budget/receipts",
    "/models",
    "/audit",
    "/livez",
    "/readyz",
    "/docs",
    "/openapi.json",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
)
"""The paths that are counted by name. Any other is counted as what `route_of` says of it."""

PROBLEM_HEADER = b"dpserve-problem"
"""In every response that refuses: the last word of the problem's type."""

HUNG_UP = 499
"""What is counted where nobody was left to answer."""

_SHARED = "dpserve-metrics-"
_SECONDS_TO_LOCK = 60.0
"""How old a folder is at least that nobody has locked when it is removed: a new one is locked in less."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


OWNERS_ROUTES = (
    "/api/lineages",
    "/api/lineages/{lineage}/clients",
    "/api/models",
    "/api/verdicts",
    "/api/throughput",
    "/metrics",
    "/livez",
    "/readyz",
)
"""As `ROUTES`, of the owner's port."""


def share_between_processes() -> str:
    """Return a new folder through which the processes forked from here on share their counts.

    Each calls `count_as` before it makes `Metrics`. The caller removes the folder at the end; one that was left by
    processes that were killed is removed here.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_SHARED}*"):
        _remove_if_left(left)
    folder = tempfile.mkdtemp(prefix=_SHARED)
    # Held for as long as one process lives that was forked from here: the lock is the open file's, which they share.
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)
    os.environ[MULTIPROCESS_FOLDER] = folder
    return folder


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime < _SECONDS_TO_LOCK:
            return
        opened = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            rmtree(folder)
        finally:
            os.close(opened)


def count_as(number: int) -> None:
    """Count from here on as the process of this number, which is no other's at a time.

    What takes the place of one that died counts on where that one stopped, so that there are no more files to add up
    than numbers.
    """
    from prometheus_client import values

    values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]


def route_of(path: str) -> str:
    """Return the path as a label: one of a fixed list, whatever a stranger asks for."""
    if path in ROUTES:
        return path
    parts = path.split("/")
    match parts[1:]:
        case ["models", _]:
            return "/models/{name}"
        case ["v2", "models", _]:
            return "/v2/models/{name}"
        case ["v2", "models", _, "ready" | "infer" as what]:
            return "/v2/models/{name}/" + what
        case ["v2", "models", _, "versions", _]:
            return "/v2/models/{name}/versions/{version}"
        case ["v2", "models", _, "versions", _, "ready" | "infer" as what]:
            return "/v2/models/{name}/versions/{version}/" + what
    return "other"


def owners_route_of(path: str) -> str:
    """Return the path as a label, as `route_of` does, of the owner's port."""
    if path in OWNERS_ROUTES and "{" not in path:
        return path
    lineages_clients = path.startswith("/api/lineages/") and path.endswith("/clients")
    return "/api/lineages/{lineage}/clients" if lineages_clients else "other"


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        """Make counters that nothing has been counted in."""
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dpserve_requests", "Requests answered, by route and status.", ("route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "dpserve_request_seconds",
            "How long requests took, by route.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.rows = Counter("dpserve_rows", "Rows answered, charged or free.", ("outcome",), registry=self.registry)
        self.refusals = Counter(
            "dpserve_refusals", "Requests refused or failed, by the type of problem.", ("type",), registry=self.registry
        )
        self.owners_requests = Counter(
            "dpserve_admin_requests",
            "Requests answered at the owner's port, by route and status.",
            ("route", "status"),
            registry=self.registry,
        )
        self._by_route: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._charged, self._free = self.rows.labels("charged"), self.rows.labels("free")

    def answered(self, rows: int, charged: int) -> None:
        """Count the rows of one answered request: those that were charged, and the others, which cost nothing."""
        self._charged.inc(charged)
        if rows > charged:
            self._free.inc(rows - charged)

    def count(self, route: str, status: int, seconds: float, refused: str | None = None) -> None:
        """Count a request that ended. refused: the last word of the type of problem it was answered with, if any."""
        counted = self._by_route.get((route, status))
        if counted is None:
            counted = self.requests.labels(route, str(status)), self.seconds.labels(route)
            self._by_route[route, status] = counted
        counted[0].inc()
        counted[1].observe(seconds)
        if refused is not None:
            self.refusals.labels(refused).inc()

    def count_owners(self, route: str, status: int, seconds: float, refused: str | None = None) -> None:
        """Count a request of the owner's port that ended, apart from those of clients."""
        del seconds, refused
        self.owners_requests.labels(route, str(status)).inc()

    def of_all_processes(self) -> "CollectorRegistry":
        """Return what to read the counts from: this process's own, or those of all that share a folder."""
        if not os.environ.get(MULTIPROCESS_FOLDER):
            return self.registry
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=os.environ[MULTIPROCESS_FOLDER])  # type: ignore[no-untyped-call]
        return registry


class Counts:
    """Middleware that counts every request of a port, and how long it took."""

    def __init__(
        self,
        app: ASGIApp,
        count: Callable[[str, int, float, str | None], None],
        route: Callable[[str], str] = route_of,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Wrap `app`. count: as `Metrics.count`. route: the label of a path. clock: seconds."""
        self._app = app
        self._count = count
        self._route = route
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it by its status when it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, refused = HUNG_UP, None

        async def watched(message: Message) -> None:
            nonlocal status, refused
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= HTTPStatus.BAD_REQUEST:
                    refused = _problem_of(message)
            await send(message)

        began = self._clock()
        try:
            await self._app(scope, receive, watched)
        finally:
            self._count(self._route(scope["path"]), status, self._clock() - began, refused)


def _problem_of(message: Message) -> str:
    for name, value in message.get("headers", ()):
        if name == PROBLEM_HEADER:
            return str(value.decode("latin-1"))
    return "other"
