"""The Open Inference Protocol over real HTTP, asked by `tritonclient` and by hand."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from .test_http import PRICE, ROW

INFER = "/v2/models/colours/infer"


def body_of(rows, **more):
    rows = np.asarray(rows, dtype=float)
    tensor = {"name": "instances", "shape": list(rows.shape), "datatype": "FP64", "data": rows.ravel().tolist()}
    return {"inputs": [tensor | more]}


def refused(response, status, kind):
    assert response.status_code == status, response.text
    assert response.headers["dpserve-problem"] == kind
    assert set(response.json()) == {"error"}
    return response.json()["error"]


@pytest.fixture
def client(service):
    opened = triton.InferenceServerClient(service.url.removeprefix("http://"))
    yield opened
    opened.close()


def asked(rows, *, datatype="FP64", binary=True):
    rows = np.asarray(rows, dtype={"FP64": np.float64, "FP32": np.float32}[datatype])
    tensor = triton.InferInput("instances", list(rows.shape), datatype)
    tensor.set_data_from_numpy(rows, binary_data=binary)
    return [tensor]


def key_of(http):
    return {"Authorization": http.headers["Authorization"]}


def test_tritonclient_finds_what_the_server_and_the_model_are(service, client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("colours")
    assert client.is_model_ready("colours", "1")
    assert not client.is_model_ready("colours", "2")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["extensions"] == [
        "binary_tensor_data",
        "model_repository",
        "model_configuration",
    ]
    metadata = client.get_model_metadata("colours")
    assert metadata["inputs"] == [{"name": "instances", "datatype": "FP64", "shape": [-1, 4]}]
    assert metadata["outputs"] == [
        *({"name": name, "datatype": "FP64", "shape": [-1, 3]} for name in ("probabilities", "lower", "upper")),
        {"name": "undecided", "datatype": "BOOL", "shape": [-1]},
    ]
    assert json.loads(metadata["parameters"]["classes"]) == ["red", "green", "blue"]
    model = service.http().get("/models/colours").json()
    told = metadata["parameters"]["price_per_row"], model["price_per_row"]["rho"]
    assert told == (PRICE / 1e12,) * 2  # what is charged, to the last digit


@pytest.mark.parametrize(("binary_in", "outputs"), [(True, None), (False, True), (True, False)])
def test_tritonclient_is_answered_and_charged_as_every_client_is(service, client, binary_in, outputs):
    http = service.http(service.add_client())
    wanted = None if outputs is None else [triton.InferRequestedOutput("probabilities", binary_data=outputs)]
    result = client.infer(
        "colours", asked([ROW, [0.5] * 4], binary=binary_in), outputs=wanted, headers=key_of(http), request_id="mine"
    )
    probabilities = result.as_numpy("probabilities")
    assert probabilities.shape == (2, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    said = result.get_response()
    assert said["id"] == "mine"
    assert said["parameters"]["receipt_id"] == 1
    assert said["parameters"]["charged_rows"] == 2
    assert said["parameters"]["charged"] == pytest.approx(2 * PRICE / 1e12)
    assert said["parameters"]["remaining"] == pytest.approx(1 - 2 * PRICE / 1e12)
    assert service.spent() == 2 * PRICE
    # The same rows by the service's own route are replays of these answers.
    again = http.post("/predict", json={"instances": [ROW, [0.5] * 4]}).json()
    assert again["predictions"] == probabilities.tolist()
    assert again["receipt"]["charged_rows"] == 0
    assert service.spent() == 2 * PRICE


def test_price_receipt_and_what_is_left_stand_in_the_headers_too(service):
    http = service.http(service.add_client())
    response = http.post(INFER, json=body_of([ROW]) | {"parameters": {"noise": True}})
    assert response.status_code == 200
    receipt, budget = (json.loads(response.headers[name]) for name in ("dpserve-receipt", "dpserve-budget"))
    assert receipt["price_per_row"] == pytest.approx(PRICE / 1e12)
    assert (receipt["id"], receipt["charged_rows"]) == (1, 1)
    parameters = response.json()["parameters"]
    assert budget["remaining"] == parameters["remaining"] == http.get("/budget").json()["remaining"]["rho"]
    noise = json.loads(response.headers["dpserve-noise"])
    assert (noise["law"], noise["on"], noise["scale"]) == ("gaussian", "logits", parameters["noise_scale"])


def test_an_answer_says_how_noisy_it_is(service, client):
    http = service.http(service.add_client())
    noise = http.post("/predict?noise=true", json={"instances": [ROW, [0.5] * 4]}).json()["noise"]
    for binary in (True, False):
        named = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("undecided", "lower", "upper")]
        result = client.infer("colours", asked([ROW, [0.5] * 4]), outputs=named, headers=key_of(http))
        for name in ("lower", "upper", "undecided"):
            assert result.as_numpy(name).tolist() == noise[name]
        assert result.as_numpy("probabilities") is None
    for more, names in (
        ({}, ["probabilities"]),
        ({"parameters": {"noise": False}}, ["probabilities"]),
        ({"parameters": {"noise": True}}, ["probabilities", "lower", "upper", "undecided"]),
        ({"parameters": {"noise": True}, "outputs": [{"name": "upper"}]}, ["upper"]),
    ):
        response = http.post(INFER, json=body_of([ROW]) | more)
        answer = response.json()
        assert [each["name"] for each in answer["outputs"]] == names
        said = len(names) > 1 or names == ["upper"]
        assert ("dpserve-noise" in response.headers, "noise_law" in answer["parameters"]) == (said, said)
    assert http.post(INFER, json=body_of([ROW]) | {"parameters": {"noise": "yes"}}).status_code == 400
    unknown = http.post(INFER, json=body_of([ROW]) | {"outputs": [{"name": "logits"}]})
    assert unknown.status_code == 400


def test_single_precision_is_taken_for_what_it_says(service, client):
    http = service.http(service.add_client())
    result = client.infer("colours", asked([ROW], datatype="FP32"), headers=key_of(http))
    exact = np.asarray([ROW], dtype=np.float32).astype(float)
    again = http.post("/predict", json={"instances": exact.tolist()}).json()
    assert again["receipt"]["charged_rows"] == 0
    assert again["predictions"] == result.as_numpy("probabilities").tolist()
    as_text = http.post(INFER, json=body_of([ROW], datatype="FP32")).json()
    assert as_text["parameters"]["charged_rows"] == 0


def test_a_request_that_is_sent_again_is_charged_once(service):
    http = service.http(service.add_client())
    named = {"Idempotency-Key": "once"}
    first = http.post(INFER, json=body_of([ROW]), headers=named).json()
    again = http.post(INFER, json=body_of([ROW]), headers=named).json()
    assert again["outputs"] == first["outputs"]
    assert again["parameters"]["receipt_id"] == first["parameters"]["receipt_id"]
    refused(http.post(INFER, json=body_of([[0.5] * 4]), headers=named), 422, "idempotency-conflict")
    refused(http.post(INFER, json=body_of([ROW]), headers={"Idempotency-Key": "a b"}), 400, "invalid-request")
    assert service.spent() == PRICE


def test_tritonclient_hears_why_it_is_refused(service, client):
    """Why else, test_errors_under_v2_have_the_protocols_form says."""
    http = service.http(service.add_client(rho=1.5 * PRICE / 1e12))
    for rows, headers, status in (
        ([ROW], {}, "401"),
        ([ROW, [0.5] * 4], key_of(http), "403"),
        ([[9.0] * 4], key_of(http), "422"),
    ):
        with pytest.raises(InferenceServerException) as refusal:
            client.infer("colours", asked(rows), headers=headers)
        assert refusal.value.status() == status
    assert service.spent() == 0
    client.infer("colours", asked([ROW]), headers=key_of(http))
    assert service.spent() == PRICE


BAD = {
    "no JSON": "{",
    "not UTF-8": b'{"inputs": [\xff]}',
    "inputs twice": json.dumps(body_of([ROW]))[:-1] + ', "inputs": []}',
    "no inputs": {},
    "no input": {"inputs": []},
    "two inputs": {"inputs": body_of([ROW])["inputs"] * 2},
    "another name": body_of([ROW], name="x"),
    "text": body_of([ROW], data=["0.1", "0.2", "0.3", "0.4"]),
    "booleans": body_of([ROW], data=[True, False, True, False]),
    "null": body_of([ROW], data=[None] * 4),
    "no data": body_of([ROW], data=[]),
    "data left out": {"inputs": [{"name": "instances", "shape": [1, 4], "datatype": "FP64"}]},
    "a number for data": body_of([ROW], data=4),
    "ragged": body_of([ROW, ROW], data=[[0.1] * 3, [0.1] * 5]),
    "too few": body_of([ROW], shape=[2, 4]),
    "a negative shape": body_of([ROW], shape=[-1, 4]),
    "a shape of one": body_of([ROW], shape=[4]),
    "a huge shape": body_of([ROW], shape=[2**40, 2**40]),
    "an unknown datatype": body_of([ROW], datatype="BYTES"),
    "fractions as integers": body_of([ROW], datatype="INT64"),
    "shared memory": body_of([ROW], parameters={"shared_memory_region": "x"}),
    "bytes that are not there": body_of([ROW], parameters={"binary_data_size": 32}),
    "another output": body_of([ROW]) | {"outputs": [{"name": "logits"}]},
    "classification": body_of([ROW]) | {"outputs": [{"name": "probabilities", "parameters": {"classification": 1}}]},
}


def test_what_cannot_be_understood_costs_nothing(service):
    http = service.http(service.add_client())
    for what, body in BAD.items():
        response = http.post(INFER, content=body if isinstance(body, str | bytes) else json.dumps(body))
        kind = "malformed-json" if what in ("no JSON", "not UTF-8") else "invalid-request"
        assert refused(response, 400, kind), what
    assert service.spent() == 0


def test_rows_are_checked_as_everywhere(service):
    http = service.http(service.add_client())
    for rows in ([[0.1] * 3], [[2.0] * 4], [ROW] * 51):
        refused(http.post(INFER, json=body_of(rows)), 422, "invalid-rows")
    refused(
        http.post(
            INFER, content='{"inputs":[{"name":"instances","shape":[1,4],"datatype":"FP32","data":[1e300,0,0,0]}]}'
        ),
        422,
        "invalid-rows",
    )
    assert service.spent() == 0


def raw_body(values, size=None, length=None, **more):
    raw = struct.pack(f"<{len(values)}d", *values)
    tensor = {"name": "instances", "shape": [1, 4], "datatype": "FP64"}
    said = json.dumps(
        {"inputs": [tensor | {"parameters": {"binary_data_size": len(raw) if size is None else size}} | more]}
    ).encode()
    return said + raw, {"Inference-Header-Content-Length": str(len(said)) if length is None else length}


def test_raw_numbers_are_checked(service):
    http = service.http(service.add_client())
    for bad in ([float("nan")] * 4, [float("inf"), 0, 0, 0], [-0.5, 0, 0, 0]):
        content, headers = raw_body(bad)
        refused(http.post(INFER, content=content, headers=headers), 422, "invalid-rows")
    for arguments in (
        {"size": 24},
        {"size": 40},
        {"size": True},
        {"size": "32"},
        {"length": "-1"},
        {"length": "99999"},
        {"length": "x"},
        {"length": "²"},
        {"data": ROW},
        {"shape": [2, 4]},
    ):
        content, headers = raw_body(ROW, **arguments)
        response = http.post(INFER, content=content, headers={name: value.encode() for name, value in headers.items()})
        assert response.status_code == 400, arguments
    assert service.spent() == 0
    content, headers = raw_body(ROW)
    assert http.post(INFER, content=content, headers=headers).status_code == 200
    negative_zero, headers = raw_body([-0.0, 1.0, 1.0, 1.0])
    http.post(INFER, content=negative_zero, headers=headers)
    assert http.post("/predict", json={"instances": [[0.0, 1, 1, 1]]}).json()["receipt"]["charged_rows"] == 0
    assert service.spent() == 2 * PRICE


def test_errors_under_v2_have_the_protocols_form(service):
    http = service.http(service.add_client())
    refused(http.get("/v2/models/other"), 404, "unknown-model")
    refused(http.get("/v2/models/colours/versions/7/ready"), 404, "unknown-model")
    refused(http.get("/v2/nothing"), 404, "not-found")
    refused(http.get(INFER), 405, "method-not-allowed")
    refused(http.post(INFER, content=b" " * 30_000), 413, "body-too-large")
    refused(http.post(INFER, json=body_of([ROW]), headers={"Content-Encoding": "gzip"}), 400, "invalid-request")
    assert http.post("/v2/models/colours/versions/1/infer", json=body_of([ROW])).status_code == 200


@pytest.mark.parametrize("query", ["dry_run=true", "dry_run=false", "coverage=0.9", "anything"])
def test_a_query_is_refused_so_that_no_dry_run_is_charged(service, query):
    http = service.http(service.add_client())
    response = http.post(f"/v2/models/colours/infer?{query}", json=body_of([ROW]))
    refused(response, 400, "invalid-request")
    assert "dry_run=true" in response.json()["error"]
    assert service.spent() == 0


def test_a_wait_that_was_asked_for_is_confirmed(service):
    http = service.http(service.add_client())
    answered = http.post("/v2/models/colours/infer", json=body_of([ROW]), headers={"Prefer": "wait=10"})
    assert answered.status_code == 200
    assert answered.headers["preference-applied"] == "wait=10"
    assert "preference-applied" not in http.post("/v2/models/colours/infer", json=body_of([ROW])).headers


def test_what_the_page_shows_of_tritonclient_is_answered(service):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (code,) = re.findall(r"```python\n(import tritonclient.http.*?)```", page, re.DOTALL)
    names = {"key": service.add_client(), "X": np.array([ROW])}
    exec(code.replace("127.0.0.1:8000", service.url.removeprefix("http://")), names)
    assert names["probabilities"].shape == (1, 3)
    assert service.spent() == PRICE
    assert names["left"] == service.http(names["key"]).get("/budget").json()["queries_left"]


def test_a_schemas_columns_are_inputs_of_tritonclient(start, by_columns):
    service = start(by_columns, lineage_rho=20 * PRICE / 1e12)
    columns = {
        "age": ("FP64", [39.0, 54.0]),
        "city": ("BYTES", ["Oslo", ""]),  # an empty text: missing
        "member": ("BOOL", [True, False]),
        "since": ("BYTES", ["2011-05-06", "2024-12-31"]),
        "note": ("BYTES", ["came twice", "new"]),
    }
    inputs = []
    for name, (datatype, values) in columns.items():
        inputs.append(triton.InferInput(name, [len(values), 1], datatype))
        inputs[-1].set_data_from_numpy(np.array(values, object if datatype == "BYTES" else None).reshape(-1, 1))
    key = service.add_client()
    with triton.InferenceServerClient(service.url.removeprefix("http://")) as client:
        answer = client.infer("people", inputs, headers={"Authorization": f"Bearer {key}"})
    http = service.http(key)
    listed = http.get("/v2/models/people").json()["inputs"]
    assert {each["name"]: each["datatype"] for each in listed} == {
        name: datatype for name, (datatype, _) in columns.items()
    }
    rows = [
        {name: values[row] or (None if name == "city" else values[row]) for name, (_, values) in columns.items()}
        for row in range(2)
    ]
    said = http.post("/predict", json={"instances": rows}).json()
    np.testing.assert_array_equal(answer.as_numpy("probabilities"), said["predictions"])
    assert said["receipt"]["charged_rows"] == 0


def test_what_no_parser_takes_is_refused_with_400(service):
    http = service.http(service.add_client())
    for content, headers in (
        (b'{"inputs": [{"name": "instances", "parameters": {"a":' + b"[" * 19_000, {}),
        (b'{"inputs": [], "parameters": ' + b'{"a":' * 3_900, {}),
        (b"{}", {"Inference-Header-Content-Length": "9" * 5_000}),
    ):
        response = http.post(INFER, content=content, headers=headers)
        assert response.status_code == 400, response.text
    assert service.spent() == 0
