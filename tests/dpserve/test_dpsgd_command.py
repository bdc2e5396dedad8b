"""`dpserve train dpsgd` as an owner runs it."""

import json

import httpx
import pytest

DPSGD = ["train", "--label", "ok", "--classes", "no,yes", "--ignore", "id", "--bounds", "age=0:120"]
DPSGD += ["--bounds", "income=0:1e6", "--data", "own.csv", "--out", "model", "dpsgd"]
DPSGD += ["--lineage", "people"]


@pytest.fixture
def own(run):
    (run.folder / "own.csv").write_text(run.csv)
    return run


def test_training_and_inspecting(own):
    done = own(*DPSGD, "--epsilon", "1", "--delta", "1e-5", "--n", "200", "--hidden", "8", "--steps", "5")
    assert "dpserve serve model" in done.stdout
    assert "Poisson" not in done.stderr
    certificate = json.loads(own("inspect", "model", "--json").stdout)
    assert certificate["release"] == "dpsgd"
    assert certificate["verified"]
    assert certificate["beside"]["hidden"] == 8
    assert certificate["steps"] == 5
    names = [release["name"] for release in certificate["releases"]]
    assert names == ["centre", "steps", "network", "calibration"]
    shown = " ".join(own("inspect", "model").stdout.split())
    assert "verified" in shown
    assert "8 tanh units" in shown


def test_a_linear_head(own):
    own(*DPSGD, "--rho", "0.1", "--n", "200", "--steps", "2")
    assert json.loads(own("inspect", "model", "--json").stdout)["beside"] is None


def test_what_has_no_proof_is_refused_with_the_reason(own):
    priced = ("--epsilon", "1", "--delta", "1e-5", "--n", "200", "--noise-multiplier", "0.7", "--sampling-rate", "0.5")
    assert "cost more than the budget" in own.fails(*DPSGD, *priced)
    assert not (own.folder / "model").exists()


def test_it_is_served_and_asked_again_at_no_cost(own):
    """A client pays for the model once, with its first answer; more answers are free and the same."""
    own(*DPSGD, "--epsilon", "1", "--delta", "1e-5", "--n", "200", "--steps", "5")
    process, address = own.start("model", "--port", 0, "--epsilon", 1, "--delta", 1e-5)
    try:
        key = own("clients", "add", "alice", "--epsilon", 1, "--delta", 1e-5).stdout.strip()
        headers = {"Authorization": f"Bearer {key}"}
        charged, answers = [], []
        for _ in range(2):
            answer = httpx.post(f"{address}/predict", json={"instances": [[30, 5000], [70, 9000]]}, headers=headers)
            assert answer.status_code == 200, answer.text
            answers.append(answer.json()["predictions"])
            charged.append(answer.json()["receipt"]["charged"])
        assert charged[0] > 0.035
        assert charged[1] == 0
        assert answers[0] == answers[1]
        explained = " ".join(own("explain", "--client", "alice").stdout.split())
        assert "answers of that model are unlimited" in explained
        assert "refuses" not in explained
        assert "more answers" not in explained
        served = httpx.get(f"{address}/budget", headers=headers).json()
        assert json.loads(own("explain", "--client", "alice", "--json").stdout)["explanation"] == served["explanation"]
    finally:
        process.terminate()
        process.communicate(timeout=60)
