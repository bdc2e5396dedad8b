"""Bringing the service up: verify everything, then listen; and down: drain, then leave the ledger."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import uvicorn

from accounting.budgets import Budget
from accounting.ledger import Ledger, UnknownLineage
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import Randomness, SystemRandomness
from service.data_plane import DataPlane
from service.http.app import create_app
from training.bundle import CertifiedHead


@dataclass(frozen=True)
class ServiceSettings:
    """How the service listens and what it takes."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 picks a free port."""
    largest_batch: int = 1000
    """Rows of one request."""
    largest_body: int = 32 * 1024 * 1024
    """Bytes of one request's body."""
    drain_seconds: int = 30
    """How long requests under way may take to finish after the service was told to stop."""


class CannotServe(Exception):
    """The service cannot start; one clear line says why."""


def bind(settings: ServiceSettings) -> socket.socket:
    """Return a listening socket, or raise CannotServe: done first, so that a taken port is found before all else."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(1024)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CannotServe(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another with --port"
        ) from error
    return listening


async def open_lineage(ledger: Ledger, lineage: str, budget: Budget | None) -> None:
    """See to it that the lineage has an account: open it with `budget`, or find it there.

    Raises CannotServe when there is none and no budget is given, or one with another budget: a budget is never
    changed by starting a service.
    """
    await ledger.join(lineage)  # before anything is opened: an emptied store must not pass for a new one
    try:
        account = await ledger.lineage(lineage)
    except UnknownLineage:
        if budget is None:
            raise CannotServe(
                f"the lineage {lineage} has no budget yet: say what all clients together may learn, "
                "with --epsilon E --delta D"
            ) from None
        await ledger.open_lineage(lineage, budget, time=time.time())
        return
    if budget is not None and account.budget != budget:
        raise CannotServe(
            f"the lineage {lineage} has another budget already; leave --epsilon and --delta out, or change it "
            "with 'dpserve lineage set-budget'"
        )


async def serve(
    head: CertifiedHead,
    mechanism: Mechanism,
    ledger: Ledger,
    listening: socket.socket,
    settings: ServiceSettings,
    *,
    randomness: Randomness | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer requests until told to stop (SIGINT, SIGTERM). on_ready: told the address, once requests are answered."""
    randomness = randomness or SystemRandomness()
    # The first release builds the noise table; no client should wait for it.
    mechanism.release(np.zeros((1, len(head.certificate.classes))), np.ones(1), randomness)
    data_plane = DataPlane(head, mechanism, ledger, randomness, largest_batch=settings.largest_batch)
    config = uvicorn.Config(
        create_app(data_plane, ledger, largest_body=settings.largest_body),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    server = _AnnouncingServer(config, lambda: on_ready(address))
    if ledger.rehearsal:
        logging.getLogger("dpserve").warning("this is a rehearsal: the ledger may lose charges; use no private records")
    logging.getLogger("dpserve").info("serving %s on %s", head.certificate.name, address)
    with _signals_end_quietly():
        await server.serve(sockets=[listening])


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn drains on a signal and then raises it again; the ledger must still be closed after that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _AnnouncingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()
