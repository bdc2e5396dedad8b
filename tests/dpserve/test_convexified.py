"""A head on the convexified objective, wherever a head goes: trained, inspected, planned for, served, taken away."""

import json

import httpx
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dpserve import AutoFeatures, Head, PrivateClassifier, Schema
from dpserve.train_options import TrainOptions
from dpserve.trainer import run_training
from dpserve.training.errors import WrongOption
from dpserve.training.kinds.loading import load_model

CONVEXIFIED = ("--objective", "convexified", "--alpha", "0.05", "--least-records")
BUDGET = ("--epsilon", "3", "--delta", "1e-6")


@pytest.fixture
def people(run):
    """A table of 200 records."""
    (run.folder / "people.csv").write_text(run.csv)
    return run


def training(people, out, least, *more):
    return (*people.train, "--data", "people.csv", "--out", out, *CONVEXIFIED, least, *more)


def test_it_is_trained_inspected_planned_for_and_served(people):
    people(*training(people, "m", 150))
    certificate = load_model(people.folder / "m").certificate
    told = certificate.convexified
    shown = people("inspect", "m").stdout
    for figure in ("price of alpha", f"{told.largest_share:.6g}", f"{told.price_of_alpha:.4g}"):
        assert figure in shown

    planned = json.loads(people("plan", "m", *BUDGET, "--json").stdout)
    assert planned["sensitivity"] == certificate.weight_sensitivity

    price = ("--mechanism", "selected-neuron", "--price", "rho:0.001")
    process, address = people.start("m", "--accepts", "any", *price, *BUDGET)
    try:
        key = people("clients", "add", "a", "--rho", 0.1, "--delta", 1e-6, "--accepts", "any").stdout.strip()
        described = httpx.get(f"{address}/models/m").json()
        assert described["convexified"]["price_of_alpha"] == told.price_of_alpha
        assert described["weight_sensitivity"] == certificate.weight_sensitivity
        rows, bearer = {"instances": [[40.0, 30000.0]]}, {"Authorization": f"Bearer {key}"}
        answer = httpx.post(f"{address}/predict", json=rows, headers=bearer, timeout=60)
        assert answer.status_code == 200, answer.text
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_its_weights_are_released_and_leave_in_a_file(people):
    words = ["weights" if word == "head" else word for word in training(people, "w", 200, "--rho", "0.1")]
    people(*words)
    found = load_model(people.folder / "w").certificate
    assert (found.convexified.alpha, found.convexified.least_records) == (0.05, 200)
    assert found.weight_sensitivity == pytest.approx(
        found.convexified.price_of_alpha * found.convexified.sum_weight_sensitivity, rel=1e-12
    )
    people("lineage", "set-budget", "w", *BUDGET)
    people("export", "w", "--to", "safetensors", "--out", "w.safetensors")
    assert (people.folder / "w.safetensors").stat().st_size > 0


def test_fewer_records_than_declared_train_nothing_and_are_not_counted(people):
    told = people.fails(*training(people, "m", 201))
    assert "201" in told
    assert "200" not in told
    assert not (people.folder / "m").exists()


def test_a_unit_has_no_convexified_objective(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    kind = Head(objective="convexified", alpha=1, least_records=100)
    with pytest.raises(WrongOption) as refused:
        run_training(TrainOptions(data="digits", out=tmp_path / "m", unit="age"), AutoFeatures(), kind)
    assert refused.value.field == "unit"
    assert not (tmp_path / "m").exists()


def test_the_estimator_takes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    a, b = np.random.default_rng(1).random((2, 120))
    table, y = pd.DataFrame({"a": a, "b": b}), np.where(a > 0.5, "yes", "no")
    kind = Head(objective="convexified", alpha=0.1, least_records=100, lam=1)
    made = PrivateClassifier(Schema(classes=["no", "yes"], bounds=(0, 1)), lineage="l", kind=kind).fit(table, y)
    assert made.certificate_.convexified.least_records == 100
    with pytest.raises(ValueError, match="fewer"):
        clone(made).set_params(kind__least_records=121).fit(table, y)
