"""OpenTelemetry traces, received by a collector over real HTTP: one span a request, and nothing of what was asked."""

import http.server
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service.http.app import HttpOptions
from service.telemetry.tracing import configured_tracing

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
    found = [
        (span.name, {each.key: each.value.string_value or each.value.int_value for each in span.attributes})
        for span in spans
    ]
    assert found == [
        ("POST /predict", _attributes("POST", "/predict", 200)),
        ("POST /predict", _attributes("POST", "/predict", 422)),
        ("GET other", _attributes("GET", "other", 404)),
        ("HTTP /livez", _attributes("_OTHER", "/livez", 405)),
    ]
    assert spans[0].trace_id.hex() == TRACE
    assert spans[0].parent_span_id.hex() == "b7ad6b7169203331"
    assert spans[1].trace_id.hex() != TRACE
    assert not any(span.events for span in spans)
    for mark in (b"31415926", b"marked", b"PROPFIND", b"alice", b"Bearer"):
        assert mark not in b"".join(collector)


def _attributes(method, route, status):
    return {"http.request.method": method, "http.route": route, "http.response.status_code": status}


def test_nothing_is_sent_unless_a_collector_is_named(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert configured_tracing() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert configured_tracing() is None
