"""Everything public is the same, bit for bit, whether a record was trained on or not; only paid answers may differ.

Two models of neighbouring sets are served alike. All that a stranger sees, that a client sees without paying, or with a
refusal, that logs say, and the sizes of files are compared. Ids, which are random, are made the same.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpserve.mechanisms.published import Published
from dpserve.service.http.app import HttpOptions
from dpserve.service.telemetry.logs import RequestLog
from dpserve.training.export.files import exported
from dpserve.training.feature_choice import QuantileFeatures
from dpserve.training.features.maps import Identity
from dpserve.training.fit import Request, fit
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.class_sums.bundle import save_class_sums
from dpserve.training.kinds.class_sums.kind import ClassSums
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.head.bundle import save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from tests.seeded import Seeded
from tests.service.conftest import Starter

DECLARED = Declaration(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3, ("no", "yes"))
MAP = Identity(lower=DECLARED.lower, upper=DECLARED.upper, clip_norm=1.0, bias=0.5)
ROW = [0.25, 0.5, 0.75]
RANDOM = ("time", "request_id", "seconds")


def neighbouring_sets():
    """60 records, and all of them but the first, which no other is like."""
    generator = np.random.default_rng(3)
    X, y = generator.uniform(size=(60, 3)), generator.integers(2, size=60)
    X[0], y[0] = (1.0, 0.0, 1.0), 1
    return Records(X, y, DECLARED, ()), Records(X[1:], y[1:], DECLARED, ())


def head(records):
    return train_head(records, Recipe("public", MAP, 1.0), "own")


def with_ids_of(model, other):
    """The model with the other's random id and noise key, and the time that it was made at."""
    ids = {"model_id": other.certificate.model_id, "created": other.certificate.created}
    return replace(model, certificate=model.certificate.model_copy(update=ids), noise_key=other.noise_key)


def public_paths(http):
    """Every path that is described, and what describes them, by the model's name."""
    described = http.get("/openapi.json").json()["paths"]
    asked = [
        path.replace("{name}", "public").replace("{version}", "1") for path in described if "get" in described[path]
    ]
    return ["/openapi.json", "/models/public/openapi.json", "/", "/docs", *asked]


def seen(service):
    """All that is said to a stranger, and to a client of a small budget, until it is refused: answers are left out."""
    stranger, client = service.http(), service.http(service.add_client(rho=1.5 * float(service.predictor.cost.rho)))

    def said(response):
        headers = {name: value for name, value in response.headers.items() if name not in ("date", "x-request-id")}
        if response.request.url.path.endswith("/receipts"):  # times, and chains of hashes over them
            return response.status_code, sorted(response.json())
        return response.status_code, headers, response.content

    found = {path: said(stranger.get(path)) for path in public_paths(stranger)}
    for rows in ([ROW], [[9, 9, 9]], [ROW] * 51, [ROW, [0] * 3]):
        found[f"dry {rows}"] = said(client.post("/predict?dry_run=true", json={"instances": rows}))
    paid = client.post("/predict?noise=true", json={"instances": [ROW]}).json()
    found["law"] = [paid["noise"][name] for name in ("law", "on", "scale", "coverage", "no_interval")]
    found["cost"] = paid["receipt"], paid["budget"]
    found["refused"] = said(client.post("/predict", json={"instances": [[0] * 3]}))
    return found | {"budget": said(client.get("/budget"))}


def logged(capfd):
    """Return the lines logged since the last call, without times and ids of requests."""
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    return [{name: part for name, part in line.items() if name not in RANDOM} for line in said]


def test_what_is_public_of_a_metered_model_is_the_same_for_neighbouring_sets(tmp_path, capfd):
    first, compared, contents = None, [], []
    for place, records in enumerate(neighbouring_sets()):
        model = head(records)
        first = first or model
        folder, starter = tmp_path / str(place), Starter(tmp_path / f"ledger-{place}")
        certificate = save_bundle(folder, with_ids_of(model, first))
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        service = starter(load_model(folder), options=HttpOptions(log=RequestLog()))
        try:
            found = seen(service)
        finally:
            starter.stop()
        compared.append(found | {"sizes": sizes, "certificate": certificate.public(), "log": logged(capfd)})
        contents.append((folder / "model.safetensors").read_bytes())
    assert len(compared[0]) > 20
    assert len(compared[0]["log"]) > 20
    assert compared[0].keys() == compared[1].keys()
    assert [name for name in compared[0] if compared[0][name] != compared[1][name]] == []
    assert contents[0] != contents[1], "it would be a comparison of a model with itself"


def test_what_is_said_of_noise_is_the_same_for_published_networks_of_one_record_more(tmp_path):
    """Their sensitivity is a function of how many records there are: no scale is told, whatever the mechanism knows."""
    pytest.importorskip("torch")
    from dpserve.training.kinds.published.train import train_published

    told, first = [], None
    for place, records in enumerate(neighbouring_sets()):
        network = train_published(records, "public", "own", hidden=(3,), epochs=1)
        first = first or network
        starter = Starter(tmp_path / f"ledger-{place}")
        service = starter(with_ids_of(network, first), Published(2, 1.0, "gaussian"), accepts="unproven")
        try:
            client = service.http(service.add_client(accepts="unproven"))
            quote = client.post("/predict?dry_run=true", json={"instances": [ROW]}).json()
            paid = client.post("/predict?noise=true", json={"instances": [ROW]}).json()["noise"]
            told.append((service.http().get("/models/public").json(), quote, paid))
        finally:
            starter.stop()
    assert network.certificate.records != first.certificate.records
    assert told[0] == told[1]
    assert told[0][2]["scale"] is None


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Two pay-once models of one declaration, of 60 records and of 2,000 others, with cuts at their quantiles."""
    folder, names = tmp_path_factory.mktemp("unlike"), tuple(f"x{place}" for place in range(60))
    declared = Declaration(names, (0.0,) * 60, (1.0,) * 60, ("no", "yes"))
    asked = Request(
        name="public",
        lineage="own",
        kind=ClassSums(canaries=64),
        price=3 * 10**12,
        n=500,
        features=QuantileFeatures(),
        prediction_sets="all",
    )
    made = []
    for count in (60, 2000):
        generator = np.random.default_rng(count)
        X = generator.uniform(size=(count, 60))
        records = Records(X, np.arange(count) % 2, declared, [row.tobytes() for row in X])
        fit(records, asked, folder / str(count), state=folder / f"state-{count}", randomness=Seeded(count))
        made.append(load_model(folder / str(count)))
    assert made[0].certificate.feature_map.dimension < made[1].certificate.feature_map.dimension / 4
    return made


def test_who_has_paid_for_nothing_sees_the_same_whatever_was_released(unlike, tmp_path):
    """Neither what was released is the same here, nor how much of it there is."""
    compared = []
    for place, model in enumerate(unlike):
        ids = {"model_id": "0" * 32} | ({"canaries": unlike[0].certificate.canaries} if place else {})
        canaries = model.certificate.canaries.model_copy(update={"commitment": "0" * 64})
        model = replace(model, certificate=model.certificate.model_copy(update={**ids, "canaries": canaries}))
        starter = Starter(tmp_path / f"ledger-{place}")
        service = starter.release(model, lineage_rho=10.0, largest_batch=10_000)
        stranger, client = service.http(), service.http(service.add_client())
        rows = [[0.5] * 60]
        try:
            found = {path: stranger.get(path).text for path in public_paths(stranger)}
            for count in (1, 600, 20_000):
                dry = client.post("/predict?dry_run=true", json={"instances": rows * count})
                found[f"dry {count}"] = dry.status_code, dry.text
            for path in ("/models/public/export?to=onnx", "/budget"):
                found[path] = client.get(path).text
            sizes = ("largest_batch", "largest_body", "small_body")
            found |= {name: getattr(service.predictor, name) for name in sizes}
        finally:
            starter.stop()
        compared.append(found)
    assert compared[0].keys() == compared[1].keys()
    assert len(compared[0]) > 20
    assert [name for name in compared[0] if compared[0][name] != compared[1][name]] == []


def test_sizes_of_a_pay_once_model_and_of_its_exports_are_the_same_for_neighbouring_sets(tmp_path):
    """Numbers in text have as many digits as they have: it is the released ones that these are of."""
    sizes = []
    for place, records in enumerate(neighbouring_sets()):
        model = train_class_sums(records, "public", MAP, 10**12, "own", Seeded(place), records_declared=60)
        save_class_sums(tmp_path / str(place), model)
        files = {form: len(exported(model, form).content) for form in ("onnx", "safetensors")}
        sizes.append(files | {"model": (tmp_path / str(place) / "model.safetensors").stat().st_size})
    assert sizes[0] == sizes[1]
