"""A new model in the place of one that is served: SIGHUP replaces the workers while they are asked."""

import json
import re
import shutil
import signal
import threading

import httpx
import pytest

from dpserve import Client

from .test_several_models import BUDGET, ended, until

ROW = [[30.0, 1000.0]]


@pytest.fixture
def versions(run, trained):
    """Two models of one lineage, the first behind a link: their ids."""
    shutil.copytree(trained, run.folder, dirs_exist_ok=True)
    run(*run.train, "--data", "own.csv", "--features", "identity", "--out", "newer")
    point_to(run, "model")
    return [json.loads((run.folder / each / "certificate.json").read_text())["model_id"] for each in ("model", "newer")]


def point_to(run, bundle):
    """Have the link say which bundle is served, from one moment to the next."""
    (run.folder / "next").symlink_to(bundle)
    (run.folder / "next").replace(run.folder / "current")


def serving(model_id):
    return rf"worker \d+: serving loans: the model {model_id}"


def test_sighup_puts_a_new_model_into_service_and_refuses_no_request(run, versions):
    old, new = versions
    run.environment["DPSERVE_ADMIN_KEY"] = "the-admin-key-of-this-test"
    process, address, before = run.start_and_read("loans=current", "--workers", 2, *BUDGET)
    key = run("clients", "add", "alice", "--rho", 1, "--delta", 1e-6).stdout.strip()
    run.read_log(process, {serving(old): 2})
    statuses, over = [], threading.Event()

    def ask():
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as http:
            while not over.wait(0.1):  # new workers need the processor, too
                try:
                    statuses.append(http.post("/predict", json={"instances": ROW}).status_code)
                except httpx.RemoteProtocolError:
                    continue  # the idle connection was closed by the worker that ends

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        point_to(run, "newer")
        process.send_signal(signal.SIGHUP)
        run.read_log(process, {serving(new): 2, "stopped serving": 2})
    finally:
        over.set()
        asking.join(timeout=60)
    assert set(statuses) == {200}
    assert {httpx.get(f"{address}/models/loans").json()["model_id"] for _ in range(12)} == {new}
    with Client(address, key) as client:
        client.predict_proba(ROW)
        assert client.budget()["spent"]["rho"] == pytest.approx(0.002)
        assert [each["model_id"] for each in client.receipts()] == [old, new]
    own = re.search(r"owner's port is (\S+),", before[0])[1]
    admin = {"Authorization": "Bearer the-admin-key-of-this-test"}
    (shown,) = httpx.get(f"{own}/api/models", headers=admin).json()["models"]
    assert shown["model_id"] == new
    ended(process)


def test_a_model_that_cannot_be_paid_for_replaces_nothing(run, versions):
    old, _ = versions
    run(*run.train, "--data", "own.csv", "--release", "weights", "--price", "rho:3", "--out", "dear")
    process, address = run.start("loans=current", "--workers", 2, "--port", 0, "--rho", 2, "--delta", 1e-6)
    point_to(run, "dear")
    process.send_signal(signal.SIGHUP)
    run.read_log(process, {"the workers are not replaced: .*budget": 1})
    assert httpx.get(f"{address}/models/loans").json()["model_id"] == old
    point_to(run, "nowhere")
    process.send_signal(signal.SIGHUP)
    run.read_log(process, {"the workers are not replaced": 1})
    assert httpx.get(f"{address}/models/loans").json()["model_id"] == old
    # Once the link is right again the workers come up as before.
    point_to(run, "model")
    process.send_signal(signal.SIGHUP)
    run.read_log(process, {serving(old): 2})
    until(lambda: httpx.get(f"{address}/readyz").status_code, 200)
    ended(process)
