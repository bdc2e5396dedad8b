"""Several models in one service over real HTTP: each is asked for by name, and all are charged to one ledger."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.http as triton

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import key_digest, new_api_key
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.randomness import NoiseKey
from dpserve.service.metered import MeteredPredictor
from dpserve.training.bundles.certificate import UNITS

from .conftest import DELTA
from .test_http import PRICE, ROW, problem

PRICE_OF_SHAPES = Gaussian(20.0).cost.picorho


def renamed(head, name, lineage=None, **changes):
    """The model under another name, with another id, weights and noise key."""
    certificate = head.certificate.model_copy(
        update={"name": name, "model_id": name * 4, "lineage": lineage or head.certificate.lineage}
    )
    return replace(head, certificate=certificate, weights=-head.weights, noise_key=NoiseKey(bytes(32)), **changes)


def predictor(model, ledger, noise=10.0):
    return MeteredPredictor(model, Gaussian(noise), ledger, largest_batch=50)


@pytest.fixture
def service(start, head):
    """colours, the default; shapes, of the same lineage, at a quarter of the price; sounds, of another lineage."""

    def more(ledger):
        return [predictor(renamed(head, "shapes"), ledger, 20.0), predictor(renamed(head, "sounds", "other"), ledger)]

    running = start(head, more=more)
    running.call(
        running.ledger.acting("owner").open_lineage(
            "other", Budget.from_rho(100.0, DELTA, "gaussian"), time=time.time()
        )
    )
    return running


def ask(http, path, row=ROW, **more):
    return http.post(path, json={"instances": [row]} | more)


def test_each_model_answers_under_its_own_name_and_the_default_one_without(service):
    http = service.http(service.add_client())
    answers = {name: ask(http, f"/models/{name}/predict").json() for name in ("colours", "shapes")}
    assert [each["receipt"]["model"] for each in answers.values()] == ["colours", "shapes"]
    assert answers["colours"]["predictions"] != answers["shapes"]["predictions"]
    again = ask(http, "/predict").json()
    assert again["predictions"] == answers["colours"]["predictions"]
    assert (again["receipt"]["model"], again["receipt"]["charged_rows"]) == ("colours", 0)
    assert http.get("/models").json() == {"models": ["colours", "shapes", "sounds"], "default": "colours"}
    assert http.get("/models/shapes").json()["name"] == "shapes"
    problem(ask(http, "/predict", model="shapes"), 404, "unknown-model")


def test_the_account_lists_the_models_that_a_key_is_good_for(service):
    http = service.http(service.add_client())
    assert http.get("/account").json() == {"models": ["colours", "shapes"], "default": "colours"}
    key = new_api_key()
    budget = Budget.from_rho(1.0, DELTA, "gaussian")
    service.call(service.ledger.acting("owner").add_client("other", "bob", budget, key_digest(key), time=time.time()))
    assert service.http(key).get("/account").json() == {"models": ["sounds"], "default": "sounds"}
    problem(service.http(new_api_key()).get("/account"), 401, "unauthenticated")
    problem(service.http().get("/account"), 401, "unauthenticated")


def test_models_of_one_lineage_are_charged_to_one_account(service):
    http = service.http(service.add_client())
    ask(http, "/models/colours/predict")
    ask(http, "/models/shapes/predict")
    assert service.spent() == PRICE + PRICE_OF_SHAPES
    budgets = [http.get(path).json() for path in ("/budget", "/models/colours/budget", "/models/shapes/budget")]
    assert budgets[0] == budgets[1]
    assert len({each["spent"]["rho"] for each in budgets}) == 1
    assert budgets[2]["queries_left"] > budgets[0]["queries_left"]
    receipts = [http.get(f"{path}/receipts").json() for path in ("/budget", "/models/shapes/budget")]
    assert receipts[0] == receipts[1]
    assert [each["id"] for each in receipts[0]["receipts"]] == [1, 2]


def test_a_key_that_several_lineages_know_asks_all_models_and_each_lineage_pays_for_its_own(service):
    key = service.add_client()
    http = service.http(key)
    problem(ask(http, "/models/sounds/predict"), 401, "unauthenticated")
    budget = Budget.from_rho(1.0, DELTA, "gaussian")
    service.call(service.ledger.acting("owner").add_client("other", "alice", budget, key_digest(key), time=time.time()))
    assert ask(http, "/models/sounds/predict").status_code == 200
    assert service.spent() == 0
    assert service.call(service.ledger.client("other", "alice")).spent == PRICE
    assert http.get("/models/sounds/budget").json()["spent"]["rho"] == PRICE / 1e12


@pytest.mark.parametrize("path", ["/models/scents/predict", "/v2/models/scents/infer", "/models/scents/budget"])
def test_an_unknown_model_is_refused_and_nothing_is_charged(service, path):
    http = service.http(service.add_client())
    response = http.get(path) if path.endswith("budget") else ask(http, path)
    assert response.status_code == 404
    assert response.headers["dpserve-problem"] == "unknown-model"
    assert service.spent() == 0


def test_answers_never_mix_models_whoever_asks_at_once(service):
    http = service.http(service.add_client(rho=50.0))
    rows = np.random.default_rng(0).random((60, 4)).tolist()

    def alone(name):
        return [ask(http, f"/models/{name}/predict", row).json()["predictions"] for row in rows]

    with ThreadPoolExecutor(8) as pool:
        asked = [(f"/models/{name}/predict", row) for row in rows for name in ("colours", "shapes")]
        together = list(pool.map(lambda each: ask(http, *each).json()["predictions"], asked))
    assert together[::2] == alone("colours")
    assert together[1::2] == alone("shapes")


def test_the_repository_lists_the_models_and_each_says_its_configuration(service):
    with triton.InferenceServerClient(service.url.removeprefix("http://")) as client:
        index = client.get_model_repository_index()
        assert [(each["name"], each["state"]) for each in index] == [
            ("colours", "READY"),
            ("shapes", "READY"),
            ("sounds", "READY"),
        ]
        config = client.get_model_config("shapes")
        assert (config["name"], config["max_batch_size"]) == ("shapes", 50)
        assert config["input"] == [{"name": "instances", "data_type": "TYPE_FP64", "dims": [4]}]
        assert client.is_model_ready("sounds")
        assert not client.is_model_ready("scents")


def test_each_model_has_an_openapi_document_of_its_own(service):
    http = service.http()
    own = http.get("/models/shapes/openapi.json").json()
    assert own["paths"]["/models/{name}/predict"]["post"]["parameters"][0]["schema"]["enum"] == ["shapes"]
    assert "/predict" not in own["paths"]
    whole = http.get("/openapi.json").json()
    assert whole["paths"]["/models/{name}/predict"]["post"]["parameters"][0]["schema"]["enum"] == ["colours"]
    assert "/predict" in whole["paths"]


def test_counts_are_each_models_own(service):
    http = service.http(service.add_client())
    ask(http, "/models/shapes/predict")
    ask(http, "/models/shapes/predict")
    ask(http, "/predict", [2.0] * 4)
    ask(http, "/models/scents/predict")
    service.call(asyncio.sleep(0))
    rows, requests = service.metrics.rows, service.metrics.requests
    assert [rows.labels("shapes", outcome)._value.get() for outcome in ("charged", "free")] == [1, 1]
    samples = [sample for metric in requests.collect() for sample in metric.samples if sample.name.endswith("_total")]
    answered = {(sample.labels["model"], sample.labels["status"][0]): sample.value for sample in samples}
    assert answered == {("shapes", "2"): 2, ("colours", "4"): 1, ("", "4"): 1}


def test_a_service_without_a_default_model_says_how_to_ask(service):
    service.models.default = None
    http = service.http(service.add_client())
    found = problem(ask(http, "/predict"), 404, "unknown-model")
    assert "/models/NAME/" in found["detail"]
    problem(http.get("/budget"), 404, "unknown-model")
    assert http.get("/openapi.json").status_code == 200


def test_the_privacy_unit_of_each_model_is_public_and_explains_its_clients_accounts(start, head):
    by_person = head.certificate.model_copy(update={"unit": "person", "neighbouring": UNITS})
    of_records = renamed(head, "shapes", "other")
    service = start(replace(head, certificate=by_person), more=lambda ledger: [predictor(of_records, ledger)])
    service.call(service.ledger.acting("owner").settle_unit(head.certificate.lineage, "person"))
    http = service.http(service.add_client())
    assert http.get("/models").json()["units"] == {"colours": "person"}
    assert http.get("/models/colours").json()["unit"] == "person"
    assert "unit" not in http.get("/models/shapes").json()
    explained = http.get("/budget").json()["explanation"]
    assert explained["unit"] == "person"
    assert "adding or removing all records of one unit" in explained["in_plain_words"]
