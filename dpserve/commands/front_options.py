"""What `dpserve serve` may be told of TLS, tokens, rates, origins and logs, and what becomes of it."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from service.errors import CannotServe
from service.http.app import HttpOptions
from service.telemetry.logs import Format, RequestLog
from service.telemetry.tracing import configured_tracing
from service.tls import Tls
from training.extras import extra

TlsCert = Annotated[
    Path | None,
    typer.Option(help="PEM file with the certificate to serve HTTPS with, and its chain.", show_default=False),
]
TlsKey = Annotated[Path | None, typer.Option(help="PEM file with the certificate's key.", show_default=False)]
CorsOrigin = Annotated[
    str | None,
    typer.Option(help="Web origins whose pages may ask, as https://app.example, separated by commas. [default: none]"),
]
RateLimitOption = Annotated[
    str | None,
    typer.Option(
        "--rate-limit", help="How many requests of each client, as 100/minute, replays included. [default: any number]"
    ),
]
RateLimitStore = Annotated[
    str | None,
    typer.Option(
        help="redis://host:6379/1, where replicas and workers count requests together. [default: each for itself]"
    ),
]
FailedTriesOption = Annotated[
    int,
    typer.Option(
        "--failed-tries",
        min=0,
        help="How many invalid credentials one address may send in a minute; 0 for any number.",
    ),
]
TrustedProxies = Annotated[
    str | None,
    typer.Option(
        help="Addresses or networks of proxies whose X-Forwarded-For is believed, as 10.0.0.0/8, separated by commas. "
        "[default: nobody's]",
        show_default=False,
    ),
]
JwtIssuer = Annotated[
    str | None, typer.Option(help="Take tokens (JWT) of this issuer beside API keys.", show_default=False)
]
JwtAudience = Annotated[str | None, typer.Option(help="What a token's audience must be.", show_default=False)]
JwtKeys = Annotated[
    str | None, typer.Option(help="The issuer's JSON Web Key Set: an https:// URL, or a file.", show_default=False)
]
JwtClaim = Annotated[str, typer.Option(help="The claim that names the client.")]
JwtScopeClaim = Annotated[
    str | None,
    typer.Option(
        help="The claim that lists what a token may do: predict, budget-read. [default: both]",
        show_default=False,
    ),
]
JwtAlgorithm = Annotated[str, typer.Option(help="The signature algorithms to allow, separated by commas.")]
LogFormat = Annotated[str, typer.Option(help="text, or json: one object a line, each request with its id.")]


@dataclass(frozen=True, kw_only=True)
class FrontOptions:
    """What was said. Raises CannotServe for halves of a pair, and for an unknown log format."""

    tls_cert: Path | None
    tls_key: Path | None
    cors_origin: str | None
    rate_limit: str | None
    rate_limit_store: str | None
    failed_tries: int
    trusted_proxies: str | None
    jwt_issuer: str | None
    jwt_audience: str | None
    jwt_keys: str | None
    jwt_claim: str
    jwt_scope_claim: str | None
    jwt_algorithm: str
    log_format: str

    def __post_init__(self) -> None:
        """Refuse what would silently do nothing."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise CannotServe("HTTPS needs both --tls-cert and --tls-key")
        said = (self.jwt_issuer, self.jwt_audience, self.jwt_keys)
        if any(said) and not all(said):
            raise CannotServe("tokens need all of --jwt-issuer, --jwt-audience and --jwt-keys")
        if self.rate_limit_store is not None and self.rate_limit is None:
            raise CannotServe("--rate-limit-store is of no use without --rate-limit")
        if self.log_format not in get_args(Format):
            raise CannotServe(f"--log-format is text or json, not {self.log_format!r}")
        for origin in self.origins:
            if not origin.startswith(("https://", "http://")) or origin.count("/") != _SLASHES_OF_AN_ORIGIN:
                raise CannotServe(f"--cors-origin takes an origin, as https://app.example, not {origin!r}")

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins whose pages may ask."""
        return _parts(self.cors_origin or "")

    @property
    def proxies(self) -> tuple[str, ...]:
        """The proxies that are believed. Raises CannotServe for what is no address and no network."""
        named = _parts(self.trusted_proxies or "")
        for each in named:
            try:
                ipaddress.ip_network(each)
            except ValueError:
                raise CannotServe(
                    f"--trusted-proxies takes addresses and networks, as 10.0.0.0/8, not {each!r}"
                ) from None
        return named

    @property
    def log_kind(self) -> Format:
        """The format of the log."""
        return cast(Format, self.log_format)

    def tls(self) -> Tls | None:
        """Return what HTTPS is served with, or None. Raises CannotServe for files that do not belong together."""
        return None if self.tls_cert is None or self.tls_key is None else Tls(self.tls_cert, self.tls_key)

    def request_log(self) -> RequestLog | None:
        """Return what writes a line for each request, or None."""
        return RequestLog() if self.log_kind == "json" else None

    async def http_options(self) -> HttpOptions:
        """Return who may ask, how often, and what is written down. Raises CannotServe."""
        tokens = limit = None
        if self.jwt_issuer and self.jwt_audience and self.jwt_keys:
            with extra("jwt", "taking tokens"):
                from service.http.tokens import Tokens, TokenSettings

            algorithms = _parts(self.jwt_algorithm)
            tokens = await Tokens.open(
                TokenSettings(
                    self.jwt_issuer, self.jwt_audience, self.jwt_keys, self.jwt_claim, algorithms, self.jwt_scope_claim
                )
            )
        if self.rate_limit is not None:
            from service.http.rate_limit import rate_limit

            limit = rate_limit(self.rate_limit, self.rate_limit_store)
        tries = None
        if self.failed_tries:
            from service.http.failed_tries import FailedTries

            tries = FailedTries(self.failed_tries)
        return HttpOptions(
            tokens=tokens,
            rate_limit=limit,
            failed_tries=tries,
            origins=self.origins,
            log=self.request_log(),
            tracing=configured_tracing(),
        )


_SLASHES_OF_AN_ORIGIN = 2


def _parts(said: str) -> tuple[str, ...]:
    return tuple(part for each in said.split(",") if (part := each.strip()))
