"""Credentials that are not taken are bounded for each address; nobody who was taken before is held up by them."""

import pytest

from dpserve.accounting.ledger import new_api_key
from dpserve.service.http.app import HttpOptions
from dpserve.service.http.failed_tries import FailedTries
from dpserve.service.http.problems import Problem
from dpserve.service.listener import ServiceSettings

from .test_http import PRICE, ROW, problem

BODY = {"instances": [ROW]}


def test_whoever_guesses_is_refused_alike_whichever_key_and_way(start, head):
    service = start(head, options=HttpOptions(failed_tries=FailedTries(3)))
    known, unseen = service.http(service.add_client()), service.http(service.add_client("bob"))
    assert known.post("/predict", json=BODY).status_code == 200
    for ask in (
        lambda http: http.post("/predict", json=BODY),
        lambda http: http.get("/budget"),
        lambda http: http.post("/v2/models/colours/infer", json={}),
    ):
        assert ask(service.http(new_api_key())).status_code == 401
    for guess in (service.http(new_api_key()), unseen):
        for response in (guess.post("/predict", json=BODY), guess.get("/budget")):
            body = problem(response, 429, "too-many-requests")
            assert 1 <= body["retry_after"] == int(response.headers["Retry-After"]) <= 61
    assert known.post("/predict", json=BODY).status_code == 200
    assert known.get("/budget").status_code == 200
    assert (service.spent(), service.spent("bob")) == (PRICE, 0)
    problem(service.http().get("/budget"), 401, "unauthenticated")  # which shows nothing, and makes nobody look


def asked_from(service, key, address):
    response = service.http(key).post("/predict", json=BODY, headers={"X-Forwarded-For": address})
    return response.status_code


def test_a_proxy_that_is_trusted_says_whose_tries_they_are(start, head):
    options = HttpOptions(failed_tries=FailedTries(1))
    service = start(head, options=options, settings=ServiceSettings(trusted_proxies=("127.0.0.0/8",)))
    key = service.add_client()
    for address, expected in (("192.0.2.1", 401), ("192.0.2.1", 429), ("192.0.2.2", 401), ("192.0.2.2", 429)):
        assert asked_from(service, new_api_key(), address) == expected
    for expected in (401, 429):  # no address, but what the proxy says
        assert asked_from(service, new_api_key(), "unknown") == expected
    for address, expected in (("192.0.2.1", 429), ("192.0.2.3", 200), ("192.0.2.1", 200)):
        assert asked_from(service, key, address) == expected


def test_nobody_else_is_believed(start, head):
    service = start(head, options=HttpOptions(failed_tries=FailedTries(1)))
    for address, expected in (("192.0.2.1", 401), ("192.0.2.2", 429)):
        assert asked_from(service, new_api_key(), address) == expected


@pytest.mark.anyio
async def test_an_ipv6_network_is_one_address():
    tries = FailedTries(2)
    for peer in ("2001:db8::1", "2001:db8::2:1"):
        await tries.check(peer)
        await tries.count(peer)
    with pytest.raises(Problem) as refused:
        await tries.check("2001:db8::ffff")
    assert 1 <= refused.value.members["retry_after"] <= 61
    await tries.check("2001:db8:0:1::1")
    await tries.check("")
