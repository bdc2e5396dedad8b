"""A kind of model that another package brings by an entry point is known everywhere, with no other line changed."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

from dpserve import Client

pytestmark = pytest.mark.usefixtures("another_package")
ROWS = 60
TRAIN = ("train", "--data", "own.csv", "--label", "ok", "--classes", "no,yes", "--ignore", "id", "--lineage", "people")
TRAIN += ("--bounds", "age=0:120", "--bounds", "income=0:1e6", "shares", "--rho", "0.1")


@pytest.fixture
def model(run):
    run.with_others(*TRAIN, "--smoothing", 2, "--out", "model")
    return run.folder / "model"


def test_help_and_wrong_usage_know_it(run):
    shown = " ".join(run.with_others("train", "shares", "--help").stdout.split())
    assert "--smoothing" in shown
    assert "Records of each class that are added before shares are taken." in shown
    wrong = run.with_others(*TRAIN, "--lam", 1, "--out", "model", status=2)
    assert "--lam goes with dpserve train weights or dpserve train head" in wrong.stderr.replace("python -m ", "")


GREEDY = """
from dpserve.training.options import Options, option
from noisy_shares.kind import SharesKind

class Greedy(Options):
    bounds: float = option(1, "A number of its own.")

class GreedyKind(SharesKind):
    name = "greedy"
    sentence = "greedy"
    options = Greedy

KIND = GreedyKind()
"""


def test_a_broken_kind_and_one_that_takes_the_place_of_an_option_are_left_out(run):
    (run.folder / "greedy.py").write_text(GREEDY)
    (run.folder / "broken.py").write_text("raise RuntimeError('no licence')")
    (run.folder / "greedy-1.0.dist-info").mkdir()
    (run.folder / "greedy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
    points = "[dpserve.kinds]\ngreedy = greedy:KIND\nbroken = broken:KIND\nnothing = broken_too:KIND\n"
    (run.folder / "greedy-1.0.dist-info" / "entry_points.txt").write_text(points)
    run.environment["PYTHONPATH"] = os.pathsep.join([str(run.folder), run.environment["PYTHONPATH"]])
    train = [*TRAIN, "--out", "model"]
    helped, trained = run.in_a_new_process("train", "--help"), run.in_a_new_process(*train)
    inspected = run.in_a_new_process("inspect", "model")
    for done in (helped, trained, inspected):
        assert "Traceback" not in done.stderr
        assert "broken:KIND of dpserve.kinds cannot be used and is left out: no licence" in done.stderr
        assert "broken_too:KIND of dpserve.kinds cannot be used and is left out" in done.stderr
    assert "'greedy' of another package is left out of 'train', which has its own --bounds" in helped.stderr
    assert "  shares " in helped.stdout
    assert "  greedy " not in helped.stdout


def test_it_is_inspected_and_exported(run, model):
    shown = json.loads(run.with_others("inspect", "model", "--json").stdout)
    assert (shown["release"], shown["smoothing"], shown["verified"]) == ("shares", 2.0, True)
    run.with_others("lineage", "set-budget", "model", "--epsilon", 3, "--delta", 1e-5)
    run.with_others("export", "model", "--to", "onnx")
    rows = np.array([[30.0, 9000.0], [75.0, 55_000.0]])
    _, answers = onnxruntime.InferenceSession(run.folder / "model.onnx").run(None, {"x": rows})
    assert answers.sum(axis=1) == pytest.approx([1, 1])
    assert (answers[0] == answers[1]).all()


def test_it_is_an_estimator(run):
    program = """
import numpy as np
from sklearn.base import clone
from dpserve import Lineage, PrivateClassifier, Schema
from noisy_shares.kind import Shares
y = np.arange(90) % 3 == 0
model = PrivateClassifier(
    Schema(classes=[False, True], bounds=(0, 1)),
    lineage=Lineage("people", epsilon=3, delta=1e-6), epsilon=1, delta=1e-6, kind=Shares(smoothing=3),
)
again = clone(model)
assert model.get_params()["kind__smoothing"] == again.get_params()["kind__smoothing"] == 3
try:
    again.set_params(kind__smoothing=-1)
except ValueError as error:
    assert str(error) == "smoothing=-1 must be at least 0"
else:
    raise AssertionError
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
    key = run.with_others("clients", "add", "ann", "--epsilon", 3, "--delta", 1e-5).stdout.strip()
    with Client(address, key) as client:
        assert client.predict_proba([[30.0, 9000.0]]).sum() == pytest.approx(1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


@pytest.mark.slow
def test_it_is_attacked_on_automatic_features(run):
    """The rows differ in their bins: those that do not are alike to the model, and left out."""
    drawn = np.random.default_rng(0).uniform((0, 0), (120, 1e6), (2 * ROWS, 2))
    lines = [
        f"{age:.3f},{income:.2f},{place},{'yes' if age > 60 else 'no'}" for place, (age, income) in enumerate(drawn)
    ]
    for name, rows in (("in.csv", lines[:ROWS]), ("out.csv", lines[ROWS:])):
        (run.folder / name).write_text("\n".join(["age,income,id,ok", *rows]) + "\n")
    words = [each if each != "own.csv" else "in.csv" for each in TRAIN]
    run.with_others(*words, "--out", "model")
    assert json.loads((run.folder / "model" / "certificate.json").read_text())["feature_map"]["kind"] == "bins"
    files = ("--members", "in.csv", "--non-members", "out.csv", "--label", "ok", "--ignore", "id")
    quick = ("--shadow-models", 2, "--shadow-records", 20, "--json")
    assert json.loads(run.with_others("attack", "model", *files, *quick).stdout)["convicted"] is False


@pytest.mark.slow
def test_it_is_planned_for(run):
    public = ("--public", "own.csv", "--label", "ok", "--classes", "no,yes", "--ignore", "id", "--json")
    bounds = ("--bounds", "age=0:120", "--bounds", "income=0:1e6")
    found = json.loads(run.with_others("plan", "--rho", 0.1, "--delta", 1e-5, *public, *bounds).stdout)
    (shares,) = [each for each in found["estimates"] if each["option"] == "shares"]
    assert shares["accuracy"] > 0.3
