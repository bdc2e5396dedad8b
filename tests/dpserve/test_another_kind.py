"""A kind of model that another package brings by an entry point is known everywhere, with no other line changed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from dpserve import Client

PACKAGE = Path(__file__).parent.parent / "another_package"
ROWS = 60
TRAIN = ("train", "--data", "own.csv", "--label", "ok", "--classes", "no,yes", "--ignore", "id", "--lineage", "people")
TRAIN += ("--bounds", "age=0:120", "--bounds", "income=0:1e6", "--release", "shares", "--price", "rho:0.1")


@pytest.fixture
def run(run):
    """The command line, where the other package is installed."""
    run.environment["PYTHONPATH"] = os.pathsep.join([str(PACKAGE), *sys.path])
    return run


def in_a_new_process(run, *arguments, status=0):
    """Run the command in a process that has imported nothing: there the other package is found."""
    words = [sys.executable, "-m", "dpserve", *map(str, arguments)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, cwd=run.folder, env=run.environment, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture
def model(run):
    in_a_new_process(run, *TRAIN, "--smoothing", 2, "--out", "model")
    return run.folder / "model"


def test_help_and_wrong_usage_know_it(run):
    shown = " ".join(in_a_new_process(run, "train", "--help").stdout.split())
    assert "--smoothing" in shown
    assert "Records of each class that are added before shares are taken." in shown
    low = in_a_new_process(run, *TRAIN, "--smoothing", -1, "--out", "model", status=2)
    assert "--smoothing" in low.stderr
    wrong = in_a_new_process(run, *TRAIN, "--lam", 1, "--out", "model", status=2)
    assert "--lam" in wrong.stderr


def test_it_is_inspected_and_exported(run, model):
    shown = json.loads(in_a_new_process(run, "inspect", "model", "--json").stdout)
    assert (shown["release"], shown["smoothing"], shown["verified"]) == ("shares", 2.0, True)
    in_a_new_process(run, "lineage", "set-budget", "model", "--epsilon", 3, "--delta", 1e-5)
    in_a_new_process(run, "export", "model", "--to", "onnx")
    rows = np.array([[30.0, 9000.0], [75.0, 55_000.0]])
    _, answers = onnxruntime.InferenceSession(run.folder / "model.onnx").run(None, {"x": rows})
    assert answers.sum(axis=1) == pytest.approx([1, 1])
    assert (answers[0] == answers[1]).all()


def test_it_is_an_estimator(run):
    program = """
import numpy as np
from sklearn.base import clone
from dpserve import PrivateClassifier
y = np.arange(90) % 3 == 0
model = PrivateClassifier(
    lineage="people", lineage_budget=(3, 1e-6), release="shares", epsilon=1, delta=1e-6, classes=[False, True],
    bounds=(0, 1), smoothing=3,
)
again = clone(model)
assert model.get_params()["smoothing"] == again.get_params()["smoothing"] == 3
assert again.set_params(smoothing=-1).smoothing == -1
try:
    clone(model).set_params(smoothing=-1, every_fit_is_charged=True).fit(np.linspace(0, 1, 90)[:, None], y)
except ValueError as error:
    assert str(error) == "smoothing=-1 must be at least 0"
model.fit(np.linspace(0, 1, 90)[:, None], y)
print(model.certificate_.release, model.certificate_.smoothing, model.predict_proba([[0.5]]).sum())
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=run.environment, check=False)
    assert done.returncode == 0, done.stderr
    release, smoothing, total = done.stdout.split()
    assert (release, float(smoothing), float(total)) == ("shares", 3, pytest.approx(1))


def test_it_is_served(run, model):
    process, address = run.start(model, "--port", 0, "--epsilon", 3, "--delta", 1e-5)
    key = in_a_new_process(run, "clients", "add", "ann", "--epsilon", 3, "--delta", 1e-5).stdout.strip()
    with Client(address, key) as client:
        assert client.predict_proba([[30.0, 9000.0]]).sum() == pytest.approx(1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


def test_it_is_attacked_on_automatic_features(run):
    """The rows differ in their bins: those that do not are alike to the model, and left out."""
    drawn = np.random.default_rng(0).uniform((0, 0), (120, 1e6), (2 * ROWS, 2))
    lines = [
        f"{age:.3f},{income:.2f},{place},{'yes' if age > 60 else 'no'}" for place, (age, income) in enumerate(drawn)
    ]
    for name, rows in (("in.csv", lines[:ROWS]), ("out.csv", lines[ROWS:])):
        (run.folder / name).write_text("\n".join(["age,income,id,ok", *rows]) + "\n")
    words = [each if each != "own.csv" else "in.csv" for each in TRAIN]
    in_a_new_process(run, *words, "--out", "model")
    assert json.loads((run.folder / "model" / "certificate.json").read_text())["feature_map"]["kind"] == "bins"
    files = ("--members", "in.csv", "--non-members", "out.csv", "--label", "ok", "--ignore", "id")
    quick = ("--shadow-models", 2, "--shadow-records", 20, "--json")
    assert json.loads(in_a_new_process(run, "attack", "model", *files, *quick).stdout)["convicted"] is False


def test_it_is_planned_for(run):
    public = ("--public", "own.csv", "--label", "ok", "--class-names", "no,yes", "--ignore", "id", "--json")
    bounds = ("--bounds", "age=0:120", "--bounds", "income=0:1e6")
    found = json.loads(in_a_new_process(run, "plan", "--rho", 0.1, "--delta", 1e-5, *public, *bounds).stdout)
    (shares,) = [each for each in found["estimates"] if each["option"] == "shares"]
    assert shares["accuracy"] > 0.3
