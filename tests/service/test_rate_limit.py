"""A client's rate is limited whatever it asks, apart from its budget; and no page of another origin may ask."""

import asyncio

import pytest

from accounting.ledger import EmbeddedStore
from service.errors import CannotServe
from service.http.front import Front
from service.http.rate_limit import rate_limit

from .test_http import PRICE, ROW, problem
from .test_openinference import body_of, refused

BODY = {"instances": [ROW]}


def test_one_more_is_refused_and_costs_nothing(start, head):
    service = start(head, front=Front(rate_limit=rate_limit("5/hour")))
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
        await limits[0].check("alice")
        await limits[1].check("alice")
        with pytest.raises(Exception, match="2 per 1 hour"):
            await limits[0].check("alice")
        await limits[1].check("bob")
        for limit in limits:
            await limit.close()

    with EmbeddedStore(tmp_path / "store") as store:
        asyncio.run(both(store.url.removesuffix("?db=0").replace("unix://", "redis+unix://")))


def test_a_store_that_is_gone_refuses(start, head):
    limit = rate_limit("5/hour", "redis://127.0.0.1:1")
    service = start(head, front=Front(rate_limit=limit))
    http = service.http(service.add_client())
    problem(http.post("/predict", json=BODY), 503, "rate-unknown")
    assert service.spent() == 0
    service.call(limit.close())


@pytest.mark.parametrize("said", ["", "many", "0/minute", "5/fortnight"])
def test_nonsense_is_refused(said):
    with pytest.raises(CannotServe, match="rate limit"):
        rate_limit(said)


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
    service = start(head, front=Front(origins=("https://app.example",)))
    http = service.http(service.add_client())
    for origin, allowed in (("https://app.example", "https://app.example"), ("https://other.example", None)):
        asks = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        assert http.options("/predict", headers=asks).headers.get("access-control-allow-origin") == allowed
        answer = http.post("/predict", json=BODY, headers={"Origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert "access-control-allow-credentials" not in answer.headers
