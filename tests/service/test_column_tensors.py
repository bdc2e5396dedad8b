"""Open Inference of a model with a schema: an input for each column, over HTTP and gRPC, as `tritonclient` asks."""

import json

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.service.people import COLUMNS, ROW

from .test_grpc import Opened
from .test_http import PRICE
from .test_openinference import refused

INFER = "/v2/models/people/infer"
ROWS = [ROW, ROW | {"age": 61.5, "city": None, "member": False, "note": ""}]
ARRAYS = {
    "age": np.array([[39.0], [61.5]]),
    "city": np.array([[b"Oslo"], [b""]], dtype=object),
    "member": np.array([[True], [False]]),
    "since": np.array([[b"2011-05-06"]] * 2, dtype=object),
    "note": np.array([[b"came twice"], [b""]], dtype=object),
}
TYPES = {"age": "FP64", "city": "BYTES", "member": "BOOL", "since": "BYTES", "note": "BYTES"}


def tensors(rows=ROWS, **changed):
    """One input for each column, in JSON."""
    return [
        {"name": name, "shape": [len(rows), 1], "datatype": kind, "data": [row[name] for row in rows]}
        | changed.get(name, {})
        for name, kind in TYPES.items()
    ]


@pytest.fixture(scope="module")
def shared_service(start_for_module, by_columns):
    return start_for_module(by_columns)


@pytest.fixture
def key(service):
    return service.add_client(rho=20 * PRICE / 1e12)


@pytest.fixture
def http(service, key):
    return service.http(key)


@pytest.fixture
def by_name(http):
    """The answers to the same rows by name, and no further charge for the same question."""
    return http.post("/predict", json={"instances": ROWS}).json()["predictions"]


def probabilities(response):
    assert response.status_code == 200, response.text
    output = next(each for each in response.json()["outputs"] if each["name"] == "probabilities")
    assert response.json()["parameters"]["charged_rows"] == 0
    return np.reshape(output["data"], output["shape"]).tolist()


def asked(library, binary=None):
    inputs = []
    for name, array in ARRAYS.items():
        tensor = library.InferInput(name, list(array.shape), TYPES[name])
        tensor.set_data_from_numpy(array, *([] if binary is None else [binary]))
        inputs.append(tensor)
    return inputs


def test_metadata_names_the_columns_with_their_types(http):
    described = http.get("/v2/models/people").json()["inputs"]
    assert {each["name"]: each["datatype"] for each in described} == TYPES
    assert [each["name"] for each in described] == [column.name for column in COLUMNS]
    assert {tuple(each["shape"]) for each in described} == {(-1, 1)}
    configured = http.get("/v2/models/people/config").json()["input"]
    assert {each["name"]: each["data_type"] for each in configured}["city"] == "TYPE_STRING"
    (example, *_) = http.get("/openapi.json").json()["components"]["schemas"]["InferRequest"]["examples"]
    assert http.post(INFER, json=example).status_code == 200


@pytest.mark.parametrize("changed", [{}, {"age": {"shape": [2]}}, {"note": {"data": [["came twice"], [""]]}}])
def test_json_asks_the_questions_that_rows_by_name_are(http, by_name, changed):
    assert probabilities(http.post(INFER, json={"inputs": tensors(**changed)})) == by_name
    assert probabilities(http.post(INFER, json={"inputs": tensors(**changed)[::-1]})) == by_name


@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_asks_them_over_http(service, key, by_name, binary):
    headers = {"Authorization": f"Bearer {key}"}
    with tritonclient.http.InferenceServerClient(service.url.removeprefix("http://")) as client:
        answer = client.infer("people", asked(tritonclient.http, binary), headers=headers)
    np.testing.assert_array_equal(answer.as_numpy("probabilities"), by_name)
    assert answer.get_response()["parameters"]["charged_rows"] == 0


def test_tritonclient_asks_them_over_grpc(service, key, by_name):
    port = Opened(service)
    try:
        described = port.client.get_model_metadata("people", as_json=True)["inputs"]
        assert {each["name"]: each["datatype"] for each in described} == TYPES
        answer = port.client.infer("people", asked(tritonclient.grpc), headers={"authorization": f"Bearer {key}"})
        np.testing.assert_array_equal(answer.as_numpy("probabilities"), by_name)
        message = tritonclient.grpc.service_pb2.ModelInferRequest(model_name="people")
        for name, contents in (
            ("age", {"fp64_contents": [39.0]}),
            ("city", {"bytes_contents": [b"Oslo"]}),
            ("member", {"bool_contents": [True]}),
            ("since", {"bytes_contents": [b"2011-05-06"]}),
            ("note", {"bytes_contents": [b"came twice"]}),
        ):
            tensor = message.inputs.add(name=name, datatype=TYPES[name], shape=[1, 1])
            for field, values in contents.items():
                getattr(tensor.contents, field).extend(values)
        metadata = [("authorization", f"Bearer {key}")]
        reply = port.client._client_stub.ModelInfer(message, metadata=metadata)
        assert reply.parameters["charged_rows"].int64_param == 0
    finally:
        port.close()


def test_missing_values_are_null_nan_or_an_empty_text(http, by_name):
    missing = [{**ROW, "city": None, "since": None, "note": None}]
    first = http.post("/predict", json={"instances": missing}).json()["predictions"]
    empty = [{**ROW, "city": "", "since": "", "note": ""}]
    for rows in (missing, empty):
        assert probabilities(http.post(INFER, json={"inputs": tensors(rows)})) == first


def test_the_one_input_of_encoded_numbers_is_taken_all_the_same(http, by_name, by_columns):
    bounds = by_columns.certificate.feature_map
    row = [(low + high) / 2 for low, high in zip(bounds.lower, bounds.upper, strict=True)]
    tensor = {"name": "instances", "shape": [1, len(row)], "datatype": "FP64", "data": row}
    assert http.post(INFER, json={"inputs": [tensor]}).status_code == 200


WRONG = {
    "a column is missing": (lambda: tensors()[1:], "invalid-rows"),
    "a column is unknown": (lambda: [*tensors(), tensors()[0] | {"name": "income"}], "invalid-rows"),
    "a column is there twice": (lambda: [*tensors(), tensors()[0]], "invalid-rows"),
    "other numbers of rows": (lambda: tensors(age={"shape": [3, 1], "data": [1, 2, 3]}), "invalid-request"),
    "a value too few": (lambda: tensors(age={"data": [39.0]}), "invalid-request"),
    "a shape of three dimensions": (lambda: tensors(age={"shape": [2, 1, 1]}), "invalid-request"),
    "a shape of two values a row": (lambda: tensors(age={"shape": [2, 2], "data": [1, 2, 3, 4]}), "invalid-request"),
    "no rows": (lambda: tensors(age={"shape": [0, 1], "data": []}), "invalid-request"),
    "another datatype": (lambda: tensors(age={"datatype": "FP16"}), "invalid-request"),
    "bytes that are not there": (
        lambda: tensors(age={"data": [], "parameters": {"binary_data_size": 16}}),
        "invalid-request",
    ),
    "no data": (lambda: [{k: v for k, v in each.items() if k != "data"} for each in tensors()], "invalid-request"),
    "objects": (lambda: tensors(age={"data": [{}, {}]}), "invalid-request"),
    "rows of two values": (lambda: tensors(age={"data": [[1, 2], [3]]}), "invalid-request"),
    "a value that does not fit": (lambda: tensors(city={"data": ["Oslo", "Rome"]}), "invalid-rows"),
    "a value beyond its bounds": (lambda: tensors(age={"data": [39, 400]}), "invalid-rows"),
    "no text": (lambda: tensors(age={"data": [39, "old"]}), "invalid-rows"),
}


def test_what_does_not_fit_is_refused_and_costs_nothing(http):
    for inputs, kind in WRONG.values():
        refused(http.post(INFER, json={"inputs": inputs()}), 422 if kind == "invalid-rows" else 400, kind)
    assert http.get("/budget").json()["spent"]["rho"] == 0


@pytest.mark.parametrize(
    ("sizes", "raw"),
    [
        ({"note": 20}, b"\x05\0\0\0hello"),
        ({"note": 9}, b"\x05\0\0\0hello"),
        ({"note": 4}, b"\xff\xff\xff\xff"),
        ({"note": 3}, b"\0\0\0"),
        ({"note": 5}, b"\x01\0\0\0\xff"),
        ({"note": 9}, b"\x05\0\0\0hello?"),
        ({"note": -1}, b""),
        ({"note": "9"}, b"\x05\0\0\0hello"),
        ({"age": 7}, b"1234567"),
    ],
)
def test_raw_bytes_that_are_no_values_are_refused(http, sizes, raw):
    inputs = tensors([ROW])
    for each in inputs:
        if each["name"] in sizes:
            del each["data"]
            each["parameters"] = {"binary_data_size": sizes[each["name"]]}
    text = json.dumps({"inputs": inputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    response = http.post(INFER, content=text + raw, headers=headers)
    assert response.status_code == (200 if sizes == {"note": 9} and raw == b"\x05\0\0\0hello" else 400)


def test_values_beyond_the_bounds_are_drawn_back_on_demand(http):
    first = http.post("/predict", json={"instances": [ROW | {"age": 100}]}).json()["predictions"]
    inputs = tensors([ROW | {"age": 400}])
    assert probabilities(http.post(INFER, json={"inputs": inputs, "parameters": {"clip": True}})) == first
