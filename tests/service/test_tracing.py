"""OpenTelemetry traces of real requests: a span each, one below it for each stage, and nothing of what was asked."""

import http.server
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from dpserve.service.http.app import HttpOptions
from dpserve.service.telemetry.tracing import configured_tracing

from .test_http import PRICE, ROW

TRACE = "0af7651916cd43dd8448eb211c80319c"
MARKED = 0.31415926


@pytest.fixture
def collector(monkeypatch):
    """The bodies that a collector received; the environment names it."""
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield received
    server.shutdown()
    server.server_close()


def test_each_request_is_a_span_that_says_its_route_and_status(start, head, collector):
    provider = configured_tracing()
    service = start(head, options=HttpOptions(tracing=provider))
    http_client = service.http(service.add_client())
    parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "tracestate": "vendor=marked"}
    http_client.post("/predict", json={"instances": [[MARKED, 0.2, 0.3, 0.4]]}, headers=parent)
    http_client.post("/predict", json={"instances": [[MARKED, 9.0, 0.3, 0.4]]})
    http_client.get(f"/marked?x={MARKED}")
    http_client.request("PROPFIND", "/livez")
    start.stop()  # a span ends after its answer was sent
    provider.shutdown()

    spans = [
        span
        for body in collector
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    requests = [span for span in spans if span.attributes]
    found = [
        (span.name, {each.key: each.value.string_value or each.value.int_value for each in span.attributes})
        for span in requests
    ]
    assert found == [
        ("POST /predict", _attributes("POST", "/predict", 200)),
        ("POST /predict", _attributes("POST", "/predict", 422)),
        ("GET other", _attributes("GET", "other", 404)),
        ("HTTP /livez", _attributes("_OTHER", "/livez", 405)),
    ]
    assert requests[0].trace_id.hex() == TRACE
    assert requests[0].parent_span_id.hex() == "b7ad6b7169203331"
    assert requests[1].trace_id.hex() != TRACE
    assert not any(span.events for span in spans)
    for mark in (b"31415926", b"marked", b"PROPFIND", b"alice", b"Bearer"):
        assert mark not in b"".join(collector)


def _attributes(method, route, status):
    return {"http.request.method": method, "http.route": route, "http.response.status_code": status}


STAGES = ["authentication", "body", "batch wait", "features", "ledger charge", "logits", "noise", "answer"]


def traced():
    """Return a provider, and where its spans lie."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def stages_of(exporter):
    """Return for each request, in order, its stages in order."""
    spans = exporter.get_finished_spans()
    requests = sorted((span for span in spans if span.kind is SpanKind.SERVER), key=lambda span: span.start_time)
    below = [
        [span for span in spans if span.parent is not None and span.parent.span_id == request.context.span_id]
        for request in requests
    ]
    for request, stages in zip(requests, below, strict=True):
        for stage in stages:
            assert request.start_time <= stage.start_time <= stage.end_time <= request.end_time
            assert stage.context.trace_id == request.context.trace_id
            assert not stage.attributes
            assert not stage.events
    return [[stage.name for stage in sorted(stages, key=lambda each: each.start_time)] for stages in below]


def test_a_prediction_is_traced_from_the_socket_to_the_store_and_back(start, head):
    provider, exporter = traced()
    service = start(head, options=HttpOptions(tracing=provider))
    http = service.http(service.add_client(rho=1.5 * PRICE / 1e12))
    for row in ([MARKED, 0.2, 0.3, 0.4], [0.5] * 4, [9.0] * 4):
        http.post("/predict", json={"instances": [row]})
    start.stop()
    refused = STAGES[: STAGES.index("logits")]
    assert stages_of(exporter) == [STAGES, refused, ["authentication", "body"]]
    text = "".join(span.to_json() for span in exporter.get_finished_spans())
    for mark in ("31415926", "alice", "Bearer"):
        assert mark not in text


def test_requests_of_one_batch_have_the_stages_of_the_batch_in_traces_of_their_own(start, head):
    provider, exporter = traced()
    service = start(head, options=HttpOptions(tracing=provider))
    clients = [service.http(service.add_client(name)) for name in ("alice", "bob")]
    for client in clients:
        client.get("/budget")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: [each.post("/predict", json={"instances": [ROW]}) for _ in range(10)], clients))
    start.stop()
    assert [each for each in stages_of(exporter) if each] == [STAGES] * 20
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 22


def test_a_trace_that_the_caller_does_not_sample_notes_nothing(start, head):
    provider, exporter = traced()
    service = start(head, options=HttpOptions(tracing=provider))
    parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-00"}
    http = service.http(service.add_client())
    assert http.post("/predict", json={"instances": [ROW]}, headers=parent).status_code == 200
    start.stop()
    assert exporter.get_finished_spans() == ()


def test_nothing_is_sent_unless_a_collector_is_named(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert configured_tracing() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert configured_tracing() is None
