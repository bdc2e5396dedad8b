"""Counts of what the service did, for Prometheus and for the owner's page. docs/metrics.md lists every one.

Promises: a label's values come from a fixed list (routes, statuses, problem types), never from a request; nothing is
observed that was computed from logits or from private records. Several workers write their counts to files in a folder
that they share, as prometheus_client does where `PROMETHEUS_MULTIPROC_DIR` names one; `counts_in` reads them together.
"""

from typing import TYPE_CHECKING

from starlette.types import Message

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Set for the workers of a service that has several: prometheus_client looks at it when it is imported."""

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

DISCONNECTED = 499
"""What is counted where the client closed the connection before its answer."""

PREFLIGHT = "preflight"
"""The route of every OPTIONS request: a page of another origin asks whether it may ask, and for no rows."""

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


def route_of(path: str) -> str:
    """Return the path as a label: one of a fixed list, whatever a stranger asks for."""
    if path in ROUTES:
        return path
    parts = path.split("/")
    match parts[1:]:
        case ["models", _]:
            return "/models/{name}"
        case ["models", _, "export"]:
            return "/models/{name}/export"
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


def problem_of(message: Message) -> str:
    """Return the last word of the type of problem that a response starts to tell of."""
    for name, value in message.get("headers", ()):
        if name == PROBLEM_HEADER:
            return str(value.decode("latin-1"))
    return "other"


def counts_in(folder: str) -> "CollectorRegistry":
    """Return the counts of all processes that share a folder."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    return registry
