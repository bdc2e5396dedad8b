"""The admin port: a second server in the same process, which stops with the first."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from accounting.ledger import Ledger
from service.admin.app import Watched, create_admin_app
from service.http.accepting import LimitedServer
from service.http.impatience import ImpatientProtocol, protocol_with
from service.plane import Plane
from service.telemetry.metrics import Metrics
from service.telemetry.throughput import Throughput
from service.tls import Tls

_MOST_CONNECTIONS = 256


@dataclass(frozen=True)
class AdminPort:
    """A listening socket for the owner, and what it needs. digest: `key_digest` of the admin key."""

    listening: socket.socket
    digest: bytes
    verdicts: Path
    """The folder where verdicts are kept."""
    live_audit: Callable[[], dict[str, Any]] | None = None
    """Says what the service's own audit has found, where there is one."""
    metrics_digest: bytes | None = None
    """`key_digest` of a key that is good for /metrics alone, where there is one."""


@asynccontextmanager
async def admin_port(
    admin: AdminPort | None,
    plane: Plane,
    ledger: Ledger,
    metrics: Metrics,
    tls: Tls | None = None,
    *,
    log_requests: bool = False,
) -> AsyncIterator[None]:
    """Answer the owner for as long as the block lasts; do nothing without a port.

    log_requests: whether each request has an id and a line in the log.
    """
    if admin is None:
        yield
        return
    throughput = Throughput(metrics.of_all_processes)
    app = create_admin_app(
        Watched(
            plane, ledger, metrics, throughput, admin.digest, admin.verdicts, admin.live_audit, admin.metrics_digest
        ),
        log_requests=log_requests,
    )
    config = uvicorn.Config(
        app,
        http=protocol_with(ImpatientProtocol, most_connections=_MOST_CONNECTIONS),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
        **(tls.for_uvicorn() if tls is not None else {}),
    )
    server = _SecondServer(config)
    tasks = [
        asyncio.create_task(server.serve(sockets=[admin.listening])),
        asyncio.create_task(throughput.watch()),
    ]
    try:
        yield
    finally:
        server.should_exit = True
        tasks[1].cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


class _SecondServer(LimitedServer):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the first server."""
        yield
