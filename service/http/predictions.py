"""Requests for predictions, of whatever protocol: one way from the bytes of a request to those of its answer."""

import asyncio
from collections.abc import Mapping, Set
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import RequestRefused
from service.http.authentication import Authentication
from service.http.problems import Problem, ProblemType
from service.http.refusals import REFUSALS, as_problem
from service.http.requests import Bodies, Head, read_head
from service.predictor import Caller, Prediction, Predictor, RowsQuote, RowsRequest
from service.telemetry.metrics import Metrics

_SMALL_BODY = 64 * 1024
"""Bytes of a body that is parsed on the event loop; while a larger one is parsed, other requests go on."""

Some = TypeVar("Some", bound=RowsRequest)

Reply = tuple[bytes, Mapping[str, str]]
"""A body and its headers."""


class Codec(Protocol[Some]):
    """How a protocol asks and answers. What it raises are refusals that `as_problem` knows."""

    @property
    def parameters(self) -> Set[str]:
        """What the query may say; `dry_run` where quotes are given."""
        ...

    def check_path(self, parameters: Mapping[str, str]) -> None:
        """Refuse the path of what is not served."""
        ...

    def decode(self, head: Head, body: bytes) -> Some:
        """Return what is asked for, validated."""
        ...

    def encode(self, head: Head, request: Some, prediction: Prediction) -> Reply:
        """Return the answer."""
        ...

    def encode_quote(self, quote: RowsQuote) -> Reply:
        """Return what an answer would cost."""
        ...

    def refuse(self, problem: Problem) -> Response:
        """Return the answer to a request that is refused."""
        ...


class PredictionEndpoint(Generic[Some]):
    """An ASGI application that answers requests for predictions in one protocol."""

    def __init__(
        self,
        codec: Codec[Some],
        predictor: Predictor,
        authentication: Authentication,
        metrics: Metrics,
        bodies: Bodies,
    ) -> None:
        """Answer from `predictor`."""
        self._bodies = bodies
        self._codec = codec
        self._predictor = predictor
        self._authentication = authentication
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with a problem where it is refused."""
        try:
            body, named = await self._answer(scope, receive)
        except REFUSALS as error:
            problem = as_problem(error)
            response = self._codec.refuse(problem)
            if problem.status is HTTPStatus.METHOD_NOT_ALLOWED:
                response.headers["allow"] = "POST"
            await response(scope, receive, send)
            return
        headers = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        if scope["method"] != "POST":
            said = f"{scope['path']} answers POST"
            raise Problem(HTTPStatus.METHOD_NOT_ALLOWED, ProblemType.METHOD_NOT_ALLOWED, said)
        self._codec.check_path(scope.get("path_params", {}))
        head = read_head(scope, self._codec.parameters)
        caller = await self._authentication.payer(head)
        body = await self._bodies.read(scope, receive)
        try:
            return await self._answer_body(head, caller, body)
        finally:
            self._bodies.release(body)

    async def _answer_body(self, head: Head, caller: Caller, body: bytes) -> Reply:
        try:
            dry_run = _is_dry_run(head)
            request = await self._decode(head, body)
        except (Problem, RequestRefused):
            # Whose key is gone hears of that alone.
            await self._predictor.confirm(caller)
            raise
        if dry_run:
            known = await self._predictor.confirm(caller)
            return self._codec.encode_quote(await self._predictor.quote(known.client, request))
        prediction = await self._predictor.predict(caller, request)
        self._metrics.answered(len(prediction.probabilities), prediction.charged_rows)
        encoded, headers = self._codec.encode(head, request, prediction)
        wait = head.wait
        return encoded, headers if wait is None else {**headers, "preference-applied": f"wait={wait:g}"}

    async def _decode(self, head: Head, body: bytes) -> Some:
        if len(body) < _SMALL_BODY:
            return self._codec.decode(head, body)
        return await asyncio.to_thread(self._codec.decode, head, body)


def _is_dry_run(head: Head) -> bool:
    said = head.query.get("dry_run", "false").lower()
    if said not in ("true", "false"):
        raise Problem(HTTPStatus.BAD_REQUEST, ProblemType.INVALID_REQUEST, "dry_run is 'true' or 'false'")
    return said == "true"
