"""Asking through HTTP and in this process: the same answers, charges and refusals."""

import json

import numpy as np
import pytest

from dpserve.audit.endpoint import EndpointError, Exhausted
from dpserve.audit.membership.asking import AnswerJournal, ask
from dpserve.audit.membership.candidates import as_asked
from dpserve.audit.membership.charges import ask_again
from dpserve.audit.membership.plan import near_copies, rows_of_keys
from dpserve.endpoint import ServiceEndpoint
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.training.features.maps import Fourier, Identity
from tests.audit.membership.conftest import forget


def test_http_and_bundle_give_the_same_answers_and_accounts(serve, bundle, candidates):
    service = serve().endpoint()
    (local,) = bundle()
    local.budget_of_key = None
    rows = np.concatenate([candidates.members.X, candidates.members.X[:9], candidates.others.X])
    found = [ask([endpoint], rows, AnswerJournal(None, endpoint.model())) for endpoint in (service, local)]
    np.testing.assert_array_equal(found[0].answers, found[1].answers)
    public = [dict(endpoint.model()) for endpoint in (service, local)]
    assert json.loads(json.dumps(public[0])) == json.loads(json.dumps(public[1]))
    accounts = [endpoint.budget() for endpoint in (service, local)]
    assert accounts[0]["spent"] == accounts[1]["spent"]
    assert accounts[0]["price"] == accounts[1]["price"]


def test_a_thousand_repeats_of_one_row_gain_nothing(serve, bundle, candidates):
    row = candidates.members.X[0]
    for endpoint in (serve().endpoint(), bundle()[0]):
        first = endpoint.answers(row[None])[0]
        before = endpoint.budget()["spent"]["rho"]
        found = ask_again(endpoint, row, first, times=1000)
        assert (found.answers, found.charged) == (1, 0.0)
        assert not found.averaging_is_free
        assert endpoint.budget()["spent"]["rho"] == before


def test_a_service_that_forgot_the_row_charges_again_until_the_budget_ends(bundle, candidates):
    (endpoint,) = bundle(rho=0.0251)
    first = endpoint.answers(candidates.members.X[:1])[0]

    class Forgetful:
        """Draws other noise each time, and charges for it: dear, and no hole."""

        def answers(self, rows):
            forget(endpoint)
            return endpoint.answers(rows)

        def __getattr__(self, name):
            return getattr(endpoint, name)

    found = ask_again(Forgetful(), candidates.members.X[0], first, times=1000)
    assert found.times == 4 * 50
    assert found.answers == 5
    assert found.charged == 4 * found.price == 4 * Gaussian(10.0).cost.picorho
    assert not found.averaging_is_free


def test_near_copies_are_new_rows_and_pay_like_them(bundle, candidates):
    (endpoint,) = bundle()
    rows = near_copies(candidates.members.X[:3], 4, endpoint.model(), seed=0)
    assert len(np.unique(rows, axis=0)) == 12
    np.testing.assert_array_equal(rows[::4], candidates.members.X[:3])
    assert np.abs(rows - np.repeat(rows[::4], 4, axis=0)).max() <= 1e-4
    assert rows.min() >= 0
    assert rows.max() <= 1
    answers = endpoint.answers(rows)
    assert len(np.unique(answers, axis=0)) == 12
    assert endpoint.paid == 12


def test_running_out_is_a_result_and_every_affordable_row_is_answered(serve, candidates):
    """At rho = 0.005 a row, 0.117 pays for 23 rows, in batches of 50."""
    endpoint = serve().endpoint(rho=0.1171)
    counts = []
    found = ask([endpoint], candidates.members.X, AnswerJournal(None, endpoint.model()), on_rows=counts.append)
    assert found.exhausted == ("key 1: client",)
    answered = ~np.isnan(found.answers[0, :, 0])
    assert answered[:23].all()
    assert not answered[23:].any()
    assert sum(counts) == 23
    assert endpoint.budget()["queries_left"] == 0


def test_colluding_keys_are_capped_by_the_lineage(serve, candidates):
    """Each key could pay for 100 rows; the lineage pays for 60 in all, if no two keys ask one question."""
    service = serve(lineage_rho=0.3001)
    endpoints = [service.endpoint(name, rho=0.5) for name in ("alice", "bob")]
    names = [endpoint.name() for endpoint in endpoints]
    rows = rows_of_keys(candidates.members.X[:40], 1, endpoints[0].model(), 0, names)
    found = ask(endpoints, rows, AnswerJournal(None, endpoints[0].model()))
    assert found.exhausted == ("key 1: lineage", "key 2: lineage")
    there = ~np.isnan(found.answers[:, :, 0])
    assert there.sum(axis=1).tolist() == [30, 30]
    assert there[:, :30].all()
    assert (found.answers[0, :30] != found.answers[1, :30]).any(axis=1).all()


def test_keys_that_ask_one_question_get_one_answer_and_the_lineage_pays_once(serve, candidates):
    """It has room for 120 questions, 60 of them new to the key that asks: three keys' 180, were each one paid for."""
    service = serve(lineage_rho=0.6001)
    endpoints = [service.endpoint(name, rho=0.5) for name in ("alice", "bob", "carol")]
    found = ask(endpoints, candidates.members.X, AnswerJournal(None, endpoints[0].model()))
    assert found.exhausted == ()
    np.testing.assert_array_equal(found.answers[0], found.answers[1])
    np.testing.assert_array_equal(found.answers[0], found.answers[2])
    assert [endpoint.budget()["spent"]["rho"] for endpoint in endpoints] == pytest.approx([0.3, 0.3, 0.3])


def test_near_copies_of_two_keys_are_other_questions(bundle, candidates):
    first, second = bundle(keys=2)
    rows = rows_of_keys(candidates.members.X[:5], 3, first.model(), 0, [first.name(), second.name()])
    assert rows.shape == (2, 15, 12)
    np.testing.assert_array_equal(rows[0, ::3], candidates.members.X[:5])
    asked = as_asked(first.model(), rows.reshape(30, 12))
    np.testing.assert_array_equal(asked, rows.reshape(30, 12))
    assert np.abs(rows - candidates.members.X[:5].repeat(3, axis=0)).max() <= 1e-4


@pytest.mark.parametrize("kind", ["identity", "fourier", "scaled", "encoder"])
def test_rows_that_ask_one_question_are_one_row(kind):
    shared = {"lower": (0.0, 0.0), "upper": (1.0, 1e9)}
    feature_map = {
        "identity": Identity(**shared, clip_norm=1.0, bias=0.1).model_dump(),
        "fourier": Fourier(**shared, clip_norm=1.0, bias=0.1, random_features=8, bandwidth=1.0, seed=0).model_dump(),
        "scaled": shared | {"kind": "scaled"},
        "encoder": shared | {"kind": "encoder"},
    }[kind]
    rows = np.array([[0.5, 1e6], [0.5, 1e6 + 0.25], [0.25, 1e6], [0.5, 1e6], [-0.0, 0.0], [0.0, 0.0]])
    asked = as_asked({"feature_map": feature_map}, rows)
    np.testing.assert_array_equal(asked[[0, 2, 3, 4, 5]], rows[[0, 2, 0, 4, 4]])
    np.testing.assert_array_equal(asked[1], rows[1 if kind == "encoder" else 0])


def test_a_revoked_key_a_wrong_key_and_a_dead_endpoint_are_said_in_one_line(serve, candidates):
    service = serve()
    endpoint = service.endpoint()
    endpoint.answers(candidates.members.X[:1])
    service.revoke()
    with pytest.raises(EndpointError, match="refuses the key") as refused:
        endpoint.answers(candidates.members.X[1:2])
    assert "\n" not in str(refused.value)
    with ServiceEndpoint(service.url, "wrong", attempts=1) as other, pytest.raises(EndpointError, match="refuses"):
        other.budget()
    with pytest.raises(ValueError, match="row 0 has 2 values; the model takes 12"):
        endpoint.answers(np.zeros((1, 2)))
    service.stop()
    with (
        ServiceEndpoint(service.url, "key", attempts=1) as dead,
        pytest.raises(EndpointError, match=r"does not answer: .* Is the service running"),
    ):
        dead.model()


def test_a_batch_is_charged_whole_or_not_at_all(bundle, candidates):
    (endpoint,) = bundle(Gaussian(10.0), rho=0.02)
    with pytest.raises(Exhausted, match="the client's budget"):
        endpoint.answers(candidates.members.X[:5])
    assert endpoint.paid == 0
    with pytest.raises(EndpointError, match="at most 50 rows"):
        endpoint.answers(candidates.members.X)
