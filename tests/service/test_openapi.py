"""The OpenAPI document is true: schemathesis asks a running service by it, and finds nothing to object to."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFIGURATION = "schemathesis.toml"


@pytest.mark.slow
def test_schemathesis_finds_no_failure(service, tmp_path):
    for name in (CONFIGURATION, "schemathesis_hooks.py"):  # it looks for its hooks, and writes, where it runs
        shutil.copy(Path(__file__).parent / name, tmp_path)
    key = service.add_client()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIGURATION, "run"),
            *(f"{service.url}/openapi.json", "--header", f"Authorization: Bearer {key}", "--checks", "all"),
            *("--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--seed", "1", "--no-color"),
        ],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"Tested: (\d+)", done.stdout)
    assert int(found[1]) == len([*operations(service)])


def operations(service):
    for operation in service.http().get("/openapi.json").json()["paths"].values():
        yield from operation


def reference(name):
    return {"$ref": f"#/components/schemas/{name}"}


def test_the_document_is_exact_for_the_model(service):
    document = service.http().get("/openapi.json").json()
    predict = document["paths"]["/predict"]["post"]
    assert predict["requestBody"]["content"]["application/json"]["schema"] == reference("PredictRequest")
    named, rows = document["components"]["schemas"]["PredictRequest"]["properties"]["instances"]["anyOf"]
    assert rows["maxItems"] == named["maxItems"] == service.predictor.largest_batch
    assert named["items"]["properties"]["a"] == {"type": "number", "minimum": 0.0, "maximum": 1.0}
    assert rows["items"] == {
        "type": "array",
        "minItems": 4,
        "maxItems": 4,
        "items": {"type": "number", "minimum": 0.0, "maximum": 1.0},
    }
    text = json.dumps(document)
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= set(document["components"]["schemas"])
    assert service.predictor.lineage not in text


def test_a_parameter_that_cannot_be_read_is_a_problem_like_any_other(service):
    response = service.http(service.add_client()).get("/budget/receipts?count=marked")
    assert response.status_code == 422
    assert response.json()["type"] == "urn:dpserve:problem:invalid-request"
    assert "marked" not in response.text


def test_the_page_of_the_document_loads_nothing_from_elsewhere(service):
    http = service.http()
    page = http.get("/docs")
    assert page.status_code == 200
    assert "script-src 'self';" in page.headers["content-security-policy"]
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert loaded
    for path in loaded:
        assert path.startswith("page/"), path
        assert http.get(f"/{path}").status_code == 200
    assert not re.search(r"https?://|(?:^|[^:/\w])//", page.text.replace("http://www.w3.org", ""))
    assert http.get("/redoc").status_code == 404
