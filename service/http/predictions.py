"""`POST /predict`: from bytes to bytes, without the detours of a web framework.

The route is FastAPI's in the OpenAPI document, and is called past FastAPI's routing, dependencies and serialisation,
which cost more than everything that happens here.
"""

import asyncio
import math
import re
import time
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from accounting.ledger import Idempotency
from accounting.picorho import to_rho
from accounting.report import AccountReport
from service.errors import RequestRefused
from service.fault_points import pass_point
from service.http import npy
from service.http.authentication import Authentication, authorization_of, peer_of
from service.http.bodies import Rows, parse_off_the_loop, parse_rows, read_body
from service.http.hanging_up import unless_hung_up
from service.http.idempotency import IDEMPOTENCY_PARAMETER, idempotency_of
from service.http.ledger_routes import DRY_RUN_PARAMETER, quote_out, wants_dry_run
from service.http.problems import Problem, ProblemType
from service.http.refusals import REFUSALS, as_problem
from service.http.schemas import PredictRequest
from service.plane import Caller, Floats, Plane, Prediction, TierQuote
from service.telemetry.metrics import Metrics

PATH = "/predict"

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9}(?:\.\d{1,6})?)(?=[\s\",;]|$)", re.IGNORECASE)

_WEIGHT_0 = re.compile(r";\s*q\s*=\s*0(?:\.0*)?\s*(?:;|$)", re.IGNORECASE)

RECEIPT, BUDGET = "dpserve-receipt", "dpserve-budget"
"""The headers of an answer that is an array alone: what an answer in JSON has beside its predictions."""

PREFER_PARAMETER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "wait=SECONDS: what is not charged by then is not charged at all, and refused with 503.",
}

OPENAPI: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": PredictRequest.model_json_schema()},
            npy.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "parameters": [
        IDEMPOTENCY_PARAMETER,
        PREFER_PARAMETER,
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

RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {npy.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        "description": f"The predictions; as a NumPy array if {npy.MEDIA_TYPE} is accepted, with the receipt and the "
        f"budget as JSON in the headers {RECEIPT} and {BUDGET}.",
    }
}
"""What it says of an answer, beside `PredictResponse`."""


class Head(msgspec.Struct, frozen=True):
    """What the header and the query of a request say to `Predictions`. tier: the query's.

    began: when the request did, by `time.monotonic`. peer: the address that it came from.
    """

    authorization: str
    idempotency_key: str | None
    content_type: str
    accept: str
    prefer: str
    tier: str | None = None
    peer: str = ""
    began: float = msgspec.field(default_factory=time.monotonic)


class Asked(msgspec.Struct, frozen=True, eq=False):
    """What a request asks for. X: (n, d)."""

    X: Floats
    tier: str | None
    idempotency: Idempotency | None


SomeAsked = TypeVar("SomeAsked", bound=Asked)


class Reply(msgspec.Struct, frozen=True):
    """An answer with status 200."""

    body: bytes
    headers: dict[str, str]


class Predictions:
    """Answers predictions of one model for clients of one ledger: every one of them, whichever way it came."""

    def __init__(self, plane: Plane, authentication: Authentication, *, largest_body: int, metrics: Metrics) -> None:
        """Answer from `plane`. largest_body: bytes; a longer body is refused unread."""
        self.metrics = metrics
        self.rehearsal = plane.rehearsal
        self._plane = plane
        self._authentication = authentication
        self.largest_body = largest_body
        self._opening = b'{"rehearsal":true,"predictions":' if plane.rehearsal else b'{"predictions":'
        self._encoded: tuple[AccountReport | None, bytes] = (None, b"")
        self._receipt_terms = {
            "model": plane.certificate.name,
            "mechanism": plane.mechanism_name,
            "status": plane.mechanism_status,
        }
        self._price = to_rho(plane.price_per_row.picorho)

    async def answer(self, request: Request) -> Response:
        """Answer one request. Raises Problem and the refusals that `as_problem` knows."""
        headers, asked = request.headers, request.query_params
        head = Head(
            authorization_of(headers),
            headers.get("idempotency-key"),
            headers.get("content-type", ""),
            headers.get("accept", ""),
            headers.get("prefer", ""),
            asked.get("tier"),
            peer_of(request),
        )
        caller = await self.caller(head)
        body = await read_body(request, self.largest_body)
        if wants_dry_run(request):
            return self._json(await self._quote(await self._plane.confirm(caller), head, body))
        reply = await unless_hung_up(request, self.reply(caller, head, body))
        return Response(reply.body, headers=reply.headers)

    async def caller(self, head: Head) -> Caller:
        """Return who asks, or raise a 401 problem."""
        caller = await self._authentication.payer(head.authorization, head.peer)
        pass_point("authenticated")
        return caller

    def knows(self, authorization: str) -> bool:
        """Whether the header shows an API key that was taken before."""
        return self._authentication.knows(authorization)

    async def reply(self, caller: Caller, head: Head, body: bytes) -> Reply:
        """Answer rows. Raises Problem and the refusals that `as_problem` knows."""
        _, prediction, headers = await self.paid(caller, self._asked(head, body), head.prefer, head.began)
        return self._reply_with(prediction, head, headers)

    def begin(self, head: Head, body: bytes) -> "asyncio.Future[Prediction] | None":
        """Begin to answer a small request without a task; None, with nothing done, where `caller` and `reply` must.

        Raises Overloaded. What comes is for `begun`; what `Plane.begin` says of it holds.
        """
        caller = self._authentication.payer_at_once(head.authorization) if self._plane.begins_at_once else None
        if caller is None:
            return None
        try:
            asked = self._checked(head, body, None if _is_npy(head) else parse_rows(body))
        except (Problem, RequestRefused):
            return None  # which is refused only once the ledger has said whose the key is
        if asked.tier is not None:
            return None
        pass_point("authenticated")
        pass_point("validated")
        wait = wait_of(head.prefer)
        deadline = math.inf if wait is None else head.began + wait
        return self._plane.begin(caller, asked.X, asked.idempotency, deadline)

    def begun(self, prediction: Prediction, head: Head) -> Reply:
        """Return the reply to a request that `begin` began."""
        self._count(prediction)
        return self._reply_with(prediction, head, _applied(wait_of(head.prefer)))

    def _count(self, prediction: Prediction) -> None:
        self.metrics.answered(len(prediction.probabilities), prediction.charged_rows)
        pass_point("answered")

    def _reply_with(self, prediction: Prediction, head: Head, headers: dict[str, str]) -> Reply:
        receipt = msgspec.json.encode(self.receipt_of(prediction))
        budget = self.budget_of(prediction)
        if _takes_npy(head.accept):
            headers |= {"content-type": npy.MEDIA_TYPE, RECEIPT: receipt.decode(), BUDGET: budget.decode()}
            return Reply(npy.npy_of(prediction.probabilities), headers)
        predictions = msgspec.json.encode(prediction.probabilities.tolist())
        parts = (self._opening, predictions, b',"receipt":', receipt, b',"budget":', budget, b"}")
        return Reply(b"".join(parts), {"content-type": "application/json"} | headers)

    async def paid(
        self, caller: Caller, reading: Awaitable[SomeAsked], prefer: str, began: float
    ) -> tuple[SomeAsked, Prediction, dict[str, str]]:
        """Answer what `reading` reads of a request, whatever its protocol; return both, and headers of the answer.

        Raises Problem and the refusals that `as_problem` knows: none of what was asked to a caller whose key is gone.
        """
        try:
            asked = await reading
        except (Problem, RequestRefused):
            await self._plane.confirm(caller)
            raise
        pass_point("validated")
        wait = wait_of(prefer)
        deadline = math.inf if wait is None else began + wait
        prediction = await self._plane.answer(caller, asked.X, asked.idempotency, asked.tier, deadline)
        self._count(prediction)
        return asked, prediction, _applied(wait)

    async def _quote(self, caller: Caller, head: Head, body: bytes) -> dict[str, Any]:
        asked = await self._asked(head, body)
        quote = await self._plane.quote(caller.client, asked.X, asked.idempotency, asked.tier)
        noise = await self._plane.noise(asked.X, quote.tier if isinstance(quote, TierQuote) else None)
        return quote_out(self._plane, quote, noise)

    async def _asked(self, head: Head, body: bytes) -> Asked:
        return self._checked(head, body, None if _is_npy(head) else await parse_off_the_loop(body))

    def _checked(self, head: Head, body: bytes, parsed: Rows | None) -> Asked:
        """Return what is asked for. parsed: the body, unless it is an array."""
        plane = self._plane
        if parsed is None:
            tier = head.tier
            plane.check_tier(tier)
            X = plane.check_array(npy.parse_npy(body))
        else:
            if parsed.model is not None:
                plane.check_model(parsed.model)
            tier = _tier(head.tier, parsed.tier)
            plane.check_tier(tier)
            X = plane.check_rows(parsed.instances)
        # A tier in the query decides what the answer is as much as the body does.
        said = body if head.tier is None else body + b"\0tier=" + head.tier.encode()
        return Asked(X, tier, idempotency_of(head.idempotency_key, said))

    def receipt_of(self, prediction: Prediction) -> dict[str, Any]:
        """Return what `ReceiptOut` describes."""
        receipt = prediction.receipt
        out = {
            "id": receipt.sequence if receipt else prediction.earlier,
            **self._receipt_terms,
            "rows": len(prediction.probabilities),
            "charged_rows": prediction.charged_rows,
            "replayed_rows": prediction.replayed,
            "price_per_row_rho": self._price,
            "charged_rho": to_rho(prediction.charged),
        }
        if prediction.tier is not None:
            out["tier"] = prediction.tier
        return out

    def budget_of(self, prediction: Prediction) -> bytes:
        """Return the client's account as JSON; the requests of a tick share their clients' reports."""
        budget = prediction.budget
        if self._encoded[0] is not budget:
            self._encoded = budget, budget.model_dump_json().encode()
        return self._encoded[1]

    def _json(self, content: dict[str, Any]) -> Response:
        return Response(msgspec.json.encode(content), media_type="application/json")


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
        except REFUSALS as error:
            response = as_problem(error).response()
        await response(scope, receive, send)


def wait_of(prefer: str) -> float | None:
    """Return after how many seconds nothing is to be charged any more: `wait=SECONDS` of RFC 7240, or None.

    Fractions of a second are taken, too. What cannot be read is no preference.
    """
    found = _WAIT.search(prefer) if prefer else None
    return float(found[1]) if found else None


def _media_type(said: str) -> str:
    return said.partition(";")[0].strip().lower()


def _is_npy(head: Head) -> bool:
    return _media_type(head.content_type) == npy.MEDIA_TYPE


def _applied(wait: float | None) -> dict[str, str]:
    return {} if wait is None else {"preference-applied": f"wait={wait:g}"}


def _takes_npy(accept: str) -> bool:
    """Return whether an array is named in `Accept`, and not with the weight 0, which refuses it (RFC 9110)."""
    named = [said for said in accept.split(",") if _media_type(said) == npy.MEDIA_TYPE] if accept else []
    return any(not _WEIGHT_0.search(said) for said in named)


def _tier(in_query: str | None, in_body: str | None) -> str | None:
    if in_query is not None and in_body not in (None, in_query):
        raise Problem(
            HTTPStatus.BAD_REQUEST, ProblemType.INVALID_REQUEST, "the body and the query name different tiers"
        )
    return in_query if in_body is None else in_body
