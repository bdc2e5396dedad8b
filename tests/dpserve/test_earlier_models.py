"""`dpserve train --start` and `--add`, and the same in Python: what each lineage and each client pays."""

import json

import httpx
import pytest

from dpserve import PrivateClassifier
from training.kinds.loading import load_model

COLUMNS = "age,income,ok\n"
TRAIN = ("train", "--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120", "--bounds", "income=0:1e6")
TRAIN += ("--release", "class-sums", "--records-declared", "200", "--prediction-sets", "off", "--price")


def month(number):
    """Records of one month, with values of its own."""
    return COLUMNS + "".join(
        f"{20 + index % 60},{1000 * (index % 60) + index + 1000 * number},{'yes' if index % 60 > 30 else 'no'}\n"
        for index in range(200)
    )


@pytest.fixture
def train(run):
    def train(name, number, lineage, *more, price="rho:0.1", status=0):
        (run.folder / f"{number}.csv").write_text(month(number))
        return run(*TRAIN, price, "--data", f"{number}.csv", "--lineage", lineage, "--out", name, *more, status=status)

    return train


def spent(run):
    return {each["lineage"]: each["spent_picorho"] for each in json.loads(run("lineage", "list", "--json").stdout)}


def pay(run, name):
    """Serve a model once, which opens its lineage and charges it."""
    process, _ = run.start(name, "--rho", "1", "--delta", "1e-5")
    process.terminate()
    process.wait()


def test_a_month_that_begins_at_another_lineages_model_sees_it_paid_for_first(run, train):
    train("a", 1, "october")
    said = train("b", 2, "november", "--start", "a", status=1)
    assert "october" in said.stderr
    assert not (run.folder / "b").exists()
    pay(run, "a")
    before = spent(run)
    train("b", 2, "november", "--start", "a")
    assert spent(run) == before
    shown = " ".join(run("inspect", "b").stdout.split())
    assert "computed from" in shown
    assert "its records are others" in shown
    pay(run, "b")
    assert spent(run)["october"] == before["october"]
    assert 0 <= spent(run)["november"] - load_model(run.folder / "b").certificate.whole_cost().picorho < 10


def test_in_one_lineage_a_client_who_holds_the_later_model_alone_pays_for_both(run, train):
    train("a", 1, "loans")
    train("b", 2, "loans", "--add", "a")
    certificates = [load_model(run.folder / name).certificate for name in ("a", "b")]
    process, address = run.start("a", "b", "--default", "b", "--rho", "1", "--delta", "1e-5")
    try:
        key = run("clients", "add", "ann", "--rho", "1", "--delta", "1e-5").stdout.strip()
        head = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=address, headers=head) as http:
            http.post("/predict", json={"instances": [[30.0, 1000.0]]}).raise_for_status()
            client = http.get("/budget").json()["spent"]["rho"]
        both = sum(certificate.whole_cost().picorho for certificate in certificates)
        assert client == pytest.approx(both / 1e12, rel=1e-9)
        assert 0 <= spent(run)["loans"] - both < 10
    finally:
        process.terminate()
        process.wait()


def test_python_begins_at_a_bundle_and_has_its_lineage_pay(run, train, monkeypatch):
    monkeypatch.setenv("DPSERVE_HOME", run.environment["DPSERVE_HOME"])
    train("a", 1, "october")
    declared = {"bounds": {"age": (0, 120), "income": (0, 1e6)}, "classes": ["no", "yes"], "epsilon": 1, "delta": 1e-6}
    declared |= {"records_declared": 200, "release": "dpsgd", "prediction_sets": "off", "steps": 5}
    path = run.folder / "2.csv"
    path.write_text(month(2))
    model = PrivateClassifier(lineage="november", lineage_budget=(3, 1e-6), start=run.folder / "a", **declared)
    with pytest.raises(ValueError, match="october"):
        model.fit(path, "ok")
    pay(run, "a")
    before = spent(run)["october"]
    model.fit(path, "ok")
    assert [each.lineage for each in model.certificate_.earlier] == ["october"]
    assert spent(run)["october"] == before
    assert model.charged_rho_ > 0
    assert PrivateClassifier.load(model.save(run.folder / "b")).certificate_ == model.certificate_
