"""Credentials that are not taken are bounded for each address; nobody who was taken before is held up by them."""

import pytest

from accounting.ledger import new_api_key
from service.http.failed_tries import SECONDS, FailedTries
from service.http.app import HttpOptions
from service.http.problems import Problem

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
            assert 1 <= body["retry_after"] == int(response.headers["Retry-After"]) <= SECONDS + 1
    assert known.post("/predict", json=BODY).status_code == 200
    assert known.get("/budget").status_code == 200
    assert (service.spent(), service.spent("bob")) == (PRICE, 0)
    problem(service.http().get("/budget"), 401, "unauthenticated")  # which shows nothing, and makes nobody look


def test_a_proxy_that_is_believed_says_whose_tries_they_are(start, head):
    """uvicorn believes 127.0.0.1, unless told otherwise."""
    service = start(head, options=HttpOptions(failed_tries=FailedTries(1)))
    key = service.add_client()
    for address, expected in (("192.0.2.1", 401), ("192.0.2.1", 429), ("192.0.2.2", 401), ("192.0.2.2", 429)):
        response = service.http(new_api_key()).post("/predict", json=BODY, headers={"X-Forwarded-For": address})
        assert response.status_code == expected
    for address, expected in (("192.0.2.1", 429), ("192.0.2.3", 200), ("192.0.2.1", 200)):
        response = service.http(key).post("/predict", json=BODY, headers={"X-Forwarded-For": address})
        assert response.status_code == expected


def test_a_minute_later_it_begins_anew_and_a_network_is_one_address():
    now = 0.0
    tries = FailedTries(2, lambda: now)
    for peer in ("2001:db8::1", "2001:db8::2:1"):
        tries.check(peer)
        tries.note(peer)
    with pytest.raises(Problem) as refused:
        tries.check("2001:db8::ffff")
    assert refused.value.members["retry_after"] == SECONDS + 1
    tries.check("2001:db8:0:1::1")
    tries.check("")
    now = SECONDS
    tries.check("2001:db8::1")


def test_many_addresses_take_bounded_memory():
    tries = FailedTries(1)
    for number in range(10_500):
        tries.note(f"10.0.{number // 256}.{number % 256}")
    assert len(tries._counted) == 10_000
    with pytest.raises(Problem):
        tries.check("10.0.41.3")
