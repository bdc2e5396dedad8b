"""The owner's acts at the owner's port: over real HTTP, on a real ledger, and in its audit trail."""

import collections
import json
import logging
import re

import pytest

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ApiKey, key_digest, new_api_key

from .conftest import KEY
from .test_http import ROW, problem

WHO = {"lineage": "colours-lineage", "by": "Dr. Ada", "why": "the pilot begins"}
BUDGET = {"rho": 0.5, "delta": 1e-6}


@pytest.fixture
def service(own_service):
    return own_service


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


def trail(http):
    return http.post("/api/trail", json=WHO)


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


def test_a_raise_after_an_answer_is_warned_of_and_a_preview_is_what_the_client_then_reads(service, owner):
    key = service.add_client("alice", rho=0.25)
    harmless = previewed(owner, "set-budget", client="alice", rho=0.3)
    assert harmless["after"]["raised"] is None
    service.http(key).post("/predict", json={"instances": [ROW]})
    told = previewed(owner, "set-budget", client="alice", rho=0.4)
    assert told["raises"]
    assert len(told["words"]) > len(harmless["words"])
    assert told["after"]["raised"]["times"] == 1
    acted(owner, "set-budget", client="alice", rho=0.4)
    read = service.http(key).get("/budget").json()
    for name in ("raised", "limit", "spent", "posterior_belief_bound", "membership_advantage_bound", "explanation"):
        assert read[name] == told["after"][name]
    assert read["raised"]["settled"]["rho"] == 0.25
    assert read["raised"]["posterior_belief_bound"] > read["posterior_belief_bound"]["when_spent"]


def test_a_preview_and_the_list_of_lineages_name_the_lineages_privacy_unit(service, owner):
    service.add_client("alice")
    service.call(service.ledger.acting("owner").settle_unit(service.predictor.lineage, "person"))
    told = previewed(owner, "set-budget", client="alice", rho=0.4)
    assert (told["before"]["explanation"]["unit"], told["after"]["explanation"]["unit"]) == ("person", "person")
    assert [each["unit"] for each in owner.get("/api/lineages").json()["lineages"]] == ["person"]


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
    reader = acted(owner, "rotate-key", client="alice", key=reader["key_id"])  # good for the same
    assert service.http(reader["key"]).get("/budget").status_code == 200
    problem(service.http(reader["key"]).post("/predict", json={"instances": [ROW]}), 403, "insufficient-scope")
    acted(owner, "remove-key", client="alice", key=reader["key_id"])
    problem(service.http(reader["key"]).get("/budget"), 401, "unauthenticated")
    answer = owner.post("/api/acts", json=WHO | {"act": "remove-key", "client": "alice", "key": reader["key_id"]})
    problem(answer, 404, "not-found")


def test_a_client_asks_with_all_keys_that_it_has_in_another_lineage(service, owner):
    ledger, keys = service.ledger, [new_api_key(), new_api_key()]
    budget = Budget.from_rho(0.5, 1e-6, "gaussian")
    service.call(ledger.acting("owner").open_lineage("other", budget, time=0.0))
    service.call(ledger.acting("owner").add_client("other", "alice", budget, key_digest(keys[0]), time=0.0))
    service.call(ledger.acting("owner").add_key("other", "alice", ApiKey(key_digest(keys[1]), scopes=("budget-read",))))
    told = previewed(owner, "add-client", client="alice", keys_of="other", **BUDGET)
    assert told["after"]["limit"]["rho"] == 0.5
    added = acted(owner, "add-client", client="alice", keys_of="other", after_act=told["newest_act"], **BUDGET)
    assert (added["key"], added["key_id"]) == (None, None)
    assert [service.http(key).get("/budget").status_code for key in keys] == [200, 200]
    problem(service.http(keys[1]).post("/predict", json={"instances": [ROW]}), 403, "insufficient-scope")
    more = {"act": "add-client", "client": "bob", "keys_of": "other"}
    problem(owner.post("/api/acts", json=WHO | more | BUDGET), 404, "not-found")
    problem(owner.post("/api/acts", json=WHO | more | BUDGET | {"expires_in_days": 1}), 422, "invalid-request")


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
    ({"act": "set-budget", "client": "alice", "group": "a team", "rho": 1}, "neither"),
    ({"act": "set-budget", "client": "alice", "mu": 1, "accepts": "any"}, "Gaussian"),
    ({"act": "set-budget", "client": "", "rho": 0.4}, "client"),
    ({"act": "set-budget", "group": "", "rho": 0.4}, "group"),
    ({"act": "add-client", "client": "bob"}, "one of"),
    ({"act": "add-client", "client": "bob", "rho": 0.5, "scopes": []}, "scopes"),
    ({"act": "add-client", "client": "bob", "rho": 0.5, "expires_in_days": 1e9}, "hundred years"),
]


def test_what_cannot_be_meant_is_refused_and_changes_nothing(service, owner):
    service.add_client("alice")
    before = clients(owner)
    for given, said in WRONG:
        for path in ("/api/acts", "/api/acts?dry_run=true"):
            assert said in problem(owner.post(path, json=WHO | given), 422, "invalid-request")["detail"], given
    assert clients(owner) == before


TEXTS = ["", "a name", "a\x00b", "\u202eabc", "\ud800", "n" * 257, "\u0430lice", " a", "--help"]
PEOPLE = ["alice", "bob", "carol", "full", "nobody", "a\x00", ""]


def attempts(newest, key_id):
    """Return acts of all kinds, many of which are refused, as JSON. newest: act; key_id: of a key of bob's."""
    acts = [{"act": "remove-key", "client": "bob", "key": key} for key in (key_id, key_id, "0", "")]
    acts += [{"act": "rename", "client": who, "display": text} for who in PEOPLE for text in TEXTS]
    acts += [{"act": "set-group", "client": who, "group": to} for who in PEOPLE for to in ("none", "\0", "", "team")]
    acts += [{"act": kind, "client": who} for kind in ("add-key", "rotate-key") for who in PEOPLE]
    for seconds in (0, 31_536_000, 31_536_001, -1):
        acts += [{"act": "rotate-key", "client": "full", "overlap_seconds": seconds}]
    for text in [*TEXTS, *PEOPLE, "team"]:
        acts += [{"act": "add-client", "client": f"of {text}"[:255], "group": text, **BUDGET}]
        acts += [{"act": "add-client", "client": f"the {len(acts)}th", "display": text, **BUDGET}]
        acts += [{"act": "add-group", "group": f"the {len(acts)}th", "display": text, **BUDGET}]
        acts += [{"act": "add-client", "client": text, **BUDGET}, {"act": "add-group", "group": text, **BUDGET}]
    for stated in ({"rho": 0.4}, {"rho": 1e9}, {"rho": 0.4, "delta": 0}, {"epsilon": 1, "delta": 1e-300}, {"mu": 1}):
        for more in ({}, {"accepts": "pure"}, {"accepts": "any"}):
            for who in ({"client": "alice"}, {"group": "team"}, {}):
                acts += [{"act": "set-budget", **who, **stated, **more}]
    acts += [{"act": "revoke", "client": who, "after_act": 0} for who in PEOPLE]
    acts += [{"act": "revoke", "client": who} for who in PEOPLE * 2]
    for after in (str(newest), "0", "9007199254740993", "9" * 4000, "9" * 5000):
        acts += [{"act": "rename", "client": "bob", "display": "q", "after_act": "AFTER"}]
        yield json.dumps(WHO | acts.pop()).replace('"AFTER"', after)
    for each in acts:
        yield json.dumps(WHO | each)


def test_a_dry_run_answers_as_the_act_is_answered(service, owner):
    http = service.http(service.add_client("alice"))
    http.post("/predict", json={"instances": [ROW]})
    acted(owner, "add-group", group="team", **BUDGET)
    for name in ("bob", "carol", "full"):
        acted(owner, "add-client", client=name, **BUDGET)
    acted(owner, "revoke", client="carol")
    for _ in range(15):
        acted(owner, "add-key", client="full")
    mine = acted(owner, "add-key", client="bob")
    kind = {"Content-Type": "application/json"}
    found = collections.Counter()
    for body in attempts(mine["newest_act"], mine["key_id"]):
        before = owner.get("/api/lineages").json()
        dry = owner.post("/api/acts?dry_run=true", content=body, headers=kind)
        assert owner.get("/api/lineages").json() == before, body
        done = owner.post("/api/acts", content=body, headers=kind)
        assert dry.status_code == done.status_code, (body, dry.text, done.text)
        if done.status_code != 200:
            assert dry.json()["detail"] == done.json()["detail"], body
        found[json.loads(re.sub("[0-9]{99,}", "0", body))["act"], done.status_code] += 1
    assert {code for _, code in found} == {200, 404, 409, 422}
    assert {act for act, code in found if code == 200} == {act for act, _ in found}


JSON = {"Content-Type": "application/json"}
REVOKING = WHO | {"act": "revoke", "client": "alice"}


def test_what_is_no_json_object_or_has_a_field_twice_is_refused(service, owner):
    service.add_client("alice")
    twice = json.dumps(REVOKING).replace('"client": "alice"', '"client": "alice", "client": "bob"').encode()
    for body in (b"", b"{", b"[]", b'{"act":"revoke","client":NaN}', b"\xff", b"[" * 10_000, twice):
        problem(owner.post("/api/acts", content=body, headers=JSON), 422, "invalid-request")
    problem(owner.post("/api/acts", content=b" " * 100_000, headers=JSON), 413, "body-too-large")
    assert not clients(owner)["alice"]["revoked"]


def test_a_query_or_a_header_that_is_misspelt_or_comes_twice_is_refused(service, owner):
    service.add_client("alice")
    twice = ("dry_run=true&dry_run=false", "dry_run=true&dry_run=true")
    for query in ("dryrun=true", "dry-run=true", "Dry_Run=true", *twice, "x"):
        problem(owner.post(f"/api/acts?{query}", json=REVOKING), 400, "invalid-request")
    for header in ("Authorization", "Content-Type", "Idempotency-Key"):
        sent = [("Content-Type", "application/json"), (header, "one"), (header, "two")]
        problem(owner.post("/api/acts", content=json.dumps(REVOKING), headers=sent), 400, "invalid-request")
    assert not clients(owner)["alice"]["revoked"]


def test_no_route_of_the_owners_port_takes_parameters_that_it_does_not_have(owner):
    described = owner.get("/openapi.json").json()["paths"]
    routes = [(path, method) for path, methods in described.items() for method in methods]
    routes += [("/", "get"), ("/", "head"), ("/page/{name}", "get"), ("/openapi.json", "get")]
    assert {("/api/acts", "post"), ("/api/trail", "post"), ("/metrics", "get"), ("/livez", "get")} < set(routes)
    for path, method in routes:
        named = path.format(lineage="colours-lineage", name="api.js")
        assert owner.request(method, f"{named}?unknown=1").status_code == 400, path
        for parameter in described.get(path, {}).get(method, {}).get("parameters", ()):
            if parameter["in"] == "query":
                twice = f"{named}?{parameter['name']}=1&{parameter['name']}=1"
                problem(owner.request(method, twice), 400, "invalid-request")


def test_a_page_of_another_origin_or_a_form_cannot_act(service, owner):
    service.add_client("alice")
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": str(owner.base_url).rstrip("/")},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
    ):
        for path, given in (("/api/acts", REVOKING), ("/api/trail", WHO)):
            problem(owner.post(path, json=given, headers=headers), 403, "cross-origin")
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        sent = {"Content-Type": kind}
        problem(owner.post("/api/acts", content=json.dumps(REVOKING), headers=sent), 415, "invalid-request")
    assert not clients(owner)["alice"]["revoked"]


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
