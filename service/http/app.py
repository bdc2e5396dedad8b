"""The HTTP service: thin routes over the data plane."""

from http import HTTPStatus
from importlib.metadata import version

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from accounting.explanation import AccountExplanation
from accounting.ledger import Ledger
from service.http.authentication import BEARER, Authentication
from service.http.documentation import add_documentation
from service.http.front import Front, stand_before
from service.http.last_resort import LastResort, response_to
from service.http.ledger_routes import SaysRehearsal, add_receipt_route, rehearsal_note
from service.http.openapi import describe
from service.http.openinference import add_open_inference
from service.http.predictions import OPENAPI, PATH, RESPONSES, PastRouting, Predictions
from service.http.problems import Problem, ProblemType
from service.http.refusals import REFUSALS, as_problem
from service.http.schemas import PROBLEM_RESPONSES, PredictResponse, QuoteResponse
from service.page.assets import add_page
from service.plane import Plane
from service.release_plane import HolderExplanation
from service.telemetry.metrics import Counts, Metrics

_DESCRIPTION = """Predictions of a model that was trained on private records. Every answer is differentially private
and is charged to your budget; `GET /budget` says what is left. Asking the same row again returns the same answer at
no cost."""


def create_app(
    data_plane: Plane, ledger: Ledger, *, largest_body: int, metrics: Metrics | None = None, front: Front | None = None
) -> FastAPI:
    """Return the ASGI application.

    largest_body: bytes; a longer body is refused unread. metrics: what to count in. front: what stands before it.
    """
    front = front or Front()
    metrics = metrics or Metrics()
    app = FastAPI(
        title="dpserve",
        version=version("dpserve"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=PROBLEM_RESPONSES,
    )
    authentication = Authentication(ledger, data_plane.lineage, front.tokens, front.rate_limit, front.failed_tries)
    predictions = Predictions(data_plane, authentication, largest_body=largest_body, metrics=metrics)
    app.state.predictions = predictions
    _add_client_routes(app, data_plane, authentication, predictions)
    _add_public_routes(app, data_plane)
    add_open_inference(app, data_plane, authentication, predictions, largest_body=largest_body)
    add_page(app, "client")
    add_documentation(app)
    add_problem_handlers(app)
    app.add_middleware(PastRouting, predictions=predictions)
    app.add_middleware(LastResort)
    app.add_middleware(Counts, count=metrics.count)
    stand_before(app, front)
    describe(app, data_plane)
    if data_plane.rehearsal:
        app.add_middleware(SaysRehearsal)
    return app


def _add_client_routes(
    app: FastAPI, data_plane: Plane, authentication: Authentication, predictions: Predictions
) -> None:
    security = [Depends(BEARER)]

    @app.post(
        PATH,
        response_model=PredictResponse | QuoteResponse,
        dependencies=security,
        summary="Ask for private predictions",
        openapi_extra=OPENAPI,
        responses=RESPONSES,
    )
    async def predict(request: Request) -> Response:
        return await predictions.answer(request)

    add_receipt_route(app, data_plane, authentication)

    @app.get("/budget", summary="See what is spent and what is left", dependencies=security)
    async def budget(request: Request) -> HolderExplanation | AccountExplanation:
        client = (await authentication.caller(request, "budget-read")).client
        return await data_plane.explained_budget(client)


def _add_public_routes(app: FastAPI, data_plane: Plane) -> None:
    @app.get("/models", summary="List the models")
    async def models() -> dict[str, list[str]]:
        return {"models": [data_plane.certificate.name]}

    @app.get("/models/{name}", summary="Read the public part of a model's certificate")
    async def model(name: str) -> dict[str, object]:
        data_plane.check_model(name)
        return data_plane.model()

    @app.head("/livez", include_in_schema=False)
    @app.get("/livez", summary="Whether the process answers")
    async def livez() -> dict[str, str]:
        return {"status": "live"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", summary="Whether the service can charge and answer")
    async def readyz() -> dict[str, object]:
        await data_plane.check_ready()
        return {"status": "ready"} | rehearsal_note(data_plane)


def add_problem_handlers(app: FastAPI) -> None:
    """Have what routes raise answered as problems."""

    async def on_refusal(request: Request, error: Exception) -> Response:
        return response_to(request.url.path, as_problem(error))

    for refused in REFUSALS:
        app.add_exception_handler(refused, on_refusal)

    @app.exception_handler(RequestValidationError)
    async def on_invalid_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        named = ".".join(str(part) for part in first["loc"])
        problem = Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, ProblemType.INVALID_REQUEST, f"{named}: {first['msg'].lower()}"
        )
        return response_to(request.url.path, problem)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        kind = {
            HTTPStatus.NOT_FOUND: ProblemType.NOT_FOUND,
            HTTPStatus.METHOD_NOT_ALLOWED: ProblemType.METHOD_NOT_ALLOWED,
        }.get(status, ProblemType.INVALID_REQUEST)
        said = f"{request.method} {request.url.path}: {status.description or status.phrase}"
        response = response_to(request.url.path, Problem(status, kind, said))
        response.headers.update(error.headers or {})
        return response
