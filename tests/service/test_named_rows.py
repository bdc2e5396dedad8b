"""Rows by the names of their columns are encoded as the model's schema says, and are the questions that lists are."""

import jsonschema
import pytest

from dpserve.training.inputs.columns import encode_rows
from tests.service.people import COLUMNS, ROW

from .test_http import PRICE, problem


@pytest.fixture(scope="module")
def shared_service(start_for_module, by_columns):
    return start_for_module(by_columns)


@pytest.fixture
def http(service):
    return service.http(service.add_client(rho=20 * PRICE / 1e12))


def test_a_row_by_name_is_the_question_that_its_numbers_are(http):
    by_name = http.post("/predict", json={"instances": [ROW, ROW | {"city": None, "note": None}]})
    assert by_name.status_code == 200, by_name.text
    in_another_order = http.post("/predict", json={"instances": [dict(reversed(ROW.items()))]}).json()
    assert in_another_order["predictions"] == by_name.json()["predictions"][:1]
    assert in_another_order["receipt"]["charged_rows"] == 0
    numbers = encode_rows(COLUMNS, [ROW]).tolist()
    again = http.post("/predict", json={"instances": numbers}).json()
    assert again["predictions"] == by_name.json()["predictions"][:1]
    assert again["receipt"]["charged_rows"] == 0


@pytest.mark.parametrize(
    ("rows", "row", "column", "said"),
    [
        ([ROW, ROW | {"city": "Rome"}], 1, "city", "'city'"),
        ([ROW | {"age": 101}], 0, "age", "'age'"),
        ([ROW | {"age": None}], 0, "age", "a value is required"),
        ([ROW | {"since": "yesterday"}], 0, "since", "'since'"),
        ([{name: value for name, value in ROW.items() if name != "age"}], 0, "age", "age"),
        ([ROW | {"income": 1}], 0, None, "income"),
        ([ROW, [1.0, 2.0]], None, None, "either every row"),
        ([[1.0, 2.0]], 0, None, 'send an object, as {"age": '),
        ([["web"]], 0, None, 'send an object, as {"age": '),
        ([ROW | {"age": [1]}], 0, None, "an object with a value for each column"),
        ([], None, None, "empty"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place_and_costs_nothing(http, rows, row, column, said):
    refused = problem(http.post("/predict", json={"instances": rows}), 422, "invalid-rows")
    assert said in refused["detail"]
    assert refused.get("row") == row
    assert refused.get("column") == (None if column is None else list(ROW).index(column))
    assert http.get("/budget").json()["spent"]["rho"] == 0


def test_long_texts_are_counted_in_parts_before_they_are_charged(http, service):
    rows = [ROW | {"note": f"{place} came once more, " * 200, "age": place} for place in range(9)]
    X, unencoded = service.predictor.check_named(rows)
    (texts,) = unencoded
    assert not texts.deep
    assert not X[:, -16:].any()
    assert not service.predictor.check_named([ROW] * 50)[1]  # together short
    dry = http.post("/predict?dry_run=true", json={"instances": rows}).json()["quote"]
    assert dry["new_rows"] == 9
    by_name = http.post("/predict", json={"instances": rows}).json()
    assert by_name["receipt"]["charged_rows"] == 9
    numbers = http.post("/predict", json={"instances": encode_rows(COLUMNS, rows).tolist()}).json()
    assert numbers["predictions"] == by_name["predictions"]
    assert numbers["receipt"]["charged_rows"] == 0
    alone = http.post("/predict?dry_run=true", json={"instances": rows[4:5]}).json()["quote"]
    assert alone["free"] == [True]


def test_openapi_describes_the_columns_and_its_examples_are_answered(http):
    schema = http.get("/openapi.json").json()["components"]["schemas"]["PredictRequest"]
    row = schema["properties"]["instances"]["anyOf"][0]["items"]
    assert row["properties"]["city"] == {"anyOf": [{"enum": ["Oslo", "Lima"]}, {"type": "null"}]}
    assert row["required"] == [column.name for column in COLUMNS]
    jsonschema.validate(ROW, row)
    for example in schema["examples"]:
        assert http.post("/predict", json=example).status_code == 200


OTHERS = [
    ({"a": 0.1, "b": 0.2, "c": 0.3}, "'d' is missing"),
    ({"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4, "e": 0.5}, "'e' is unknown"),
    (
        {"a": "x", "b": 0.2, "c": 0.3, "e": 0.5},
        "row 0, column 'd' is missing; column 'e' is unknown; the model takes a, b, c, d; "
        "column 0 ('a') must be a number",
    ),
    ({"a": 1.4, "b": 0.2, "c": -1.0, "d": 0.4}, "declared bounds; column 2 ('c') must"),
    ({"a": 0.1, "b": 0.2, "c": 0.3, "d": True}, "must be a number"),
    ({"a": 0.1, "b": 0.2, "c": 0.3, "d": "0.4"}, "must be a number"),
]


def test_a_model_without_a_schema_takes_rows_by_the_names_of_its_features(own_service):
    http = own_service.http(own_service.add_client())
    by_name = http.post("/predict", json={"instances": [{"d": 0.4, "c": 0.3, "b": 0.2, "a": 0.1}]}).json()
    by_number = http.post("/predict", json={"instances": [[0.1, 0.2, 0.3, 0.4]]}).json()
    assert by_number["predictions"] == by_name["predictions"]
    assert by_number["receipt"]["charged_rows"] == 0
    for row, said in OTHERS:
        refused = problem(http.post("/predict", json={"instances": [row]}), 422, "invalid-rows")
        assert said in refused["detail"]
        assert refused["row"] == 0
    assert own_service.spent() == PRICE
