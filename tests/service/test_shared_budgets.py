"""Groups and budgets by period over real HTTP: who refuses, until when, and what a client is told of others."""

import time
from dataclasses import replace

import pytest

from accounting.budgets import Budget, Refill
from accounting.ledger import key_digest, new_api_key
from accounting.ledger.store import our_library

from .conftest import DELTA
from .test_http import PRICE, ROW, problem


@pytest.fixture
def in_july(monkeypatch):
    """A store whose clock stands in July 2026: a month that ends between two charges would pay for the second."""
    ours = our_library()
    stopped = replace(ours, source=ours.source.replace("tonumber(redis.call('TIME')[1])", "1784116800"))
    assert stopped != ours
    monkeypatch.setattr("accounting.ledger.store.our_library", lambda: stopped)


def _add(service, name, *, rows=9, refill=None, group=""):
    key = new_api_key()
    budget = replace(Budget(rows * PRICE, "gaussian", DELTA), refill=refill)
    added = service.ledger.add_client(
        service.predictor.lineage, name, budget, key_digest(key), time=time.time(), group=group
    )
    service.call(added)
    return service.http(key)


def _ask(http, *values):
    return http.post("/predict", json={"instances": [[value, *ROW[1:]] for value in values]})


def test_a_group_that_is_spent_refuses_and_says_no_amounts(service):
    lineage = service.predictor.lineage
    service.call(service.ledger.add_group(lineage, "team/7", Budget(2 * PRICE, "gaussian", DELTA), time=0.0))
    ann, bob = _add(service, "ann", group="team/7"), _add(service, "bob", group="team/7")
    assert _ask(ann, 0.1, 0.2).status_code == 200
    refused = problem(_ask(bob, 0.1), 403, "budget-exhausted")
    assert refused["scope"] == "group"
    assert {"spent", "remaining", "limit", "refilled"}.isdisjoint(refused)
    assert "team/7" not in refused["detail"]
    quoted = bob.post("/predict?dry_run=true", json={"instances": [ROW]}).json()["quote"]
    assert (quoted["admitted"], quoted["scope"]) == (False, "group")
    told = bob.get("/budget").json()
    assert told["queries_left"] == 0
    assert "bounded together by the group's account" in told["explanation"]["in_plain_words"]
    assert service.spent("bob") == 0


def test_a_budget_by_period_says_when_there_is_more_and_what_all_periods_are_together(in_july, start, head):
    service = start(head)
    http = _add(service, "ann", refill=Refill(2 * PRICE, "month"))
    assert _ask(http, 0.1, 0.2).status_code == 200
    refused = problem(_ask(http, 0.3), 403, "budget-exhausted")
    assert (refused["scope"], refused["remaining"]) == ("client", 0)
    assert refused["refilled"] == "2026-08-01"
    assert refused["refilled"] in refused["detail"]
    told = http.get("/budget").json()
    assert told["queries_left"] == 0
    assert told["refill"]["period"] == "month"
    assert told["refill"]["next"] == refused["refilled"]
    assert told["limit"]["epsilon"] > told["refill"]["each"]["epsilon"]
    assert "that is no promise for each of them" in told["explanation"]["in_plain_words"]
    assert _ask(http, 0.1).status_code == 200  # which was paid for
