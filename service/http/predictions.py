"""Requests for predictions, of whatever protocol: one way from the bytes of a request to those of its answer."""

import asyncio
from collections.abc import Callable, Mapping, Set
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary, proxy

from starlette.types import Receive, Scope, Send

from service.errors import RequestRefused
from service.http.authentication import Authentication
from service.http.middleware import MODEL, response_to
from service.http.problems import Problem, ProblemType
from service.http.refusals import REFUSALS, as_problem
from service.http.requests import Bodies, RequestHeader, read_header
from service.models import Models
from service.predictor import Caller, Prediction, Predictor, RowsQuote, RowsRequest
from service.telemetry.metrics import Metrics
from service.telemetry.timeline import Stages

_SMALL_BODY = 64 * 1024
"""Bytes of a body that is parsed on the event loop; while a larger one is parsed, other requests go on."""

Some = TypeVar("Some", bound=RowsRequest)

Reply = tuple[bytes, Mapping[str, str]]
"""A body and its headers."""


class Codec(Protocol[Some]):
    """A protocol's requests and answers. It raises only refusals that `as_problem` knows."""

    @property
    def parameters(self) -> Set[str]:
        """Parameters that the query may have."""
        ...

    def check_path(self, parameters: Mapping[str, str]) -> None:
        """Refuse the path of what is not served."""
        ...

    def decode(self, header: RequestHeader, body: bytes) -> Some:
        """Return what is asked for, validated."""
        ...

    def encode(self, header: RequestHeader, request: Some, prediction: Prediction) -> Reply:
        """Return the answer."""
        ...


@runtime_checkable
class QuotingCodec(Codec[Some], Protocol[Some]):
    """A protocol that has dry runs: `dry_run` is one of its parameters."""

    def encode_quote(self, quote: RowsQuote) -> Reply:
        """Return what an answer would cost."""
        ...


class Codecs(Generic[Some]):
    """A protocol's codec of each model, made once for as long as the model is served."""

    def __init__(self, make: Callable[[Predictor], Codec[Some]]) -> None:
        """make: returns the codec of a model."""
        self._make = make
        self._made: WeakKeyDictionary[Predictor, Codec[Some]] = WeakKeyDictionary()

    def of(self, predictor: Predictor) -> Codec[Some]:
        """Return the codec of a model, good for as long as the caller holds the model."""
        codec = self._made.get(predictor)
        if codec is None:
            # A codec that is kept must not keep a model that is served no more.
            codec = self._made[predictor] = self._make(proxy(predictor))
        return codec


class PredictionEndpoint(Generic[Some]):
    """An ASGI application that answers requests for predictions in one protocol."""

    def __init__(
        self,
        codec: Callable[[Predictor], Codec[Some]],
        models: Models,
        authentication: Authentication,
        metrics: Metrics,
        bodies: Bodies,
        largest_body: Callable[[int], int],
    ) -> None:
        """Answer from `models`. codec: of a model. largest_body: as `create_app` has it."""
        self._bodies = bodies
        self._largest_body = largest_body
        self._codecs = Codecs(codec)
        self._models = models
        self._authentication = authentication
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with a problem where it is refused."""
        try:
            body, named = await self._answer(scope, receive)
        except REFUSALS as error:
            problem = as_problem(error)
            response = response_to(scope["path"], problem)
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
            raise Problem(ProblemType.METHOD_NOT_ALLOWED, said)
        path = scope["path_params"]
        predictor = self._models.named(path.get("name"))
        scope[MODEL] = predictor.certificate.name
        codec = self._codecs.of(predictor)
        codec.check_path(path)
        header = read_header(scope, codec.parameters)
        stages = Stages.of_request()
        caller = await self._authentication.payer(header, predictor.lineage)
        stages.end("authentication")
        largest = self._largest_body(len(predictor.certificate.feature_names))
        body = await self._bodies.read(scope, receive, largest)
        stages.end("body")
        try:
            encoded, headers = await answer(predictor, codec, self._metrics, header, caller, body)
        finally:
            self._bodies.release(body)
        wait = header.wait
        return encoded, headers if wait is None else {**headers, "preference-applied": f"wait={wait:g}"}


async def answer(
    predictor: Predictor, codec: Codec[Some], metrics: Metrics, header: RequestHeader, caller: Caller, body: bytes
) -> Reply:
    """Answer what a body asks, or say what that would cost. Raises refusals that `as_problem` knows."""
    try:
        dry_run = _is_dry_run(header)
        if len(body) < _SMALL_BODY:
            request = codec.decode(header, body)
        else:
            request = await asyncio.to_thread(codec.decode, header, body)
    except (Problem, RequestRefused):
        # A client whose key is gone is told that alone.
        await predictor.confirm(caller)
        raise
    if dry_run and isinstance(codec, QuotingCodec):
        known = await predictor.confirm(caller)
        return codec.encode_quote(await predictor.quote(known.client, request))
    prediction = await predictor.predict(caller, request)
    metrics.answered(predictor.certificate.name, len(prediction.probabilities), prediction.charged_rows)
    stages = Stages.of_request()
    reply = codec.encode(header, request, prediction)
    stages.end("answer")
    return reply


def _is_dry_run(header: RequestHeader) -> bool:
    said = header.query.get("dry_run", "false").lower()
    if said not in ("true", "false"):
        raise Problem(ProblemType.INVALID_REQUEST, "dry_run is 'true' or 'false'")
    return said == "true"
