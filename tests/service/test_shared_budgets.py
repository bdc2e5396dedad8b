"""Groups over real HTTP: who refuses, and what a client is told of others."""

import time

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import key_digest, new_api_key

from .conftest import DELTA
from .test_http import PRICE, ROW, problem


def _add(service, name, *, rows=9, group=""):
    key = new_api_key()
    budget = Budget(rows * PRICE, "gaussian", DELTA)
    added = service.ledger.acting("owner").add_client(
        service.predictor.lineage, name, budget, key_digest(key), time=time.time(), group=group
    )
    service.call(added)
    return service.http(key)


def _ask(http, *values):
    return http.post("/predict", json={"instances": [[value, *ROW[1:]] for value in values]})


def test_a_group_that_is_spent_refuses_and_says_no_amounts(own_service):
    service = own_service
    lineage = service.predictor.lineage
    service.call(
        service.ledger.acting("owner").add_group(lineage, "team/7", Budget(2 * PRICE, "gaussian", DELTA), time=0.0)
    )
    ann, bob = _add(service, "ann", group="team/7"), _add(service, "bob", group="team/7")
    assert _ask(ann, 0.1, 0.2).status_code == 200
    refused = problem(_ask(bob, 0.1), 403, "budget-exhausted")
    assert refused["scope"] == "group"
    assert {"spent", "remaining", "limit"}.isdisjoint(refused)
    assert "team/7" not in refused["detail"]
    quoted = bob.post("/predict?dry_run=true", json={"instances": [ROW]}).json()["quote"]
    assert (quoted["admitted"], quoted["scope"]) == (False, "group")
    told = bob.get("/budget").json()
    assert told["queries_left"] == 0
    assert "bounded together by the group's account" in told["explanation"]["in_plain_words"]
    assert service.spent("bob") == 0
