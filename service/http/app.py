"""The HTTP service: thin routes over the data plane."""

import asyncio
import hashlib
import logging
import re
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from accounting.explanation import AccountExplanation
from accounting.ledger import (
    BudgetExhausted,
    ClientRevoked,
    Idempotency,
    IdempotencyConflict,
    Ledger,
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
    MechanismNotAccepted,
    RowNotCharged,
    UnknownClient,
    UnknownLineage,
)
from accounting.picorho import to_rho
from service.errors import InvalidRows, UnknownModel, UnknownTier
from service.fault_points import pass_point
from service.http.authentication import BEARER, authenticated_client
from service.http.bodies import parse_off_the_loop, read_body
from service.http.last_resort import LastResort
from service.http.ledger_routes import (
    DRY_RUN_PARAMETER,
    SaysRehearsal,
    add_receipt_route,
    quote_out,
    rehearsal_note,
    wants_dry_run,
    without_tier,
)
from service.http.problems import MEDIA_TYPE, Problem, ProblemType
from service.http.schemas import PredictRequest, PredictResponse, ProblemOut, ReceiptOut
from service.plane import Plane, Prediction
from service.release_plane import HolderExplanation

_LONGEST_IDEMPOTENCY_KEY = 255
_IDEMPOTENCY_KEY = re.compile(rf"[!-~]{{1,{_LONGEST_IDEMPOTENCY_KEY}}}")

_TIER_PARAMETER: dict[str, object] = {
    "name": "tier",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "The precision to be answered at, where the model has tiers; the same as `tier` in the body.",
}

_log = logging.getLogger("dpserve")

_DESCRIPTION = """Predictions of a model that was trained on private records. Every answer is differentially private
and is charged to your budget; `GET /budget` says what is left. Asking the same row again returns the same answer at
no cost."""


def create_app(data_plane: Plane, ledger: Ledger, *, largest_body: int) -> FastAPI:
    """Return the ASGI application. largest_body: bytes; a longer body is refused unread."""
    app = FastAPI(
        title="dpserve",
        version=version("dpserve"),
        description=_DESCRIPTION,
        redirect_slashes=False,
        responses={
            "default": {"model": ProblemOut, "description": "A problem (RFC 9457)", "content": {MEDIA_TYPE: {}}}
        },
    )
    _add_prediction_routes(app, data_plane, ledger, largest_body)
    _add_public_routes(app, data_plane)
    _add_problem_handlers(app)
    app.add_middleware(LastResort)
    if data_plane.rehearsal:
        app.add_middleware(SaysRehearsal)
    return app


def _add_prediction_routes(app: FastAPI, data_plane: Plane, ledger: Ledger, largest_body: int) -> None:
    body_schema = {
        "required": True,
        "content": {"application/json": {"schema": PredictRequest.model_json_schema()}},
    }
    security = [Depends(BEARER)]

    @app.post(
        "/predict",
        response_model=PredictResponse,
        dependencies=security,
        summary="Ask for private predictions",
        openapi_extra={
            "requestBody": body_schema,
            "parameters": [
                {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "required": False,
                    "schema": {"type": "string", "maxLength": _LONGEST_IDEMPOTENCY_KEY},
                    "description": "Your name for this request: sent again, it is answered again and charged once.",
                },
                DRY_RUN_PARAMETER,
                _TIER_PARAMETER,
            ],
        },
    )
    async def predict(request: Request) -> Response:
        client = await authenticated_client(request, ledger, data_plane.lineage)
        pass_point("authenticated")
        body = await read_body(request, largest_body)
        parsed = await parse_off_the_loop(body)
        if parsed.model is not None:
            data_plane.check_model(parsed.model)
        tier = _tier(request, parsed.tier)
        data_plane.check_tier(tier)
        X = data_plane.check_rows(parsed.instances)
        pass_point("validated")
        idempotency = _idempotency(request, body)
        if wants_dry_run(request):
            return JSONResponse(quote_out(data_plane, await data_plane.quote(client, X, idempotency, tier)))
        # A client that hangs up must not stop a charged request between its charge and its stored answer.
        prediction = await asyncio.shield(data_plane.predict(client, X, idempotency, tier))
        budget = await data_plane.budget(client)
        pass_point("answered")
        return JSONResponse(
            rehearsal_note(data_plane)
            | {
                "predictions": prediction.probabilities.tolist(),
                "receipt": _receipt(data_plane, prediction),
                "budget": budget.model_dump(mode="json"),
            }
        )

    add_receipt_route(app, data_plane, ledger)

    @app.get("/budget", summary="See what is spent and what is left", dependencies=security)
    async def budget(request: Request) -> HolderExplanation | AccountExplanation:
        client = await authenticated_client(request, ledger, data_plane.lineage)
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


def _add_problem_handlers(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def on_problem(request: Request, problem: Problem) -> Response:
        del request
        return problem.response()

    @app.exception_handler(InvalidRows)
    @app.exception_handler(UnknownModel)
    @app.exception_handler(UnknownTier)
    @app.exception_handler(LedgerError)
    async def on_refusal(request: Request, error: Exception) -> Response:
        del request
        response = _as_problem(error).response()
        if isinstance(error, LedgerBusy):
            response.headers["Retry-After"] = "1"
        return response

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        kind = {
            HTTPStatus.NOT_FOUND: ProblemType.NOT_FOUND,
            HTTPStatus.METHOD_NOT_ALLOWED: ProblemType.METHOD_NOT_ALLOWED,
        }.get(status, ProblemType.INVALID_REQUEST)
        said = f"{request.method} {request.url.path}: {status.description or status.phrase}"
        response = Problem(status, kind, said).response()
        response.headers.update(error.headers or {})
        return response


def _as_problem(error: Exception) -> Problem:
    match error:
        case InvalidRows():
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                ProblemType.INVALID_ROWS,
                str(error),
                row=error.row,
                column=error.column,
            )
        case UnknownModel():
            return Problem(HTTPStatus.NOT_FOUND, ProblemType.UNKNOWN_MODEL, str(error))
        case UnknownTier():
            return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, ProblemType.UNKNOWN_TIER, str(error))
        case BudgetExhausted():
            amounts = {name: to_rho(getattr(error, name)) for name in ("cost", "spent", "remaining", "limit")}
            return Problem(
                HTTPStatus.FORBIDDEN,
                ProblemType.BUDGET_EXHAUSTED,
                f"this request costs rho = {amounts['cost']:.6g}, and {amounts['remaining']:.6g} of "
                f"{amounts['limit']:.6g} is left in the {error.scope}'s budget; nothing was charged",
                scope=error.scope,
                unit="rho",
                **amounts,
            )
        case MechanismNotAccepted():
            return Problem(HTTPStatus.FORBIDDEN, ProblemType.MECHANISM_NOT_ACCEPTED, str(error), scope=error.scope)
        case IdempotencyConflict():
            return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, ProblemType.IDEMPOTENCY_CONFLICT, str(error))
        case ClientRevoked() | UnknownClient():
            return Problem(HTTPStatus.UNAUTHORIZED, ProblemType.KEY_REVOKED, "this API key was revoked")
        case LedgerUnavailable() | UnknownLineage() | RowNotCharged():
            return Problem(HTTPStatus.SERVICE_UNAVAILABLE, ProblemType.LEDGER_UNAVAILABLE, _why_unavailable(error))
    _log.error("unexpected refusal of the ledger: %s", type(error).__name__)
    return Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, ProblemType.INTERNAL, "the service failed; the owner's log says where"
    )


def _why_unavailable(error: Exception) -> str:
    match error:
        case LedgerBusy():
            return "more requests wait for the ledger than it takes; nothing was charged: ask again in a second"
        case RowNotCharged():
            return "a row was forgotten before it was answered, so nothing is answered; asking again charges it again"
    # The store's own words may name hosts and paths: they are for the owner's log.
    _log.error("ledger unavailable: %s", error)
    if isinstance(error, LedgerDamaged):
        return "the ledger is damaged and its owner must look (`dpserve ledger verify`); nothing was charged for this"
    return "the ledger cannot be reached, so nothing is answered; asking again is safe and is charged once"


def _idempotency(request: Request, body: bytes) -> Idempotency | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            ProblemType.INVALID_REQUEST,
            f"an Idempotency-Key has 1 to {_LONGEST_IDEMPOTENCY_KEY} visible ASCII characters",
        )
    # A tier in the query decides what the answer is as much as the body does.
    tier = request.query_params.get("tier")
    said = body if tier is None else body + b"\0tier=" + tier.encode()
    return Idempotency(key, hashlib.sha256(said).digest())


def _tier(request: Request, in_body: str | None) -> str | None:
    in_query = request.query_params.get("tier")
    if in_query is not None and in_body not in (None, in_query):
        raise Problem(
            HTTPStatus.BAD_REQUEST, ProblemType.INVALID_REQUEST, "the body and the query name different tiers"
        )
    return in_query if in_body is None else in_body


def _receipt(data_plane: Plane, prediction: Prediction) -> dict[str, Any]:
    receipt = prediction.receipt
    out = ReceiptOut(
        id=receipt.sequence if receipt else prediction.earlier,
        model=data_plane.certificate.name,
        mechanism=data_plane.mechanism_name,
        status=data_plane.mechanism_status,
        rows=len(prediction.probabilities),
        charged_rows=prediction.charged_rows,
        replayed_rows=prediction.replayed,
        price_per_row_rho=to_rho(data_plane.price_per_row.picorho),
        charged_rho=to_rho(prediction.charged),
        tier=prediction.tier,
    )
    return out.model_dump(exclude=without_tier(prediction.tier))
