"""`GET /metrics` exports what docs/metrics.md lists, by fixed labels, and the same whatever the records were."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dpserve.accounting.ledger import key_digest
from dpserve.service.admin.app import AdminPort, admin_port
from dpserve.service.http.app import HttpOptions
from dpserve.service.http.problems import ProblemType
from dpserve.service.listener import bind, url_of
from dpserve.service.telemetry.exposition import exposition
from dpserve.service.telemetry.metrics import MULTIPROCESS_FOLDER, Metrics, counts_in
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from tests.topologies import wait_until

from .test_http import PRICE, ROW
from .test_openinference import body_of

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
KEY = "the-owner's-key-of-these-tests"
BODY = {"instances": [ROW, ROW, [0.5] * 4]}


@pytest.fixture
def service(own_service):
    return own_service


def exported(service, journals):
    """The families that the owner's port of a service exports, by name."""
    listening = bind()
    admin = AdminPort(listening, key_digest(KEY), folders={"journals": journals})
    opened = admin_port(admin, service.models, service.ledger, service.metrics, service.counts)
    service.call(opened.__aenter__())
    try:
        service.http("not the owner's key").get(f"{url_of(listening)}/api/models")
        service.http(KEY).get(f"{url_of(listening)}/api/marked")
        response = service.http(KEY).get(f"{url_of(listening)}/metrics")
    finally:
        service.call(opened.__aexit__(None, None, None))
        listening.close()
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def values(family):
    return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in family.samples}


def listed():
    """The metrics of docs/metrics.md: kind and labels by name."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\| [^|]+ \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def use(service):
    """Ask for one thing of each kind."""
    http = service.http(service.add_client(rho=3.5 * PRICE / 1e12))
    http.post("/predict", json=BODY)
    http.post("/predict", json=BODY)
    http.post("/predict", json={"instances": [[9.0] * 4]})
    http.post("/predict", json={"instances": [[0.1 * place] * 4 for place in range(5)]})
    http.post("/v2/models/colours/infer", json=body_of([[0.2] * 4]))
    http.get("/budget")
    http.get("/marked-path?marked=query")
    http.get("/v2/models/marked-model")
    service.http("marked-key").get("/budget")


def test_what_is_exported_is_what_the_page_lists_with_right_counts_and_labels_from_fixed_lists(service, tmp_path):
    use(service)
    used = exported(service, tmp_path)
    page = listed()
    # With Sentinels alone: tests/deployment/test_ha.py
    assert page.pop("dpserve_store_can_promote") == ("gauge", set())
    labels = {
        name: {label for sample in family.samples for label in sample.labels} - {"le"} for name, family in used.items()
    }
    assert {name: (family.type, labels[name]) for name, family in used.items()} == page
    for name, family in used.items():
        assert not any("marked" in str(sample.labels) for sample in family.samples), name
    kinds = {kind.word for kind in ProblemType} | {"other"}
    assert {sample.labels["type"] for sample in used["dpserve_refusals"].samples} <= kinds
    assert values(used["dpserve_rows"]) == {
        ("dpserve_rows_total", ("model", "colours"), ("outcome", "charged")): 3,
        ("dpserve_rows_total", ("model", "colours"), ("outcome", "free")): 4,
    }
    refusals = {kind: value for (_, _, (_, kind)), value in values(used["dpserve_refusals"]).items()}
    refused = ("invalid-rows", "budget-exhausted", "not-found", "unknown-model", "unauthenticated")
    assert refusals == dict.fromkeys(refused, 1)
    requests = {
        (dict(labels)["route"], dict(labels)["status"]): value
        for (_, *labels), value in values(used["dpserve_requests"]).items()
    }
    assert requests == {
        ("/predict", "200"): 2,
        ("/predict", "422"): 1,
        ("/predict", "403"): 1,
        ("/v2/models/{name}/infer", "200"): 1,
        ("/budget", "200"): 1,
        ("/budget", "401"): 1,
        ("other", "404"): 1,
        ("/v2/models/{name}", "404"): 1,
    }
    (spent,) = used["dpserve_lineage_spent"].samples
    assert spent.value == pytest.approx(3 * PRICE / 1e12)
    assert values(used["dpserve_admin_requests"]) == {
        ("dpserve_admin_requests_total", ("route", "/api/models"), ("status", "401")): 1,
        ("dpserve_admin_requests_total", ("route", "other"), ("status", "404")): 1,
    }


def test_what_is_under_way_is_sampled_and_a_model_that_is_gone_waits_for_nothing():
    async def sampled():
        metrics, waiting = Metrics(), {"a": 7}
        registry, found = metrics.registry, []
        async with metrics.sampled(lambda: waiting):
            metrics.in_flight.requests += 3
            while registry.get_sample_value("dpserve_requests_in_flight") != 3:
                await asyncio.sleep(0.01)
            found.append(registry.get_sample_value("dpserve_waiting_rows", {"model": "a"}))
            waiting.clear()
            metrics.in_flight.requests -= 3
            while registry.get_sample_value("dpserve_requests_in_flight") != 0:
                await asyncio.sleep(0.01)
            found.append(registry.get_sample_value("dpserve_waiting_rows", {"model": "a"}))
        return found, registry.get_sample_value("dpserve_requests_in_flight")

    assert asyncio.run(asyncio.wait_for(sampled(), 60)) == ([7, 0], None)


def test_a_worker_that_was_killed_has_nothing_under_way(tmp_path):
    script = """
import asyncio, os, signal
from dpserve.service.telemetry.metrics import Metrics

async def main():
    metrics = Metrics()
    metrics.in_flight.requests += 5
    async with metrics.sampled(dict):
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    environment = os.environ | {MULTIPROCESS_FOLDER: str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=False)
    assert list(tmp_path.glob("gauge_live*"))
    assert counts_in(str(tmp_path)).get_sample_value("dpserve_requests_in_flight") is None


def test_a_request_is_under_way_until_it_is_answered(service):
    key = service.add_client(rho=1.0)
    with socket.create_connection(("127.0.0.1", int(service.url.rsplit(":", 1)[1])), timeout=60) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head.encode() + b"{")
        sampled = partial(service.metrics.registry.get_sample_value, "dpserve_requests_in_flight")
        wait_until(lambda: sampled() == 1)
    wait_until(lambda: sampled() == 0)


def test_a_route_is_counted_as_it_is_declared_whatever_stands_in_its_place(service):
    http = service.http()
    for name in ("x", "age=41.5"):
        for path in ("/models/*", "/models/*/export", "/models/*/predict", "/v2/models/*/versions/7/ready", "/*/y"):
            http.get(path.replace("*", name))
    http.get("/openapi.json")
    service.call(asyncio.sleep(0))
    (registry,) = service.counts()
    counted = {
        (sample.labels["route"], sample.labels["status"], sample.value)
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "dpserve_requests_total"
    }
    assert counted == {
        ("/models/{name}", "404", 2),
        ("/models/{name}/export", "422", 2),
        ("/models/{name}/predict", "405", 2),
        ("/v2/models/{name}/versions/{version}/ready", "404", 2),
        ("other", "404", 2),
        ("/openapi.json", "200", 1),
    }


def test_two_models_of_different_records_count_the_same(start, head, tmp_path):
    """Everything but how long it took, what waited as it was sampled, the lineage's name, and what depends on its
    length or on the machine."""
    found = []
    for seed, model in ((0, head), (1, None)):
        if model is None:
            generator = np.random.default_rng(seed)
            y = generator.integers(3, size=150)
            X = np.clip(0.5 - 0.4 * np.eye(3, 4)[y] + 0.1 * generator.standard_normal((150, 4)), 0, 1)
            declaration = Declaration(("a", "b", "c", "d"), (0.0,) * 4, (1.0,) * 4, ("red", "green", "blue"))
            feature_map = Identity(lower=declaration.lower, upper=declaration.upper, clip_norm=1.0, bias=0.0)
            model = train_head(Records(X, y, declaration, ()), Recipe("colours", feature_map, 1.0), "other-lineage")
        service = start(model)
        use(service)
        families = exported(service, tmp_path / "none")
        counts = {name: values(family) for name, family in families.items()}
        seconds = counts.pop("dpserve_request_seconds")
        counts["answers timed"] = {key: value for key, value in seconds.items() if key[0].endswith("_count")}
        sampled = ("dpserve_waiting_rows", "dpserve_requests_in_flight")
        left_out = ("dpserve_store_", "dpserve_folder_", *sampled)
        counts = {name: each for name, each in counts.items() if not name.startswith(left_out)}
        text = repr(sorted((name, sorted(each.items())) for name, each in counts.items()))
        found.append(text.replace(service.predictor.lineage, "LINEAGE"))
    assert found[0] == found[1]


def test_a_ledger_that_is_gone_is_seen(service, tmp_path):
    name = f"dpserve:{{{service.predictor.lineage}}}:account"
    service.call(service.ledger.store.command("DEL", name))
    families = exported(service, tmp_path)
    assert values(families["dpserve_ledger_up"]) == {("dpserve_ledger_up",): 0}
    assert "dpserve_lineage_spent" not in families


def test_a_ledger_that_hangs_is_down_and_keeps_no_scrape_waiting(service, tmp_path):
    store = service.ledger.store
    store.deadline = 600.0  # longer than the scraper of these tests waits
    process = service.call(store.command("INFO", "server"))["process_id"]
    os.kill(process, signal.SIGSTOP)
    try:
        families = exported(service, tmp_path)
    finally:
        os.kill(process, signal.SIGCONT)
    assert values(families["dpserve_ledger_up"]) == {("dpserve_ledger_up",): 0}
    assert "dpserve_info" in families


COUNTING = """
import sys
from dpserve.service.telemetry.metrics import Metrics
Metrics().answered("colours", 5, int(sys.argv[1]))
"""


def test_the_counts_of_several_processes_are_added_up(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(PAGE.parents[1]), MULTIPROCESS_FOLDER: str(tmp_path)}
    for charged in ("1", "2"):
        subprocess.run([sys.executable, "-c", COUNTING, charged], env=environment, check=True)
    counted = counts_in(str(tmp_path))
    for outcome, rows in (("charged", 3), ("free", 7)):
        assert counted.get_sample_value("dpserve_rows_total", {"model": "colours", "outcome": outcome}) == rows


def test_metrics_are_read_again_where_a_worker_begins_just_now(service):
    readings = []

    def counts():
        readings.append(None)
        if len(readings) < 3:
            raise RuntimeError("Read beyond file size detected, file is corrupted.")
        return service.counts()

    text = service.call(exposition(service.models, service.ledger, counts))
    assert len(readings) == 3
    assert b"dpserve_info" in text


def test_a_page_that_asks_whether_it_may_ask_is_counted_as_that(start, head):
    service = start(head, options=HttpOptions(origins=("https://app.example",)))
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert service.http().options("/predict", headers=asked).status_code == 200
    service.call(asyncio.sleep(0))  # a request is counted in the turn of the loop in which it is answered
    (registry,) = service.counts()
    labels = {"route": "preflight", "model": "", "status": "200"}
    assert registry.get_sample_value("dpserve_requests_total", labels) == 1
