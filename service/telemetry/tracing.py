"""OpenTelemetry traces, where the environment names a collector (OTEL_EXPORTER_OTLP_ENDPOINT).

One span for each request of the data port or over gRPC, as a child of the caller's `traceparent` if it sends one. It
has the method, the route (one of a fixed list) and the status. Below it lie the stages of a prediction (`timeline`),
each with its times alone. A span has nothing of what was asked or answered, and no event.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpserve.accounting.disclosure import ASKED, Disclosure
from dpserve.service.errors import CannotServe
from dpserve.service.telemetry.logs import METHODS
from dpserve.service.telemetry.metrics import route_of
from dpserve.service.telemetry.timeline import Timeline, timeline

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CARRIED = (b"traceparent",)
"""Not `tracestate`: it is free text of a stranger's."""

ATTRIBUTES: Mapping[str, Disclosure] = {
    "http.request.method": ASKED,
    "http.response.status_code": ASKED,
    "http.route": ASKED,
    "rpc.grpc.status_code": ASKED,
}
"""Every attribute of a span, with what it may follow from: neither records nor answers."""

_FAILED = 500


def configured_tracing() -> "TracerProvider | None":
    """Return what sends spans to the collector that the environment names, None where it names none.

    OpenTelemetry's own variables say where to and how much; `OTEL_SDK_DISABLED=true` switches it off. Raises
    CannotServe without the extra `otel`.
    """
    if not any(os.environ.get(name) for name in ENDPOINTS) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise CannotServe(
            f"{' or '.join(ENDPOINTS)} asks for traces, which need an extra: pip install 'dpserve[otel]'"
        ) from None
    name = os.environ.get("OTEL_SERVICE_NAME", "dpserve")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class RequestSpans:
    """Makes a span of every request, and below it one of each of its stages."""

    def __init__(self, provider: "TracerProvider") -> None:
        """Give the spans to `provider`."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("dpserve")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(
        self, name: str, headers: Iterable[tuple[bytes, bytes]], attributes: Mapping[str, Any]
    ) -> Iterator["Span"]:
        """Give a request's span for as long as the block lasts."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        carried = {key.decode(): value.decode("latin-1") for key, value in headers if key in _CARRIED}
        # Nothing of an exception is recorded: its text could hold a number that nobody paid for.
        with self._tracer.start_as_current_span(
            name,
            context=self._propagator.extract(carried),
            kind=SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if not span.is_recording():
                yield span
                return
            noted = Timeline()
            token = timeline.set(noted)
            try:
                yield span
            finally:
                timeline.reset(token)
                context = set_span_in_context(span)
                for stage, began, ended in noted.stages:
                    self._tracer.start_span(stage, context=context, start_time=began).end(ended)


def mark_failed(span: "Span") -> None:
    """Say that the service failed a request."""
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR))


class Traces:
    """Middleware that makes spans of every request."""

    def __init__(self, app: ASGIApp, spans: RequestSpans) -> None:
        """Wrap `app`."""
        self._app = app
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on within a span."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        name = "HTTP" if method == "_OTHER" else method
        with self._spans.request(name, scope["headers"], {"http.request.method": method}) as span:

            async def watched(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= _FAILED:
                        mark_failed(span)
                await send(message)

            await self._app(scope, receive, watched)
            route = route_of(scope)
            span.update_name(f"{name} {route}")
            span.set_attribute("http.route", route)
