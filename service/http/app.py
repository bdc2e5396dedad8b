"""The HTTP service: one ASGI application over the models that are served.

Every request passes the same middleware. Requests for predictions are answered by plain ASGI endpoints
(`dpserve.service.http.predictions`), everything else by FastAPI's routes.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from dpserve.accounting.faults_in_words import in_words
from dpserve.accounting.ledger import Ledger
from dpserve.service.http.accounts import add_account_routes
from dpserve.service.http.authentication import Authentication
from dpserve.service.http.codec import RowsCodec
from dpserve.service.http.exporting import add_export
from dpserve.service.http.middleware import RequestMiddleware, response_to
from dpserve.service.http.openapi import describe
from dpserve.service.http.openinference import MODEL, MODEL_VERSION, OpenInferenceCodec, add_open_inference
from dpserve.service.http.predictions import Codec, PredictionEndpoint, PredictionRoutes
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.refusals import FAILED, REFUSALS, as_problem
from dpserve.service.http.requests import Bodies
from dpserve.service.http.schemas import PROBLEM_RESPONSES, Json, LiveOut, ModelsOut, ReadyOut, answers
from dpserve.service.models import Models
from dpserve.service.page.assets import add_documentation, add_page
from dpserve.service.telemetry.logs import RequestLog
from dpserve.service.telemetry.metrics import Metrics
from dpserve.service.telemetry.tracing import RequestSpans, Traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from dpserve.service.http.failed_tries import FailedTries
    from dpserve.service.http.tokens import Tokens

_DESCRIPTION = """Predictions of a model that was trained on private records. Every answer is differentially private
and is charged to your budget; `GET /budget` says what is left. Asking the same row again returns the same answer at
no cost."""

_REQUEST_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Inference-Header-Content-Length",
    "Prefer",
    "X-Request-ID",
)
_RESPONSE_HEADERS = (
    "dpserve-problem",
    "dpserve-receipt",
    "dpserve-budget",
    "dpserve-noise",
    "Inference-Header-Content-Length",
    "Retry-After",
    "X-Request-ID",
)
"""Headers that pages of allowed origins may send and read."""

_ASKED: Mapping[Codec[Any], tuple[str, ...]] = {
    RowsCodec(): ("/predict", "/models/{name}/predict"),
    OpenInferenceCodec(): (f"{MODEL}/infer", f"{MODEL_VERSION}/infer"),
}
"""Where predictions are asked for, in which protocol."""


@dataclass(frozen=True)
class HttpOptions:
    """Who may ask, how often, and what is written down of it. By default API keys alone, and nothing."""

    tokens: "Tokens | None" = None
    """Verifies the tokens that are taken beside API keys."""
    failed_tries: "FailedTries | None" = None
    """The limit of each address's invalid credentials."""
    origins: tuple[str, ...] = ()
    """Web origins whose pages may ask."""
    log: RequestLog | None = None
    """Writes a line for each request."""
    tracing: "TracerProvider | None" = None
    seconds_for_body: float = 30.0
    """Seconds in which a request's body must arrive."""

    async def aclose(self) -> None:
        """Send what is left of the traces."""
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.shutdown)


def create_app(
    models: Models,
    ledger: Ledger,
    *,
    metrics: Metrics | None = None,
    options: HttpOptions | None = None,
    bodies: Bodies | None = None,
) -> ASGIApp:
    """Return the ASGI application.

    metrics: what to count in. bodies: what reads them, where others read some, too.
    """
    options, metrics = options or HttpOptions(), metrics or Metrics()
    authentication = Authentication(ledger, options.tokens, options.failed_tries)
    bodies = bodies or Bodies(options.seconds_for_body)

    asked = {
        path: PredictionEndpoint(codec, models, authentication, metrics, bodies)
        for codec, paths in _ASKED.items()
        for path in paths
    }
    others = _other_routes(models, ledger, authentication)
    app: ASGIApp = PredictionRoutes(asked, others)
    if options.origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.origins,
            allow_methods=["GET", "POST"],
            allow_headers=_REQUEST_HEADERS,
            expose_headers=_RESPONSE_HEADERS,
        )
    marks = [(b"dpserve-rehearsal", b"true")] if ledger.rehearsal else []
    app = RequestMiddleware(app, count=metrics.count, in_flight=metrics.in_flight, log=options.log, headers=marks)
    if options.tracing is not None:
        app = Traces(app, RequestSpans(options.tracing))
    return app


def _other_routes(models: Models, ledger: Ledger, authentication: Authentication) -> FastAPI:
    app = FastAPI(
        title="dpserve",
        version=version("dpserve"),
        description=_DESCRIPTION,
        openapi_url=None,
        redirect_slashes=False,
        responses=PROBLEM_RESPONSES,
    )
    add_account_routes(app, models, authentication)
    _add_public_routes(app, models, ledger)
    add_export(app, models, ledger, authentication)
    add_open_inference(app, models)
    add_page(app, "client")
    add_documentation(app)
    add_problem_handlers(app)
    describe(app, models)
    return app


def _add_public_routes(app: FastAPI, models: Models, ledger: Ledger) -> None:
    @app.get("/models", summary="List the models", responses=answers(ModelsOut))
    async def listed() -> Response:
        default = models.default
        units = {each.name: each.unit for each in models if each.unit is not None}
        return Json(ModelsOut(models.names, None if default is None else default.name, units))

    @app.get("/models/{name}", summary="Read the public part of a model's certificate")
    async def model(name: str) -> dict[str, object]:
        return models.named(name).public_model

    @app.head("/livez", include_in_schema=False)
    @app.get("/livez", summary="Whether the process answers", responses=answers(LiveOut))
    async def livez() -> Response:
        return Json(LiveOut())

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", summary="Whether the service can charge and answer", responses=answers(ReadyOut))
    @app.get("/health", summary="Whether the service can charge and answer", responses=answers(ReadyOut))
    async def readyz() -> Response:
        await models.check_ready()
        return Json(ReadyOut(rehearsal=True if ledger.rehearsal else UNSET))

    @app.get("/version", summary="The version of the service", response_class=PlainTextResponse)
    async def say_version() -> str:
        return version("dpserve")


def add_problem_handlers(app: FastAPI) -> None:
    """Have what routes raise answered as problems."""

    async def on_refusal(request: Request, error: Exception) -> Response:
        return response_to(request.url.path, as_problem(error))

    @app.exception_handler(Exception)
    async def on_unexpected(request: Request, error: Exception) -> Response:
        del error  # it is raised again, and logged by `RequestMiddleware`
        return response_to(request.url.path, Problem(ProblemType.INTERNAL, FAILED))

    for refused in REFUSALS:
        app.add_exception_handler(refused, on_refusal)

    @app.exception_handler(RequestValidationError)
    async def on_invalid_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        named = ".".join(str(part) for part in first["loc"])
        problem = Problem(
            ProblemType.INVALID_REQUEST, f"{named} {in_words(first)}", status=HTTPStatus.UNPROCESSABLE_ENTITY
        )
        return response_to(request.url.path, problem)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        kind = {
            HTTPStatus.NOT_FOUND: ProblemType.NOT_FOUND,
            HTTPStatus.METHOD_NOT_ALLOWED: ProblemType.METHOD_NOT_ALLOWED,
        }.get(status, ProblemType.INVALID_REQUEST)
        detail = f"{request.method} {request.url.path}: {status.description or status.phrase}"
        response = response_to(request.url.path, Problem(kind, detail, status=status))
        response.headers.update(error.headers or {})
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            # Starlette names the methods of the first route of a path alone.
            routes = [
                each for each in app.routes if isinstance(each, Route) and each.path_regex.match(request.url.path)
            ]
            response.headers["allow"] = ", ".join(sorted({method for each in routes for method in each.methods or ()}))
        return response
