"""The logs of a running service: one JSON object a line, each request with its id, and nothing of what was asked."""

import json
import re

import httpx
import pytest

MARKED = 31.415926535
"""A feature value that is nowhere else."""

MARKS = ("31.415926", "marked", "dp_")


@pytest.fixture
def logs(run, bundle):
    """Ask a service everything with marked values, stop it, and return its output and the ids that it gave."""
    process, address, before = run.start_and_read(
        bundle, "--port", 0, "--epsilon", 3, "--delta", 1e-6, "--price", "rho:0.001", "--log-format", "json",
    )  # fmt: skip
    key = run("clients", "add", "alice", "--rho", 0.0025, "--delta", 1e-6).stdout.strip()
    ids = []
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as http:

        def ask(method, path, **more):
            response = http.request(method, path, **more)
            ids.append((response.headers["x-request-id"], response.status_code))

        named = {"X-Request-ID": "mine-1", "Idempotency-Key": "marked-key"}
        ask("POST", "/predict", json={"instances": [[MARKED, 2000.0]]}, headers=named)
        ask("POST", "/predict", json={"instances": [[MARKED, 9e9]]})
        ask("POST", "/predict", json={"instances": [[MARKED, "marked"]]})
        ask("POST", "/predict", content=b'{"marked')
        ask("POST", "/predict", json={"instances": [[MARKED, 1.0], [MARKED, 2.0]]})
        tensor = {"name": "instances", "shape": [1, 2], "datatype": "FP64", "data": [MARKED, 7.0]}
        ask("POST", "/v2/models/model/infer", json={"id": "marked", "inputs": [tensor]})
        ask("GET", f"/budget?x={MARKED}")
        ask("GET", f"/marked/{MARKED}")
        ask("GET", "/models/marked", headers={"X-Request-ID": "not an id"})
        ask("GET", "/budget", headers={"Authorization": "Bearer dp_marked"})
        ask("GET", "/budget")
    owner = re.search(r"owner's port is (\S+),", before[0])[1]
    with httpx.Client(base_url=owner, headers={"Authorization": "Bearer dp_marked"}) as http:
        for path in ("/api/models", "/api/lineages/marked/clients", "/marked"):
            response = http.get(path)
            ids.append((response.headers["x-request-id"], response.status_code))
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    return "\n".join([*before, output]), errors, ids


def test_every_line_is_json_and_says_nothing_of_what_was_asked(logs):
    output, errors, ids = logs
    for mark in MARKS:
        assert mark not in output + errors
    lines = [json.loads(line) for line in (output + errors).splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    said = [line["message"] for line in lines if line["logger"] == "dpserve"]
    assert [re.split(r" is\b|:", each)[0] for each in said] == ["the owner's port", "serving model", "stopped serving"]
    assert not [line for line in lines if line["logger"] == "uvicorn.error"]
    requests = [line for line in lines if line["message"] == "request" and line["route"] != "/livez"]
    assert [(line["request_id"], line["status"]) for line in requests] == ids
    assert [status for _, status in ids] == [
        200,
        422,
        422,
        400,
        403,
        200,
        400,  # an unknown parameter
        404,
        404,
        401,
        200,
        401,
        401,
        404,
    ]
    assert ids[0][0] == "mine-1"
    assert all(re.fullmatch("[0-9a-f]{16}", given) for given, _ in ids[1:])
    assert {line["route"] for line in requests} == {
        "/predict", "/v2/models/{name}/infer", "/budget", "other", "/models/{name}",
        "/api/models", "/api/lineages/{lineage}/clients",
    }  # fmt: skip


def test_an_unknown_format_is_refused(run, bundle):
    refused = run("serve", bundle, "--log-format", "xml", status=2).stderr
    assert "Invalid value for --log-format" in refused
    assert "'xml'" in refused
