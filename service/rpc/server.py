"""The gRPC port: the models, authentication, charges and refusals of the HTTP service, as grpcio's asyncio server.

Refusals are statuses; the metadata behind an answer has `dpserve-problem`, the type of problem, and
`dpserve-problem-json`, the whole of it. A deadline is a wish as `Prefer: wait` over HTTP: what is not charged by then
is not charged at all.
"""

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

from service.errors import CannotServe
from service.http.authentication import Authentication
from service.http.middleware import failure
from service.http.openinference import VERSION, metadata, repository_index, served, server_metadata
from service.http.predictions import answer
from service.http.problems import Problem, ProblemType
from service.http.refusals import REFUSALS, as_problem
from service.http.requests import Head, read_head, too_long
from service.models import Models
from service.predictor import Predictor
from service.rpc.messages import SERVICE, message, parse
from service.rpc.tensors import MessageCodec
from service.telemetry.logs import RequestLog, request_id, request_id_of
from service.telemetry.metrics import DISCONNECTED, Metrics
from service.telemetry.timeline import Stages
from service.telemetry.tracing import RequestSpans
from service.tls import Tls

_MOST_CALLS = 1024
"""Calls at the same time; more are answered RESOURCE_EXHAUSTED."""

_TOLD = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "RepositoryIndex")
_LONGEST_WAIT = 1e6
_PEER = re.compile(r"ipv[46]:\[?([^\]]*?)\]?:\d+")

_CODES = {
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
}
"""Any other status is the request's own fault: INVALID_ARGUMENT."""


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
    """What the port answers with. largest_body: bytes of a message, by the features of the model's rows."""

    models: Models
    authentication: Authentication
    metrics: Metrics
    largest_body: Callable[[int], int]
    log: RequestLog | None = None
    spans: RequestSpans | None = None

    @asynccontextmanager
    async def listening(
        self, address: str, *, longest: int, drain_seconds: float, tls: Tls | None
    ) -> AsyncIterator[int]:
        """Answer at `address`, HOST:PORT, for as long as the block lasts; give the port.

        longest: bytes of a message of any model. drain_seconds: for calls under way at the end.
        """
        methods = {name: partial(self._tell, name) for name in _TOLD} | {"ModelInfer": self._infer}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(partial(self._call, f"/{SERVICE}/{name}", method))
            for name, method in methods.items()
        }
        server = grpc.aio.server(
            handlers=[grpc.method_handlers_generic_handler(SERVICE, handlers)],
            options=[("grpc.max_receive_message_length", longest), ("grpc.so_reuseport", 1)],
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        try:
            if tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, grpc.ssl_server_credentials([tls.for_grpc()]))
        except RuntimeError as error:
            raise CannotServe(f"cannot listen on {address} for gRPC; choose another with --grpc-port") from error
        await server.start()
        try:
            yield port
        finally:
            await server.stop(drain_seconds)

    async def _call(
        self, route: str, method: Callable[[bytes, Call], Awaitable[bytes]], body: bytes, context: Any
    ) -> bytes:
        """Answer a call; count it, log it and trace it as a request over HTTP."""
        call = Call(context, _headers_of(context))
        if self.log is not None:
            request_id.set(request_id_of(call.headers))
        attributes = {"rpc.system": "grpc", "http.route": route}
        traced = nullcontext() if self.spans is None else self.spans.request(route, call.headers, attributes)
        began, status, refused = time.perf_counter(), DISCONNECTED, None
        try:
            try:
                with traced:
                    said = await method(body, call)
                context.set_trailing_metadata(tuple(call.behind.items()))
                status = int(HTTPStatus.OK)
            except REFUSALS as error:
                problem = as_problem(error)
            except Exception as error:  # noqa: BLE001 - `failure` logs its type and places
                problem = failure(error, route)
            else:
                return said
            status, refused = int(problem.status), problem.kind.rpartition(":")[2]
            told = json.dumps(problem.content())
            behind = (("dpserve-problem", refused), ("dpserve-problem-json", told))
            await context.abort(_code_of(problem), problem.detail, behind)
            raise AssertionError
        finally:
            seconds = time.perf_counter() - began
            self.metrics.count(route, call.model, status, seconds, refused)
            if self.log is not None:
                self.log.write("POST", route, status, seconds)

    async def _infer(self, body: bytes, call: Call) -> bytes:
        asked = parse("ModelInferRequest", body)
        predictor = served(self.models, asked.model_name, asked.model_version or VERSION)
        call.model = predictor.certificate.name
        largest = self.largest_body(len(predictor.certificate.feature_names))
        if len(body) > largest:
            raise too_long(largest)
        stages, head = Stages.of_request(), _head_of(call)
        caller = await self.authentication.payer(head, predictor.lineage)
        stages.end("authentication")
        codec = MessageCodec(predictor, asked)
        said, call.behind = await answer(predictor, codec, self.metrics, head, caller, body)
        return said

    async def _tell(self, name: str, body: bytes, call: Call) -> bytes:
        """Answer what nobody is charged for."""
        del call
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
                said = server_metadata().model_dump()
            case "ModelMetadata":
                model = served(self.models, asked.name, asked.version or VERSION)
                said = metadata(model).model_dump(exclude={"parameters"})
            case "RepositoryIndex":
                said["models"] = [each.model_dump() for each in repository_index(self.models)]
        content: bytes = message(f"{name}Response")(**said).SerializeToString()
        return content


def _headers_of(context: Any) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
    ]


def _head_of(call: Call) -> Head:
    """Return what a call says beside its message. Raises a 400 problem."""
    headers, remaining = list(call.headers), call.context.time_remaining()
    if remaining is not None:
        headers.append((b"prefer", f"wait={max(0.0, min(remaining, _LONGEST_WAIT)):.6f}".encode()))
    peer = _PEER.fullmatch(unquote(call.context.peer()))
    return read_head({"headers": headers, "query_string": b"", "client": (peer[1] if peer else "", 0)}, frozenset())


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
