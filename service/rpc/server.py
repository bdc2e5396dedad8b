"""The gRPC port: the models, authentication, charges and refusals of the HTTP service, as grpcio's asyncio server.

Refusals are statuses; the metadata behind an answer has `dpserve-problem`, the type of problem, and
`dpserve-problem-json`, the whole of it. A deadline is a wish as `Prefer: wait` over HTTP: what is not charged by then
is not charged at all.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from string import printable
from typing import Any
from urllib.parse import quote, unquote

import grpc
import msgspec

from dpserve.accounting.messages import Message
from dpserve.service.errors import CannotServe
from dpserve.service.http.authentication import Authentication
from dpserve.service.http.middleware import failure
from dpserve.service.http.openinference import metadata, repository_index, server_metadata
from dpserve.service.http.predictions import answer
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.refusals import REFUSALS, as_problem
from dpserve.service.http.requests import Bodies, RequestHeader, read_header, too_long
from dpserve.service.listener import when_told_to_stop
from dpserve.service.models import Models
from dpserve.service.places import Places
from dpserve.service.predictor import Predictor
from dpserve.service.rpc.messages import ASKED_MODEL, SERVICE, MessageCodec, message, parse
from dpserve.service.telemetry.logs import RequestLog, request_id, request_id_of
from dpserve.service.telemetry.metrics import DISCONNECTED, Metrics
from dpserve.service.telemetry.timeline import timeline
from dpserve.service.telemetry.tracing import RequestSpans, mark_failed
from dpserve.service.tls import Tls

_MOST_CALLS = 1024
"""Calls at the same time, a quarter of them of one client; more are answered UNAVAILABLE."""
_MOST_STREAMS = 256
"""Calls of one connection at the same time; its client waits with more."""
_LEAST_QUESTIONS, _MOST_QUESTIONS, _SECONDS_FOR_QUESTION = 16, 256, 2.0
"""Fewest and most messages of strangers that are read at the same time, and the seconds that each may take."""
_SECONDS_FOR_HANDSHAKE, _SECONDS_OF_IDLENESS = 10, 300

_ABOUT_MODEL = ("ModelReady", "ModelMetadata")
_ABOUT_SERVER = ("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex")
"""Methods whose message says nothing: it is not waited for."""
_LONGEST_WAIT = 1e6
_LONGEST_QUESTION = 4096
"""Bytes of a message that nobody is charged for."""
_LONGEST_DETAIL, _LONGEST_PROBLEM = 1024, 4096
"""Largest bytes of trailing metadata, of which clients take 8 KiB: a detail may repeat a name of any length."""
_PEER = re.compile(r"ipv[46]:\[?([^\]]*?)\]?:\d+")

_CODEC = MessageCodec()

_log_of_grpc = logging.getLogger("grpc._cython.cygrpc")

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
    headers: list[tuple[bytes, bytes]]
    model: str = ""
    """Which is asked, once that is known."""
    behind: Mapping[str, str] = field(default_factory=dict)
    """The metadata behind the answer."""


@dataclass(frozen=True)
class GrpcPort:
    """The parts that answer at the port."""

    models: Models
    authentication: Authentication
    metrics: Metrics
    bodies: Bodies
    log: RequestLog | None = None
    spans: RequestSpans | None = None

    @asynccontextmanager
    async def listening(
        self,
        address: str,
        *,
        drain_seconds: float,
        tls: Tls | None,
        most_connections: int = 4096,
    ) -> AsyncIterator[int]:
        """Answer at `address`, HOST:PORT, for as long as the block lasts; give the port.

        drain_seconds: for calls under way at the end. They begin as soon as the process is told to stop.
        most_connections: at the same time.
        """
        _log_of_grpc.addFilter(_is_no_disconnection)
        longest = max((model.largest_body for model in self.models), default=0)
        room = _Room(max(1, self.bodies.together // longest))
        methods: dict[str, Callable[[Call], Awaitable[bytes]]] = {"ModelInfer": partial(self._infer, room)}
        methods |= {name: partial(self._tell_of_model, name, room.questions) for name in _ABOUT_MODEL}
        methods |= {name: partial(self._tell, name) for name in _ABOUT_SERVER}
        handlers = {
            # As a stream, whose one message is read when there is room for it.
            route: grpc.stream_unary_rpc_method_handler(partial(self._call, route, method))
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
                ("grpc.max_concurrent_streams", _MOST_STREAMS),
                ("grpc.server_handshake_timeout_ms", 1000 * _SECONDS_FOR_HANDSHAKE),
                ("grpc.max_connection_idle_ms", 1000 * _SECONDS_OF_IDLENESS),
            ],
        )
        try:
            port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls.for_grpc())
        except RuntimeError as error:
            raise CannotServe(
                Message("cannot listen on {} for gRPC; choose another with {grpc_port}", address)
            ) from error
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
        messages: object,
        context: Any,
    ) -> bytes:
        """Answer a call; count it, log it and trace it as a request over HTTP."""
        del messages
        call = Call(context, _headers_of(context))
        if self.log is not None:
            request_id.set(request_id_of(call.headers))
        attributes = {"rpc.system": "grpc", "http.route": route}
        traced = nullcontext() if self.spans is None else self.spans.request(route, call.headers, attributes)
        began, status, refused = time.perf_counter(), DISCONNECTED, None
        self.metrics.in_flight.requests += 1
        problem: Problem | None = None
        try:
            with traced as span:
                try:
                    reply = await method(call)
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
                return reply
            status, refused = int(problem.status), problem.kind.word
            await context.abort(code, _short(problem.detail), _behind(problem, refused))
            raise AssertionError
        finally:
            self.metrics.in_flight.requests -= 1
            seconds = time.perf_counter() - began
            self.metrics.count(route, call.model, status, seconds, refused)
            if self.log is not None:
                self.log.write("POST", route, status, seconds)

    async def _infer(self, room: "_Room", call: Call) -> bytes:
        header = _header_of(call)
        async with room.strangers.at_once(header.peer):
            client = await self.authentication.admit(header, {each.lineage for each in self.models})
        async with (
            room.calls.at_once(client),
            self.bodies.whole(partial(_message, call.context, room.messages, client), client) as body,
        ):
            asked = parse(ASKED_MODEL, body)
            predictor = self.models.named(asked.model_name, asked.model_version or None)
            call.model = predictor.name
            if len(body) > predictor.largest_body:
                raise too_long(predictor.largest_body)
            traced = timeline.get()
            if traced is not None:
                traced.begin()
            caller = await self.authentication.payer(header, predictor.lineage)
            if traced is not None:
                traced.end("authentication")
            reply, behind = await answer(predictor, _CODEC, self.metrics, header, caller, body, self.bodies)
            call.behind = {name.decode(): value.decode() for name, value in behind.items()}
            return reply

    async def _tell_of_model(self, name: str, questions: "_Questions", call: Call) -> bytes:
        """Answer what nobody is charged for, of a model."""
        try:
            async with questions.newest(_SECONDS_FOR_QUESTION):
                body = await _read(call.context)
        except TimeoutError:
            detail = (
                f"the message did not arrive within {_SECONDS_FOR_QUESTION:g} seconds, or before too many newer ones"
            )
            raise Problem(ProblemType.INVALID_REQUEST, detail, status=HTTPStatus.REQUEST_TIMEOUT) from None
        if len(body) > _LONGEST_QUESTION:
            raise too_long(_LONGEST_QUESTION)
        asked = parse(f"{name}Request", body)
        model = self.models.named(asked.name, asked.version or None)
        if name == "ModelReady":
            return _encoded(name, ready=await _is_ready(model))
        described = msgspec.to_builtins(metadata(model))
        del described["parameters"]
        return _encoded(name, **described)

    async def _tell(self, name: str, call: Call) -> bytes:
        """Answer what nobody is charged for, of the service, whatever the message says."""
        del call
        match name:
            case "ServerLive":
                return _encoded(name, live=True)
            case "ServerReady":
                return _encoded(name, ready=await _is_ready(self.models))
            case "ServerMetadata":
                return _encoded(name, **msgspec.to_builtins(server_metadata()))
        return _encoded(name, models=msgspec.to_builtins(repository_index(self.models)))


class _Questions:
    """So many messages of strangers that are read at the same time: the oldest ends where a further one comes.

    Nothing waits. A question comes with its message and is read at once, so the oldest is one whose message stays away;
    whoever asks, or from how many addresses, is all the same.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._read: dict[object, asyncio.Timeout] = {}  # in the order in which they came

    @asynccontextmanager
    async def newest(self, seconds: float) -> AsyncIterator[None]:
        """Let the block last so many seconds, or less where newer ones come. Raises TimeoutError."""
        me = object()
        try:
            async with asyncio.timeout(seconds) as limit:
                while len(self._read) >= self._most:
                    oldest = self._read.pop(next(iter(self._read)))
                    if not oldest.expired():
                        oldest.reschedule(0)  # which is over
                self._read[me] = limit
                yield
        finally:
            self._read.pop(me, None)


class _Room:
    """The places of calls: while their credentials are looked up, and then.

    messages: for those that are read of callers who are known, each of which may become the longest; questions: of
    strangers, which hold up nobody.
    """

    def __init__(self, messages: int) -> None:
        self.strangers, self.calls = Places(_MOST_CALLS), Places(_MOST_CALLS)
        self.messages = Places(messages)
        self.questions = _Questions(max(_LEAST_QUESTIONS, min(messages, _MOST_QUESTIONS)))


def _is_no_disconnection(record: logging.LogRecord) -> bool:
    """Return whether a line of grpcio's own says more than that a caller was gone before its answer."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ExecuteBatchError"


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


async def _message(context: Any, places: Places, caller: Hashable) -> bytes:
    """Return a call's message, once there is a place for it. Raises a 413 problem."""
    async with places.in_turn(caller):
        return await _read(context)


async def _read(context: Any) -> bytes:
    body = await context.read()
    if body is grpc.aio.EOF:
        raise Problem(ProblemType.BODY_TOO_LARGE, "there is no message, or one that is longer than any model's may be")
    content: bytes = body
    return content


def _encoded(name: str, /, **fields: Any) -> bytes:
    content: bytes = message(f"{name}Response")(**fields).SerializeToString()
    return content


def _short(detail: str) -> str:
    """Return the beginning of a sentence, which is sent with three bytes for each that is not ASCII."""
    while len(detail) > _LONGEST_DETAIL or len(quote(detail, safe=printable)) > 2 * _LONGEST_DETAIL:
        detail = detail[: min(_LONGEST_DETAIL, 3 * len(detail) // 4)]
    return detail


def _behind(problem: Problem, refused: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata behind a refusal, the whole problem where it is short enough to be read."""
    detail = json.dumps(problem.content())
    named = ("dpserve-problem", refused)
    return (named, ("dpserve-problem-json", detail)) if len(detail) <= _LONGEST_PROBLEM else (named,)


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
    return read_header({"headers": headers, "query_string": b"", "client": (_peer_of(call), 0)}, frozenset())


def _peer_of(call: Call) -> str:
    """Return the address that a call came from, empty for none."""
    peer = _PEER.fullmatch(unquote(call.context.peer()))
    return peer[1] if peer else ""


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
