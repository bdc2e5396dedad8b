"""A new model in the place of one that is served: SIGHUP replaces the workers while they are asked."""

import json
import os
import re
import shutil
import signal
import threading

import httpx
import pytest

from dpserve import Client
from dpserve.accounting.ledger.journal import read_acknowledged

from .test_several_models import BUDGET, ended
from .test_workers import workers

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


def replace_one(run, process, model_id):
    """Kill a worker, and wait until another one serves this model in its place."""
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    run.read_log(process, {serving(model_id): 1})


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
    replace_one(run, process, new)
    ended(process)
    journals = read_acknowledged(run.folder / "home" / "journals")
    assert {each.charged_unit for each in journals if each.newest} == {""}, "who charges knows what for"


def test_a_model_that_cannot_be_paid_for_replaces_nothing(run, versions):
    old, _ = versions
    train = ["weights" if word == "head" else word for word in run.train]
    run(*train, "--data", "own.csv", "--rho", "3", "--out", "dear")
    process, address = run.start("loans=current", "--workers", 2, "--port", 0, "--rho", 2, "--delta", 1e-6)
    point_to(run, "dear")
    process.send_signal(signal.SIGHUP)
    run.read_log(process, {serving(old): 2, "the workers are not replaced: .*budget": 1})
    replace_one(run, process, old)  # by no link that leads to what was refused
    assert {httpx.get(f"{address}/models/loans").json()["model_id"] for _ in range(12)} == {old}
    ended(process)


@pytest.mark.slow
def test_who_takes_a_workers_place_serves_what_was_prepared_wherever_the_link_leads(run, versions):
    old, new = versions
    process, address = run.start("loans=current", "--workers", 2, *BUDGET)
    run.read_log(process, {serving(old): 2})
    for elsewhere in ("newer", "nowhere"):
        point_to(run, elsewhere)
        replace_one(run, process, old)
    assert {httpx.get(f"{address}/models/loans").json()["model_id"] for _ in range(12)} == {old}
    # Another model in the very folder is not the one that was prepared, either.
    (run.folder / "model").rename(run.folder / "aside")
    shutil.copytree(run.folder / "newer", run.folder / "model")
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    run.read_log(process, {f"cannot start: .*/model holds the model {new}, and not {old}": 1})
    assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 1


@pytest.mark.slow
def test_a_worker_says_that_the_folder_of_its_model_is_gone(run, versions):
    process, _ = run.start("loans=current", "--workers", 2, *BUDGET)
    run.read_log(process, {serving(versions[0]): 2})
    (run.folder / "model").rename(run.folder / "aside")
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    run.read_log(process, {"cannot start: .*/model": 1})
    assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 1
