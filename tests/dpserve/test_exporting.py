"""`dpserve export` from the command line: what it writes, what it charges, and what it refuses."""

import json
import re

import numpy as np
import onnxruntime
import pytest

from dpserve.training.kinds.loading import load_model

CSV = "age,income,ok\n" + "".join(
    f"{20 + index % 60},{1000 * (index % 60)},{'yes' if index % 60 > 30 else 'no'}\n" for index in range(120)
)
TRAIN = ("train", "--data", "r.csv", "--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120")
TRAIN += ("--bounds", "income=0:1e6", "--lineage", "people", "--out", "model")
ROWS = np.array([[30.0, 9000.0], [75.0, 55_000.0]])
SUMS = ("class-sums", "--epsilon", "2", "--delta", "1e-5")


@pytest.fixture
def train(run):
    (run.folder / "r.csv").write_text(CSV)
    return lambda *arguments: run(*TRAIN, *arguments)


@pytest.fixture
def budget(run):
    return lambda *words: run("lineage", "set-budget", "model", *(words or ("--epsilon", "3", "--delta", "1e-5")))


def spent(run):
    (found,) = json.loads(run("lineage", "list", "--json").stdout)
    return found["spent_picorho"]


def files(run):
    return {path.name for path in run.folder.iterdir()} - {"r.csv", "own.csv", "home", "model"}


def test_each_form_is_written_and_the_lineage_pays_once(run, train, budget):
    train(*SUMS)
    budget()
    said = [run("export", "model", "--to", form).stdout for form in ("onnx", "safetensors")]
    assert ["was charged" in each for each in said] == [True, False]
    assert files(run) == {"model.onnx", "model.safetensors"}
    model = load_model(run.folder / "model")
    assert spent(run) == model.certificate.price.picorho
    wanted = model.values(ROWS)
    _, answers = onnxruntime.InferenceSession(run.folder / "model.onnx").run(None, {"x": ROWS})
    np.testing.assert_allclose(answers, wanted, rtol=0, atol=1e-6)
    secrets = [(run.folder / "home" / "lineage.key").read_bytes(), bytes.fromhex(model.certificate.binding_key)]
    for name in files(run):
        content = (run.folder / name).read_bytes()
        assert not any(secret in content or secret.hex().encode() in content for secret in secrets)


def test_a_file_that_is_there_stays_and_nothing_is_charged(run, train, budget):
    train(*SUMS)
    budget()
    (run.folder / "mine.onnx").write_text("mine")
    assert "there is a file already" in run.fails("export", "model", "--to", "onnx", "--out", "mine.onnx")
    nowhere = run.fails("export", "model", "--to", "onnx", "--out", "nowhere/m.onnx")
    assert "No such file or directory: nowhere/m.onnx" in nowhere
    assert (run.folder / "mine.onnx").read_text() == "mine"
    assert (files(run), spent(run)) == ({"mine.onnx"}, 0)


def test_without_a_budget_nothing_is_written_and_it_is_said_how_to_give_one(run, train, budget):
    train(*SUMS)
    said = run.fails("export", "model", "--to", "onnx")
    assert "the lineage people has no budget" in said
    assert "lineage set-budget" in said
    budget("--rho", "0.02", "--delta", "1e-5")
    refused = run.fails("export", "model", "--to", "onnx")
    assert re.search(
        r"does not pay for \S+, which costs rho = \S+, more than its whole budget, rho = 0\.02; nothing",
        refused,
    )
    assert (files(run), spent(run)) == (set(), 0)


def test_a_model_that_is_not_private_is_refused(run, train):
    train("head", "--lam", "1")
    said = run.fails("export", "model", "--to", "onnx")
    assert "not private" in said
    assert "train a pay-once model" in said
    assert files(run) == set()


def test_a_bundle_of_another_version_is_refused(run, train, budget):
    train(*SUMS)
    budget()
    certificate = run.folder / "model" / "certificate.json"
    certificate.write_text(certificate.read_text().replace('"format_version": 5', '"format_version": 4'))
    said = run.fails("export", "model", "--to", "onnx")
    assert "is a bundle of format 4, and this version of dpserve reads format 5" in said
    assert "train again" in said
    assert files(run) == set()
    assert spent(run) == 0
