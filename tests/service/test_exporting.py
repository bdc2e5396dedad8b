"""`GET /models/{name}/export`: a client takes away a model that it has paid for, and pays for it once."""

import asyncio
import gc
import weakref

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load

from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.service.http import exporting
from dpserve.service.pay_once import PayOncePredictor
from dpserve.training.errors import MissingExtra, NotExportable
from dpserve.training.export.files import FORMS, exported
from dpserve.training.kinds.weights.train import release_weights

from .test_http import ROW, problem
from .test_releases import PRICE, ROWS, lineage_spent


@pytest.fixture(scope="module")
def released(head):
    return release_weights(head, PRICE, "colours-lineage", SystemRandomness())


@pytest.fixture
def service(start, released):
    return start.release(released)


def test_a_holder_takes_the_model_away_for_nothing_and_it_answers_alike(service, released):
    http = service.http(service.add_client())
    answers = http.post("/predict", json={"instances": ROWS.tolist()}).json()["predictions"]
    spent = service.spent()

    taken = http.get("/models/colours/export", params={"to": "onnx"})

    assert taken.status_code == 200
    assert taken.headers["content-disposition"] == 'attachment; filename="colours.onnx"'
    _, probabilities = onnxruntime.InferenceSession(taken.content).run(None, {"x": ROWS})
    np.testing.assert_allclose(probabilities, answers, rtol=0, atol=1e-6)
    assert service.spent() == spent == released.certificate.price.picorho


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_file_that_the_owner_gets(service, released, form):
    http = service.http(service.add_client())
    http.post("/predict", json={"instances": [ROW]})
    taken = http.get("/models/colours/export", params={"to": form})
    # Byte by byte, whatever the order of what has none.
    assert sorted(taken.content) == sorted(exported(released, form).content)


@pytest.mark.parametrize("query", ["To=onnx", "form=onnx", "to=onnx", "dry_run=true"])
def test_parameters_that_are_unknown_or_come_twice_are_refused_and_nothing_is_charged(service, query):
    http = service.http(service.add_client())
    problem(http.post(f"/models/colours/export?to=onnx&{query}"), 400, "invalid-request")
    problem(http.get(f"/models/colours/budget/receipts?{query}"), 400, "invalid-request")
    assert service.spent() == 0


def test_who_gets_is_refused_what_is_not_paid_for_and_who_posts_pays_for_the_model_once(service, released):
    http = service.http(service.add_client())
    asked = {"to": "safetensors"}
    problem(http.get("/models/colours/export", params=asked | {"hold": "true"}), 400, "invalid-request")
    refused = problem(http.get("/models/colours/export", params=asked), 403, "model-not-paid-for")
    assert refused["cost"] == to_rho(released.certificate.price.picorho)
    account = http.get("/budget").json()
    assert f"it costs {account['shown_in']} = " in refused["detail"]
    assert service.spent() == 0
    first, again = (http.post("/models/colours/export", params=asked) for _ in range(2))
    for taken in (first, again):
        np.testing.assert_array_equal(load(taken.content)["weights.0.0"], released.weights.T)
    assert service.spent() == lineage_spent(service) == released.certificate.price.picorho
    assert http.post("/predict", json={"instances": [ROW]}).json()["receipt"]["charged"] == 0


def test_what_an_account_cannot_pay_is_refused_and_nothing_is_charged(service, released):
    client = service.http(service.add_client("client", rho=to_rho(released.certificate.price.picorho - 1)))
    refused = client.post("/models/colours/export", params={"to": "onnx"})
    assert problem(refused, 403, "budget-exhausted")["scope"] == "client"
    assert service.spent("client") == 0


def test_what_there_is_not_is_refused(service):
    http = service.http(service.add_client())
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


def test_a_file_is_made_once_however_many_ask_for_it(service, released, monkeypatch):
    made = []
    monkeypatch.setattr(exporting, "exported", lambda *asked: made.append(asked[1:]) or exported(*asked))
    http = service.http(service.add_client())
    http.post("/predict", json={"instances": [ROW]})
    files = [http.get("/models/colours/export", params={"to": form}) for form in ("onnx", "onnx", "safetensors")]
    assert made == [("onnx",), ("safetensors",)]
    assert files[0].content == files[1].content


def test_files_of_a_model_that_is_gone_are_dropped(released):
    files, predictor = exporting.Files(), PayOncePredictor(released, None, largest_batch=1)
    made = [asyncio.run(files.of(predictor, "safetensors")) for _ in range(2)]
    assert made[0] is made[1]
    gone = weakref.ref(made.pop()), weakref.ref(predictor)
    del made, predictor
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_file_that_failed_is_tried_again(service, monkeypatch):
    http = service.http(service.add_client())
    http.post("/predict", json={"instances": [ROW]})
    for error, status in ((MissingExtra("onnx"), 501), (NotExportable("a form that it lacks"), 403), (None, 200)):
        failing = lambda *asked, error=error: exported(*asked) if error is None else _raise(error)  # noqa: E731
        monkeypatch.setattr(exporting, "exported", failing)
        assert http.get("/models/colours/export", params={"to": "onnx"}).status_code == status


def _raise(error):
    raise error
