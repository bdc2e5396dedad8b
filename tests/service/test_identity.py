"""Who may ask for what: keys that expire, and keys that are good for some things only, over real HTTP."""

import time

import pytest

from dpserve.accounting.ledger import ApiKey, key_digest, new_api_key

from .test_http import PRICE, ROW, problem

BODY = {"instances": [ROW]}
GUARDED = (
    ("POST", "/predict", "predict"),
    ("GET", "/budget", "budget-read"),
    ("GET", "/budget/receipts", "budget-read"),
)


def add_key(service, client="alice", **terms):
    key = new_api_key()
    service.call(
        service.ledger.acting("owner").add_key(
            service.predictor.lineage, service.named(client), ApiKey(key_digest(key), **terms)
        )
    )
    return service.http(key)


def ask(http, method, path):
    return http.request(method, path, json=BODY if method == "POST" else None)


def test_an_expired_key_is_neither_answered_nor_charged_nor_given_replays(service):
    good = service.http(service.add_client())
    assert good.post("/predict", json=BODY).status_code == 200
    expired = add_key(service, expires=int(time.time()) - 1)
    for method, path, _ in GUARDED:
        problem(ask(expired, method, path), 401, "key-expired")
    problem(expired.post("/predict", json={"instances": [[0.5] * 4]}), 401, "key-expired")
    problem(expired.post("/predict?dry_run=true", json=BODY), 401, "key-expired")
    assert service.spent() == PRICE


@pytest.mark.parametrize("scope", ["predict", "budget-read"])
def test_a_key_is_good_for_its_scopes_alone(service, scope):
    service.add_client()
    http = add_key(service, scopes=(scope,))
    for method, path, needed in GUARDED:
        response = ask(http, method, path)
        if needed == scope:
            assert response.status_code == 200
        else:
            assert problem(response, 403, "insufficient-scope")["scope"] == needed
    assert service.spent() == (PRICE if scope == "predict" else 0)


def test_two_credentials_are_refused_whichever_of_them_is_good(service):
    good = service.http(service.add_client()).headers["Authorization"]
    http = service.http()
    for method, path, _ in GUARDED:
        for shown in ((good, good), (good, "Bearer other"), ("Bearer other", good)):
            headers = [("Authorization", each) for each in shown]
            content = BODY if method == "POST" else None
            problem(http.request(method, path, json=content, headers=headers), 400, "invalid-request")
    twice = [("Authorization", good)] * 2
    inference = http.post("/v2/models/colours/infer", json={}, headers=twice)
    assert (inference.status_code, inference.headers["dpserve-problem"]) == (400, "invalid-request")
    assert "Authorization" in inference.json()["error"]
    assert service.spent() == 0
