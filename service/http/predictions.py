"""`POST /predict`: from bytes to bytes, without the detours of a web framework.

The route is FastAPI's in the OpenAPI document, and is called past FastAPI's routing, dependencies and serialisation,
which cost more than everything that happens here.
"""

import asyncio
import hashlib
import re
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from accounting.ledger import Idempotency
from accounting.picorho import to_rho
from service.fault_points import pass_point
from service.http.authentication import Authentication
from service.http.bodies import parse_off_the_loop, read_body
from service.http.ledger_routes import DRY_RUN_PARAMETER, quote_out, rehearsal_note, wants_dry_run, without_tier
from service.http.problems import Problem, ProblemType
from service.http.refusals import REFUSALS, as_problem
from service.http.schemas import PredictRequest, ReceiptOut
from service.plane import Plane, Prediction
from service.telemetry.metrics import Metrics

PATH = "/predict"

_LONGEST_IDEMPOTENCY_KEY = 255
_IDEMPOTENCY_KEY = re.compile(rf"[!-~]{{1,{_LONGEST_IDEMPOTENCY_KEY}}}")

OPENAPI: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": PredictRequest.model_json_schema()}}},
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "schema": {"type": "string", "maxLength": _LONGEST_IDEMPOTENCY_KEY},
            "description": "Your name for this request: sent again, it is answered again and charged once.",
        },
        DRY_RUN_PARAMETER,
        {
            "name": "tier",
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": "The precision to be answered at, if the model has tiers; the same as `tier` in the body.",
        },
    ],
}
"""What the OpenAPI document says of a request's parts."""


class Predictions:
    """Answers predictions of one model for whoever is authenticated."""

    def __init__(self, plane: Plane, authentication: Authentication, *, largest_body: int, metrics: Metrics) -> None:
        """Answer from `plane`. largest_body: bytes; a longer body is refused unread."""
        self._metrics = metrics
        self._plane = plane
        self._authentication = authentication
        self._largest_body = largest_body
        self._encode = msgspec.json.Encoder().encode

    async def answer(self, request: Request) -> Response:
        """Answer one request. Raises Problem and the refusals that `as_problem` knows."""
        plane = self._plane
        client = (await self._authentication.caller(request, "predict")).client
        pass_point("authenticated")
        body = await read_body(request, self._largest_body)
        parsed = await parse_off_the_loop(body)
        if parsed.model is not None:
            plane.check_model(parsed.model)
        tier = _tier(request, parsed.tier)
        plane.check_tier(tier)
        X = plane.check_rows(parsed.instances)
        pass_point("validated")
        idempotency = _idempotency(request, body)
        if wants_dry_run(request):
            return self._json(quote_out(plane, await plane.quote(client, X, idempotency, tier)))
        # A client that hangs up must not stop a charged request between its charge and its stored answer.
        prediction = await asyncio.shield(plane.predict(client, X, idempotency, tier))
        self._metrics.answered(len(X), prediction.charged_rows)
        budget = await plane.budget(client)
        pass_point("answered")
        return self._json(
            rehearsal_note(plane)
            | {
                "predictions": prediction.probabilities.tolist(),
                "receipt": _receipt(plane, prediction),
                "budget": budget.model_dump(mode="json"),
            }
        )

    def _json(self, content: dict[str, Any]) -> Response:
        return Response(self._encode(content), media_type="application/json")


class PastRouting:
    """Hands predictions to `Predictions` at once, and everything else to the application."""

    def __init__(self, app: ASGIApp, predictions: Predictions) -> None:
        """Stand before `app`."""
        self._app = app
        self._predictions = predictions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with a problem where the request is refused."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            response = await self._predictions.answer(Request(scope, receive))
        except Problem as problem:
            response = problem.response()
        except REFUSALS as error:
            response = as_problem(error).response()
        await response(scope, receive, send)


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


def _receipt(plane: Plane, prediction: Prediction) -> dict[str, Any]:
    receipt = prediction.receipt
    out = ReceiptOut(
        id=receipt.sequence if receipt else prediction.earlier,
        model=plane.certificate.name,
        mechanism=plane.mechanism_name,
        status=plane.mechanism_status,
        rows=len(prediction.probabilities),
        charged_rows=prediction.charged_rows,
        replayed_rows=prediction.replayed,
        price_per_row_rho=to_rho(plane.price_per_row.picorho),
        charged_rho=to_rho(prediction.charged),
        tier=prediction.tier,
    )
    return out.model_dump(exclude=without_tier(prediction.tier))
