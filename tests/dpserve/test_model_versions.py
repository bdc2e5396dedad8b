"""A served name that moves from one bundle to its successor, and back: real processes, real bundles, a real ledger."""

import json
import shutil
import threading

import httpx
import pytest

from dpserve import Client
from tests.dpserve.test_several_models import ended, until

BUDGET = ("--port", 0, "--rho", 10, "--delta", 1e-6)
ROW = [[30.0, 1000.0]]


@pytest.fixture
def versions(run, trained):
    """Two bundles of one lineage, whose answers are paid for one by one: the folder, and the ids of their models."""
    shutil.copytree(trained, run.folder, dirs_exist_ok=True)
    run(*run.train, "--data", "own.csv", "--features", "identity", "--out", "newer")
    return [model_id(run.folder / each) for each in ("model", "newer")]


def model_id(bundle):
    return json.loads((bundle / "certificate.json").read_text())["model_id"]


def served_id(address, name="loans"):
    return httpx.get(f"{address}/models/{name}").json()["model_id"]


def all_serve(address, expected):
    """Wait until every worker serves this model, as far as twelve connections meet them."""
    until(lambda: {served_id(address) for _ in range(12)}, {expected})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_name_moves_to_another_version_and_back_while_it_is_asked(run, versions, workers):
    old, new = versions
    words = ("--workers", workers, "--price", "rho:0.001", *BUDGET)
    process, address = run.start("loans=model", "loans=newer", *words)
    key = run("clients", "add", "alice", "--rho", 1, "--delta", 1e-6).stdout.strip()
    all_serve(address, old)
    statuses, ids, over = [], [], threading.Event()

    def ask():
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as http:
            while not over.is_set():
                answer = http.post("/models/loans/predict", json={"instances": ROW})
                statuses.append(answer.status_code)
                ids.append(answer.json()["receipt"]["model"] if answer.status_code == 200 else answer.text)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert new[:8] in run("models", "promote", "loans", "newer", "--why", "November is in it").stdout
        all_serve(address, new)
        run("models", "promote", "loans", "model")
        all_serve(address, old)
        run("models", "promote", "loans", "--back")
        all_serve(address, new)
    finally:
        over.set()
        asking.join(timeout=60)
    assert set(statuses) == {200}, ids
    assert set(ids) == {"loans"}
    with Client(address, key, model="loans") as client:
        # One question of each version: each was charged once, to the same account, and the receipt says which answered.
        assert client.budget()["spent"]["rho"] == pytest.approx(0.002)
        assert [(each["model_id"], each["model"]) for each in client.receipts()] == [(old, "loans"), (new, "loans")]
    shown = json.loads(run("lineage", "show", "people", "--json").stdout)
    assert shown["promoted"] == {"loans": [new, old]}
    run("ledger", "verify")
    trail = [json.loads(line) for line in run("ledger", "export", "--format", "jsonl").stdout.splitlines()]
    assert [
        (each["why"], each["scope"], each["name"], each["detail"]) for each in trail if each["kind"] == "promote"
    ] == [
        ("November is in it", "model", "loans", {"model": new}),
        ("", "model", "loans", {"model": old}),
        ("", "model", "loans", {"model": new}),
    ]
    ended(process)
    # A service that starts later serves what was promoted last, whatever stands first.
    process, address = run.start("loans=model", "loans=newer", *words)
    all_serve(address, new)
    ended(process)


def test_a_watched_successor_stands_by_until_it_is_promoted(run, versions):
    old, new = versions
    watched = run.folder / "watched"
    watched.mkdir()
    shutil.copytree(run.folder / "model", watched / "2026-10")
    process, address = run.start("--watch", "watched", "--price", "rho:0.001", *BUDGET)
    until(lambda: httpx.get(f"{address}/models").json()["models"], ["model"])
    successor = json.loads((run.folder / "newer" / "certificate.json").read_text())["name"]
    assert successor == "newer", "its own name would be served beside the other"
    run(*run.train, "--data", "own.csv", "--features", "identity", "--out", "third", "--name", "model")
    third = model_id(run.folder / "third")
    (run.folder / "third").rename(watched / "2026-11")
    run.read_log(process, {"2026-11 stands by": 1})
    assert served_id(address, "model") == old
    run("models", "promote", "model", "watched/2026-11")
    until(lambda: served_id(address, "model"), third)
    ended(process)
    assert new not in json.dumps(json.loads(run("lineage", "show", "people", "--json").stdout))


def test_a_pay_once_version_that_the_lineage_cannot_pay_for_leaves_the_name_as_it_is(run, trained):
    shutil.copytree(trained, run.folder, dirs_exist_ok=True)
    for name, price in (("cheap", "rho:0.1"), ("dear", "rho:4"), ("fair", "rho:0.2")):
        release = ("--release", "weights", "--price", price, "--features", "identity", "--out", name)
        run(*run.train, "--data", "own.csv", *release)
    cheap, fair = (model_id(run.folder / each) for each in ("cheap", "fair"))
    words = ("--port", 0, "--rho", 1, "--delta", 1e-6)
    process, address = run.start("loans=cheap", "loans=dear", "loans=fair", *words)
    run("models", "promote", "loans", "dear")
    run.read_log(process, {"dear is not served": 2})
    assert served_id(address) == cheap
    ended(process)
    process, address = run.start("loans=cheap", "loans=dear", "loans=fair", *words)
    assert served_id(address) == cheap, "one that starts afterwards does as the others did"
    run("models", "promote", "loans", "fair")
    until(lambda: served_id(address), fair)
    # The two that were served are paid for, and no other; a worker may serve one before the process that pays saw it.
    until(
        lambda: json.loads(run("lineage", "list", "--json").stdout)[0]["spent_picorho"], pytest.approx(0.3e12, rel=1e-6)
    )
    ended(process)


def test_what_cannot_be_promoted_is_refused(run, versions):
    words = ["others" if word == "people" else word for word in run.train]
    run(*words, "--data", "own.csv", "--features", "identity", "--out", "other", "--overlapping-lineage-is-accepted")
    assert "people" in run.fails("models", "promote", "loans", "model")  # the ledger has no such lineage yet
    run("lineage", "set-budget", "model", "--rho", 1, "--delta", 1e-6)
    run("lineage", "set-budget", "other", "--rho", 1, "--delta", 1e-6)
    assert "others" in run.fails("models", "promote", "loans", "other", "--lineage", "people")
    assert "before" in run.fails("models", "promote", "loans", "--back", "--lineage", "people")
    assert "certificate" in run.fails("models", "promote", "loans", "nowhere", "--lineage", "people")
    run("models", "promote", "loans", "model", "--back", status=2)
    run("models", "promote", "loans", status=2)
    run("models", "promote", "loans", "model")
    assert "already" in run.fails("models", "promote", "loans", "model")
