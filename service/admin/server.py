"""The owner's port: a second server, in the process that the owner started."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry

from accounting.ledger import Ledger
from service.admin.app import Watched, create_admin_app
from service.models import Models
from service.telemetry.logs import RequestLog
from service.telemetry.metrics import Metrics
from service.telemetry.throughput import Throughput
from service.tls import Tls

_MAX_CONNECTIONS = 256


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
    admin: AdminPort,
    models: Models,
    ledger: Ledger,
    metrics: Metrics,
    counts: Callable[[], Sequence[CollectorRegistry]],
    *,
    tls: Tls | None = None,
    log: RequestLog | None = None,
) -> AsyncIterator[None]:
    """Answer the owner for as long as the block lasts. metrics: where requests of this port are counted.

    counts: what the service counted. log: writes a line for each request.
    """
    throughput = Throughput(counts)
    watched = Watched(
        models,
        ledger,
        metrics,
        counts,
        throughput,
        admin.digest,
        admin.verdicts,
        admin.live_audit,
        admin.metrics_digest,
    )
    config = uvicorn.Config(
        create_admin_app(watched, log=log),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=1,
        **(tls.for_uvicorn() if tls is not None else {}),
    )
    server = uvicorn.Server(config)
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
