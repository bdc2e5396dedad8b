"""The settings of `dpserve serve`, stated once: flags, variables, keys of the file and their help follow from them.

A setting `largest_batch` is the flag `--largest-batch`, DPSERVE_LARGEST_BATCH in the environment and `largest-batch`
under `[serve]` in the file (`dpserve.configuration`).
"""

import ipaddress
from pathlib import Path
from typing import Annotated, Self, cast, get_args

import typer
from pydantic import BaseModel, ConfigDict

from dpserve.commands import completing, options
from service.errors import CannotServe
from service.telemetry.logs import Format
from service.tls import Tls

DEFAULT_MECHANISM, DEFAULT_PRICE = "gaussian", "noise-multiplier:20"

BATCHES = "Requests and batches"
OWNER = "The owner's port"
FRONT = "HTTPS, rates, origins and logs"
TOKENS = "Tokens beside API keys"
AUDIT = "The service's own audit"
STORE = "The ledger's store"

_SLASHES_OF_AN_ORIGIN = 2


class ServeSettings(BaseModel):
    """What `dpserve serve` is told. What belongs together is checked by `checked`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.", autocompletion=completing.bundles)]
    price: Annotated[
        str | None,
        typer.Option(
            help="The price of one row: rho:R, noise-multiplier:M, epsilon:E, or epsilon:E@D for Gaussian noise. "
            f"[default: {DEFAULT_PRICE}]",
            show_default=False,
        ),
    ] = None
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="How answers are made private: gaussian, laplace, selected-neuron or label; or published, unproven. "
            f"[default: {DEFAULT_MECHANISM}]",
            show_default=False,
            autocompletion=completing.mechanisms,
        ),
    ] = None
    epsilon: options.Epsilon = None
    delta: options.Delta = None
    rho: options.Rho = None
    mu: options.Mu = None
    posterior_belief: options.PosteriorBelief = None
    advantage: options.Advantage = None
    accepts: options.AcceptsWhatIsNeeded = None
    ledger: options.Ledger_ = None
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")] = 8000
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="How many processes answer at the port, on one ledger.")
    ] = 1
    accept_unproven: Annotated[
        bool,
        typer.Option(
            "--accept-unproven", help="Needed for --mechanism published, whose guarantee is claimed, not proven."
        ),
    ] = False
    device: Annotated[
        str | None,
        typer.Option(help="Where the model's encoder computes: cpu or cuda. [default: cpu]", show_default=False),
    ] = None
    largest_batch: Annotated[
        int, typer.Option(min=1, max=10_000, help="The most rows of one request.", rich_help_panel=BATCHES)
    ] = 1000
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rows of several requests that are computed and charged together at most. [default: 1000; 64 where a "
            "deep network computes the features]",
            show_default=False,
            rich_help_panel=BATCHES,
        ),
    ] = None
    max_batch_time: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Seconds that a batch waits for more requests; 0: it takes what waits when the one before it ends.",
            rich_help_panel=BATCHES,
        ),
    ] = 0.0
    admin: Annotated[
        bool, typer.Option("--admin/--no-admin", help="Whether there is an owner's port.", rich_help_panel=OWNER)
    ] = True
    admin_host: Annotated[
        str, typer.Option(help="The address that the owner's port listens on.", rich_help_panel=OWNER)
    ] = "127.0.0.1"
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The owner's port; 0 picks a free one. [default: the one after --port, if it is free]",
            show_default=False,
            rich_help_panel=OWNER,
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="PEM file with the certificate to serve HTTPS with, and its chain.",
            show_default=False,
            rich_help_panel=FRONT,
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(help="PEM file with the certificate's key.", show_default=False, rich_help_panel=FRONT),
    ] = None
    cors_origin: Annotated[
        str | None,
        typer.Option(
            help="Web origins whose pages may ask, as https://app.example, separated by commas. [default: none]",
            rich_help_panel=FRONT,
        ),
    ] = None
    rate_limit: Annotated[
        str | None,
        typer.Option(
            help="How many requests of each client, as 100/minute, replays included. [default: any number]",
            rich_help_panel=FRONT,
        ),
    ] = None
    rate_limit_store: Annotated[
        str | None,
        typer.Option(
            help="redis://host:6379/1, where replicas and workers count requests together. [default: each for itself]",
            rich_help_panel=FRONT,
        ),
    ] = None
    failed_tries: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many invalid credentials one address may send in a minute; 0 for any number.",
            rich_help_panel=FRONT,
        ),
    ] = 300
    trusted_proxies: Annotated[
        str | None,
        typer.Option(
            help="Addresses or networks of proxies whose X-Forwarded-For is believed, as 10.0.0.0/8, with commas "
            "between. [default: nobody's]",
            show_default=False,
            rich_help_panel=FRONT,
        ),
    ] = None
    log_format: Annotated[
        str,
        typer.Option(help="text, or json: one object a line, each request with its id.", rich_help_panel=FRONT),
    ] = "text"
    jwt_issuer: Annotated[
        str | None,
        typer.Option(
            help="Take tokens (JWT) of this issuer beside API keys.", show_default=False, rich_help_panel=TOKENS
        ),
    ] = None
    jwt_audience: Annotated[
        str | None, typer.Option(help="What a token's audience must be.", show_default=False, rich_help_panel=TOKENS)
    ] = None
    jwt_keys: Annotated[
        str | None,
        typer.Option(
            help="The issuer's JSON Web Key Set: an https:// URL, or a file.",
            show_default=False,
            rich_help_panel=TOKENS,
        ),
    ] = None
    jwt_claim: Annotated[str, typer.Option(help="The claim that names the client.", rich_help_panel=TOKENS)] = "sub"
    jwt_scope_claim: Annotated[
        str | None,
        typer.Option(
            help="The claim that lists what a token may do: predict, budget-read. [default: both]",
            show_default=False,
            rich_help_panel=TOKENS,
        ),
    ] = None
    jwt_algorithm: Annotated[
        str,
        typer.Option(help="The signature algorithms to allow, separated by commas.", rich_help_panel=TOKENS),
    ] = "RS256,ES256"
    self_audit_key: Annotated[
        str | None,
        typer.Option(
            envvar="DPSERVE_SELF_AUDIT_KEY",
            help="The API key of a client of yours: the service audits its own noise with it until its budget is "
            "spent, and shows what it found at GET /audit.",
            show_default=False,
            rich_help_panel=AUDIT,
        ),
    ] = None
    self_audit_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long it waits between two looks.", rich_help_panel=AUDIT)
    ] = 60.0
    self_audit_rows: Annotated[
        int, typer.Option(min=8, help="How many answers one look pays for.", rich_help_panel=AUDIT)
    ] = 64
    ledger_replicas: options.Replicas = 0
    rehearsal: Annotated[
        bool,
        typer.Option(
            "--rehearsal",
            help="Accept a store that may lose charges. Not for private records.",
            rich_help_panel=STORE,
        ),
    ] = False

    def checked(self) -> Self:
        """Return the settings. Raises CannotServe for halves of a pair, and for what would silently do nothing."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise CannotServe("HTTPS needs both --tls-cert and --tls-key")
        tokens = (self.jwt_issuer, self.jwt_audience, self.jwt_keys)
        if any(tokens) and not all(tokens):
            raise CannotServe("tokens need all of --jwt-issuer, --jwt-audience and --jwt-keys")
        if self.rate_limit_store is not None and self.rate_limit is None:
            raise CannotServe("--rate-limit-store is of no use without --rate-limit")
        if self.workers > 1 and self.rate_limit is not None and self.rate_limit_store is None:
            raise CannotServe(
                "each of several workers would let as many requests through: say with --rate-limit-store where they "
                "count together, or leave --workers out"
            )
        if self.log_format not in get_args(Format):
            raise CannotServe(f"--log-format is text or json, not {self.log_format!r}")
        for origin in self.origins:
            if not origin.startswith(("https://", "http://")) or origin.count("/") != _SLASHES_OF_AN_ORIGIN:
                raise CannotServe(f"--cors-origin takes an origin, as https://app.example, not {origin!r}")
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise CannotServe(
                    f"--trusted-proxies takes addresses and networks, as 10.0.0.0/8, not {proxy!r}"
                ) from None
        return self

    @property
    def log_kind(self) -> Format:
        """The format of the log."""
        return cast(Format, self.log_format)

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins whose pages may ask."""
        return _parts(self.cors_origin or "")

    @property
    def proxies(self) -> tuple[str, ...]:
        """The proxies that are believed."""
        return _parts(self.trusted_proxies or "")

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The signature algorithms of tokens."""
        return _parts(self.jwt_algorithm)

    def tls(self) -> Tls | None:
        """Return what HTTPS is served with, or None. Raises CannotServe for files that do not belong together."""
        return None if self.tls_cert is None or self.tls_key is None else Tls(self.tls_cert, self.tls_key)

    def budget_words(self) -> options.BudgetWords:
        """Return the budget of the lineage, as it was said."""
        return options.BudgetWords(
            epsilon=self.epsilon,
            rho=self.rho,
            mu=self.mu,
            posterior_belief=self.posterior_belief,
            advantage=self.advantage,
            delta=self.delta,
        )


def _parts(said: str) -> tuple[str, ...]:
    return tuple(part for each in said.split(",") if (part := each.strip()))
