"""Models that are paid for once, over real HTTP: paid for first, then unlimited answers."""

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from dpserve.accounting import ledger as accounts
from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    ClientRevoked,
    Idempotency,
    KeyExpired,
    Ledger,
    LedgerUnavailable,
    NotPaidFor,
    key_digest,
)
from dpserve.accounting.ledger.purchases import check_purchases
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import Cost
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.service import pay_once
from dpserve.service.errors import DeadlinePassed
from dpserve.service.pay_once import PayOncePredictor
from dpserve.service.predictor import Caller, RowsRequest
from dpserve.training.features.maps import Quantiles
from dpserve.training.fitting.histograms import cut_at_quantiles
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.weights.train import release_weights
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.purchases import model_purchase

from .test_http import ROW, problem

PRICE = 10**11
ROWS = np.random.default_rng(1).uniform(0, 1, (40, 4))


@pytest.fixture(scope="module")
def released(head):
    return release_weights(head, PRICE, "colours-lineage", SystemRandomness())


@pytest.fixture
def service(start, released):
    return start.release(released)


def lineage_spent(service):
    return service.call(service.ledger.lineage(service.predictor.lineage)).spent


def test_a_release_is_charged_to_the_lineage_at_start_and_to_a_client_with_its_first_answer(start, released):
    service = start.release(released)
    price = released.certificate.price.picorho
    assert lineage_spent(service) == price
    http = service.http(service.add_client())
    assert http.get("/budget").json()["queries_left"] is None

    first = http.post("/predict", json={"instances": [ROW]}).json()
    assert first["receipt"]["charged"] == to_rho(price)
    for _ in range(3):
        again = http.post("/predict", json={"instances": [ROW, ROW]}).json()
        assert again["predictions"] == first["predictions"] * 2
        assert (again["receipt"]["charged"], again["receipt"]["id"]) == (0, None)
    assert service.spent() == lineage_spent(service) == price

    other = service.http(service.add_client("bob"))
    assert other.post("/predict", json={"instances": [ROW]}).json()["predictions"] == first["predictions"]
    assert lineage_spent(service) == price
    restarted = start.release(released)
    assert lineage_spent(restarted) == price


def test_rows_have_the_same_bits_whatever_is_beside_them(service, released):
    http = service.http(service.add_client())
    together = http.post("/predict", json={"instances": ROWS.tolist()}).json()["predictions"]
    alone = [http.post("/predict", json={"instances": [row]}).json()["predictions"][0] for row in ROWS.tolist()]
    half = http.post("/predict", json={"instances": ROWS[:20].tolist()}).json()["predictions"]

    assert together == alone
    assert together[:20] == half
    assert together == released.values(ROWS).tolist()


def test_a_client_sees_the_price_before_it_pays_and_what_it_has_paid(service, released):
    http, price = service.http(service.add_client()), released.certificate.price.picorho
    shown = service.http().get("/models/colours").json()
    assert shown["price"]["rho"] == to_rho(price)
    assert shown["price_per_row"] == {"rho": 0, "epsilon": 0, "losses": ""}
    assert not {"lineage", "weights_sha256", "created"} & set(shown)
    before = http.get("/budget").json()
    unpaid = {"paid": False, "cost": to_rho(price), "shown_cost": to_rho(price), "admitted": True}
    assert (before["unlimited"], before["model"]) == (False, unpaid)
    quote = http.post("/predict?dry_run=true", json={"instances": [ROW]}).json()["quote"]
    assert (quote["cost"], quote["admitted"]) == (to_rho(price), True)
    assert service.spent() == 0

    answer = http.post("/predict", json={"instances": [ROW]}).json()
    assert (answer["receipt"]["charged"], answer["budget"]["unlimited"]) == (to_rho(price), True)
    after = http.get("/budget").json()
    assert (after["unlimited"], after["model"]) == (True, {"paid": True, "cost": 0, "shown_cost": 0, "admitted": True})
    assert after["queries_left"] is None
    assert "answers of that model are unlimited" in after["explanation"]["in_plain_words"]
    assert http.post("/predict?dry_run=true", json={"instances": [ROW]}).json()["quote"]["cost"] == 0
    assert service.call(verify(service.ledger, service.predictor.lineage)).findings == ()
    assert [receipt["mechanism"] for receipt in http.get("/budget/receipts").json()["receipts"]] == ["weights"]


def test_the_owner_sees_what_a_client_has_paid_for_and_may_buy(service, released):
    price = released.certificate.price.picorho

    def standing(client):
        account = service.call(service.ledger.client(service.predictor.lineage, client))
        found = service.call(service.predictor.standing(account))
        return found.paid, found.shown_cost, found.admitted

    ann = service.http(service.add_client("ann", rho=1.0))
    service.add_client("bob", rho=to_rho(price) / 2)
    assert standing("ann") == (False, to_rho(price), True)
    assert standing("bob") == (False, to_rho(price), False)
    ann.post("/predict", json={"instances": [ROW]})
    assert standing("ann") == (True, None, False)
    service.call(service.ledger.acting("owner").revoke(service.predictor.lineage, "bob"))
    assert standing("bob") == (False, None, False)


def test_strangers_are_told_of_canaries_and_not_what_these_show(start, head):
    model = release_weights(head, PRICE, "colours-lineage", SystemRandomness(), None, 100)
    shown = start.release(model).http().get("/models/colours").json()["canaries"]
    measured = {"lower_bound_mu", "lower_bound_epsilon", "guesses_lower_bound_epsilon"}
    assert shown == model.certificate.canaries.model_dump(exclude=measured)
    assert measured <= set(model.certificate.public()["canaries"])


def test_cuts_at_the_records_quantiles_are_shown_to_nobody_before_they_are_paid_for(start):
    generator = np.random.default_rng(0)
    bounds = {"lower": (0.0,) * 4, "upper": (1.0,) * 4}
    declaration = Declaration(("a", "b", "c", "d"), *bounds.values(), ("red", "green", "blue"))
    records = Records(generator.uniform(size=(90, 4)), np.arange(90) % 3, declaration, ())
    cut = cut_at_quantiles(Quantiles(**bounds, bias=0.0), records, 10**10, 10**11, SystemRandomness())
    head, before = train_head(records, Recipe("colours", cut, 1.0), "colours-lineage"), (CUTS.bought(Cost(cut.losses)),)
    service = start.release(release_weights(head, PRICE, "colours-lineage", SystemRandomness(), before=before))
    model = service.http().get("/models/colours").json()
    released = model["feature_map"]["released"]
    assert set(released) == {"mu", "cells", "levels", "law"}
    assert model["price"]["rho"] == pytest.approx(0.11)
    assert service.http(service.add_client()).post("/predict", json={"instances": [ROW]}).status_code == 200


def test_a_model_that_a_client_cannot_pay_for_is_refused(service, released):
    price = released.certificate.price.picorho
    poor = service.http(service.add_client("poor", rho=to_rho(price - 1)))
    assert poor.get("/budget").json()["queries_left"] == 0
    body = problem(poor.post("/predict", json={"instances": [ROW]}), 403, "budget-exhausted")
    assert (body["scope"], body["remaining"]) == ("client", pytest.approx(to_rho(price)))
    http = service.http(service.add_client(rho=to_rho(price)))
    assert http.post("/predict", json={"instances": [ROW]}).status_code == 200
    assert http.post("/predict", json={"instances": [ROW]}).status_code == 200
    assert http.get("/budget").json()["queries_left"] is None


def test_idempotency_keys_mean_what_they_mean_elsewhere(service):
    http = service.http(service.add_client())
    headers = {"Idempotency-Key": "one"}
    first = http.post("/predict", json={"instances": [ROW]}, headers=headers).json()
    spent = service.spent()

    again = http.post("/predict", json={"instances": [ROW]}, headers=headers).json()

    assert service.spent() == spent
    assert (again["receipt"]["id"], again["receipt"]["charged"]) == (first["receipt"]["id"], 0)
    other = http.post("/predict", json={"instances": [ROW, ROW]}, headers=headers)
    problem(other, 422, "idempotency-conflict")


def test_a_model_dearer_than_the_lineages_budget_is_refused_at_start(tmp_path, released):
    async def check(rho):
        async with Ledger.open(tmp_path / f"ledger-{rho}") as ledger:
            budget = Budget.from_rho(rho, 1e-6, "gaussian")
            await ledger.acting("owner").open_lineage("colours-lineage", budget, time=0.0)
            await check_purchases(ledger, [model_purchase(released.certificate)])

    asyncio.run(check(1.0))
    with pytest.raises(NotPaidFor, match=r"not pay for colours, .*, more than its whole budget, .*rho = 0.05"):
        asyncio.run(check(0.05))


@contextmanager
def calls_of(ledger):
    """Count what the ledger is asked meanwhile; yields a list of the functions that were called."""
    called, call = [], ledger.store.call

    async def counted(lineage, function, *words, **named):
        called.append(function)
        return await call(lineage, function, *words, **named)

    ledger.store.call = counted
    try:
        yield called
    finally:
        ledger.store.call = call


@pytest.fixture
def unhurried(monkeypatch):
    """Have holdings remembered for as long as a test takes."""
    monkeypatch.setattr(pay_once, "SECONDS_REMEMBERED", 3600.0)


@pytest.mark.usefixtures("unhurried")
def test_answers_from_what_is_held_ask_the_ledger_nothing(service):
    http = service.http(service.add_client())
    first = http.post("/predict", json={"instances": [ROW]}).json()
    with calls_of(service.ledger) as called:
        again = [http.post("/predict", json={"instances": [ROW] * rows}).json() for rows in (1, 2, 40)]
    assert called == []
    assert [answer["predictions"][0] for answer in again] == [first["predictions"][0]] * 3
    assert [answer["budget"] for answer in again] == [first["budget"]] * 3
    assert {(answer["receipt"]["id"], answer["receipt"]["charged"]) for answer in again} == {(None, 0)}


@pytest.mark.usefixtures("unhurried")
def test_what_one_client_has_paid_for_is_not_anothers_nor_another_keys(service):
    ann = service.http(service.add_client("ann"))
    ann.post("/predict", json={"instances": [ROW]})
    other = service.http(service.add_client("bob", rho=1e-6))
    problem(other.post("/predict", json={"instances": [ROW]}), 403, "budget-exhausted")


def test_what_the_ledger_said_is_asked_again_after_a_while(service, monkeypatch):
    http = service.http(service.add_client())
    http.post("/predict", json={"instances": [ROW]})
    monkeypatch.setattr(pay_once, "SECONDS_REMEMBERED", 0.0)
    with calls_of(service.ledger) as called:
        http.post("/predict", json={"instances": [ROW]})
    assert called == ["charge"]


@pytest.mark.usefixtures("unhurried")
def test_an_outage_that_a_charge_meets_ends_all_that_is_remembered(service):
    ann, bob = (service.http(service.add_client(name)) for name in ("ann", "bob"))
    ann.post("/predict", json={"instances": [ROW]})
    charge = service.ledger.charge_batch

    async def lost(requests):
        raise LedgerUnavailable("gone")

    service.ledger.charge_batch = lost
    problem(bob.post("/predict", json={"instances": [ROW]}), 503, "ledger-unavailable")
    problem(ann.post("/predict", json={"instances": [ROW]}), 503, "ledger-unavailable")
    service.ledger.charge_batch = charge
    assert ann.post("/predict", json={"instances": [ROW]}).status_code == 200


def test_rows_that_are_computed_together_are_no_more_than_the_owner_allows(start, released):
    def make(ledger):
        return PayOncePredictor(released, ledger, largest_batch=40, max_batch_size=4)

    service = start.start(make, released.certificate.lineage, 1.0, "gaussian")
    plane = service.predictor
    caller, sizes = Caller("alice", key_digest(service.add_client())), []
    compute = plane.answering.values
    plane.answering = SimpleNamespace(values=lambda X: sizes.append(len(X)) or compute(X))

    async def ask():
        asked = [RowsRequest(plane.check_rows(ROWS[:rows].tolist())) for rows in (3, 1, 2, 2, 2, 5)]
        return await asyncio.gather(*(plane.predict(caller, request) for request in asked))

    answers = service.call(ask())
    assert [len(answer.values) for answer in answers] == [3, 1, 2, 2, 2, 5]
    assert sizes == [4, 4, 2, 5]


class Hour:
    """A clock that a test sets, in place of `pay_once.time`."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def hour(monkeypatch):
    clock = Hour()
    monkeypatch.setattr(pay_once, "time", clock)
    return clock


def test_what_is_held_is_confirmed_again_before_it_lapses_and_nobody_waits(service, hour):
    plane = service.predictor
    caller = Caller("alice", key_digest(service.add_client()))
    request = RowsRequest(plane.check_rows([ROW]))

    async def ask_at(*moments):
        for now in moments:
            hour.now = now
            await asyncio.gather(*(plane.predict(caller, request) for _ in range(3)))
            await plane.drain()

    with calls_of(service.ledger) as called:
        service.call(ask_at(0.0))
        assert called == ["charge"]
        service.call(ask_at(0.2))
        assert called == ["charge"]
        service.call(ask_at(0.3))
        assert called == ["charge"] * 2
        service.call(ask_at(0.5, 0.7))  # what was said at 0.3 is good until 0.8
        assert called == ["charge"] * 3


def test_an_answer_does_not_wait_for_a_confirmation_but_ends_where_it_stays_away(service, hour):
    plane, ledger = service.predictor, service.ledger
    caller = Caller("alice", key_digest(service.add_client()))
    request = RowsRequest(plane.check_rows([ROW]))
    charge = ledger.charge_batch

    async def ask():
        await plane.predict(caller, request)
        told = asyncio.Event()

        async def silent(requests):
            await told.wait()
            return await charge(requests)

        ledger.charge_batch = silent
        for hour.now in (0.3, 0.4, 0.49):
            await asyncio.wait_for(plane.predict(caller, request), 60)
        hour.now = 0.5
        waiting = asyncio.create_task(plane.predict(caller, request))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        told.set()
        await asyncio.wait_for(waiting, 60)

    service.call(ask())


def test_a_confirmation_that_is_refused_ends_what_is_held(service, hour):
    plane = service.predictor
    caller = Caller("alice", key_digest(service.add_client()))
    request = RowsRequest(plane.check_rows([ROW]))

    async def ask():
        await plane.predict(caller, request)
        await service.ledger.acting("owner").revoke(plane.lineage, "alice")
        hour.now = 0.3
        await plane.predict(caller, request)
        await plane.drain()
        with pytest.raises(ClientRevoked):
            await plane.predict(caller, request)

    service.call(ask())


def test_requests_of_one_client_ask_the_ledger_once_and_the_first_has_the_receipt(service):
    caller = Caller("alice", key_digest(service.add_client()))
    plane, charge, sizes = service.predictor, service.ledger.charge_batch, []
    X = plane.check_rows([ROW])

    async def counted(requests):
        sizes.append(len(requests))
        return await charge(requests)

    async def ask(*more):
        requests = [RowsRequest(X), RowsRequest(X), RowsRequest(X, *more)]
        return await asyncio.gather(*(plane.predict(caller, request) for request in requests))

    service.ledger.charge_batch = counted
    answers = service.call(ask())
    assert sizes == [1]
    assert [answer.charge.charged > 0 for answer in answers] == [True, False, False]
    assert [answer.charge.receipt is not None for answer in answers] == [True, False, False]
    assert len({answer.charge.balance.spent for answer in answers}) == 1
    plane._paid.clear()
    service.call(ask(Idempotency("a name", bytes(32))))
    assert sizes == [1, 2]


def test_a_refusal_reaches_all_who_asked_together(service):
    caller = Caller("poor", key_digest(service.add_client("poor", rho=1e-6)))
    plane = service.predictor
    X = plane.check_rows([ROW])

    async def ask():
        asking = (plane.predict(caller, RowsRequest(X)) for _ in range(3))
        return await asyncio.gather(*asking, return_exceptions=True)

    refusals = service.call(ask())
    assert {type(each) for each in refusals} == {accounts.BudgetExhausted}
    assert len({id(each) for each in refusals}) == 3


def test_what_is_late_is_not_charged_and_what_was_charged_is_not_charged_again(service):
    plane = service.predictor
    caller = Caller("alice", key_digest(service.add_client()))
    X = plane.check_rows([[0.1] * 4])
    with pytest.raises(DeadlinePassed):
        service.call(plane.predict(caller, RowsRequest(X, deadline=0.0)))
    assert service.spent() == 0

    async def hang_up_and_drain():
        request = asyncio.create_task(plane.predict(caller, RowsRequest(X)))
        while plane._batcher._running is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait_for(plane.drain(), 60)

    service.call(hang_up_and_drain())
    paid = service.spent()
    assert paid > 0
    assert service.call(plane.predict(caller, RowsRequest(X))).charge.charged == 0
    assert service.spent() == paid
    with pytest.raises(DeadlinePassed):
        service.call(plane.predict(caller, RowsRequest(X, deadline=0.0)))


def test_a_model_that_was_paid_for_ends_with_the_token_that_it_was_asked_with(service):
    plane, now = service.predictor, [1000.0]
    plane._clock = lambda: now[0]
    service.add_client()
    X, caller = plane.check_rows([ROW]), Caller("alice", expires=1001.0)
    service.call(plane.predict(caller, RowsRequest(X)))
    now[0] = 1001.0
    with pytest.raises(KeyExpired):
        service.call(plane.predict(caller, RowsRequest(X)))
