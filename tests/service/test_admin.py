"""The owner's port: over real HTTP, beside a real service, opened by its key alone."""

import time

import pytest

from dpserve.accounting.ledger import key_digest
from dpserve.service.admin.app import AdminPort, admin_port
from dpserve.service.listener import bind, url_of

from .conftest import KEY, METRICS_KEY
from .test_http import PRICE, ROW, problem


@pytest.fixture
def service(own_service):
    return own_service


def test_nothing_is_told_without_the_admin_key(service, owner):
    client_key = service.add_client()
    owner.headers.pop("Authorization", None)
    own = [f"/api/lineages/colours-lineage/{each}" for each in ("clients", "receipts", "models")]
    for path in ("/api/lineages", *own, "/api/models", "/metrics"):
        for header in ({}, {"Authorization": f"Bearer {client_key}"}, {"Authorization": f"Basic {KEY}"}):
            problem(owner.get(path, headers=header), 401, "unauthenticated")


def test_two_credentials_are_refused(owner):
    owner.headers.pop("Authorization", None)
    twice = [("Authorization", f"Bearer {KEY}")] * 2
    problem(owner.get("/api/models", headers=twice), 400, "invalid-request")


def test_the_key_for_metrics_reads_metrics_and_nothing_else(service, owner):
    owner.headers["Authorization"] = f"Bearer {METRICS_KEY}"
    assert "dpserve_requests" in owner.get("/metrics").text
    for path in ("/api/lineages", "/api/lineages/colours-lineage/clients", "/api/models"):
        problem(owner.get(path), 401, "unauthenticated")
    problem(service.http(METRICS_KEY).get("/budget"), 401, "unauthenticated")


def test_the_empty_key_is_nobodys_even_where_it_was_configured(service):
    listening = bind()
    opened = admin_port(
        AdminPort(listening, key_digest("")), service.models, service.ledger, service.metrics, service.counts
    )
    service.call(opened.__aenter__())
    http = service.http()
    problem(http.get(f"{url_of(listening)}/api/models", headers={"Authorization": "Bearer"}), 401, "unauthenticated")
    service.call(opened.__aexit__(None, None, None))
    listening.close()


def test_the_admin_key_opens_nothing_at_the_clients_port(service, owner):
    problem(service.http(KEY).get("/budget"), 401, "unauthenticated")
    problem(service.http(KEY).get("/api/lineages"), 404, "not-found")


def test_lineages_and_clients_with_their_budgets(service, owner):
    http = service.http(service.add_client("alice"))
    service.add_client("bob")
    http.post("/predict", json={"instances": [ROW, [0.5] * 4]})

    (lineage,) = owner.get("/api/lineages").json()["lineages"]
    assert lineage["lineage"] == service.predictor.lineage
    assert lineage["served"]
    assert lineage["unit"] is None
    assert lineage["releases"] == 2
    assert lineage["account"]["spent"]["rho"] == pytest.approx(2 * PRICE / 1e12)

    path = f"/api/lineages/{lineage['lineage']}/clients"
    first = owner.get(path, params={"count": 1}).json()
    assert [client["client"] for client in first["clients"]] == ["alice"]
    assert first["clients"][0]["account"]["spent"]["rho"] == pytest.approx(2 * PRICE / 1e12)
    (key,) = first["clients"][0]["keys"]
    assert (key["scopes"], key["expires"]) == (["predict", "budget-read"], None)
    second = owner.get(path, params={"after": first["next_after"]}).json()
    assert [client["client"] for client in second["clients"]] == ["bob"]
    assert second["next_after"] is None
    problem(owner.get("/api/lineages/no-such/clients"), 404, "not-found")


def test_clients_are_listed_by_what_they_spent_and_found_by_their_names(service, owner):
    for name, rows in (("ann", 1), ("bob", 3), ("cyd", 0), ("dan", 2)):
        http = service.http(service.add_client(name))
        if rows:
            http.post("/predict", json={"instances": [[row / 10] * 4 for row in range(rows)]})
    path, seen, after = f"/api/lineages/{service.predictor.lineage}/clients", [], ""
    while after is not None:
        page = owner.get(path, params={"order": "spent", "count": 1, "after": after}).json()
        seen += [each["client"] for each in page["clients"]]
        after = page["next_after"]
        assert page["total"] == 4
    assert seen == ["bob", "dan", "ann", "cyd"]
    found = owner.get(path, params={"match": "N"}).json()
    assert ([each["client"] for each in found["clients"]], found["total"]) == (["ann", "dan"], 2)
    gone = owner.get(path, params={"after": "bee"}).json()["clients"]
    assert [each["client"] for each in gone] == ["bob", "cyd", "dan"]


def test_a_client_is_shown_with_what_it_may_still_ask(service, owner):
    http = service.http(service.add_client("alice", rho=5.5 * PRICE / 1e12))
    service.add_client("bob", rho=0.5 * PRICE / 1e12)
    for _ in range(2):
        http.post("/predict", json={"instances": [ROW, [0.5] * 4]})
    http.post("/predict?dry_run=true", json={"instances": [ROW]})
    http.post("/predict", json={"instances": [[9.0] * 4]})
    alice, bob = owner.get(f"/api/lineages/{service.predictor.lineage}/clients").json()["clients"]
    (standing,) = alice["models"]
    assert standing == {"model": "colours", "paid": None, "price": None, "answers_left": 3}
    assert bob["models"][0]["answers_left"] == 0


def test_receipts_say_whose_they_are_and_add_up_with_the_models_to_what_the_lineage_paid(service, owner):
    models = f"/api/lineages/{service.predictor.lineage}/models"
    assert owner.get(models).json() == {"complete": True, "currency": "rho", "models": []}
    for name, rows in (("alice", [ROW, [0.5] * 4]), ("bob", [ROW, [0.3] * 4])):
        service.http(service.add_client(name)).post("/predict", json={"instances": rows})
    path = f"/api/lineages/{service.predictor.lineage}/receipts"
    first = owner.get(path, params={"count": 1}).json()
    second = owner.get(path, params={"after": first["next_after"]}).json()
    assert second["next_after"] is None
    told = [(each["id"], each["client"], each["charged_rows"]) for page in (first, second) for each in page["receipts"]]
    assert told == [(1, "alice", 2), (2, "bob", 1)]
    assert {each["model"] for page in (first, second) for each in page["receipts"]} == {"colours"}
    (lineage,) = owner.get("/api/lineages").json()["lineages"]
    paid = sum(each["charged"] for page in (first, second) for each in page["receipts"])
    assert paid == pytest.approx(lineage["account"]["spent"]["rho"])
    problem(owner.get("/api/lineages/no-such/receipts"), 404, "not-found")
    listed = owner.get(models).json()
    (model,) = listed["models"]
    assert (model["name"], model["releases"]) == ("colours", lineage["releases"])
    assert model["spent"] == pytest.approx(lineage["account"]["spent"]["rho"])
    assert listed["complete"]
    problem(owner.get("/api/lineages/no-such/models"), 404, "not-found")


def test_a_lineage_that_was_forgotten_is_shown_and_answered_nowhere(service, owner):
    lineage, client = service.predictor.lineage, service.http(service.add_client())
    service.call(service.ledger.acting("owner").forget_lineage(lineage, time=time.time()))
    problem(client.post("/predict", json={"instances": [ROW]}), 503, "ledger-unavailable")
    problem(client.get("/budget"), 503, "ledger-unavailable")
    problem(client.get("/readyz"), 503, "ledger-unavailable")
    assert owner.get("/api/lineages").json() == {"lineages": []}
    for part in ("clients", "groups", "receipts", "models"):
        problem(owner.get(f"/api/lineages/{lineage}/{part}"), 404, "not-found")
    named = {"lineage": lineage, "by": "owner", "why": "a test"}
    refused = owner.post("/api/acts", json=named | {"act": "rename", "client": "alice", "display": "Ann"})
    problem(refused, 404, "not-found")


def test_models_are_shown_with_their_certificates(service, owner):
    (model,) = owner.get("/api/models").json()["models"]
    assert model["name"] == "colours"
    assert model["lineage"] == service.predictor.lineage
    assert model["weight_sensitivity"] == service.predictor.certificate.weight_sensitivity


def test_the_owners_port_is_ready_when_the_service_is(owner):
    assert owner.get("/livez").json() == {"status": "live"}
    assert owner.get("/readyz").json() == {"status": "ready"}
