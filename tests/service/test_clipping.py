"""Values beyond the declared bounds are refused, or clipped to them where a request says so, or the training did."""

import io

import numpy as np
import pytest

from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from tests.service.people import COLUMNS, ROW

from .test_http import problem

BEYOND, WITHIN = [0.2, 1.7, -3.0, 0.4], [0.2, 1.0, 0.0, 0.4]


@pytest.fixture(scope="module")
def clipping(head):
    """A head whose records were clipped to their bounds."""
    feature_map = head.certificate.feature_map
    declaration = Declaration(("a", "b", "c", "d"), (0.0,) * 4, (1.0,) * 4, ("red", "green", "blue"), clips=True)
    X = np.vstack([np.eye(4)] * 10)
    records = Records(X, np.arange(40) % 3, declaration, ())
    return train_head(records, Recipe("clipping", feature_map, 1.0), "clipping-lineage")


@pytest.fixture(scope="module")
def shared_service(start_for_module, head):
    return start_for_module(head)


@pytest.fixture
def http(service):
    return service.http(service.add_client())


def array(rows):
    content = io.BytesIO()
    np.save(content, np.array(rows), allow_pickle=False)
    return {"content": content.getvalue(), "headers": {"Content-Type": "application/x-npy"}}


def tensor(rows, **parameters):
    data = {"name": "instances", "shape": [len(rows), len(rows[0])], "datatype": "FP64", "data": rows}
    return {"json": {"inputs": [data], "parameters": parameters}}


WAYS = {
    "in the body": ("/predict", {"json": {"instances": [BEYOND], "clip": True}}),
    "in the query": ("/predict?clip=true", {"json": {"instances": [BEYOND]}}),
    "by name": ("/predict?clip=true", {"json": {"instances": [dict(zip("abcd", BEYOND, strict=True))]}}),
    "as an array": ("/predict?clip=true", array([BEYOND])),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_is_drawn_back_is_the_question_that_it_becomes_and_is_refused_without_the_wish(http, service, way):
    path, asked = WAYS[way]
    without = asked
    if "json" in asked:
        without = {"json": {name: value for name, value in asked["json"].items() if name != "clip"}}
    problem(http.post(path.partition("?")[0], **without), 422, "invalid-rows")
    assert service.spent() == 0
    first = http.post("/predict", json={"instances": [WITHIN]}).json()
    clipped = http.post(path, **asked)
    assert clipped.status_code == 200, clipped.text
    assert clipped.json()["predictions"] == first["predictions"]
    assert clipped.json()["receipt"]["charged_rows"] == 0


def test_so_it_is_by_open_inference(http, head):
    path = f"/v2/models/{head.certificate.name}/infer"
    first = http.post("/predict", json={"instances": [WITHIN]}).json()
    assert http.post(path, **tensor([BEYOND])).status_code == 422
    clipped = http.post(path, **tensor([BEYOND], clip=True)).json()
    probabilities = next(each for each in clipped["outputs"] if each["name"] == "probabilities")
    assert probabilities["data"] == first["predictions"][0]
    assert http.post(path, **tensor([BEYOND], clip="yes")).status_code == 400


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_all_the_same(http, value):
    refused = problem(http.post("/predict?clip=true", **array([WITHIN, [0.2, value, 0.3, 0.4]])), 422, "invalid-rows")
    assert (refused["row"], refused["column"]) == (1, 1)
    assert http.get("/budget").json()["spent"]["rho"] == 0


def test_a_body_and_a_query_that_differ_are_refused(http):
    asked = {"instances": [WITHIN], "clip": False}
    problem(http.post("/predict?clip=true", json=asked), 400, "invalid-request")
    problem(http.post("/predict?clip=perhaps", json={"instances": [WITHIN]}), 400, "invalid-request")


def test_columns_of_a_schema_are_drawn_back_too(start, by_columns):
    service = start(by_columns)
    http = service.http(service.add_client())
    beyond = ROW | {"age": 400, "since": "1850-01-01"}
    problem(http.post("/predict", json={"instances": [beyond]}), 422, "invalid-rows")
    named = {column.name: column for column in COLUMNS}
    within = ROW | {"age": named["age"].maximum, "since": named["since"].minimum}
    first = http.post("/predict", json={"instances": [within]}).json()
    again = http.post("/predict", json={"instances": [beyond], "clip": True}).json()
    assert again["predictions"] == first["predictions"]
    assert again["receipt"]["charged_rows"] == 0
    # A level that was not declared has no bound to be clipped to.
    problem(http.post("/predict?clip=true", json={"instances": [ROW | {"city": "Rome"}]}), 422, "invalid-rows")


def test_a_model_that_was_trained_so_draws_values_back_unless_a_request_has_them_refused(start, head, clipping):
    service = start(clipping)
    http = service.http(service.add_client())
    first = http.post("/predict", json={"instances": [WITHIN]}).json()
    again = http.post("/predict", json={"instances": [BEYOND]}).json()
    assert again["predictions"] == first["predictions"]
    assert again["receipt"]["charged_rows"] == 0
    problem(http.post("/predict?clip=false", json={"instances": [BEYOND]}), 422, "invalid-rows")
    problem(http.post("/predict", json={"instances": [BEYOND], "clip": False}), 422, "invalid-rows")
    assert http.get(f"/models/{clipping.certificate.name}").json()["clips"] is True
    assert "clips" not in head.certificate.public()
    assert clipping.certificate.differences() == []
