"""The Open Inference Protocol over gRPC, asked by `tritonclient` and by hand, beside the same service over HTTP."""

import asyncio
import json
import logging
import queue
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc import StatusCode
from grpc._cython.cygrpc import ExecuteBatchError
from opentelemetry.trace import SpanKind
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from dpserve.mechanisms.gaussian import Gaussian
from dpserve.service.errors import InvalidRows
from dpserve.service.http.authentication import Authentication
from dpserve.service.http.problems import Problem
from dpserve.service.http.requests import Bodies, RequestHeader
from dpserve.service.metered import MeteredPredictor
from dpserve.service.rpc.messages import SERVICE, MessageCodec
from dpserve.service.rpc.server import GrpcPort
from dpserve.service.telemetry.tracing import RequestSpans
from dpserve.service.tls import Tls
from dpserve.training.inputs.columns import encode_rows
from tests.certificates import write_certificate

from .conftest import LARGEST_BATCH
from .people import COLUMNS, head_on_columns
from .people import ROW as PERSON
from .test_http import PRICE, ROW
from .test_tracing import STAGES, stages_of, traced


class Opened:
    """A port for gRPC beside a service."""

    def __init__(self, service, tls=None, spans=None, seconds=30.0, together=2**28):
        self.service = service
        authentication = Authentication(service.ledger)
        bodies = Bodies(seconds, together)
        port = GrpcPort(service.models, authentication, service.metrics, bodies, spans=spans)
        self._listening = port.listening("127.0.0.1:0", drain_seconds=20, tls=tls)
        self.address = f"127.0.0.1:{service.call(self._listening.__aenter__())}"
        self.client = triton.InferenceServerClient(self.address) if tls is None else None

    def close(self):
        if self.client is not None:
            self.client.close()
        self.service.call(self._listening.__aexit__(None, None, None))

    def infer(self, rows, key, **more):
        headers = {"authorization": f"Bearer {key}"} | more.pop("headers", {})
        return self.client.infer("colours", asked(rows), headers=headers, **more)

    def refused(self, rows, key, **more):
        """Ask in vain; return the status, the type of problem and the problem."""
        with pytest.raises(InferenceServerException) as raised:
            self.infer(rows, key, **more)
        return raised.value.status()


def asked(rows, datatype="FP64"):
    rows = np.asarray(rows, dtype={"FP64": np.float64, "FP32": np.float32}[datatype])
    tensor = triton.InferInput("instances", list(rows.shape), datatype)
    tensor.set_data_from_numpy(rows)
    return [tensor]


@pytest.fixture
def opened(service):
    port = Opened(service)
    yield port
    port.close()


@pytest.fixture
def alone(own_service):
    """A port beside a service of the test's own, whose ledger it breaks or whose counts it reads."""
    port = Opened(own_service)
    yield port
    port.close()


def call(opened, method, request, answer, key=None, **more):
    """Call a method by hand; return its answer, or the error."""
    metadata = [] if key is None else [("authorization", f"Bearer {key}"), *more.pop("metadata", ())]
    with grpc.insecure_channel(opened.address) as channel:
        stub = channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda each: each if isinstance(each, bytes) else each.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            return stub(request, metadata=metadata, timeout=more.pop("timeout", 60))
        except grpc.RpcError as error:
            return error


def problem_of(error):
    behind = dict(error.trailing_metadata())
    problem = json.loads(behind["dpserve-problem-json"])
    assert problem["type"] == f"urn:dpserve:problem:{behind['dpserve-problem']}"
    return error.code(), problem


def message(rows=(ROW,), model="colours", **more):
    rows = np.asarray(rows, dtype=np.float64)
    request = service_pb2.ModelInferRequest(model_name=model, **more)
    tensor = request.inputs.add(name="instances", datatype="FP64", shape=rows.shape)
    tensor.contents.fp64_contents.extend(rows.ravel())
    return request


def test_tritonclient_finds_what_the_server_and_the_models_are(opened):
    client = opened.client
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("colours")
    assert client.get_server_metadata().name == "dpserve"
    described = client.get_model_metadata("colours")
    assert [(each.name, each.datatype, list(each.shape)) for each in described.inputs] == [
        ("instances", "FP64", [-1, 4])
    ]
    assert [each.name for each in described.outputs] == ["probabilities", "lower", "upper", "undecided"]
    assert [(each.name, each.state) for each in client.get_model_repository_index().models] == [("colours", "READY")]
    with pytest.raises(InferenceServerException) as raised:
        client.get_model_metadata("other")
    assert raised.value.status() == str(StatusCode.NOT_FOUND)


def test_an_answer_is_the_one_of_http_and_is_charged_once(opened):
    key = opened.service.add_client()
    result = opened.infer([ROW, [0.5] * 4], key, request_id="mine", parameters={"noise": True})
    probabilities = result.as_numpy("probabilities")
    said = result.get_response()
    assert said.id == "mine"
    assert said.parameters["charged_rows"].int64_param == 2
    assert said.parameters["remaining"].double_param == pytest.approx(1 - 2 * PRICE / 1e12)
    assert opened.service.spent() == 2 * PRICE
    http = opened.service.http(key)
    again = http.post("/predict?noise=true", json={"instances": [ROW, [0.5] * 4]}).json()
    assert again["predictions"] == probabilities.tolist()
    assert opened.infer([ROW], key).as_numpy("lower") is None
    assert again["noise"]["lower"] == result.as_numpy("lower").tolist()
    assert again["noise"]["undecided"] == result.as_numpy("undecided").tolist()
    assert again["receipt"]["charged_rows"] == 0


def test_contents_raw_bytes_and_single_precision_ask_the_same_question(opened):
    key = opened.service.add_client()
    row = [0.25, 0.5, 0.75, 1.0]
    by_contents = call(opened, "ModelInfer", message([row]), service_pb2.ModelInferResponse, key)
    headers = {"authorization": f"Bearer {key}"}
    in_single = opened.client.infer("colours", asked([row], "FP32"), headers=headers)
    assert np.frombuffer(by_contents.raw_output_contents[0]).tolist() == in_single.as_numpy("probabilities")[0].tolist()
    assert opened.service.spent() == PRICE


def test_messages_that_are_none_lack_what_is_needed_or_have_bad_rows_are_refused_and_cost_nothing(opened):
    key = opened.service.add_client()
    two = message()
    two.inputs.add(name="instances")
    both = message(raw_input_contents=[b"x"])
    wrong = message()
    wrong.inputs[0].datatype = "BYTES"
    short = message()
    short.inputs[0].shape[0] = 2
    for request, expected, kind in (
        *((each, StatusCode.INVALID_ARGUMENT, "invalid-request") for each in (b"\xff", two, both, wrong, short)),
        (message([[2.0] * 4]), StatusCode.INVALID_ARGUMENT, "invalid-rows"),
        (message([[0.5] * 4] * (LARGEST_BATCH + 1)), StatusCode.INVALID_ARGUMENT, "invalid-rows"),
    ):
        code, problem = problem_of(call(opened, "ModelInfer", request, service_pb2.ModelInferResponse, key))
        assert (code, problem["type"].rpartition(":")[2]) == (expected, kind)
    assert opened.service.spent() == 0


def test_a_message_is_no_longer_than_its_own_model_takes(start, head):
    def larger(ledger):
        return [MeteredPredictor(head, Gaussian(10.0), ledger, largest_batch=1000, name="larger")]

    opened = Opened(start(head, more=larger))
    key, request = opened.service.add_client(), message([[0.5] * 4] * 1000)
    code, problem = problem_of(call(opened, "ModelInfer", request, service_pb2.ModelInferResponse, key))
    assert (code, problem["limit_bytes"]) == (StatusCode.RESOURCE_EXHAUSTED, opened.service.predictor.largest_body)
    request.model_name = "larger"
    assert call(opened, "ModelInfer", request, service_pb2.ModelInferResponse, key).outputs
    opened.close()


def hostile(**fields):
    """A request of about a million of one thing."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="age", shape=[1], datatype="FP64")
    given = {name: fields.pop(name) for name in ("shape", "contents", "parameters") if name in fields}
    for name, value in given.items():
        tensor.MergeFrom(type(tensor)(**{name: value}))
    return service_pb2.ModelInferRequest(model_name="people", inputs=[tensor], **fields)


HOSTILE = {
    "texts": lambda: hostile(contents={"bytes_contents": [b""] * 10**6}),
    "truths": lambda: hostile(contents={"bool_contents": [True] * 10**6}),
    "numbers": lambda: hostile(contents={"int64_contents": [1] * 10**6}),
    "fractions": lambda: hostile(contents={"fp64_contents": [0.5] * 10**6}),
    "a shape": lambda: hostile(shape=[1] * 10**6),
    "raw contents": lambda: hostile(raw_input_contents=[b""] * 10**6),
    "outputs": lambda: hostile(outputs=[{}] * 10**6),
    "parameters": lambda: hostile(parameters={str(number): {"bool_param": True} for number in range(10**6)}),
    "numbers one by one": lambda: hostile().SerializeToString() + b"\x28\x01" * 10**6,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_message_of_more_than_its_rows_have_is_refused_before_it_is_parsed(kind, monkeypatch):
    predictor = MeteredPredictor(head_on_columns(), Gaussian(1.0), None, largest_batch=1000)
    asked = HOSTILE[kind]()
    body = asked if isinstance(asked, bytes) else asked.SerializeToString()
    monkeypatch.setattr("dpserve.service.rpc.messages.parse", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(InvalidRows):
        MessageCodec().decode(predictor, RequestHeader({}, {}, ""), body)


@pytest.mark.parametrize("end", [b"\x2b", b"\xff" * 11, b"\x2a\xff\xff", b"\x09\x01"])
def test_a_large_message_that_is_none_is_refused_with_400(end):
    predictor = MeteredPredictor(head_on_columns(), Gaussian(1.0), None, largest_batch=1000)
    body = service_pb2.ModelInferRequest(model_name="people", id="x" * 2**17).SerializeToString() + end
    with pytest.raises(Problem) as refused:
        MessageCodec().decode(predictor, RequestHeader({}, {}, ""), body)
    assert refused.value.status == 400


def test_the_largest_batch_of_texts_is_read():
    predictor = MeteredPredictor(head_on_columns(), Gaussian(1.0), None, largest_batch=1000)
    columns = {"age": ("FP64", "fp64_contents", 39.0), "member": ("BOOL", "bool_contents", True)}
    texts = {name: text.encode() for name, text in PERSON.items() if isinstance(text, str)}
    columns |= {name: ("BYTES", "bytes_contents", text) for name, text in texts.items()}
    request = service_pb2.ModelInferRequest(model_name="people")
    for name, (kind, field, value) in columns.items():
        request.inputs.add(name=name, shape=[1000], datatype=kind, contents={field: [value] * 1000})
    request.id = "x" * 2**16
    read = MessageCodec().decode(predictor, RequestHeader({}, {}, ""), request.SerializeToString())
    asyncio.run(predictor.encode("ann", read))
    assert len(read.X) == 1000
    assert (encode_rows(COLUMNS, [PERSON]) == read.X).all()


def test_who_asks_is_checked_as_over_http(opened):
    assert opened.refused([ROW], "no-such-key") == str(StatusCode.UNAUTHENTICATED)
    error = call(opened, "ModelInfer", message(), service_pb2.ModelInferResponse)
    assert problem_of(error)[0] is StatusCode.UNAUTHENTICATED
    error = call(opened, "ModelInfer", message(model="other"), service_pb2.ModelInferResponse, "a-key")
    assert problem_of(error)[0] is StatusCode.UNAUTHENTICATED
    key = opened.service.add_client()
    error = call(opened, "ModelInfer", message(model="other"), service_pb2.ModelInferResponse, key)
    assert problem_of(error)[0] is StatusCode.NOT_FOUND
    more = [("authorization", "Bearer another")]
    error = call(opened, "ModelInfer", message(), service_pb2.ModelInferResponse, key, metadata=more)
    assert problem_of(error)[0] is StatusCode.INVALID_ARGUMENT
    assert opened.service.spent() == 0


def test_a_spent_budget_is_permission_denied_with_the_amounts(opened):
    key = opened.service.add_client(rho=1.5 * PRICE / 1e12)
    opened.infer([ROW], key)
    error = call(opened, "ModelInfer", message([[0.5] * 4]), service_pb2.ModelInferResponse, key)
    code, problem = problem_of(error)
    assert (code, problem["type"]) == (StatusCode.PERMISSION_DENIED, "urn:dpserve:problem:budget-exhausted")
    assert (problem["scope"], problem["remaining"]) == ("client", pytest.approx(0.5 * PRICE / 1e12))
    assert opened.service.spent() == PRICE


def test_a_deadline_that_passed_is_not_charged(opened):
    key = opened.service.add_client()
    error = call(opened, "ModelInfer", message(), service_pb2.ModelInferResponse, key, timeout=0)
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    assert opened.service.spent() == 0


def test_an_idempotency_key_is_for_one_request(opened):
    key = opened.service.add_client()
    named = {"idempotency-key": "once"}
    first = opened.infer([ROW], key, headers=named).get_response()
    again = opened.infer([ROW], key, headers=named).get_response()
    assert first.parameters["receipt_id"] == again.parameters["receipt_id"]
    assert opened.refused([[0.5] * 4], key, headers=named) == str(StatusCode.INVALID_ARGUMENT)
    assert opened.service.spent() == PRICE


def until(found, expected):
    """Wait for what happens after an answer was sent."""
    deadline = time.monotonic() + 30
    while found() != expected:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_calls_are_counted_by_model_and_route_and_under_no_name_of_the_callers(alone):
    key, (registry,) = alone.service.add_client(), alone.service.counts()
    alone.infer([ROW], key)

    def requests(route, model, status):
        labels = {"route": route, "model": model, "status": status}
        return registry.get_sample_value("dpserve_requests_total", labels)

    assert requests(f"/{SERVICE}/ModelInfer", "colours", "200") == 1
    assert registry.get_sample_value("dpserve_rows_total", {"model": "colours", "outcome": "charged"}) == 1
    error = call(alone, "Chosen", b"", service_pb2.ServerLiveResponse)
    assert problem_of(error)[0] is StatusCode.UNIMPLEMENTED
    until(lambda: requests("other", "", "501"), 1)
    # A message over the limit never arrives.
    error = call(alone, "ModelInfer", message([[0.5] * 4] * 3000), service_pb2.ModelInferResponse, key)
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    too_large = {"model": "", "type": "body-too-large"}
    until(lambda: registry.get_sample_value("dpserve_refusals_total", too_large), 1)
    assert alone.service.spent() == PRICE


def test_a_compressed_message_is_refused_before_it_is_unpacked(opened):
    request = message([[0.5] * 4] * 1500).SerializeToString()
    with grpc.insecure_channel(opened.address, compression=grpc.Compression.Gzip) as channel:
        stub = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            stub(request, metadata=[("authorization", "Bearer guessed")], timeout=60)
    assert raised.value.code() is StatusCode.UNIMPLEMENTED


def test_messages_count_among_all_bodies_until_they_are_answered(service):
    opened = Opened(service, together=5 * len(message().SerializeToString()))
    key = service.add_client()
    for _ in range(3):
        opened.infer([ROW], key)
    assert opened.refused([[0.5] * 4] * 2, key) == str(StatusCode.UNAVAILABLE)
    assert service.spent() == PRICE
    opened.close()


def stalled(opened, metadata=None):
    """Return how a call ends whose message does not come."""
    never = threading.Event()
    with grpc.insecure_channel(opened.address) as channel:
        stub = channel.stream_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            stub((never.wait(60) and b"" for _ in range(1)), metadata=metadata, timeout=60)
        never.set()
    return problem_of(raised.value)


def test_a_message_that_does_not_arrive_is_waited_for_no_longer_than_a_body(service):
    opened = Opened(service, seconds=0.1)
    code, problem = stalled(opened, [("authorization", f"Bearer {service.add_client()}")])
    assert (code, problem["detail"]) == (StatusCode.DEADLINE_EXCEEDED, "the body did not arrive within 0.1 seconds")
    opened.close()


def test_a_message_without_a_valid_key_is_refused_before_it_arrives(opened):
    for metadata in (None, [("authorization", "Bearer guessed")]):
        assert stalled(opened, metadata)[0] is StatusCode.UNAUTHENTICATED


@contextmanager
def idle(opened, method, count, key=None):
    """Hold calls whose message does not come, on one connection."""
    never = threading.Event()
    metadata = [] if key is None else [("authorization", f"Bearer {key}")]
    with grpc.insecure_channel(opened.address, options=ALONE) as channel:
        stub = channel.stream_unary(f"/{SERVICE}/{method}")
        held = [stub.future(_nothing_until(never), metadata=metadata) for _ in range(count)]
        yield held
        for each in held:
            each.cancel()
        never.set()


def _nothing_until(event):
    event.wait(60)
    yield b""


ALSO = ("ModelReady", "ModelMetadata", "ServerReady", "ServerMetadata", "RepositoryIndex")


@pytest.mark.parametrize(
    "method", ["ModelInfer", "ServerLive", *(pytest.param(each, marks=pytest.mark.slow) for each in ALSO)]
)
def test_idle_calls_of_strangers_hold_up_neither_clients_nor_health(service, method):
    """With room for four messages, and many more calls than that."""
    opened = Opened(service, together=5 * service.predictor.largest_body)
    key = service.add_client()
    for guessed in (None, "guessed"):
        with idle(opened, method, 200, guessed):
            assert opened.client.is_server_live(client_timeout=10)
            assert opened.client.is_server_ready(client_timeout=10)
            assert opened.client.get_model_repository_index(client_timeout=10).models
            assert opened.infer([ROW], key, client_timeout=10)
    opened.close()


def test_idle_questions_about_a_model_hold_up_nobodys(service, monkeypatch):
    """Also not from the same address, as behind a proxy: the oldest end where newer ones come, not by the clock."""
    monkeypatch.setattr("dpserve.service.rpc.server._SECONDS_FOR_QUESTION", 3600.0)
    opened = Opened(service, together=5 * service.predictor.largest_body)
    with idle(opened, "ModelReady", 40) as held, idle(opened, "ModelMetadata", 40) as more:
        ended = as_completed([*held, *more])
        for _ in range(80 - 16):
            assert problem_of(next(ended).exception())[0] is StatusCode.DEADLINE_EXCEEDED
        assert opened.client.is_model_ready("colours", client_timeout=10)
        assert opened.client.get_model_metadata("colours", client_timeout=10).name == "colours"
    opened.close()


def test_idle_calls_of_one_client_hold_up_no_other(service):
    opened = Opened(service, together=5 * service.predictor.largest_body)
    slow, other = service.add_client("slow"), service.add_client("other")
    with idle(opened, "ModelInfer", 200, slow):
        assert opened.infer([ROW], other, client_timeout=10)
    opened.close()


def test_calls_of_one_client_beyond_its_places_are_refused(service):
    opened = Opened(service)
    key = service.add_client()
    with idle(opened, "ModelInfer", 200, key), idle(opened, "ModelInfer", 200, key) as more:
        code, problem = problem_of(next(as_completed(more)).exception())
        assert (code, problem["type"]) == (StatusCode.UNAVAILABLE, "urn:dpserve:problem:overloaded")
    opened.close()


def as_completed(calls):
    """Yield calls as they end."""
    ended = queue.SimpleQueue()
    for each in calls:
        each.add_done_callback(ended.put)
    for _ in calls:
        yield ended.get(timeout=60)


@pytest.mark.usefixtures("opened")
def test_a_caller_who_is_gone_before_its_answer_leaves_no_line_of_grpcios(caplog):
    """The error is raised here: it comes of a cancelled call only where the answer meets the end on its way."""
    log = logging.getLogger("grpc._cython.cygrpc")
    for error in (ExecuteBatchError("Failed"), ValueError()):
        try:
            raise error
        except (ExecuteBatchError, ValueError):
            log.exception("%s raised in core by servicer method", type(error).__name__)
    assert [type(record.exc_info[1]) for record in caplog.records if record.name == log.name] == [ValueError]


ALONE = [("grpc.use_local_subchannel_pool", 1)]
"""Has a channel connect by itself."""


def test_a_message_of_a_stranger_is_not_taken_apart(opened, monkeypatch):
    parsed = []
    monkeypatch.setattr("dpserve.service.rpc.messages.parse", lambda name, _: parsed.append(name))
    error = call(opened, "ModelInfer", message(), service_pb2.ModelInferResponse, "guessed")
    assert problem_of(error)[0] is StatusCode.UNAUTHENTICATED
    assert parsed == []


def test_a_shape_of_many_dimensions_is_refused_without_their_product(opened):
    request = message()
    request.inputs[0].shape[:] = [2**62] * 1000
    key = opened.service.add_client()
    code, problem = problem_of(call(opened, "ModelInfer", request, service_pb2.ModelInferResponse, key))
    assert (code, problem["detail"]) == (StatusCode.INVALID_ARGUMENT, "the shape must be [rows, features]")


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_a_refusal_that_repeats_long_names_still_arrives(opened, letter, monkeypatch):
    monkeypatch.setattr("dpserve.service.models.quoted", repr)
    key = opened.service.add_client()
    error = call(opened, "ModelInfer", message(model=letter * 3750), service_pb2.ModelInferResponse, key)
    assert error.code() is StatusCode.NOT_FOUND
    assert dict(error.trailing_metadata())["dpserve-problem"] == "unknown-model"


def test_a_question_that_costs_nothing_has_no_long_message(opened):
    request = service_pb2.ModelReadyRequest(name="x" * 10_000)
    error = call(opened, "ModelReady", request, service_pb2.ModelReadyResponse)
    assert problem_of(error)[0] is StatusCode.RESOURCE_EXHAUSTED


def test_a_call_is_traced_as_a_request_is_and_a_ledger_that_is_gone_is_unavailable(own_service):
    service = own_service
    provider, exporter = traced()
    opened = Opened(service, spans=RequestSpans(provider))
    opened.infer([ROW], service.add_client())
    assert stages_of(exporter) == [[stage for stage in STAGES if stage != "body"]]
    opened.refused([ROW], "guessed")
    name = f"dpserve:{{{service.predictor.lineage}}}:account"
    key = service.add_client("bob")
    service.call(service.ledger.store.command("DEL", name))
    assert opened.refused([ROW], key) == str(StatusCode.UNAVAILABLE)
    assert not opened.client.is_server_ready()
    opened.close()
    ended = [
        (span.attributes["rpc.grpc.status_code"], span.status.is_ok)
        for span in exporter.get_finished_spans()
        if span.kind is SpanKind.SERVER and span.name == f"/{SERVICE}/ModelInfer"
    ]
    assert ended == [(0, True), (16, True), (14, False)]


def test_a_renewed_certificate_is_taken_at_the_next_handshake(service, tmp_path):
    first, second = (write_certificate(tmp_path, name)[:2] for name in ("first", "second"))
    served = [tmp_path / "served.pem", tmp_path / "served.key"]
    for source, target in zip(first, served, strict=True):
        target.write_bytes(source.read_bytes())
    opened = Opened(service, tls=Tls(*served))
    with triton.InferenceServerClient(opened.address, ssl=True, root_certificates=str(first[0])) as client:
        assert client.is_server_live()
    with triton.InferenceServerClient(opened.address) as client, pytest.raises(InferenceServerException):
        client.is_server_live()
    for source, target in zip(second, served, strict=True):
        target.write_bytes(source.read_bytes())
    with triton.InferenceServerClient(opened.address, ssl=True, root_certificates=str(second[0])) as client:
        assert client.is_server_live()
    opened.close()


def test_the_compiled_messages_are_those_of_the_source(tmp_path):
    folder = Path(__file__).parents[2] / "service" / "rpc"
    made = tmp_path / "made.binpb"
    words = ["-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={made}", "open_inference.proto"]
    subprocess.run([sys.executable, *words], check=True)
    assert made.read_bytes() == (folder / "open_inference.binpb").read_bytes()
