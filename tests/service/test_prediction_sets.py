"""Prediction sets over real HTTP: asked for in every protocol, at no cost, and refused where there are none."""

import io
import json

import numpy as np
import pytest

from dpserve.client import Client, ServiceError
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.fit import Request, fit
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_named

from .test_http import problem

ROWS = np.random.default_rng(1).uniform(0, 1, (20, 2))


def model_of(folder, kind, sets):
    generator = np.random.default_rng(0)
    X = generator.uniform(size=(4000, 2))
    y = (X.sum(axis=1) + generator.normal(scale=0.3, size=4000) > 1).astype(np.int64)
    records = Records(X, y, Declaration(("a", "b"), (0.0, 0.0), (1.0, 1.0), ("no", "yes")), tuple(map(bytes, X)))
    own, price = kind_named(kind).options(), whole_picorho("rho:0.1")
    request = Request(name="sums", lineage="people", kind=own, price=price, n=4000, prediction_sets=sets)
    fit(records, request, folder / "bundle", state=folder)
    return load_model(folder / "bundle")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_of(tmp_path_factory.mktemp("sets"), "dpsgd", "class")


@pytest.fixture(scope="module")
def shared_service(start_for_module, model):
    return start_for_module.release(model)


def expected(model, coverage):
    return model.certificate.prediction_sets.sets_of(model.answers(ROWS)[0], coverage)


def named(inside):
    return [[name for name, is_in in zip(("no", "yes"), row, strict=True) if is_in] for row in inside]


def test_they_come_with_an_answer_that_asks_for_them_at_no_cost(service, model):
    http = service.http(service.add_client())
    plain = http.post("/predict", json={"instances": ROWS.tolist()}).json()
    assert "prediction_sets" not in plain
    spent = service.spent()
    for answer in (
        http.post("/predict", json={"instances": ROWS.tolist(), "coverage": 0.9}),
        http.post("/predict?coverage=0.9", json={"instances": ROWS.tolist()}),
    ):
        sets = answer.json()["prediction_sets"]
        assert sets["coverage"] == 0.9
        assert sets["by"] == "class"
        assert sets["classes"] == named(expected(model, 900))
        assert answer.json()["predictions"] == plain["predictions"]
    assert service.spent() == spent


def test_an_array_has_the_rule_in_a_header(service, model):
    http = service.http(service.add_client())
    body = io.BytesIO()
    np.save(body, ROWS)
    headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
    answer = http.post("/predict?coverage=0.9", content=body.getvalue(), headers=headers)
    rule = json.loads(answer.headers["dpserve-prediction-sets"])
    assert rule["classes"] == []
    inside = np.load(io.BytesIO(answer.content)) >= np.asarray(rule["least"])
    np.testing.assert_array_equal(inside, expected(model, 900))


def test_open_inference_has_them_as_an_output(service, model):
    http = service.http(service.add_client())
    asked = {"inputs": [{"name": "instances", "shape": [20, 2], "datatype": "FP64", "data": ROWS.ravel().tolist()}]}
    path = "/v2/models/sums/infer"
    without = http.post(path, json=asked).json()
    assert "prediction_set" not in [output["name"] for output in without["outputs"]]
    answer = http.post(path, json=asked | {"parameters": {"coverage": 0.9}}).json()
    (output,) = [output for output in answer["outputs"] if output["name"] == "prediction_set"]
    assert (output["datatype"], output["shape"]) == ("BOOL", [20, 2])
    assert output["data"] == expected(model, 900).ravel().tolist()
    assert "prediction_set" in [output["name"] for output in http.get("/v2/models/sums").json()["outputs"]]
    for wrong in ({"coverage": "much"}, {"coverage": 0.2}, {"coverage": True}):
        assert http.post(path, json=asked | {"parameters": wrong}).status_code == 400
    named_alone = http.post(path, json=asked | {"outputs": [{"name": "prediction_set"}]})
    assert named_alone.status_code == 400


def test_the_client_returns_them_and_scikit_learns_order(service, model):
    key = service.add_client()
    with Client(service.url, key) as client, Client(service.url, key, sorted_classes=True) as ordered:
        np.testing.assert_array_equal(client.predict_set(ROWS, coverage=0.9), expected(model, 900))
        np.testing.assert_array_equal(ordered.predict_set(ROWS, coverage=0.9), expected(model, 900))
        with pytest.raises(ServiceError) as refused:
            client.predict_set(ROWS, coverage=0.3)
    assert refused.value.status == 400


def test_other_coverages_and_two_that_differ_are_refused_and_cost_nothing(service):
    http = service.http(service.add_client())
    for wrong in (0.4, 1.0, -1, "nan", "inf", "x"):
        answer = http.post(f"/predict?coverage={wrong}", json={"instances": ROWS.tolist()})
        problem(answer, 400, "invalid-request")
    answer = http.post("/predict?coverage=0.8", json={"instances": ROWS.tolist(), "coverage": 0.9})
    problem(answer, 400, "invalid-request")
    assert service.spent() == 0


def test_a_model_without_them_says_so(start, tmp_path, head):
    without = start.release(model_of(tmp_path, "class-sums", "off"))
    answer = without.http(without.add_client()).post("/predict?coverage=0.9", json={"instances": ROWS.tolist()})
    problem(answer, 400, "invalid-request")
    metered = start(head)
    answer = metered.http(metered.add_client()).post("/predict", json={"instances": [[0.5] * 4], "coverage": 0.9})
    problem(answer, 400, "invalid-request")
    assert metered.spent() == 0


def test_strangers_are_told_of_them_and_not_what_was_counted(service):
    shown = service.http().get("/models/sums").json()["prediction_sets"]
    assert shown["by"] == "class"
    assert "released" not in shown


def test_undecided_is_absent_where_nothing_is_known(service):
    http = service.http(service.add_client())
    noise = http.post("/predict?noise=true", json={"instances": ROWS.tolist()}).json()["noise"]
    assert "undecided" not in noise
    assert noise["no_interval"]
    assert noise["lower"] is None
    with Client(service.url, service.add_client("bob")) as client:
        assert client.answers(ROWS).undecided is None
