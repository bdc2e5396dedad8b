"""Requests for predictions, of whatever protocol: one way from the bytes of a request to those of its answer."""

from collections.abc import Awaitable, Mapping, Set
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from dpserve.accounting.ledger import ClientRevoked, KeyExpired, UnknownKey
from dpserve.service.errors import RequestRefused
from dpserve.service.http.authentication import Authentication
from dpserve.service.http.middleware import MODEL, response_to
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.refusals import REFUSALS, as_problem
from dpserve.service.http.requests import Bodies, RequestHeader, read_header, unless_gone
from dpserve.service.http.structure import SMALL
from dpserve.service.models import Models
from dpserve.service.places import in_thread
from dpserve.service.predictor import Caller, Prediction, Predictor, RowsQuote, RowsRequest
from dpserve.service.telemetry.metrics import Metrics
from dpserve.service.telemetry.timeline import timeline

Some = TypeVar("Some", bound=RowsRequest)

Reply = tuple[bytes, Mapping[bytes, bytes]]
"""A body and its headers."""

_UNCOUNTED = nullcontext()
"""Stands where the rows of a small request are not counted."""


class Codec(Protocol[Some]):
    """A protocol's requests and answers. It raises only refusals that `as_problem` knows."""

    @property
    def parameters(self) -> Set[str]:
        """Parameters that the query may have."""
        ...

    def decode(self, predictor: Predictor, header: RequestHeader, body: bytes) -> Some:
        """Return what is asked for, validated."""
        ...

    def encode(self, predictor: Predictor, header: RequestHeader, request: Some, prediction: Prediction) -> Reply:
        """Return the answer."""
        ...


@runtime_checkable
class QuotingCodec(Codec[Some], Protocol[Some]):
    """A protocol that has dry runs: `dry_run` is one of its parameters."""

    def encode_quote(self, predictor: Predictor, quote: RowsQuote) -> Reply:
        """Return what an answer would cost."""
        ...


class PredictionRoutes:
    """An ASGI application that passes requests on: to the endpoint of a path that is named in full at once."""

    def __init__(self, endpoints: "Mapping[str, PredictionEndpoint[Any]]", others: ASGIApp) -> None:
        """endpoints: by path, which may have parameters. others: answers the other paths."""
        routes = [_NamedRoute(path, endpoint) for path, endpoint in endpoints.items()]
        self._in_full = {route.path: route for route in routes if not route.param_convertors}
        self.router = Router(routes, redirect_slashes=False, default=others)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return what answers the request."""
        route = self._in_full.get(scope["path"])
        if route is None:
            return self.router(scope, receive, send)
        scope["route"], scope["path_params"] = route, {}
        return route.app(scope, receive, send)


class _NamedRoute(Route):
    """A route that stands in the scope, where metrics and logs read it; Starlette before 1.7 leaves it out."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}


class PredictionEndpoint(Generic[Some]):
    """An ASGI application that answers requests for predictions in one protocol."""

    def __init__(
        self,
        codec: Codec[Some],
        models: Models,
        authentication: Authentication,
        metrics: Metrics,
        bodies: Bodies,
    ) -> None:
        """Answer from `models`."""
        self._bodies = bodies
        self._codec = codec
        self._models = models
        self._authentication = authentication
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with a problem where it is refused."""
        try:
            if scope["method"] != "POST":
                raise Problem(ProblemType.METHOD_NOT_ALLOWED, f"{scope['path']} answers POST")
            path, bodies, traced = scope["path_params"], self._bodies, timeline.get()
            predictor = self._models.named(path.get("name"), path.get("version"))
            scope[MODEL] = predictor.name
            header = read_header(scope, self._codec.parameters)
            if traced is not None:
                traced.begin()
            caller = await self._authentication.payer(header, predictor.certificate.lineage)
            if traced is not None:
                traced.end("authentication")
            client = predictor.certificate.lineage, caller.client
            asked = await bodies.read(header.fields, receive, predictor.largest_body, client)
            if traced is not None:
                traced.end("body")
            try:
                work = answer(predictor, self._codec, self._metrics, header, caller, asked, bodies)
                body, named = await (work if len(asked) < SMALL else unless_gone(receive, work))
            finally:
                bodies.release(len(asked), client)
        except REFUSALS as error:
            await _refuse(as_problem(error), scope, receive, send)
            return
        headers = [(b"content-length", b"%d" % len(body)), *named.items()]
        if header.wait is not None:
            headers.append((b"preference-applied", b"wait=%g" % header.wait))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    response = response_to(scope["path"], problem)
    if problem.status is HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = "POST"
    await response(scope, receive, send)


async def answer(
    predictor: Predictor,
    codec: Codec[Some],
    metrics: Metrics,
    header: RequestHeader,
    caller: Caller,
    body: bytes,
    bodies: Bodies,
) -> Reply:
    """Answer what a body asks, or say what that would cost. Raises refusals that `as_problem` knows.

    bodies: which count its rows, and have the turns in which large ones are parsed, while other requests go on.
    """
    try:
        dry_run = bool(header.query) and header.flag("dry_run") and isinstance(codec, QuotingCodec)
        if len(body) < SMALL and len(body) <= predictor.small_body:
            request = codec.decode(predictor, header, body)
        else:
            async with bodies.parsing.in_turn((predictor.certificate.lineage, caller.client)):
                request = await in_thread(codec.decode, predictor, header, body)
    except (Problem, RequestRefused):
        # A client whose key is gone is told that alone.
        await predictor.confirm(caller)
        raise
    counted: AbstractContextManager[None] = _UNCOUNTED
    if request.X.nbytes >= SMALL:
        counted = bodies.counting(request.X.nbytes, (predictor.certificate.lineage, caller.client))
    with counted:
        if dry_run:
            return await _quoted(predictor, codec, caller, request)
        if request.unencoded:
            await predictor.encode(caller.client, request)
        try:
            prediction = await predictor.predict(caller, request)
        except UnknownKey:
            # Whose the key was is remembered, and it may be another's now.
            prediction = await predictor.predict(await predictor.confirm(caller), request)
        except (ClientRevoked, KeyExpired):
            predictor.forget(caller)
            raise
        metrics.answered(predictor.name, len(prediction.values), prediction.charged_rows)
        traced = timeline.get()
        if traced is not None:
            traced.begin()
        reply = codec.encode(predictor, header, request, prediction)
        if traced is not None:
            traced.end("answer")
        return reply


async def _quoted(predictor: Predictor, codec: Any, caller: Caller, request: RowsRequest) -> Reply:
    known = await predictor.confirm(caller)
    if request.unencoded and not request.deep:
        await predictor.encode(known.client, request)
    reply: Reply = codec.encode_quote(predictor, await predictor.quote(known.client, request))
    return reply
