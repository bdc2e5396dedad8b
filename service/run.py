"""Bringing the service up: verify everything, then listen; and down: drain, then leave the ledger."""

import asyncio
import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import uvicorn
from fastapi import FastAPI

from accounting.budgets import Budget, accepts_for
from accounting.ledger import BudgetExhausted, Ledger, LineageAccount, UnknownLineage
from accounting.picorho import to_rho
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import Randomness, SystemRandomness
from service import memory
from service.admin.server import AdminPort, admin_port
from service.data_plane import DataPlane, ServedModel
from service.errors import CannotServe
from service.fault_points import HELD, OPENED, pass_point
from service.http.accepting import BACKLOG, LimitedServer
from service.http.app import create_app
from service.http.front import Front, protocol_of
from service.open_connections import Place
from service.plane import Plane
from service.release_plane import ReleasePlane, hold_request
from service.stopping import STOPPING_SIGNALS
from service.telemetry.logs import unforeseen
from service.telemetry.metrics import Metrics
from service.tls import Tls
from training.releases.certificate import ReleaseCertificate
from training.releases.model import ReleasedModel


@dataclass(frozen=True)
class ServiceSettings:
    """How the service listens and what it takes."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 picks a free port."""
    largest_batch: int = 1000
    """Rows of one request."""
    most_connections: int = 512
    """Open at a time; more are closed at once, so that the ledger always finds a file descriptor. Over TLS, those
    that have not shaken hands count."""
    drain_seconds: int = 20
    """How long requests under way may take to finish after the service was told to stop."""
    admin: AdminPort | None = None
    """The owner's port; none without it."""
    tls: Tls | None = None
    """What HTTPS is served with, at both ports; plain HTTP without it."""
    front: Front = field(default_factory=Front)
    """What stands before the routes."""
    place: Place | None = None
    """Among the workers that accept from the same socket; none for a service of one process."""

    def largest_body(self, features: int) -> int:
        """Return how many bytes a request's body may have: what the largest batch takes in full precision."""
        return 4096 + self.largest_batch * (features * _LONGEST_NUMBER + 8)


_LONGEST_NUMBER = len("-1.2345678901234567e-308, ")


async def _at_once() -> None:
    """Wait for nothing."""


class Address(Protocol):
    """Where to listen."""

    @property
    def host(self) -> str:
        """A name or an address."""
        ...

    @property
    def port(self) -> int:
        """0 picks a free one."""
        ...


def bind(address: Address, option: str = "port") -> socket.socket:
    """Return a listening socket, or raise CannotServe: done first, so that a taken port is found before all else.

    option: what the port's option is called.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; without it an answer waits 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address.host, address.port))
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = error.strerror if isinstance(error, OSError) else str(error)
        with_make = " (PORT= with make)" if option == "port" else ""
        advice = f"choose another with --{option}{with_make}" if taken else f"look at --host and --{option}"
        raise CannotServe(f"cannot listen on {address.host}:{address.port}: {reason}; {advice}") from error
    return listening


def url_of(listening: socket.socket, tls: Tls | None = None) -> str:
    """Return the address of a listening socket as a URL."""
    host, port = listening.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def open_lineage(ledger: Ledger, lineage: str, budget: Budget | None) -> LineageAccount:
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
        account = await ledger.open_lineage(lineage, budget, time=time.time())
    if budget is not None and account.budget != budget:
        raise CannotServe(
            f"the lineage {lineage} has another budget already; leave --epsilon and --delta out, or change it "
            "with 'dpserve lineage set-budget'"
        )
    return account


def check_affordable(account: LineageAccount, mechanism: Mechanism) -> None:
    """Raise CannotServe if the lineage's account could never pay for one row."""
    if not account.budget.pays_for(mechanism.cost):
        raise CannotServe(
            f"the lineage {account.lineage} accepts {account.budget.accepts!r} charges only, and {mechanism.name!r} "
            f"costs {str(mechanism.cost)!r}: serve another mechanism, or change the lineage's budget to one that "
            f"--accepts {accepts_for(mechanism.cost)}"
        )
    if mechanism.cost.picorho > account.budget.picorho:
        raise CannotServe(
            f"one row costs rho = {float(mechanism.cost.rho):.6g}, more than the whole budget of the lineage, "
            f"{to_rho(account.budget.picorho):.6g}; choose a lower --price"
        )


async def serve(
    head: ServedModel,
    mechanism: Mechanism,
    ledger: Ledger,
    listening: socket.socket,
    settings: ServiceSettings,
    *,
    randomness: Randomness | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
    add_routes: Callable[[FastAPI], None] = lambda _: None,
    before_answering: Callable[[], Awaitable[None]] = _at_once,
) -> None:
    """Answer requests until told to stop, inside `stopping_on_signals`, and finish what was charged by then.

    on_ready: told the address, once requests are answered.
    add_routes: adds public routes of the caller's. before_answering: waited for when all is verified.
    """
    randomness = randomness or SystemRandomness()
    plane = DataPlane(head, mechanism, ledger, randomness, largest_batch=settings.largest_batch)
    await _listen(plane, ledger, listening, settings, on_ready, before_answering, add_routes)


async def serve_release(
    model: ReleasedModel,
    ledger: Ledger,
    listening: socket.socket,
    settings: ServiceSettings,
    *,
    opens: bool = True,
    on_ready: Callable[[str], None] = lambda _: None,
    before_answering: Callable[[], Awaitable[None]] = _at_once,
) -> None:
    """Answer requests from a model that is paid for once until told to stop, as `serve` does.

    opens: whether the service starts with this process; what the lineage's budget cannot pay raises CannotServe then.
    The lineage is charged first for a model of one tier, unless it was before.
    """
    plane = ReleasePlane(model, ledger, largest_batch=settings.largest_batch)
    if opens:
        await check_release(ledger, model.certificate)
    pass_point(OPENED)
    charged = await plane.hold_for_owner()
    pass_point(HELD)
    if charged:
        logging.getLogger("dpserve").info("the lineage was charged rho = %g for this release", to_rho(charged))
    await _listen(plane, ledger, listening, settings, on_ready, before_answering)


async def check_release(ledger: Ledger, certificate: ReleaseCertificate) -> None:
    """Raise CannotServe unless the lineage's account could pay for every tier, and can pay for one now."""
    account = await ledger.lineage(certificate.lineage)
    budget, total = account.budget, 0
    for tier in certificate.tiers:
        total += tier.cost.picorho
        if not budget.pays_for(tier.cost):
            why = (
                "its delta does not provide for releases that are Gaussian but for a coin: take a larger one"
                if tier.cost.coin and not budget.pays_for_coins
                else f"it accepts {budget.accepts!r} charges only: change it to one that --accepts "
                f"{accepts_for(tier.cost)}"
            )
            raise CannotServe(f"the lineage {account.lineage} does not pay for {str(tier.cost)!r}: {why}")
        if total > budget.picorho:
            raise CannotServe(
                f"the tier {tier.name!r} costs rho = {to_rho(total):.6g}, and the whole budget of the lineage is "
                f"{to_rho(budget.picorho):.6g}: nobody could ever hold it. Train without it, or raise the budget with "
                "'dpserve lineage set-budget'"
            )
    first = await ledger.quote_hold(hold_request(certificate, "", certificate.tiers[0].name, time.time()))
    if isinstance(first.refusal, BudgetExhausted):
        raise CannotServe(
            f"this release costs the lineage rho = {to_rho(first.refusal.cost):.6g}, and "
            f"{to_rho(first.refusal.remaining):.6g} of its budget is left; what is spent stays spent"
        )


async def _listen(
    plane: Plane,
    ledger: Ledger,
    listening: socket.socket,
    settings: ServiceSettings,
    on_ready: Callable[[str], None],
    before_answering: Callable[[], Awaitable[None]],
    add_routes: Callable[[FastAPI], None] = lambda _: None,
) -> None:
    asyncio.get_running_loop().set_exception_handler(unforeseen)
    certificate = plane.certificate
    metrics = Metrics()
    largest_body = settings.largest_body(len(certificate.feature_names))
    app = create_app(plane, ledger, largest_body=largest_body, metrics=metrics, front=settings.front)
    add_routes(app)
    config = uvicorn.Config(
        app,
        http=protocol_of(app, settings.front, settings.most_connections),
        log_config=None,
        access_log=False,
        lifespan="off",
        backlog=BACKLOG,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=settings.drain_seconds,
        **(settings.tls.for_uvicorn() if settings.tls is not None else {}),
    )
    address = url_of(listening, settings.tls)
    server = _AnnouncingServer(config, lambda: on_ready(address), settings.place)
    await before_answering()
    if ledger.rehearsal:
        logging.getLogger("dpserve").warning("this is a rehearsal: the ledger may lose charges; use no private records")
    logging.getLogger("dpserve").info("serving %s on %s", certificate.name, address)
    log_requests = settings.front.log_requests
    async with admin_port(settings.admin, plane, ledger, metrics, settings.tls, log_requests=log_requests):
        await server.serve(sockets=[listening])
    await plane.drain()  # of those who hung up, too
    await settings.front.close()
    logging.getLogger("dpserve").info("stopped serving %s on %s", certificate.name, address)


class _AnnouncingServer(LimitedServer):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], place: Place | None) -> None:
        super().__init__(config, place)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the serving, and no more than that.

        uvicorn raises them again when it has served, and gives them back: either would cancel what is charged by then
        and not answered. They are given back by `stopping_on_signals`, when all is closed.
        """
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING_SIGNALS:
                signal.signal(number, self.handle_exit)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        memory.settle()
        self._on_ready()
