"""A client's rate is limited whatever it asks, apart from its budget; and no page of another origin may ask."""

import asyncio

import pytest
import redis

from dpserve.accounting.ledger import EmbeddedStore, key_digest, new_api_key
from dpserve.service.errors import CannotServe
from dpserve.service.http.app import HttpOptions
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.rate_limit import rate_limit

from .test_http import PRICE, ROW, problem
from .test_openinference import body_of, refused

BODY = {"instances": [ROW]}


def test_one_more_is_refused_and_costs_nothing(start, head):
    service = start(head, options=HttpOptions(rate_limit=rate_limit("5/hour")))
    http, other = (service.http(service.add_client(name)) for name in ("alice", "bob"))
    assert http.post("/predict", json=BODY).status_code == 200
    assert http.post("/predict", json=BODY).status_code == 200  # a replay counts
    assert http.post("/predict", json={"instances": [[9.0] * 4]}).status_code == 422  # so does a refusal
    assert http.get("/budget").status_code == 200
    assert http.post("/predict?dry_run=true", json=BODY).status_code == 200
    for response in (http.post("/predict", json={"instances": [[0.5] * 4]}), http.get("/budget")):
        body = problem(response, 429, "too-many-requests")
        assert 1 <= int(response.headers["Retry-After"]) <= 3601
        assert body["retry_after"] == int(response.headers["Retry-After"])
    refused(http.post("/v2/models/colours/infer", json=body_of([ROW])), 429, "too-many-requests")
    assert service.spent() == PRICE
    assert other.post("/predict", json=BODY).status_code == 200, "each client has a rate of its own"
    assert service.http("no-such-key").get("/budget").status_code == 401


def test_two_services_count_together_where_they_share_a_store(tmp_path):
    """An embedded Valkey stands for a Redis that both reach."""

    async def both(store):
        limits = [rate_limit("2/hour", store) for _ in range(2)]
        await limits[0].check("colours-lineage", "alice")
        await limits[1].check("colours-lineage", "alice")
        with pytest.raises(Problem, check=lambda problem: problem.kind is ProblemType.TOO_MANY_REQUESTS):
            await limits[0].check("colours-lineage", "alice")
        await limits[1].check("colours-lineage", "bob")
        for limit in limits:
            await limit.close()

    with EmbeddedStore(tmp_path / "store") as store:
        asyncio.run(both(store.url.removesuffix("?db=0").replace("unix://", "redis+unix://")))


def test_the_counts_of_two_lineages_are_apart_and_need_no_more_than_the_ledgers_user_may(tmp_path):
    """docs/ledger.md says what a store's user needs; the rate limit must do with it."""
    allowed = (
        "~dpserve:*", "+@read", "+@write", "+@scripting", "+@connection", "+waitaof", "-@dangerous", "+config|get",
        "+info", "+role",
    )  # fmt: skip

    async def both(store):
        limit = rate_limit("1/hour", store)
        await limit.check("colours-lineage", "alice")
        await limit.check("shapes-lineage", "alice")
        with pytest.raises(Problem, check=lambda problem: problem.kind is ProblemType.TOO_MANY_REQUESTS):
            await limit.check("shapes-lineage", "alice")
        await limit.close()

    with EmbeddedStore(tmp_path / "store") as store:
        owner = redis.Redis.from_url(store.url)
        owner.execute_command("ACL", "SETUSER", "owner", "on", ">password", "~*", "&*", "+@all")
        owner.execute_command("AUTH", "owner", "password")
        owner.execute_command("ACL", "SETUSER", "default", "reset", "on", "nopass", *allowed)
        try:
            asyncio.run(both(store.url.removesuffix("?db=0").replace("unix://", "redis+unix://")))
        finally:
            owner.execute_command("ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")
            owner.close()


def test_a_client_that_asks_too_often_has_the_ledger_read_nothing(start, head, monkeypatch):
    service = start(head, options=HttpOptions(rate_limit=rate_limit("2/hour")))
    http = service.http(service.add_client())
    assert [http.get("/budget").status_code for _ in range(2)] == [200, 200]
    read = []
    authenticate = service.ledger.api_keys.authenticate

    async def counted(*arguments):
        read.append(arguments)
        return await authenticate(*arguments)

    monkeypatch.setattr(service.ledger.api_keys, "authenticate", counted)
    problem(http.get("/budget"), 429, "too-many-requests")
    assert read == []


def test_a_store_that_is_gone_refuses(start, head):
    limit = rate_limit("5/hour", "redis://127.0.0.1:1")
    service = start(head, options=HttpOptions(rate_limit=limit))
    http = service.http(service.add_client())
    problem(http.post("/predict", json=BODY), 503, "rate-unknown")
    assert service.spent() == 0
    service.call(limit.close())


@pytest.mark.parametrize("said", ["", "many", "0/minute", "5/fortnight"])
def test_invalid_arguments_are_refused(said):
    with pytest.raises(CannotServe, match="rate limit"):
        rate_limit(said)


@pytest.mark.parametrize("where", ["redi://:pa@ss/word@store:6379/1", "redisp://:pa@ss/word@store"])
def test_the_password_of_the_store_is_not_in_the_error(where):
    with pytest.raises(CannotServe) as refusal:
        rate_limit("5/hour", where)
    assert "rate_limit_store" in str(refusal.value)
    assert not [part for part in ("pa@", "ss/", "word") if part in str(refusal.value)]


def test_no_origin_may_ask_by_default(start, head):
    service = start(head)
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    http = service.http(service.add_client())
    for response in (
        http.options("/predict", headers=asks),
        http.get("/budget", headers=asks),
        http.get("/models", headers=asks),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_an_origin_that_the_owner_names_may_ask(start, head):
    service = start(head, options=HttpOptions(origins=("https://app.example",)))
    http = service.http(service.add_client())
    for origin, allowed in (("https://app.example", "https://app.example"), ("https://other.example", None)):
        asks = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, x-request-id, inference-header-content-length",
        }
        before = http.options("/predict", headers=asks)
        assert (before.status_code == 200) == (allowed is not None)
        assert before.headers.get("access-control-allow-origin") == allowed
        answer = http.post("/predict", json=BODY, headers={"Origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert "access-control-allow-credentials" not in answer.headers


def test_a_key_that_is_refused_uses_up_one_request_of_its_former_client_and_no_more(start, head):
    service = start(head, options=HttpOptions(rate_limit=rate_limit("4/hour")))
    old = service.add_client()
    assert service.http(old).post("/predict", json=BODY).status_code == 200
    new = new_api_key()
    lineage = service.predictor.lineage
    service.call(service.ledger.acting("owner").rotate_key(lineage, "alice", key_digest(new)))
    for _ in range(3):
        assert service.http(old).post("/predict", json=BODY).status_code == 401
        assert service.http(old).get("/budget").status_code == 401
    assert service.http(new).get("/budget").status_code == 200
    service.call(service.ledger.acting("owner").revoke(lineage, "alice"))
    for _ in range(3):
        problem(service.http(new).post("/predict", json=BODY), 401, "key-revoked")
