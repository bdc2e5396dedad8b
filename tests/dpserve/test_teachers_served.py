"""Teachers, trained and served from the command line and asked over real HTTP: charged, replayed, exhausted."""

import httpx
import pytest

TEACHERS = ["train", "--data", "own.csv", "--label", "ok", "--classes", "no,yes", "--ignore", "id", "--out", "model"]
TEACHERS += ["--lineage", "people"]
TEACHERS += ["--bounds", "age=0:120", "--bounds", "income=0:1e6", "--teachers", "16"]
TEACHERS += ["--hidden", "4", "--lineage", "taught"]
OPENING = ("--rho", 100, "--delta", 1e-6)
PRICE = 0.002
YOUNG, OLD, OTHER = [22.0, 3000.0], [78.0, 58_000.0], [50.0, 30_000.0]


@pytest.fixture
def taught(run):
    """Starts services of one bundle of teachers, one after another, and stops them."""
    assert "Next: dpserve serve model" in run(*TEACHERS).stdout
    running = []

    def start(*arguments):
        stop()
        process, address = run.start("model", "--port", 0, "--price", f"rho:{PRICE}", *arguments)
        running.append(process)
        return address

    def stop():
        while running:
            process = running.pop()
            process.terminate()
            assert "Traceback" not in process.communicate(timeout=60)[1]

    yield start
    stop()


@pytest.fixture
def ask(run):
    """Asks as a client whose budget is three rows' price."""
    keys = []

    def post(address, *rows, key=None):
        if not keys:
            keys.append(run("clients", "add", "alice", "--rho", 3.5 * PRICE, "--delta", 1e-6).stdout.strip())
        headers = {"Authorization": f"Bearer {keys[0]}"} | ({"Idempotency-Key": key} if key else {})
        return httpx.post(f"{address}/predict", json={"instances": list(rows)}, headers=headers, timeout=60)

    return post


def test_they_are_charged_for_each_answer_replay_it_and_end_with_the_budget(taught, ask, run):
    assert "has no budget yet" in run.fails("serve", "model", "--port", 0)
    address = taught(*OPENING)

    described = httpx.get(f"{address}/models/model").json()
    assert (described["teachers"], described["mechanism"], described["mechanism_status"]) == (16, "gaussian", "proven")
    assert not {"lineage", "weights_sha256"} & set(described)

    first = ask(address, YOUNG, OLD, key="first").json()
    assert first["receipt"]["charged"] == pytest.approx(2 * PRICE)
    assert all(sum(row) == pytest.approx(1) for row in first["predictions"])
    for key in ("first", None):
        again = ask(address, YOUNG, OLD, key=key).json()
        assert again["predictions"] == first["predictions"]
        assert again["receipt"]["charged"] == 0
    assert ask(address, OTHER).json()["receipt"]["charged"] == pytest.approx(PRICE)

    refused = ask(address, [40.0, 20_000.0])
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:dpserve:problem:budget-exhausted")
    assert ask(address, OLD, YOUNG).json()["predictions"] == first["predictions"][::-1]

    address = taught()
    assert ask(address, YOUNG, OLD).json()["predictions"] == first["predictions"]
    assert ask(address, [40.0, 20_000.0]).status_code == 403

    # At a price at which the noise is small beside a full vote the answers are right: false alarm below 1e-6.
    dear = taught("--price", "rho:2")
    key = run("clients", "add", "rich", "--rho", 10, "--delta", 1e-6).stdout.strip()
    headers, body = {"Authorization": f"Bearer {key}"}, {"instances": [YOUNG, OLD]}
    answers = httpx.post(f"{dear}/predict", json=body, headers=headers, timeout=60).json()["predictions"]
    assert answers[0][0] > 0.5 > answers[1][0]
