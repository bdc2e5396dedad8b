"""Canaries from the command line: trained, inspected, audited, and refused where they cannot be."""

import json
import subprocess
import sys

import pytest

from tests.dpserve.test_release_commands import CSV, PRICE, TRAIN


@pytest.fixture
def train(run):
    (run.folder / "r.csv").write_text(CSV)
    return lambda *arguments, **how: run(*TRAIN, *arguments, **how)


def test_a_model_with_canaries_says_what_was_promised_and_measured(train, run):
    release = ("class-sums", *PRICE, "--canaries", "1000")
    printed = " ".join(train(*release, "--out", "model").stdout.split())
    assert "promised at most 2; measured at least" in printed
    shown = json.loads(run("inspect", "model", "--json").stdout)["canaries"]
    assert shown["promised_epsilon"] == pytest.approx(2, rel=1e-4)
    assert 0 < shown["lower_bound_epsilon"] < 4  # above 4 with a probability below 1e-9
    assert shown["number"] == 1000
    audited = json.loads(run("audit", "release", "model", "--json").stdout)
    assert audited["canaries"] == shown
    assert audited["convicted"] is False
    train(*release, "--out", "other")
    assert json.loads(run("audit", "release", "model", "--other", "other", "--json").stdout)["convicted"] is False
    # A model's own noise comes again in itself, which convicts nobody.
    run.fails("audit", "release", "model", "--other", "model")


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("head", "--lam", "1"), 2, "--canaries goes with dpserve train class-sums"),
        (("dpsgd", *PRICE, "--n", "100", "--hidden", "4"), 2, "linear head"),
        (("class-sums", *PRICE, "--canaries", "3"), 2, "at least 64"),
    ],
)
def test_canaries_are_refused_with_the_reason(train, arguments, status, reason):
    canaries = () if "--canaries" in arguments else ("--canaries", "100")
    refused = train(*arguments, *canaries, "--out", "model", status=status).stderr
    assert reason in " ".join(refused.replace("│", " ").split())


def test_a_model_without_canaries_cannot_be_audited_by_them(train, run):
    train("class-sums", *PRICE, "--out", "model")
    assert "trained without canaries" in run.fails("audit", "release", "model")
    assert "canaries" not in json.loads(run("inspect", "model", "--json").stdout)


HALF_OF_THE_NOISE = """
import numpy as np

from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.training.kinds.dpsgd import noisy_step as step

drawn, with_noise = GaussianVector._with_noise, step.with_noise


def half(values, released, grid):
    return np.rint((values + released) / 2 / grid) * grid


GaussianVector._with_noise = lambda self, values, words: half(values, drawn(self, values, words), self.step)
step.with_noise = lambda total, grid, words: half(total, with_noise(total, grid, words), grid)
"""
"""The fault, as a module that Python imports when it starts."""


@pytest.mark.parametrize(
    "release",
    [
        ("class-sums",),
        pytest.param(("weights", "--lam", "1"), marks=pytest.mark.slow),
        pytest.param(("dpsgd", "--n", "100", "--steps", "40", "--sampling-rate", "0.5"), marks=pytest.mark.slow),
    ],
)
def test_a_run_with_half_of_its_noise_ends_with_status_3_and_no_bundle(run, train, release):
    """Without the fault the same command writes the bundle, except with a probability of 1e-9."""
    options = (*release, *PRICE, "--canaries", "1000", "--out")
    train(*options, "sound")
    assert (run.folder / "sound").is_dir()
    (run.folder / "fault").mkdir()
    (run.folder / "fault" / "sitecustomize.py").write_text(HALF_OF_THE_NOISE)
    words = [sys.executable, "-m", "dpserve", *TRAIN, *options, "faulty"]
    environment = run.environment | {"PYTHONPATH": str(run.folder / "fault")}
    faulty = subprocess.run(words, cwd=run.folder, env=environment, capture_output=True, text=True, check=False)
    assert faulty.returncode == 3, faulty.stderr
    assert "the canaries of this run refute its certificate" in " ".join(faulty.stderr.split())
    assert "Traceback" not in faulty.stderr
    assert not (run.folder / "faulty").exists()
    assert not [path for path in run.folder.rglob("*.safetensors") if "sound" not in path.parts]
