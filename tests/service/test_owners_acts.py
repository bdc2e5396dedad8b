"""What the owner does at the owner's port: over real HTTP, on a real ledger, and in its audit trail."""

import csv
import io
import json
import logging

import pytest

from accounting.ledger import key_digest

from .conftest import KEY
from .test_http import ROW, problem

WHO = {"lineage": "colours-lineage", "by": "Dr. Ada", "why": "the pilot begins"}
BUDGET = {"rho": 0.5, "delta": 1e-6}


def acted(http, kind, expected=200, **given):
    """Do an act; return the reply."""
    answer = http.post("/api/acts", json=WHO | {"act": kind} | given)
    assert answer.status_code == expected, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def previewed(http, kind, **given):
    answer = http.post("/api/acts?dry_run=true", json=WHO | {"act": kind} | given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def trail(http, form="jsonl"):
    return http.post("/api/trail", json=WHO | {"format": form})


def clients(http):
    return {each["client"]: each for each in http.get("/api/lineages/colours-lineage/clients").json()["clients"]}


def test_a_client_is_added_and_its_key_is_shown_once(service, owner):
    added = acted(owner, "add-client", client="auth0|5f/7", display="The pilot", **BUDGET)
    assert added["done"]
    assert service.http(added["key"]).get("/budget").json()["limit"]["rho"] == 0.5
    assert added["key_id"] == key_digest(added["key"])[:6].hex()
    (client,) = clients(owner).values()
    assert (client["client"], client["display"]) == ("auth0|5f/7", "The pilot")
    assert added["key"] not in json.dumps(client) + trail(owner).text


def test_a_dry_run_says_what_an_act_means_and_changes_nothing(service, owner):
    service.add_client("alice", rho=0.25)
    before = clients(owner)
    told = previewed(owner, "set-budget", client="alice", epsilon=5.0)
    assert not told["done"]
    assert told["raises"]
    assert told["before"]["limit"]["rho"] == 0.25
    assert told["after"]["limit"]["epsilon"] == pytest.approx(5.0)
    assert told["after"]["limit"]["epsilon"] <= 5.0 * (1 + 1e-9)
    assert told["after"]["explanation"]["in_plain_words"] != told["before"]["explanation"]["in_plain_words"]
    assert previewed(owner, "add-client", client="bob", **BUDGET)["key"] is None
    assert clients(owner) == before
    assert acted(owner, "set-budget", client="alice", epsilon=5.0)["done"]
    assert clients(owner)["alice"]["account"]["limit"] == told["after"]["limit"]


def test_a_preview_is_what_the_client_then_reads(service, owner):
    key = service.add_client("alice", rho=0.25)
    service.http(key).post("/predict", json={"instances": [ROW]})
    told = previewed(owner, "set-budget", client="alice", rho=0.4)
    acted(owner, "set-budget", client="alice", rho=0.4)
    read = service.http(key).get("/budget").json()
    for name in ("limit", "spent", "posterior_belief_bound", "membership_advantage_bound", "explanation"):
        assert read[name] == told["after"][name]


def test_a_budget_keeps_its_limit_where_only_the_refill_is_changed(service, owner):
    service.add_client("alice", rho=0.25)
    acted(owner, "set-budget", client="alice", refill="rho:0.01/week")
    account = clients(owner)["alice"]["account"]
    assert (account["limit"]["rho"], account["refill"]["period"]) == (0.25, "week")
    acted(owner, "set-budget", client="alice", rho=0.2)
    assert clients(owner)["alice"]["account"]["refill"]["period"] == "week"
    told = previewed(owner, "set-budget", client="alice", refill="none")
    assert told["raises"]  # what was spread may be spent at once
    acted(owner, "set-budget", client="alice", refill="none")
    assert clients(owner)["alice"]["account"]["refill"] is None


def test_a_budget_that_is_lowered_below_what_was_spent_refuses(service, owner):
    http = service.http(service.add_client("alice"))
    http.post("/predict", json={"instances": [ROW]})
    told = acted(owner, "set-budget", client="alice", rho=0.001)
    assert not told["raises"]
    assert "more than that" in told["words"]
    problem(http.post("/predict", json={"instances": [[0.9] * 4]}), 403, "budget-exhausted")


def test_groups_are_opened_joined_and_changed(service, owner):
    acted(owner, "add-group", group="a team", **BUDGET)
    acted(owner, "add-client", client="alice", group="a team", rho=0.5)
    acted(owner, "add-client", client="bob", rho=0.5)
    acted(owner, "set-group", client="bob", group="a team")
    acted(owner, "set-budget", group="a team", rho=0.75)
    (group,) = owner.get("/api/lineages/colours-lineage/groups").json()["groups"]
    assert (group["group"], group["members"], group["account"]["limit"]["rho"]) == ("a team", 2, 0.75)
    more = owner.post("/api/acts", json=WHO | {"act": "set-budget", "client": "bob", "rho": 0.8})
    assert "and the group a team, which pays" in problem(more, 409, "act-refused")["detail"]


def test_keys_are_rotated_added_and_removed(service, owner):
    first = acted(owner, "add-client", client="alice", **BUDGET)
    second = acted(owner, "rotate-key", client="alice")
    problem(service.http(first["key"]).get("/budget"), 401, "unauthenticated")
    reader = acted(owner, "add-key", client="alice", scopes=["budget-read"], expires_in_days=30)
    assert service.http(reader["key"]).get("/budget").status_code == 200
    problem(service.http(reader["key"]).post("/predict", json={"instances": [ROW]}), 403, "insufficient-scope")
    third = acted(owner, "rotate-key", client="alice", key=second["key_id"], overlap_seconds=3600)
    for still in (second, third, reader):
        assert service.http(still["key"]).get("/budget").status_code == 200
    acted(owner, "remove-key", client="alice", key=reader["key_id"])
    problem(service.http(reader["key"]).get("/budget"), 401, "unauthenticated")
    answer = owner.post("/api/acts", json=WHO | {"act": "remove-key", "client": "alice", "key": reader["key_id"]})
    problem(answer, 404, "not-found")


def test_a_revoked_client_is_refused(service, owner):
    key = service.add_client("alice")
    acted(owner, "revoke", client="alice")
    problem(service.http(key).get("/budget"), 401, "key-revoked")
    problem(owner.post("/api/acts", json=WHO | {"act": "add-client", "client": "alice"} | BUDGET), 409, "act-refused")


def test_an_act_that_is_sent_again_is_done_once(service, owner):
    service.add_client("alice")
    seen = previewed(owner, "rotate-key", client="alice")["newest_act"]
    first = acted(owner, "rotate-key", client="alice", after_act=seen)
    again = owner.post("/api/acts", json=WHO | {"act": "rotate-key", "client": "alice", "after_act": seen})
    assert "something else was done" in problem(again, 409, "act-refused")["detail"]
    assert service.http(first["key"]).get("/budget").status_code == 200


def test_every_act_is_in_the_trail_with_who_when_and_why(service, owner):
    acted(owner, "add-client", client="alice", **BUDGET)
    acted(owner, "set-budget", client="alice", rho=0.75)
    acted(owner, "rename", client="alice", display="=1+1")
    answer = trail(owner)
    assert answer.headers["content-disposition"] == 'attachment; filename="colours-lineage-trail.jsonl"'
    rows = [json.loads(line) for line in answer.text.splitlines()]
    own = [row for row in rows if row["by"] == "Dr. Ada"]
    assert [row["kind"] for row in own] == ["add-client", "raise", "rename", "export"]
    assert {row["why"] for row in own} == {"the pilot begins"}
    assert all(row["time_utc"].endswith("+00:00") for row in own)
    table = list(csv.DictReader(io.StringIO(trail(owner, "csv").text)))
    assert [row["kind"] for row in table if row["by"] == "Dr. Ada"][-2:] == ["export", "export"]


WRONG = [
    ({"act": "no-such"}, "act"),
    ({"act": "rename", "client": "alice"}, "display"),
    ({"act": "revoke", "client": "alice", "more": 1}, "more"),
    ({"act": "revoke", "client": "alice", "why": ""}, "why"),
    ({"act": "revoke", "client": "alice", "by": ""}, "by"),
    ({"act": "revoke", "client": "alice", "by": "Ada\x00"}, "printed"),
    ({"act": "revoke", "client": "alice", "lineage": "a{b}"}, "lineage's name"),
    ({"act": "revoke", "client": ""}, "client"),
    ({"act": "set-budget", "client": "alice", "rho": "0.5"}, "rho"),
    ({"act": "set-budget", "client": "alice", "rho": -1}, "rho must"),
    ({"act": "set-budget", "client": "alice", "rho": 1, "epsilon": 1}, "one of"),
    ({"act": "set-budget", "client": "alice", "refill": "rho:1/year"}, "refill"),
    ({"act": "set-budget", "client": "alice", "group": "a team", "rho": 1}, "or neither"),
    ({"act": "set-budget", "client": "alice", "mu": 1, "accepts": "any"}, "Gaussian"),
    ({"act": "add-client", "client": "bob"}, "one of"),
    ({"act": "add-client", "client": "bob", "rho": 0.5, "scopes": []}, "scopes"),
    ({"act": "add-client", "client": "bob", "rho": 0.5, "expires_in_days": 1e9}, "hundred years"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[json.dumps(given) for given, _ in WRONG])
def test_what_cannot_be_meant_is_refused_and_changes_nothing(service, owner, given, said):
    service.add_client("alice")
    before = clients(owner)
    for path in ("/api/acts", "/api/acts?dry_run=true"):
        assert said in problem(owner.post(path, json=WHO | given), 422, "invalid-request")["detail"]
    assert clients(owner) == before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"act":"revoke","client":NaN}', b"\xff", b"[" * 10_000])
def test_what_is_no_json_object_is_refused(owner, body):
    answer = owner.post("/api/acts", content=body, headers={"Content-Type": "application/json"})
    problem(answer, 422, "invalid-request")


def test_a_long_body_is_refused_before_it_is_read(owner):
    answer = owner.post("/api/acts", content=b" " * 100_000, headers={"Content-Type": "application/json"})
    problem(answer, 413, "body-too-large")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "{own}"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/api/acts", "/api/trail"])
def test_a_page_of_another_origin_cannot_act(service, owner, path, headers):
    service.add_client("alice")
    own = str(owner.base_url).rstrip("/")
    sent = {name: value.format(own=own) for name, value in headers.items()}
    given = WHO if path == "/api/trail" else WHO | {"act": "revoke", "client": "alice"}
    problem(owner.post(path, json=given, headers=sent), 403, "cross-origin")
    assert not clients(owner)["alice"]["revoked"]


def test_a_form_cannot_act(owner):
    text = json.dumps(WHO | {"act": "revoke", "client": "alice"})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        problem(owner.post("/api/acts", content=text, headers={"Content-Type": kind}), 415, "invalid-request")


def test_the_page_of_this_port_and_programs_may_act(service, owner):
    service.add_client("alice")
    own = str(owner.base_url).rstrip("/")
    for headers in ({"Origin": own}, {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind-a-proxy.example"}, {}):
        answer = owner.post(
            "/api/acts", json=WHO | {"act": "rename", "client": "alice", "display": ""}, headers=headers
        )
        assert answer.status_code == 200


def test_nobody_acts_without_the_admin_key(service, owner):
    key = service.add_client("alice")
    for header in ({}, {"Authorization": f"Bearer {key}"}):
        owner.headers.pop("Authorization", None)
        for path in ("/api/acts", "/api/trail"):
            problem(owner.post(path, json=WHO, headers=header), 401, "unauthenticated")


def test_no_log_line_holds_a_key(service, owner, caplog):
    caplog.set_level(logging.DEBUG)
    made = [acted(owner, "add-client", client="alice", **BUDGET)["key"], acted(owner, "add-key", client="alice")["key"]]
    assert not any(key in caplog.text for key in [*made, KEY])


def test_who_spent_what_over_time(service, owner):
    for name, rows in (("alice", 3), ("bob", 1)):
        http = service.http(service.add_client(name))
        for row in range(rows):
            http.post("/predict", json={"instances": [[row / 10] * 4]})
    spent = owner.get("/api/lineages/colours-lineage/spending").json()
    assert spent["complete"]
    (alice, bob) = spent["clients"].items()
    assert (alice[0], len(alice[1]), bob[0], len(bob[1])) == ("alice", 3, "bob", 1)
    accounts = clients(owner)
    assert alice[1][-1][1] == accounts["alice"]["account"]["spent"]["rho"]
    # The first row is the same question, which the lineage has paid for once.
    assert spent["lineage"][-1][1] == pytest.approx(alice[1][-1][1])
    service.http(service.add_client("carol")).post("/predict", json={"instances": [[0.7] * 4]})
    more = owner.get("/api/lineages/colours-lineage/spending?count=1").json()
    assert list(more["clients"]) == ["alice"]
    assert more["lineage"][-1][1] > spent["lineage"][-1][1]
    assert len(more["lineage"]) == 5
    problem(owner.get("/api/lineages/no-such/spending"), 404, "not-found")
