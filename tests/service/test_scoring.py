"""Kinds of bodies: JSON by any name that clients give it, with dates as pandas writes them; others are refused."""

import json
import re
from importlib.metadata import version

import pandas as pd
import pytest

from tests.service.people import ROW

from .test_http import PRICE, problem

ROWS = [[0.1, 0.2, 0.3, 0.4], [0.9, 0.1, 0.5, 0.0]]


@pytest.fixture(scope="module")
def of_numbers(start_for_module, head):
    return start_for_module(head)


@pytest.fixture
def http(of_numbers, request):
    return of_numbers.http(of_numbers.add_client(f"c{abs(hash(request.node.nodeid))}", rho=20 * PRICE / 1e12))


def test_a_body_of_another_kind_is_refused_with_the_kinds_that_are_read(http):
    body = json.dumps({"instances": ROWS})
    for kind in (
        "application/xml",
        "text/csv",
        "application/vnd.apache.parquet",
        "multipart/form-data; boundary=x",
        "nonsense",
    ):
        refused = http.post("/predict", content=body, headers={"Content-Type": kind})
        said = problem(refused, 415, "invalid-request")["detail"]
        assert "send application/json or application/x-npy" in said
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


def test_a_service_says_that_it_is_well(of_numbers):
    http = of_numbers.http()
    assert (http.get("/health").status_code, http.get("/health").json()) == (200, {"status": "ready"})
    assert http.get("/version").text == version("dpserve")


def test_a_timestamp_of_pandas_at_midnight_is_a_date(start, by_columns):
    service = start(by_columns, lineage_rho=20 * PRICE / 1e12)
    http = service.http(service.add_client())

    def ask(**changed):
        return http.post("/predict", json={"instances": [ROW | changed]})

    first, absent = ask().json(), ask(since=None).json()
    midnight = pd.Timestamp(ROW["since"])
    for since in (midnight, midnight.isoformat(), midnight.tz_localize("UTC"), midnight.tz_localize("UTC").isoformat()):
        again = ask(since=str(since))
        assert again.json()["predictions"] == first["predictions"], again.text
        assert again.json()["receipt"]["charged_rows"] == 0
    nat = ask(since=str(pd.NaT)).json()
    assert (nat["predictions"], nat["receipt"]["charged_rows"]) == (absent["predictions"], 0)
    for since in ("2011-05-06T00:00:00+02:00", "2011-05-06T12:00:00"):
        problem(ask(since=since), 422, "invalid-rows")


def test_a_list_of_numbers_is_told_to_name_the_columns(start, by_columns):
    service = start(by_columns)
    refused = service.http(service.add_client()).post("/predict", json={"instances": [[1, 2, 3]]})
    told = problem(refused, 422, "invalid-rows")
    assert told["row"] == 0
    assert set(ROW) <= set(re.findall(r'"(\w+)": ', told["detail"]))
