"""The way of a request over real HTTP, from its key to its refusal."""

import gzip
import json
import logging
import socket

import numpy as np
import pytest

from dpserve.accounting import compositions
from dpserve.accounting.explanation import explain_account
from dpserve.accounting.ledger import key_digest
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.accounting.report import AccountState
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.service import predictor
from dpserve.service.http.problems import MEDIA_TYPE
from dpserve.service.listener import bind
from dpserve.training.kinds.head.bundle import CertifiedHead

from .conftest import LARGEST_BATCH, Plain

ROW = [0.1, 0.2, 0.3, 0.4]
PRICE = Cost((GaussianLoss(0.1),)).picorho


def problem(response, status, kind):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == MEDIA_TYPE
    body = response.json()
    assert body["type"] == f"urn:dpserve:problem:{kind}"
    assert body["status"] == status
    assert body["detail"]
    return body


def test_answers_are_probabilities_and_are_charged(service):
    http = service.http(service.add_client())
    answer = http.post("/predict", json={"instances": [ROW, [1, 1, 0, 0]]}).json()
    predictions = np.array(answer["predictions"])
    assert predictions.shape == (2, 3)
    assert (predictions >= 0).all()
    np.testing.assert_allclose(predictions.sum(axis=1), 1)
    assert service.spent() == 2 * PRICE
    assert answer["receipt"] == {
        "id": 1,
        "model": "colours",
        "mechanism": "gaussian",
        "status": "proven",
        "rows": 2,
        "charged_rows": 2,
        "replayed_rows": 0,
        "currency": "rho",
        "price_per_row": pytest.approx(0.005),
        "charged": pytest.approx(0.01),
    }
    explained = http.get("/budget").json()
    assert explained.pop("explanation")["releases"] == [{"losses": "gaussian:0.1", "times": 2}]
    assert answer["budget"] == {
        "currency": "rho",
        "limit": explained["limit"]["rho"],
        "spent": explained["spent"]["rho"],
        "remaining": explained["remaining"]["rho"],
        "queries_left": explained["queries_left"],
        "unlimited": explained["unlimited"],
        "status": "proven",
    }


def test_the_budget_is_explained_by_the_numerical_curve_where_noise_is_not_gaussian(start, head):
    service = start(head, Laplace(0.1), accepts="any")
    http = service.http(service.add_client(accepts="any"))
    rows = [[0.1 * index, 0.2, 0.3, 0.4] for index in range(5)]
    assert http.post("/predict", json={"instances": rows}).status_code == 200

    answer = http.get("/budget").json()

    account = service.call(service.ledger.client(service.predictor.lineage, "alice"))
    whole = service.call(service.ledger.lineage(service.predictor.lineage))
    expected = explain_account(
        AccountState.after_releases(account.tally, account.budget),
        price=service.predictor.cost,
        shared_answers=whole.answers_left(service.predictor.cost),
    )
    assert answer == json.loads(expected.model_dump_json())
    exact = answer["explanation"]["analyses"][-1]
    assert exact["name"] == "exact"
    assert "numerical PLD" in exact["method"]


def test_an_explanation_that_is_kept_tells_nothing_of_what_others_ask(start, head, monkeypatch):
    computed = []
    explain = predictor.explain_account

    def counted(*arguments, **named):
        computed.append(named["shared_answers"])
        return explain(*arguments, **named)

    monkeypatch.setattr(predictor, "explain_account", counted)
    predictor._explained.cache_clear()
    service = start(head, lineage_rho=100.0)
    ann, bob = (service.http(service.add_client(name)) for name in ("ann", "bob"))
    first = ann.get("/budget").json()
    assert len(computed) == 1
    assert bob.get("/budget").json() == first
    assert len(computed) == 2  # not kept from another client's, which would say that somebody's account is alike
    bob.post("/predict", json={"instances": [ROW]})
    assert ann.get("/budget").json() == first
    assert len(computed) == 2  # and kept whatever others spend


def test_an_explanation_takes_nothing_that_was_computed_for_another_client(start, head, monkeypatch):
    computed = []
    compute = compositions.privacy_loss_distribution

    def counted(*arguments):
        computed.append(arguments)
        return compute(*arguments)

    monkeypatch.setattr(compositions, "privacy_loss_distribution", counted)
    service = start(head, Laplace(0.1), accepts="any")
    clients = [service.http(service.add_client(name, accepts="any")) for name in ("ann", "bob")]
    counts = []
    for http in clients:
        http.post("/predict", json={"instances": [ROW]})
        http.get("/budget")
        counts.append(len(computed))
    assert counts == [counts[0], 2 * counts[0]]
    assert counts[0] > 0


def test_the_same_row_again_is_the_same_answer_for_nothing(service):
    http = service.http(service.add_client())
    first = http.post("/predict", json={"instances": [ROW]}).json()
    again = http.post("/predict", json={"instances": [[0.5] * 4, ROW, ROW]}).json()
    assert again["predictions"][1] == again["predictions"][2] == first["predictions"][0]
    assert again["receipt"]["charged_rows"] == 1
    assert again["receipt"]["replayed_rows"] == 2
    assert service.spent() == 2 * PRICE
    only_replays = http.post("/predict", json={"instances": [ROW]}).json()
    assert only_replays["receipt"]["id"] is None
    assert only_replays["receipt"]["charged"] == 0
    assert service.spent() == 2 * PRICE


def test_negative_zero_is_the_same_row(service):
    http = service.http(service.add_client())
    first, second = (
        http.post("/predict", content=f'{{"instances": [[{zero}, 1, 1, 1]]}}').json()["predictions"]
        for zero in ("0.0", "-0.0")
    )
    assert first == second
    assert service.spent() == PRICE


def test_two_clients_get_one_answer_and_both_pay_and_the_lineage_once(own_service):
    service = own_service
    first, second = (service.http(service.add_client(name)) for name in ("alice", "bob"))
    body = {"instances": [ROW]}
    assert first.post("/predict", json=body).json() == second.post("/predict", json=body).json()
    assert service.spent("alice") == service.spent("bob") == PRICE
    assert service.call(service.ledger.lineage(service.predictor.lineage)).spent == PRICE


def test_it_answers_until_the_budget_is_gone_and_not_once_more(service):
    http = service.http(service.add_client(rho=7.5 * PRICE / 1e12))
    for index in range(7):
        answer = http.post("/predict", json={"instances": [[0.1 * index, 0, 0, 0]]}).json()
        assert answer["budget"]["queries_left"] == 6 - index
    refused = problem(http.post("/predict", json={"instances": [[0.9, 0, 0, 0]]}), 403, "budget-exhausted")
    assert refused["scope"] == "client"
    assert refused["cost"] == pytest.approx(PRICE / 1e12)
    assert refused["remaining"] == pytest.approx(0.5 * PRICE / 1e12)
    assert service.spent() == 7 * PRICE
    replay = http.post("/predict", json={"instances": [[0, 0, 0, 0]]})
    assert replay.status_code == 200
    assert service.spent() == 7 * PRICE


def test_all_rows_of_a_request_or_none(service):
    http = service.http(service.add_client(rho=2.5 * PRICE / 1e12))
    rows = [[0.1, 0, 0, 0], [0.2, 0, 0, 0], [0.3, 0, 0, 0]]
    problem(http.post("/predict", json={"instances": rows}), 403, "budget-exhausted")
    assert service.spent() == 0
    assert http.post("/predict", json={"instances": rows[:2]}).status_code == 200


def test_clients_together_are_capped_by_the_lineage(start, head):
    service = start(head, lineage_rho=3.5 * PRICE / 1e12)
    first, second = (service.http(service.add_client(name, rho=3.5 * PRICE / 1e12)) for name in ("alice", "bob"))
    assert first.get("/budget").json()["queries_left"] == 3
    assert first.post("/predict", json={"instances": [[0.1] * 4, [0.2] * 4]}).status_code == 200
    assert second.post("/predict", json={"instances": [[0.3] * 4]}).status_code == 200
    refused = problem(second.post("/predict", json={"instances": [[0.4] * 4]}), 403, "budget-exhausted")
    assert refused["scope"] == "lineage"
    assert not {"spent", "remaining", "limit"} & set(refused), "what others ask is theirs to know"
    # The same for a question that the lineage paid for: an answer would say that somebody else had asked it.
    assert second.post("/predict", json={"instances": [[0.1] * 4]}).json() | {"detail": ""} == refused | {"detail": ""}
    assert first.post("/predict", json={"instances": [[0.1] * 4]}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "kind", "row", "said"),
    [
        (b"{", 400, "malformed-json", None, "not JSON"),
        (b"", 400, "malformed-json", None, "not JSON"),
        (b"\xff", 400, "malformed-json", None, "not JSON"),
        (b"[]", 422, "invalid-request", None, "instances"),
        (b"{}", 422, "invalid-rows", None, "'instances' is missing"),
        (b'{"instances": 3}', 422, "invalid-rows", None, "must be a list of rows"),
        (b'{"instances": []}', 422, "invalid-rows", None, "batch is empty"),
        (b'{"instances": [[0,0,0,0]], "epsilon": 9}', 422, "invalid-request", None, "epsilon"),
        (b'{"instances": [[0,0,0,0], 1]}', 422, "invalid-rows", 1, "row 1 must be a list"),
        (b'{"instances": [[0,0,0,0], []]}', 422, "invalid-rows", 1, "row 1 has 0 values; the model takes 4"),
        (b'{"instances": [[0,0,0,0], [0,0,0]]}', 422, "invalid-rows", 1, "row 1 has 3 values; the model takes 4"),
        (b'{"instances": [[0,0,0,0], [0,0,0,"1"]]}', 422, "invalid-rows", 1, "row 1, column 3"),
        (b'{"instances": [[0,0,0,0], [0,0,true,1]]}', 422, "invalid-rows", 1, "row 1, column 2"),
        (b'{"instances": [[0,0,0,0], [0,null,1,1]]}', 422, "invalid-rows", 1, "row 1, column 1"),
        (b'{"instances": [[0,0,0,0], [0,[0],1,1]]}', 422, "invalid-rows", 1, "row 1, column 1"),
        (b'{"instances": [[0,0,0,0], [0,NaN,1,1]]}', 400, "malformed-json", None, "not JSON"),
        (b'{"instances": [[0,0,0,0]], "instances": [[1,1,1,1]]}', 400, "invalid-request", None, "twice"),
        (b'{"instances": [[0,0,0,0]], "inst\\u0061nces": [[1,1,1,1]]}', 400, "invalid-request", None, "twice"),
        (b'{"instances": [[0,0,0,0]], "clip": true, "clip": false}', 400, "invalid-request", None, "twice"),
        (b'{"instances": [[0,0,0,0], [0,Infinity,1,1]]}', 400, "malformed-json", None, "not JSON"),
        (b'{"instances": [[0,0,0,0], [0,1e999,1,1]]}', 422, "invalid-rows", 1, "row 1, column 1"),
        (b'{"instances": [[0,0,0,0], [0,0,1.01,1]]}', 422, "invalid-rows", 1, "row 1, column 2 ('c') must be"),
        (b'{"instances": [[0,0,0,0], [0,-0.01,0,1]]}', 422, "invalid-rows", 1, "from 0 to 1"),
        (json.dumps({"instances": [ROW] * 51}).encode(), 422, "invalid-rows", None, "51 rows; this service"),
        (b'{"instances": [[0,0,0,0]], "model": "other"}', 404, "unknown-model", None, "'other'"),
    ],
)
def test_bad_bodies_are_explained_and_cost_nothing(service, body, status, kind, row, said):
    http = service.http(service.add_client())
    found = problem(http.post("/predict", content=body), status, kind)
    assert said in found["detail"]
    assert found.get("row") == row
    assert service.spent() == 0


def test_a_body_is_as_long_as_the_largest_batch_makes_it(service):
    http, largest = service.http(service.add_client()), service.predictor.largest_body
    found = problem(http.post("/predict", content=b" " * (largest + 1)), 413, "body-too-large")
    assert found["limit_bytes"] == largest
    problem(http.post("/predict", content=b" " * largest), 400, "malformed-json")
    rows = [dict.fromkeys(service.predictor.column_names, 0.12345678901234568)] * LARGEST_BATCH
    assert http.post("/predict", json={"instances": rows}).status_code == 200


def test_keys(service):
    key = service.add_client()
    for headers in ({}, {"Authorization": "Basic YQ=="}, {"Authorization": "Bearer"}, {"Authorization": "Bearer nope"}):
        for method, path in (("POST", "/predict"), ("GET", "/budget")):
            response = service.http().request(method, path, headers=headers)
            problem(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"] == 'Bearer realm="dpserve"'
    said = service.http().get("/budget").json()["detail"]
    assert "'Authorization: Bearer KEY'" in said
    http = service.http(key)
    assert http.post("/predict", json={"instances": [ROW]}).status_code == 200
    service.call(service.ledger.acting("owner").revoke(service.predictor.lineage, service.named("alice")))
    problem(http.post("/predict", json={"instances": [ROW]}), 401, "key-revoked")
    problem(http.get("/budget"), 401, "key-revoked")
    assert service.spent() == PRICE


def test_a_key_that_was_seen_before_is_checked_at_every_request(service):
    """The client of a key is remembered and asked again with the charge: also for refused and free requests."""
    old = service.add_client()
    http = service.http(old)
    assert http.post("/predict", json={"instances": [ROW]}).status_code == 200
    lineage = service.predictor.lineage
    service.call(service.ledger.acting("owner").rotate_key(lineage, service.named("alice"), key_digest("another")))
    for rows in ([ROW], [[0.5] * 4], [[9.0] * 4], "nonsense"):
        problem(http.post("/predict", json={"instances": rows}), 401, "unauthenticated")
    problem(http.post("/predict?dry_run=true", json={"instances": [ROW]}), 401, "unauthenticated")
    assert service.spent() == PRICE
    bob = service.add_client("bob")
    service.call(service.ledger.acting("owner").rotate_key(lineage, service.named("bob"), key_digest(old)))
    mine = http.post("/predict", json={"instances": [ROW]}).json()
    assert mine["receipt"]["charged_rows"] == 1  # the key is bob's now, and so is the charge
    assert service.spent("bob") == service.spent("alice") == PRICE
    problem(service.http(bob).post("/predict", json={"instances": [ROW]}), 401, "unauthenticated")


def test_unknown_paths_and_methods_are_problems(service):
    problem(service.http().get("/nowhere"), 404, "not-found")
    problem(service.http().get("/predict"), 405, "method-not-allowed")
    problem(service.http().get("/models/other"), 404, "unknown-model")


def test_an_idempotency_key_names_one_body(service):
    http = service.http(service.add_client())
    headers = {"Idempotency-Key": "monday"}
    first = http.post("/predict", json={"instances": [ROW]}, headers=headers).json()
    again = http.post("/predict", json={"instances": [ROW]}, headers=headers).json()
    assert again["predictions"] == first["predictions"]
    assert again["receipt"]["id"] == first["receipt"]["id"] == 1
    assert again["receipt"]["charged_rows"] == 0
    other = http.post("/predict", json={"instances": [[0.5] * 4]}, headers=headers)
    problem(other, 422, "idempotency-conflict")
    assert service.spent() == PRICE
    for key in ("k" * 256, "", "a b", "\u00e9".encode() * 100):
        refused = http.post("/predict", json={"instances": [ROW]}, headers={"Idempotency-Key": key})
        problem(refused, 400, "invalid-request")


def test_a_mechanism_that_an_account_does_not_take_is_refused(start, head):
    service = start(head, Laplace(0.1), accepts="any")
    http = service.http(service.add_client(accepts="gaussian"))
    problem(http.post("/predict", json={"instances": [ROW]}), 403, "mechanism-not-accepted")
    assert service.spent() == 0


class Unreadable(CertifiedHead):
    """A head that must not be asked."""

    def logits(self, phi):
        raise ZeroDivisionError(f"secret weight {self.weights[0, 0]}")


def unreadable(head):
    return Unreadable(head.certificate, head.weights, head.tensors, head.noise_key)


def test_a_refusal_never_looks_at_logits(start, head):
    service = start(unreadable(head))
    http = service.http(service.add_client(rho=0.5 * PRICE / 1e12))
    problem(http.post("/predict", json={"instances": [ROW]}), 403, "budget-exhausted")
    problem(http.post("/predict", json={"instances": [[9, 9, 9, 9]]}), 422, "invalid-rows")


def test_an_unforeseen_error_tells_nothing_is_never_refunded_and_is_answered_for_nothing_later(start, head, caplog):
    service = start(unreadable(head))
    http = service.http(service.add_client())
    with caplog.at_level(logging.DEBUG):
        response = http.post("/predict", json={"instances": [ROW]})
    problem(response, 500, "internal")
    assert str(head.weights[0, 0]) not in response.text + caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert service.spent() == PRICE
    # What was charged and not answered is answered for nothing.
    service.predictor.head = head
    answer = http.post("/predict", json={"instances": [ROW]}).json()
    assert answer["receipt"]["charged_rows"] == 0
    assert http.post("/predict", json={"instances": [ROW]}).json()["predictions"] == answer["predictions"]
    assert service.spent() == PRICE


def test_the_public_page_of_a_model(service):
    page = service.http().get("/models/colours").json()
    assert service.http().get("/models").json() == {"models": ["colours"], "default": "colours"}
    assert page["mechanism"] == "gaussian"
    assert page["mechanism_status"] == page["status"] == "proven"
    assert page["weight_sensitivity"] > 0
    assert not {"weights_sha256", "lineage", "created"} & set(page)


def test_a_socket_answers_without_delay():
    with bind() as listening:
        assert listening.proto == socket.IPPROTO_TCP  # what asyncio looks at before it sets TCP_NODELAY


def test_an_announced_length_is_refused_without_the_body(service):
    key = service.add_client()
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = (
            f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 10000000000\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(4096)


def test_health_and_documentation(service):
    http = service.http()
    assert http.head("/livez").status_code == 200
    assert http.get("/livez").json() == {"status": "live"}
    assert http.get("/readyz").json() == {"status": "ready"}
    assert http.get("/predict").headers["allow"] == "POST"
    document = http.get("/openapi.json").json()
    assert {"/predict", "/budget", "/models/{name}", "/livez", "/readyz"} <= set(document["paths"])
    predict = document["paths"]["/predict"]["post"]
    assert predict["security"]
    assert "requestBody" in predict
    (scheme,) = document["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")


def test_a_compressed_body_is_told_apart_from_json_that_is_wrong(service):
    http = service.http(service.add_client())
    for way in ({}, {"Expect": "100-continue"}):  # the short way, and past it
        said = problem(http.post("/predict", content=gzip.compress(b"{}"), headers=way), 400, "invalid-request")
        assert said["detail"] == "send the body without compression"


@pytest.mark.parametrize(
    "query", ["dry-run=true", "Dry_Run=true", "dry_run=true&dry_run=true", "coverage=.9&coverage=.8", "x=", "dry_run"]
)
def test_a_query_that_is_not_understood_is_refused_and_charges_nothing(service, query):
    http = service.http(service.add_client())
    problem(http.post(f"/predict?{query}", json={"instances": [ROW]}), 400, "invalid-request")
    assert service.spent() == 0


@pytest.mark.parametrize("path", ["/predict", "/v2/models/colours/infer"])
@pytest.mark.parametrize("name", ["Idempotency-Key", "Content-Type", "Authorization"])
def test_a_header_that_decides_what_is_charged_is_sent_once(service, path, name):
    key = service.add_client()
    sent = {"Content-Type": "application/json", "Idempotency-Key": "one", "Authorization": f"Bearer {key}"}
    headers = [*sent.items(), (name, sent[name])]
    response = service.http().post(path, content=b"{}", headers=headers)
    assert response.status_code == 400
    assert name.lower() in response.text.lower()
    assert service.spent() == 0


@pytest.mark.parametrize("content", [b"[" * 20_000, b'{"instances":' + b"[" * 19_000, b'{"model":' + b'{"a":' * 3_900])
def test_a_body_that_nests_too_deeply_is_no_failure(service, content):
    http = service.http(service.add_client())
    assert http.post("/predict", content=content).status_code in (400, 422)
    assert service.spent() == 0


def test_an_answer_says_how_noisy_it_is_where_that_is_asked_for(service):
    http = service.http(service.add_client())
    asked = {"instances": [ROW, [1, 1, 0, 0]]}
    answer = http.post("/predict", json=asked | {"noise": True}).json()
    noise, predictions = answer["noise"], np.array(answer["predictions"])
    assert (noise["law"], noise["on"], noise["coverage"]) == ("gaussian", "logits", 0.95)
    assert noise["no_interval"] is None
    lower, upper = np.array(noise["lower"]), np.array(noise["upper"])
    assert lower.shape == upper.shape == (2, 3)
    assert (lower <= predictions).all()
    assert (predictions <= upper).all()
    assert all(isinstance(each, bool) for each in noise["undecided"])
    assert http.post("/predict?noise=true", json=asked | {"noise": False}).json()["noise"] == noise
    for path in ("/predict", "/predict?noise=false"):
        assert "noise" not in http.post(path, json=asked).json()
    for path, body in (
        ("/predict?noise=1", {}),
        ("/predict?noise=true&noise=true", {}),
        ("/predict", {"noise": "yes"}),
    ):
        assert http.post(path, json={"instances": [[0.9] * 4]} | body).status_code in (400, 422)
    assert service.spent() == 2 * PRICE


def test_a_class_that_was_drawn_has_no_intervals_and_no_word_on_what_is_decided(start, head):
    service = start(head, Label(0.5), accepts="any")
    http = service.http(service.add_client(accepts="any"))
    noise = http.post("/predict?noise=true", json={"instances": [ROW]}).json()["noise"]
    assert (noise["law"], noise["on"], noise["lower"]) == ("exponential", "selection", None)
    assert "undecided" not in noise
    assert "drawn by chance" in noise["no_interval"]


def test_noise_of_an_unknown_law_says_so_in_words(start, head):
    service = start(head, Plain())
    http = service.http(service.add_client())
    noise = http.post("/predict?noise=true", json={"instances": [ROW]}).json()["noise"]
    assert (noise["law"], noise["lower"], noise.get("undecided")) == (None, None, None)
    assert "the answer does not say which" in noise["no_interval"]
