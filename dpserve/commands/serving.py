"""`dpserve serve`."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from accounting.budgets import accepts_for
from accounting.ledger import REMEMBERED_ROWS, Ledger, LineageAccount
from accounting.losses import Cost
from dpserve.commands import front_options, options
from dpserve.commands.admin import AdminOptions, where_the_key_is
from dpserve.commands.front_options import FrontOptions
from mechanisms.mechanism import priced
from service.data_plane import ServedModel
from service.errors import CannotServe
from service.http.waiting import answering_that_it_is_not_ready
from service.run import (
    ServiceSettings,
    bind,
    check_affordable,
    open_lineage,
    serve_release,
    stopping_on_signals,
    url_of,
)
from service.run import serve as run_service
from service.telemetry import logs
from training.loading import load_model
from training.published.bundle import PublishedNetwork
from training.releases.model import ReleasedModel

DEFAULT_MECHANISM, DEFAULT_PRICE = "gaussian", "noise-multiplier:20"


def serve(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    price: Annotated[
        str | None,
        typer.Option(
            help="The price of one row: rho:R, noise-multiplier:M, epsilon:E, or epsilon:E@D for Gaussian noise. "
            f"[default: {DEFAULT_PRICE}]",
            show_default=False,
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="How answers are made private: gaussian, laplace, selected-neuron or label; or published, unproven. "
            f"[default: {DEFAULT_MECHANISM}]",
            show_default=False,
        ),
    ] = None,
    ledger: options.Ledger_ = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    rho: options.Rho = None,
    mu: options.Mu = None,
    posterior_belief: options.PosteriorBelief = None,
    advantage: options.Advantage = None,
    accepts: options.AcceptsWhatIsNeeded = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")] = 8000,
    largest_batch: Annotated[int, typer.Option(min=1, max=10_000, help="The most rows of one request.")] = 1000,
    accept_unproven: Annotated[
        bool,
        typer.Option(
            "--accept-unproven", help="Needed for --mechanism published, whose guarantee is claimed, not proven."
        ),
    ] = False,
    ledger_replicas: options.Replicas = 0,
    remembered_rows: Annotated[
        int,
        typer.Option(
            min=20_000, help="The most answered rows to keep for replays; the oldest are forgotten and cost again."
        ),
    ] = REMEMBERED_ROWS,
    self_audit_key: Annotated[
        str | None,
        typer.Option(
            envvar="DPSERVE_SELF_AUDIT_KEY",
            help="The API key of a client of yours: the service audits its own noise with it until its budget is "
            "spent, and shows what it found at GET /audit.",
            show_default=False,
        ),
    ] = None,
    self_audit_seconds: Annotated[float, typer.Option(min=0.1, help="How long it waits between two looks.")] = 60.0,
    self_audit_rows: Annotated[int, typer.Option(min=8, help="How many answers one look pays for.")] = 64,
    admin_host: Annotated[str, typer.Option(help="The address that the owner's port listens on.")] = "127.0.0.1",
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The owner's port; 0 picks a free one. [default: the one after --port, if it is free]",
            show_default=False,
        ),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin/--no-admin", help="Whether there is an owner's port.")] = True,
    tls_cert: front_options.TlsCert = None,
    tls_key: front_options.TlsKey = None,
    cors_origin: front_options.CorsOrigin = None,
    rate_limit: front_options.RateLimitOption = None,
    rate_limit_store: front_options.RateLimitStore = None,
    jwt_issuer: front_options.JwtIssuer = None,
    jwt_audience: front_options.JwtAudience = None,
    jwt_keys: front_options.JwtKeys = None,
    jwt_claim: front_options.JwtClaim = "sub",
    jwt_scope_claim: front_options.JwtScopeClaim = None,
    jwt_algorithm: front_options.JwtAlgorithm = "RS256,ES256",
    log_format: front_options.LogFormat = "text",
    device: Annotated[
        str | None,
        typer.Option(help="Where the model's backbone computes: cpu or cuda. [default: cpu]", show_default=False),
    ] = None,
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal", help="Accept a store that may lose charges. Not for private records.")
    ] = False,
) -> None:
    """Answer requests over HTTP, each answer private and charged; from a release, paid for once.

    --epsilon and --delta (or --rho) open the lineage's account: what all clients together may ever learn. They are
    needed the first time, and refused if they differ from what the account has.
    """
    before = FrontOptions(
        tls_cert=tls_cert,
        tls_key=tls_key,
        cors_origin=cors_origin,
        rate_limit=rate_limit,
        rate_limit_store=rate_limit_store,
        jwt_issuer=jwt_issuer,
        jwt_audience=jwt_audience,
        jwt_keys=jwt_keys,
        jwt_claim=jwt_claim,
        jwt_scope_claim=jwt_scope_claim,
        jwt_algorithm=jwt_algorithm,
        log_format=log_format,
    )
    logs.configure(before.log_kind)
    tls = before.tls()
    model = load_model(bundle, device)
    if isinstance(model, ReleasedModel):
        if self_audit_key is not None:
            raise CannotServe("a release that is paid for once has no noise left to audit: leave --self-audit-key out")
        served = _release(model, mechanism, price)
    else:
        mechanism, price = mechanism or DEFAULT_MECHANISM, price or DEFAULT_PRICE
        watch = None
        if self_audit_key is not None:
            watch = _Watch(self_audit_key, self_audit_seconds, min(self_audit_rows, largest_batch))
        served = _head(model, mechanism, price, watch, accept_unproven=accept_unproven)
    words = options.BudgetWords(
        epsilon=epsilon, rho=rho, mu=mu, posterior_belief=posterior_belief, advantage=advantage, delta=delta
    )
    budget = words.budget_if_given(accepts or accepts_for(served.cost))
    owner = AdminOptions(admin_host, admin_port, admin)

    async def run() -> None:
        with ExitStack() as sockets:
            settings = ServiceSettings(
                host=host, port=port, largest_batch=largest_batch, tls=tls, front=await before.front()
            )
            listening = sockets.enter_context(bind(settings))
            settings = replace(settings, admin=owner.open(listening.getsockname()[1], served.live_audit))
            if settings.admin is not None:
                sockets.enter_context(settings.admin.listening)
            async with stopping_on_signals(), AsyncExitStack() as before_ready:
                await before_ready.enter_async_context(answering_that_it_is_not_ready(listening, tls))
                async with Ledger.open(
                    options.ledger_location(ledger),
                    rehearsal=rehearsal,
                    replicas=ledger_replicas,
                    journals=None if rehearsal else options.journals_folder(),  # what a rehearsal loses is no loss
                    remembered_rows=remembered_rows,
                ) as opened:
                    account = await open_lineage(opened, model.certificate.lineage, budget)
                    await before_ready.aclose()
                    await served.run(opened, account, listening, settings, partial(_announce, model, settings))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _announce(model: ServedModel | ReleasedModel, settings: ServiceSettings, address: str) -> None:
    if settings.admin is not None:
        own = url_of(settings.admin.listening, settings.tls)
        typer.echo(f"dpserve: the owner's port is {own}, its key is in {where_the_key_is()}")
    typer.echo(f"dpserve: serving {model.certificate.name} on {address}")


Run = Callable[[Ledger, LineageAccount, socket.socket, ServiceSettings, Callable[[str], None]], Awaitable[None]]


@dataclass(frozen=True)
class _Served:
    """What is to be served: what the account must pay for, and how to answer requests until told to stop."""

    cost: Cost
    run: Run
    live_audit: Callable[[], dict[str, Any]] | None = None


@dataclass(frozen=True)
class _Watch:
    """How the service is to audit itself."""

    key: str
    seconds: float
    rows: int


def _head(head: ServedModel, mechanism: str, price: str, watch: _Watch | None, *, accept_unproven: bool) -> _Served:
    chosen = priced(mechanism, price, len(head.certificate.classes))
    if isinstance(head, PublishedNetwork):
        head.certificate.check_mechanism(chosen, accept_unproven=accept_unproven)
    if chosen.status != "proven" and not accept_unproven:
        raise CannotServe(
            f"the guarantee of the mechanism {chosen.name!r} is {chosen.status}: it is claimed by its authors, and for "
            "three or more classes no finite epsilon holds. Serve it with --accept-unproven, or choose a proven one"
        )

    auditor = None
    if watch is not None:
        from dpserve.self_audit import SelfAudit

        folder = options.state_folder() / "self-audit"
        auditor = SelfAudit(head, chosen, watch.key, watch.seconds, watch.rows, folder)

    async def run(
        ledger: Ledger,
        account: LineageAccount,
        listening: socket.socket,
        settings: ServiceSettings,
        announce: Callable[[str], None],
    ) -> None:
        check_affordable(account, chosen)
        if auditor is None:
            await run_service(head, chosen, ledger, listening, settings, on_ready=announce)
            return

        def announce_and_watch(address: str) -> None:
            announce(address)
            auditor.start(address, settings.tls)

        try:
            await run_service(
                head, chosen, ledger, listening, settings, on_ready=announce_and_watch, add_routes=auditor.add_route
            )
        finally:
            auditor.stop()

    return _Served(chosen.cost, run, auditor.published if auditor is not None else None)


def _release(model: ReleasedModel, mechanism: str | None, price: str | None) -> _Served:
    if mechanism is not None or price is not None:
        raise CannotServe(
            f"{model.certificate.name} is a release that is paid for once: its noise was drawn when it was trained, "
            "and its price fixed, so leave --mechanism and --price out"
        )

    async def run(
        ledger: Ledger,
        account: LineageAccount,
        listening: socket.socket,
        settings: ServiceSettings,
        announce: Callable[[str], None],
    ) -> None:
        del account
        await serve_release(model, ledger, listening, settings, on_ready=announce)

    return _Served(Cost.parse(model.certificate.cost), run)
