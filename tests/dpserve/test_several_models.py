"""`dpserve serve` with several bundles and a folder that is watched: real processes, real bundles."""

import shutil
import time

import httpx
import pytest


@pytest.fixture
def several(run, trained):
    shutil.copytree(trained, run.folder, dirs_exist_ok=True)
    for name in ("second", "third"):
        run(*run.train, "--data", "own.csv", "--features", "identity", "--out", name)
    return run.folder


def until(found, expected):
    deadline = time.monotonic() + 60
    while (last := found()) != expected:
        assert time.monotonic() < deadline, last
        time.sleep(0.05)


def models(address):
    """What every one of the workers serves, as far as eight connections meet them."""
    found = [httpx.get(f"{address}/models").json()["models"] for _ in range(8)]
    return found[0] if all(each == found[0] for each in found) else found


def ended(process):
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    return errors


BUDGET = ("--port", 0, "--rho", 10, "--delta", 1e-6, "--price", "rho:0.001")


def test_a_service_of_two_bundles_answers_both_from_one_account(run, several):
    process, address = run.start("model", "second", "--default", "second", *BUDGET)
    key = run("clients", "add", "alice", "--rho", 1, "--delta", 1e-6).stdout.strip()
    body = {"instances": [[30.0, 1000.0]]}
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as http:
        said = [http.post(path, json=body).json()["receipt"] for path in ("/predict", "/models/model/predict")]
        assert [each["model"] for each in said] == ["second", "model"]
        assert http.get("/budget").json()["spent"]["rho"] == pytest.approx(0.002)
    ended(process)


def test_two_bundles_of_one_name_are_refused(run, several):
    shutil.copytree(several / "model", several / "copy")
    assert "two bundles hold a model called model" in run.fails("serve", "model", "copy", *BUDGET)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_watched_folder_is_served_as_it_is(run, several, workers):
    watched = several / "watched"
    watched.mkdir()
    shutil.copytree(several / "model", watched / "model")
    process, address = run.start("--watch", "watched", "--workers", workers, "--default", "model", *BUDGET)
    key = run("clients", "add", "alice", "--rho", 1, "--delta", 1e-6).stdout.strip()
    until(lambda: models(address), ["model"])
    shutil.copytree(several / "third", watched / "broken")
    (watched / "broken" / "model.safetensors").write_bytes(b"half")
    shutil.copytree(several / "second", watched / "second")
    until(lambda: models(address), ["model", "second"])
    headers = {"Authorization": f"Bearer {key}"}
    body = {"instances": [[30.0, 1000.0]]}
    for name in ("model", "second"):
        assert httpx.post(f"{address}/models/{name}/predict", json=body, headers=headers).status_code == 200
    shutil.rmtree(watched / "second")
    until(lambda: models(address), ["model"])
    assert httpx.post(f"{address}/models/second/predict", json=body, headers=headers).status_code == 404
    assert httpx.post(f"{address}/predict", json=body, headers=headers).json()["receipt"]["charged_rows"] == 0
    errors = ended(process)
    assert "broken is not served" in errors
    assert errors.count("broken is not served") == workers + 1  # each process says so once, the owner's, too
    assert "stopped serving second" in errors
