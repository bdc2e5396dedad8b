"""`dpserve serve`."""

from pathlib import Path
from typing import Annotated

import typer

from dpserve.commands import front_options, options
from dpserve.commands.admin import AdminOptions
from dpserve.commands.front_options import FrontOptions
from dpserve.commands.service import DEFAULT_MECHANISM, DEFAULT_PRICE, LedgerOptions, Service, Watch
from service.errors import CannotServe
from service.serving import ServiceSettings
from service.telemetry import logs

__all__ = ["DEFAULT_MECHANISM", "DEFAULT_PRICE", "serve"]


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
    workers: Annotated[
        int,
        typer.Option(min=1, max=64, help="How many processes answer at the port, on one ledger."),
    ] = 1,
    largest_batch: Annotated[int, typer.Option(min=1, max=10_000, help="The most rows of one request.")] = 1000,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rows of several requests that are computed and charged together at most. [default: 1000; 64 where a "
            "deep network computes the features]",
            show_default=False,
        ),
    ] = None,
    max_batch_time: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Seconds that a batch waits for more requests; 0: it takes what waits when the one before it ends.",
        ),
    ] = 0.0,
    accept_unproven: Annotated[
        bool,
        typer.Option(
            "--accept-unproven", help="Needed for --mechanism published, whose guarantee is claimed, not proven."
        ),
    ] = False,
    ledger_replicas: options.Replicas = 0,
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
    failed_tries: front_options.FailedTriesOption = 300,
    trusted_proxies: front_options.TrustedProxies = None,
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
        failed_tries=failed_tries,
        trusted_proxies=trusted_proxies,
        jwt_issuer=jwt_issuer,
        jwt_audience=jwt_audience,
        jwt_keys=jwt_keys,
        jwt_claim=jwt_claim,
        jwt_scope_claim=jwt_scope_claim,
        jwt_algorithm=jwt_algorithm,
        log_format=log_format,
    )
    logs.configure(before.log_kind)
    if workers > 1 and rate_limit is not None and rate_limit_store is None:
        raise CannotServe(
            "each of several workers would let as many requests through: say with --rate-limit-store where they count "
            "together, or leave --workers out"
        )
    watch = None
    if self_audit_key is not None:
        watch = Watch(self_audit_key, self_audit_seconds, min(self_audit_rows, largest_batch))
    Service(
        bundle=bundle,
        device=device,
        mechanism=mechanism,
        price=price,
        accept_unproven=accept_unproven,
        watch=watch,
        words=options.BudgetWords(
            epsilon=epsilon, rho=rho, mu=mu, posterior_belief=posterior_belief, advantage=advantage, delta=delta
        ),
        accepts=accepts,
        ledger=LedgerOptions(options.ledger_location(ledger), ledger_replicas, rehearsal),
        settings=ServiceSettings(
            host=host,
            port=port,
            workers=workers,
            largest_batch=largest_batch,
            max_batch_size=max_batch_size,
            max_batch_time=max_batch_time,
            trusted_proxies=before.proxies,
            tls=before.tls(),
        ),
        front=before,
        owner=AdminOptions(admin_host, admin_port, admin),
    ).run()
