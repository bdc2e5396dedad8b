"""`GET /models/{name}/export`: a client takes away the tier that it holds, and pays for it once."""

import asyncio
import gc
import weakref

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load

from accounting.picorho import to_rho
from mechanisms.randomness import SystemRandomness
from service.http import exporting
from service.pay_once import PayOncePredictor
from training.errors import MissingExtra
from training.export.files import FORMS, exported
from training.kinds.weights.model import release_weights

from .test_http import ROW, problem
from .test_releases import PRICES, ROWS, lineage_spent, picorho_of


@pytest.fixture(scope="module")
def tiered(head):
    return release_weights(head, PRICES, "colours-lineage", SystemRandomness())


@pytest.fixture
def service(start, tiered):
    return start.release(tiered)


def test_a_holder_takes_the_model_away_for_nothing_and_it_answers_alike(service, tiered):
    http = service.http(service.add_client())
    answers = http.post("/predict", json={"instances": ROWS.tolist(), "tier": "middle"}).json()["predictions"]
    spent = service.spent()

    taken = http.get("/models/colours/export", params={"to": "onnx"})

    assert taken.status_code == 200
    assert taken.headers["content-disposition"] == 'attachment; filename="colours-middle.onnx"'
    _, probabilities = onnxruntime.InferenceSession(taken.content).run(None, {"x": ROWS})
    np.testing.assert_allclose(probabilities, answers, rtol=0, atol=1e-6)
    assert service.spent() == spent == picorho_of(tiered.certificate, "middle")


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_file_that_the_owner_gets(service, tiered, form):
    http = service.http(service.add_client())
    http.post("/predict", json={"instances": [ROW], "tier": "coarse"})
    taken = http.get("/models/colours/export", params={"to": form, "tier": "coarse"})
    # Byte by byte, whatever the order of what has none.
    assert sorted(taken.content) == sorted(exported(tiered, form, "coarse").content)


def test_a_tier_that_is_not_held_is_refused_and_nothing_is_charged(service, tiered):
    http = service.http(service.add_client())
    unheld = problem(http.get("/models/colours/export", params={"to": "onnx"}), 403, "tier-not-held")
    assert (unheld["tier"], unheld["cost"]) == ("coarse", to_rho(picorho_of(tiered.certificate, "coarse")))
    assert service.spent() == lineage_spent(service) == 0
    http.post("/predict", json={"instances": [ROW], "tier": "coarse"})
    spent = service.spent()
    finer = problem(http.get("/models/colours/export", params={"to": "onnx", "tier": "fine"}), 403, "tier-not-held")
    assert finer["cost"] == to_rho(picorho_of(tiered.certificate, "fine") - spent)
    assert service.spent() == spent


@pytest.mark.parametrize("query", ["Tier=coarse", "tier=coarse&tier=fine", "to=onnx", "dry_run=true"])
def test_parameters_that_are_unknown_or_come_twice_are_refused_and_nothing_is_charged(service, query):
    http = service.http(service.add_client())
    problem(http.post(f"/models/colours/export?to=onnx&{query}"), 400, "invalid-request")
    problem(http.get(f"/models/colours/budget/receipts?{query}"), 400, "invalid-request")
    assert service.spent() == 0


def test_who_posts_is_charged_for_holding_it_once(service, tiered):
    http = service.http(service.add_client())
    asked = {"to": "safetensors", "tier": "middle"}
    problem(http.get("/models/colours/export", params=asked | {"hold": "true"}), 400, "invalid-request")
    problem(http.get("/models/colours/export", params=asked), 403, "tier-not-held")
    assert service.spent() == lineage_spent(service) == 0
    first, again = (http.post("/models/colours/export", params=asked) for _ in range(2))
    for taken in (first, again):
        np.testing.assert_array_equal(load(taken.content)["weights.0"], tiered.at("middle").weights.T)
    assert service.spent() == lineage_spent(service) == picorho_of(tiered.certificate, "middle")
    assert http.post("/predict", json={"instances": [ROW]}).json()["receipt"]["charged"] == 0


def test_what_an_account_cannot_pay_is_refused_and_nothing_is_charged(start, tiered):
    poor = start.release(tiered, lineage_rho=to_rho(PRICES["middle"]))
    client = poor.http(poor.add_client("client", rho=to_rho(PRICES["coarse"] - 1)))
    asked = {"to": "onnx", "tier": "coarse"}
    assert problem(client.post("/models/colours/export", params=asked), 403, "budget-exhausted")["scope"] == "client"
    rich = poor.http(poor.add_client("rich", rho=1.0))
    body = problem(rich.post("/models/colours/export", params=asked | {"tier": "fine"}), 403, "budget-exhausted")
    assert body["scope"] == "lineage"
    assert poor.spent("client") == poor.spent("rich") == lineage_spent(poor) == 0


def test_what_there_is_not_is_refused(service):
    http = service.http(service.add_client())
    problem(http.get("/models/colours/export", params={"to": "onnx", "tier": "best"}), 422, "unknown-tier")
    problem(http.get("/models/colours/export", params={"to": "pickle"}), 422, "invalid-request")
    problem(http.get("/models/others/export", params={"to": "onnx"}), 404, "unknown-model")
    problem(service.http().get("/models/colours/export", params={"to": "onnx"}), 401, "unauthenticated")
    assert service.spent() == 0


def test_a_model_whose_answers_are_paid_for_one_by_one_stays(start, head):
    plain = start(head)
    http = plain.http(plain.add_client())
    said = problem(http.get("/models/colours/export", params={"to": "onnx"}), 403, "not-exportable")
    assert "have its owner train a pay-once model" in said["detail"]
    assert plain.spent() == 0


def test_a_file_is_made_once_however_many_ask_for_it(service, tiered, monkeypatch):
    made = []
    monkeypatch.setattr(exporting, "exported", lambda *asked: made.append(asked[1:]) or exported(*asked))
    http = service.http(service.add_client())
    http.post("/predict", json={"instances": [ROW], "tier": "coarse"})
    files = [http.get("/models/colours/export", params={"to": form}) for form in ("onnx", "onnx", "safetensors")]
    assert made == [("onnx", "coarse"), ("safetensors", "coarse")]
    assert files[0].content == files[1].content


def test_files_of_a_model_that_is_gone_are_dropped(tiered):
    files, predictor = exporting.Files(), PayOncePredictor(tiered, None, largest_batch=1)
    made = [asyncio.run(files.of(predictor, "safetensors", "coarse")) for _ in range(2)]
    assert made[0] is made[1]
    gone = weakref.ref(made.pop()), weakref.ref(predictor)
    del made, predictor
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_file_that_failed_is_tried_again(service, monkeypatch):
    http = service.http(service.add_client())
    http.post("/predict", json={"instances": [ROW], "tier": "coarse"})
    for error, status in ((MissingExtra("onnx"), 501), (None, 200)):
        failing = lambda *asked, error=error: exported(*asked) if error is None else _raise(error)  # noqa: E731
        monkeypatch.setattr(exporting, "exported", failing)
        assert http.get("/models/colours/export", params={"to": "onnx"}).status_code == status


def _raise(error):
    raise error
