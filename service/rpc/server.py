"""The gRPC port: the models, authentication, charges and refusals of the HTTP service, as grpcio's asyncio server.

Refusals are statuses; the metadata behind an answer has `dpserve-problem`, the type of problem, and
`dpserve-problem-json`, the whole of it. A deadline is a wish as `Prefer: wait` over HTTP: what is not charged by then
is not charged at all.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import grpc
import msgspec

from service.errors import CannotServe, Overloaded
from service.http.authentication import Authentication, credential
from service.http.middleware import failure
from service.http.openinference import VERSION, TensorRequest, metadata, repository_index, served, server_metadata
from service.http.predictions import Codecs, answer
from service.http.problems import Problem, ProblemType
from service.http.refusals import REFUSALS, as_problem
from service.http.requests import Bodies, RequestHeader, read_header, too_long
from service.listener import when_told_to_stop
from service.models import Models
from service.predictor import Predictor
from service.rpc.messages import ASKED_MODEL, SERVICE, MessageCodec, message, parse
from service.telemetry.logs import RequestLog, request_id, request_id_of
from service.telemetry.metrics import DISCONNECTED, Metrics
from service.telemetry.timeline import Stages
from service.telemetry.tracing import RequestSpans, mark_failed
from service.tls import Tls

_MOST_CALLS = 1024
"""Calls at the same time; more are answered UNAVAILABLE."""

_TOLD = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "RepositoryIndex")
_LONGEST_WAIT = 1e6
_LONGEST_QUESTION = 4096
"""Bytes of a message that nobody is charged for."""
_LONGEST_DETAIL, _LONGEST_PROBLEM = 1024, 4096
"""Of what stands behind an answer, of which clients take 8 KiB: a detail may repeat a name of any length."""
_PEER = re.compile(r"ipv[46]:\[?([^\]]*?)\]?:\d+")

_CODES = {
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.REQUEST_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    HTTPStatus.NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
}
"""Any other status is the request's own fault: INVALID_ARGUMENT."""

_FAULTS = frozenset(
    {
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
    }
)
"""Codes that OpenTelemetry has a server's spans marked as failed for."""


@dataclass
class Call:
    """A call that is answered."""

    context: Any
    read: Callable[[], Awaitable[bytes]]
    """Returns its message. Raises a 413 problem."""
    headers: list[tuple[bytes, bytes]]
    model: str = ""
    """Which is asked, once that is known."""
    behind: Mapping[str, str] = field(default_factory=dict)
    """The metadata behind the answer."""


@dataclass(frozen=True)
class GrpcPort:
    """What the port answers with. largest_body: bytes of a message, by the features of the model's rows."""

    models: Models
    authentication: Authentication
    metrics: Metrics
    bodies: Bodies
    largest_body: Callable[[int], int]
    log: RequestLog | None = None
    spans: RequestSpans | None = None
    codecs: Codecs[TensorRequest] = field(default_factory=lambda: Codecs(MessageCodec), init=False)

    @asynccontextmanager
    async def listening(
        self,
        address: str,
        *,
        longest: int,
        drain_seconds: float,
        tls: Tls | None,
        most_connections: int = 4096,
    ) -> AsyncIterator[int]:
        """Answer at `address`, HOST:PORT, for as long as the block lasts; give the port.

        longest: bytes of a message of any model. drain_seconds: for calls under way at the end.
        They begin as soon as the process is told to stop. most_connections: at the same time.
        """
        room = _Room(asyncio.Semaphore(_MOST_CALLS), asyncio.Semaphore(max(1, self.bodies.together // longest)))
        methods = {name: partial(self._tell, name) for name in _TOLD} | {"ModelInfer": self._infer}
        handlers = {
            # As a stream, whose one message is read when there is room for it.
            route: grpc.stream_unary_rpc_method_handler(partial(self._call, route, method, room))
            for route, method in ({f"/{SERVICE}/{name}": each for name, each in methods.items()} | _ELSE).items()
        }
        server = grpc.aio.server(
            handlers=[_Handlers(handlers)],
            options=[
                ("grpc.max_receive_message_length", longest),
                ("grpc.max_allowed_incoming_connections", most_connections),
                # Compressed messages are refused: their length says nothing of what they take.
                ("grpc.compression_enabled_algorithms_bitset", 1),
                ("grpc.so_reuseport", 1),
            ],
        )
        try:
            if tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, grpc.ssl_server_credentials([tls.for_grpc()]))
        except RuntimeError as error:
            raise CannotServe(f"cannot listen on {address} for gRPC; choose another with --grpc-port") from error
        await server.start()
        stopping: list[asyncio.Task[None]] = []
        when_told_to_stop(lambda: stopping.append(asyncio.create_task(server.stop(drain_seconds))))
        try:
            yield port
        finally:
            await server.stop(drain_seconds)

    async def _call(
        self,
        route: str,
        method: Callable[[Call], Awaitable[bytes]],
        room: "_Room",
        messages: object,
        context: Any,
    ) -> bytes:
        """Answer a call; count it, log it and trace it as a request over HTTP."""
        del messages
        call = Call(context, partial(_message, context, room.reading), _headers_of(context))
        if self.log is not None:
            request_id.set(request_id_of(call.headers))
        attributes = {"rpc.system": "grpc", "http.route": route}
        traced = nullcontext() if self.spans is None else self.spans.request(route, call.headers, attributes)
        began, status, refused = time.perf_counter(), DISCONNECTED, None
        problem: Problem | None = None
        try:
            with traced as span:
                try:
                    if room.calls.locked():
                        raise Overloaded(1)
                    async with room.calls:
                        said = await method(call)
                except REFUSALS as error:
                    problem = as_problem(error)
                except Exception as error:  # noqa: BLE001 - `failure` logs its type and places
                    problem = failure(error, route)
                code = grpc.StatusCode.OK if problem is None else _code_of(problem)
                if span is not None:
                    span.set_attribute("rpc.grpc.status_code", code.value[0])
                    if code in _FAULTS:
                        mark_failed(span)
            if problem is None:
                context.set_trailing_metadata(tuple(call.behind.items()))
                status = int(HTTPStatus.OK)
                return said
            status, refused = int(problem.status), problem.kind.word
            await context.abort(code, problem.detail[:_LONGEST_DETAIL], _behind(problem, refused))
            raise AssertionError
        finally:
            seconds = time.perf_counter() - began
            self.metrics.count(route, call.model, status, seconds, refused)
            if self.log is not None:
                self.log.write("POST", route, status, seconds)

    async def _infer(self, call: Call) -> bytes:
        header = _header_of(call)
        credential(header.field(b"authorization") or "")  # who shows none is not waited for
        async with self.bodies.whole(call.read) as body:
            asked = parse(ASKED_MODEL, body)
            predictor = served(self.models, asked.model_name, asked.model_version or VERSION)
            call.model = predictor.certificate.name
            largest = self.largest_body(len(predictor.certificate.feature_names))
            if len(body) > largest:
                raise too_long(largest)
            stages = Stages.of_request()
            caller = await self.authentication.payer(header, predictor.lineage)
            stages.end("authentication")
            said, call.behind = await answer(predictor, self.codecs.of(predictor), self.metrics, header, caller, body)
            return said

    async def _tell(self, name: str, call: Call) -> bytes:
        """Answer what nobody is charged for."""
        async with self.bodies.whole(call.read) as body:
            if len(body) > _LONGEST_QUESTION:
                raise too_long(_LONGEST_QUESTION)
        asked = parse(f"{name}Request", body)
        said: dict[str, Any] = {}
        match name:
            case "ServerLive":
                said["live"] = True
            case "ServerReady":
                said["ready"] = await _is_ready(self.models)
            case "ModelReady":
                said["ready"] = await _is_ready(served(self.models, asked.name, asked.version or VERSION))
            case "ServerMetadata":
                said = msgspec.to_builtins(server_metadata())
            case "ModelMetadata":
                model = served(self.models, asked.name, asked.version or VERSION)
                said = msgspec.to_builtins(metadata(model))
                del said["parameters"]
            case "RepositoryIndex":
                said["models"] = msgspec.to_builtins(repository_index(self.models))
        content: bytes = message(f"{name}Response")(**said).SerializeToString()
        return content


@dataclass(frozen=True)
class _Room:
    """What is left for calls. reading: for messages that are read, each of which may become the longest."""

    calls: asyncio.Semaphore
    reading: asyncio.Semaphore


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods by path; a further one, `other`, answers calls of unknown methods, so that they are counted, too."""

    def __init__(self, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        """Return what answers a call."""
        return self._handlers.get(handler_call_details.method, self._handlers["other"])


async def _no_method(call: Call) -> bytes:
    del call
    raise Problem(ProblemType.NOT_FOUND, "the service has no such method", status=HTTPStatus.NOT_IMPLEMENTED)


_ELSE = {"other": _no_method}


async def _message(context: Any, turns: asyncio.Semaphore) -> bytes:
    async with turns:
        body = await context.read()
    if body is grpc.aio.EOF:
        raise Problem(ProblemType.BODY_TOO_LARGE, "there is no message, or one that is longer than any model's may be")
    found: bytes = body
    return found


def _behind(problem: Problem, refused: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata behind a refusal, the whole problem where it is short enough to be read."""
    told = json.dumps(problem.content())
    named = ("dpserve-problem", refused)
    return (named, ("dpserve-problem-json", told)) if len(told) <= _LONGEST_PROBLEM else (named,)


def _headers_of(context: Any) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
    ]


def _header_of(call: Call) -> RequestHeader:
    """Return what a call says beside its message. Raises a 400 problem."""
    headers, remaining = list(call.headers), call.context.time_remaining()
    if remaining is not None:
        headers.append((b"prefer", f"wait={max(0.0, min(remaining, _LONGEST_WAIT)):.6f}".encode()))
    peer = _PEER.fullmatch(unquote(call.context.peer()))
    return read_header({"headers": headers, "query_string": b"", "client": (peer[1] if peer else "", 0)}, frozenset())


async def _is_ready(checked: Models | Predictor) -> bool:
    try:
        await checked.check_ready()
    except REFUSALS as error:
        as_problem(error)  # which logs what the owner should know
        return False
    return True


def _code_of(problem: Problem) -> grpc.StatusCode:
    if problem.kind is ProblemType.DEADLINE_PASSED:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return _CODES.get(problem.status, grpc.StatusCode.INVALID_ARGUMENT)
