"""What stands before the routes: tokens, limits, origins, logs and traces. By default nothing of it."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from service.http.failed_tries import FailedTries
from service.http.impatience import ImpatientProtocol, protocol_with
from service.http.short_way import short_way
from service.telemetry.logs import RequestLog
from service.telemetry.tracing import Traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from service.http.rate_limit import RateLimit
    from service.http.tokens import Tokens


@dataclass(frozen=True)
class Front:
    """How requests are looked at before they are answered."""

    tokens: "Tokens | None" = None
    """Verifies the tokens that are taken beside API keys."""
    rate_limit: "RateLimit | None" = None
    """Of each client."""
    failed_tries: FailedTries | None = None
    """Of each address, at credentials."""
    origins: tuple[str, ...] = ()
    """Web origins whose pages may ask: none by default."""
    log_requests: bool = False
    """Whether each request has an id and a line in the log."""
    tracing: "TracerProvider | None" = None

    @property
    def watches(self) -> bool:
        """Whether every request must pass the middleware of `stand_before`."""
        return bool(self.origins) or self.log_requests or self.tracing is not None

    async def close(self) -> None:
        """Send what is left of the traces, and close connections."""
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.shutdown)
        if self.rate_limit is not None:
            await self.rate_limit.close()


def protocol_of(app: FastAPI, front: Front, most_connections: int) -> type[ImpatientProtocol]:
    """Return how HTTP is spoken: plain predictions the short way, unless `front` must see every request."""
    if front.watches:
        return protocol_with(ImpatientProtocol, most_connections=most_connections)
    return short_way(app.state.predictions, most_connections)


def stand_before(app: FastAPI, front: Front) -> None:
    """Add the middleware that `front` asks for, outermost."""
    if front.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(front.origins),
            allow_methods=["GET", "POST"],
            allow_headers=[
                "Authorization",
                "Content-Type",
                "Idempotency-Key",
                "Inference-Header-Content-Length",
                "Prefer",
                "X-Request-ID",
            ],
            expose_headers=[
                "dpserve-problem",
                "dpserve-receipt",
                "dpserve-budget",
                "Inference-Header-Content-Length",
                "Retry-After",
                "X-Request-ID",
            ],
        )
    if front.tracing is not None:
        app.add_middleware(Traces, provider=front.tracing)
    if front.log_requests:
        app.add_middleware(RequestLog)
