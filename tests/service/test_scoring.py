"""MLflow's scoring protocol and CSV bodies are other ways to say the same rows: the same questions, at one price."""

import json
from importlib.metadata import version

import jsonschema
import numpy as np
import pandas as pd
import pytest

from tests.service.people import COLUMNS, ROW

from .test_http import PRICE, problem

ROWS = [[0.1, 0.2, 0.3, 0.4], [0.9, 0.1, 0.5, 0.0]]
FRAME = pd.DataFrame(ROWS, columns=list("abcd"))
RECORDS = FRAME.to_dict("records")


@pytest.fixture(scope="module")
def of_numbers(start_for_module, head):
    return start_for_module(head)


@pytest.fixture
def http(of_numbers, request):
    return of_numbers.http(of_numbers.add_client(f"c{abs(hash(request.node.nodeid))}", rho=20 * PRICE / 1e12))


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": FRAME.to_dict("split")},
        {"dataframe_split": FRAME[list("dbca")].to_dict("split")},
        {"dataframe_split": pd.DataFrame(ROWS).to_dict("split")},
        {"dataframe_split": {"data": ROWS}},
        {"dataframe_records": RECORDS},
        {"dataframe_records": [dict(reversed(row.items())) for row in RECORDS]},
        {"instances": ROWS},
        {"instances": RECORDS},
        {"inputs": ROWS},
        {"inputs": RECORDS},
        {"inputs": FRAME.to_dict("list")},
        {"inputs": ROWS, "params": None},
        {"inputs": ROWS, "params": {}},
    ],
    ids=lambda body: " ".join(body),
)
def test_every_form_asks_the_same_questions(http, body):
    answered = http.post("/invocations", json=body)
    assert answered.status_code == 200, answered.text
    again = http.post("/predict", json={"instances": ROWS}).json()
    assert again["predictions"] == answered.json()["predictions"]
    assert (answered.json()["receipt"]["charged_rows"], again["receipt"]["charged_rows"]) == (2, 0)


@pytest.mark.parametrize("path", ["/predict", "/invocations"])
@pytest.mark.parametrize(
    "text",
    [
        FRAME.to_csv(index=False),
        FRAME[list("cdab")].to_csv(index=False, lineterminator="\r\n"),
        "\ufeff a, b,c,d\n\n 0.1,2e-1, 0.3,.4\n0.9,0.1,0.5,0",
        FRAME.to_csv(index=False, sep=";"),
        FRAME.to_csv(index=False, sep="\t"),
        '"a","b","c","d"\n"0.1","0.2","0.3","0.4"\n0.9,0.1,0.5,-0\n',
    ],
)
def test_csv_is_matched_by_its_header(http, path, text):
    answered = http.post(path, content=text.encode(), headers={"Content-Type": "text/csv; charset=utf-8"})
    assert answered.status_code == 200, answered.text
    again = http.post("/predict", json={"instances": ROWS}).json()
    assert again["predictions"] == answered.json()["predictions"]
    assert again["receipt"]["charged_rows"] == 0


@pytest.mark.parametrize(
    ("text", "said", "row"),
    [
        ("a,b,c\n0.1,0.2,0.3\n", "'d' is missing", 0),
        ("a,b,c,d,e\n0,0,0,0,0\n", "'e' is unknown", 0),
        ("a,b,c,d,a\n0,0,0,0,0\n", "'a' is there more than once", None),
        ("a,b,c,d\n0,0,0,0\n0,0,0\n", "row 1 has 3 values, and there are 4 columns", 1),
        ("a,b,c,d\n0,0,0,0\n0,0,0,x\n", "row 1, column 3 ('d') must be a number", 1),
        ("a,b,c,d\n0,0,0,\n", "row 0, column 3 ('d') must be a number", 0),
        ("a,b,c,d\n0,0,0,nan\n", "declared bounds", 0),
        ("a,b,c,d\n0,0,0,1_0\n", "must be a number", 0),
        ("a,b,c,d\n0,0,0,7\n", "declared bounds", 0),
        ("a,b,c,d\n", "empty", None),
        ("0.1,0.2,0.3,0.4\n0.1,0.2,0.3,0.4\n", "the first line of CSV names the columns", None),
        ("", "the first line of CSV names the columns", None),
    ],
)
def test_csv_that_does_not_fit_costs_nothing(http, text, said, row):
    refused = problem(http.post("/predict", content=text, headers={"Content-Type": "text/csv"}), 422, "invalid-rows")
    assert said in refused["detail"]
    assert refused.get("row") == row
    assert http.get("/budget").json()["spent"]["rho"] == 0


@pytest.mark.parametrize("text", [b"a,b\xff,c,d\n0,0,0,0\n", b'a,b,c,d\n"0,0,0,0\n', b'a,b,c,d\n0,0,0,"0"0\n'])
def test_what_is_not_csv_is_malformed(http, text):
    problem(http.post("/predict", content=text, headers={"Content-Type": "text/csv"}), 400, "invalid-request")


@pytest.mark.parametrize("path", ["/predict", "/invocations"])
def test_a_body_of_another_kind_is_refused_with_the_kinds_that_are_read(http, path):
    body = json.dumps({"instances": ROWS})
    for kind in ("application/xml", "application/vnd.apache.parquet", "multipart/form-data; boundary=x", "nonsense"):
        refused = http.post(path, content=body, headers={"Content-Type": kind})
        said = problem(refused, 415, "invalid-request")["detail"]
        assert "send application/json, text/csv or application/x-npy" in said
    assert http.get("/budget").json()["spent"]["rho"] == 0


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "application/json; format=pandas-split",
        "Application/Vnd.owner+JSON",
        "application/x-www-form-urlencoded",
        "text/plain;charset=UTF-8",
    ],
)
def test_json_is_read_where_its_kind_is_said_or_left_to_the_client(http, kind):
    headers = {"Content-Type": kind} if kind else {}
    answered = http.post("/predict", content=json.dumps({"instances": ROWS}), headers=headers)
    assert answered.status_code == 200, answered.text


@pytest.mark.parametrize(
    ("body", "status", "kind", "said"),
    [
        ({}, 422, "invalid-rows", "exactly one of dataframe_split, dataframe_records, instances, inputs"),
        ({"inputs": ROWS, "instances": ROWS}, 422, "invalid-rows", "exactly one of"),
        ({"columns": list("abcd"), "data": ROWS}, 422, "invalid-rows", "unknown field `columns`"),
        (ROWS, 422, "invalid-rows", "got `array`"),
        ({"inputs": []}, 422, "invalid-rows", "empty"),
        ({"inputs": [[0, 0, 0, "x"]]}, 422, "invalid-rows", "inputs[0][3]"),
        ({"inputs": {"a": [1, 1], "b": [1]}}, 422, "invalid-rows", "as many values"),
        ({"inputs": {"a": [1]}}, 422, "invalid-rows", "row 0, columns 'b', 'c', 'd' are missing"),
        ({"dataframe_split": {"columns": ["a", "a", "c", "d"], "data": ROWS}}, 422, "invalid-rows", "more than once"),
        ({"dataframe_split": {"columns": ["a"], "data": ROWS}}, 422, "invalid-rows", "'b', 'c', 'd' are missing"),
        ({"dataframe_split": {"columns": list("abcd"), "data": [[1]]}}, 422, "invalid-rows", "row 0 has 1 values"),
        ({"dataframe_split": {"data": [[0, 0, 0, None]]}}, 422, "invalid-rows", "row 0, column 3 must be a finite"),
        ({"dataframe_records": [RECORDS[0], {"a": 1}]}, 422, "invalid-rows", "row 1"),
        ({"inputs": ROWS, "params": {"temperature": 1}}, 400, "invalid-request", "params takes true or false"),
        ({"inputs": ROWS, "params": {"clip": 3}}, 400, "invalid-request", "params takes true or false"),
    ],
)
def test_what_does_not_fit_is_refused_and_costs_nothing(http, body, status, kind, said):
    answered = http.post("/invocations", json=body)
    assert said in problem(answered, status, kind)["detail"]
    assert http.get("/budget").json()["spent"]["rho"] == 0


def test_what_is_no_json_is_malformed(http):
    problem(http.post("/invocations", content=b"{"), 400, "malformed-json")
    problem(http.post("/invocations", content=b"\x1f\x8b"), 400, "invalid-request")
    problem(http.post("/invocations", content=b'{"inputs": [[0, 0, 0, 0]], "inputs": []}'), 400, "invalid-request")
    problem(http.post("/invocations", content=b'{"inputs": [[0, 0, 0, NaN]'), 400, "malformed-json")
    problem(http.post("/invocations", content=b'{"inputs": [[0, 0, -Infinity, NaN]]}'), 400, "malformed-json")
    problem(http.post("/invocations", content=b'{"inputs": [[0, 0, 0, NaN]]}'), 422, "invalid-rows")


def test_all_rows_are_answered_or_none(http):
    rows = {"inputs": np.linspace(0, 1, 84).reshape(21, 4).tolist()}
    problem(http.post("/invocations", json=rows), 403, "budget-exhausted")
    assert http.get("/budget").json()["spent"]["rho"] == 0
    quoted = http.post("/invocations?dry_run=true", json=rows).json()["quote"]
    assert (quoted["new_rows"], quoted["admitted"]) == (21, False)


def test_whoever_has_no_key_is_told_so(of_numbers):
    problem(of_numbers.http().post("/invocations", json={"inputs": ROWS}), 401, "unauthenticated")
    problem(of_numbers.http().get("/invocations"), 405, "method-not-allowed")


def test_a_container_says_that_it_is_well(of_numbers):
    http = of_numbers.http()
    for path in ("/ping", "/health"):
        assert (http.get(path).status_code, http.get(path).json()) == (200, {"status": "ready"})
    assert http.get("/version").text == version("dpserve")


def test_the_document_describes_both(http):
    document = http.get("/openapi.json").json()
    schema = document["components"]["schemas"]["InvocationsRequest"]
    for example in schema["examples"]:
        assert http.post("/invocations", json=example).status_code == 200
    jsonschema.validate({"dataframe_split": FRAME.to_dict("split")}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"dataframe_records": RECORDS, "inputs": ROWS}, schema)
    for path in ("/predict", "/invocations"):
        text = document["paths"][path]["post"]["requestBody"]["content"]["text/csv"]["example"]
        assert http.post(path, content=text, headers={"Content-Type": "text/csv"}).status_code == 200


class TestOfAModelWithASchema:
    @pytest.fixture
    def http(self, start, by_columns):
        service = start(by_columns, lineage_rho=20 * PRICE / 1e12)
        return service.http(service.add_client("alice", rho=20 * PRICE / 1e12))

    def test_frames_and_csv_hold_what_json_holds(self, http):
        rows = [ROW, ROW | {"city": None, "note": 'said "no", twice'}]
        answered = http.post("/predict", json={"instances": rows}).json()
        frame = pd.DataFrame(rows)
        split = json.loads(frame.to_json(orient="split"))
        for path, sent in (
            ("/invocations", {"json": {"dataframe_split": split}}),
            ("/invocations", {"json": {"dataframe_records": rows}}),
            ("/invocations", {"content": json.dumps({"dataframe_split": split}).replace("null", "NaN")}),
            ("/predict", {"content": frame.to_csv(index=False), "headers": {"Content-Type": "text/csv"}}),
        ):
            again = http.post(path, **sent)
            assert again.status_code == 200, again.text
            assert again.json()["predictions"] == answered["predictions"]
            assert again.json()["receipt"]["charged_rows"] == 0

    def test_a_list_of_numbers_is_told_to_name_the_columns(self, http):
        refused = http.post("/predict", json={"instances": [[1, 2, 3]]})
        assert "or an object with a value for each column" in problem(refused, 422, "invalid-rows")["detail"]

    def test_its_document_is_answered(self, http):
        document = http.get("/openapi.json").json()
        for example in document["components"]["schemas"]["InvocationsRequest"]["examples"]:
            assert http.post("/invocations", json=example).status_code == 200
        text = document["paths"]["/invocations"]["post"]["requestBody"]["content"]["text/csv"]["example"]
        assert text.splitlines()[0] == ",".join(column.name for column in COLUMNS)
        assert http.post("/predict", content=text, headers={"Content-Type": "text/csv"}).status_code == 200


def test_a_timestamp_of_pandas_at_midnight_is_a_date(start, by_columns):
    """As MLflow's client writes data frames."""
    service = start(by_columns, lineage_rho=20 * PRICE / 1e12)
    http = service.http(service.add_client())
    first = http.post("/predict", json={"instances": [ROW]}).json()
    frame = pd.DataFrame([ROW]).assign(since=pd.Timestamp(ROW["since"]))
    for split in (json.loads(frame.to_json(orient="split", date_format="iso")), frame.astype(str).to_dict("split")):
        again = http.post("/invocations", json={"dataframe_split": split})
        assert again.json()["predictions"] == first["predictions"], again.text
        assert again.json()["receipt"]["charged_rows"] == 0
    in_utc = pd.DataFrame([ROW]).assign(since=pd.Timestamp(ROW["since"], tz="UTC"))
    for frame in (in_utc, in_utc.assign(since=in_utc.since.map(pd.Timestamp.isoformat))):
        again = http.post("/invocations", json={"dataframe_split": frame.astype(str).to_dict("split")})
        assert again.json()["receipt"]["charged_rows"] == 0, again.text
    absent = http.post("/predict", json={"instances": [ROW | {"since": None}]}).json()
    nat = http.post("/invocations", json={"dataframe_records": [ROW | {"since": str(pd.NaT)}]}).json()
    assert (nat["predictions"], nat["receipt"]["charged_rows"]) == (absent["predictions"], 0)
    elsewhere = http.post("/invocations", json={"dataframe_records": [ROW | {"since": "2011-05-06T00:00:00+02:00"}]})
    problem(elsewhere, 422, "invalid-rows")
    noon = http.post("/invocations", json={"dataframe_records": [ROW | {"since": "2011-05-06T12:00:00"}]})
    problem(noon, 422, "invalid-rows")
