"""`dpserve serve` with several bundles: real processes, real bundles."""

import json
import shutil
import socket
import time

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from dpserve import Client


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
    """Return the models that all workers serve, as far as eight connections meet them."""
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
    for name, expected in ((None, "second"), ("model", "model")):
        with Client(address, key, model=name) as client:
            assert client.model()["name"] == expected
            assert client.quote([[30.0, 1000.0]])["new_rows"] == 0
            client.predict_proba([[31.0, 1000.0]])
            assert [each["charged_rows"] for each in client.receipts()][-1] == 1
    with Client(address, key) as client:
        assert client.budget()["spent"]["rho"] == pytest.approx(0.004)
    ended(process)


def test_one_key_asks_models_of_two_lineages_and_each_lineage_pays(run, trained):
    shutil.copytree(trained, run.folder, dirs_exist_ok=True)
    words = ["others" if word == "people" else word for word in run.train]
    run(*words, "--data", "own.csv", "--features", "identity", "--out", "other", "--overlapping-lineage-is-accepted")
    process, address = run.start("model", "other", "--default", "model", *BUDGET)
    add = ("clients", "add", "alice", "--rho", 1, "--delta", 1e-6)
    key = run(*add, "--lineage", "model").stdout.strip()
    assert "keys that it has in people" in run(*add, "--lineage", "other", "--keys-of", "model").stdout
    for name in ("model", "other"):
        with Client(address, key, model=name) as client:
            client.predict_proba([[30.0, 1000.0]])
            assert client.budget()["spent"]["rho"] == pytest.approx(0.001)
    ended(process)


def test_workers_answer_over_grpc_at_one_port_and_finish_what_is_under_way(run, several):
    words = ("--grpc-port", 0, "--workers", 2, "--default", "model")
    process, address, before = run.start_and_read("model", "second", *words, *BUDGET)
    (own,) = [line.split()[-1] for line in before if "gRPC is answered" in line]
    key = run("clients", "add", "alice", "--rho", 1, "--delta", 1e-6).stdout.strip()
    headers = {"authorization": f"Bearer {key}"}
    found = []
    for _ in range(6):  # connections of their own, which the kernel gives to either worker
        with triton.InferenceServerClient(own) as client:
            tensor = triton.InferInput("instances", [1, 2], "FP64")
            tensor.set_data_from_numpy(np.array([[30.0, 1000.0]]))
            found.append(client.infer("second", [tensor], headers=headers))
    assert len({answer.as_numpy("probabilities").tobytes() for answer in found}) == 1
    body = {"instances": [[30.0, 1000.0]]}
    http = {"headers": {"Authorization": f"Bearer {key}"}, "json": body}
    again = httpx.post(f"{address}/models/second/predict", **http).json()
    assert again["receipt"]["charged_rows"] == 0
    assert again["predictions"] == found[0].as_numpy("probabilities").tolist()
    ended(process)
    assert process.returncode == 0


def test_a_service_that_was_told_to_stop_takes_no_call_while_http_drains(run, several):
    process, address, before = run.start_and_read("model", "--grpc-port", 0, *BUDGET)
    (own,) = [line.split()[-1] for line in before if "gRPC is answered" in line]
    key = run("clients", "add", "alice", "--rho", 1, "--delta", 1e-6).stdout.strip()
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as under_way:
        body = b'{"instances": [[30.0, 1000.0]]}'
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n"
        under_way.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert b"100 Continue" in under_way.recv(1000)  # the service waits for the body
        process.terminate()

        def live():
            with triton.InferenceServerClient(own) as client:
                try:
                    return client.is_server_live()
                except InferenceServerException:
                    return False

        until(live, False)
        under_way.sendall(body)
        assert b" 200 OK" in under_way.recv(1000)
    ended(process)


def test_a_grpc_port_that_is_taken_is_found_before_anything_else(run, several):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = run.fails("serve", "model", "--grpc-port", taken.getsockname()[1], *BUDGET)
    assert "--grpc-port" in said


def test_two_bundles_under_one_name_are_refused(run, several):
    shutil.copytree(several / "model", several / "copy")
    assert "copy" in run.fails("serve", "model", "copy", *BUDGET)
    words = ["others" if word == "people" else word for word in run.train]
    run(*words, "--data", "own.csv", "--features", "identity", "--out", "other", "--overlapping-lineage-is-accepted")
    assert "called loans" in run.fails("serve", "loans=model", "loans=other", *BUDGET)
    assert json.loads(run("lineage", "list", "--json").stdout) == []


@pytest.mark.parametrize("lineage", ["others", "people"])
def test_a_start_that_is_refused_opens_nothing(run, trained, lineage):
    """The first model could be paid for; the second, of the same lineage or another, costs more than the budget."""
    shutil.copytree(trained, run.folder, dirs_exist_ok=True)
    (run.folder / "other.csv").write_text("age,income,id,ok\n" + "".join(f"{n},9.5,{n},no\n" for n in range(90, 120)))
    train = [{"people": lineage, "head": "weights"}.get(word, word) for word in run.train]
    dear = ["--rho", "3", "--features", "identity", "--out", "dear", "--name", "dear"]
    run(*train, "--data", "own.csv" if lineage == "people" else "other.csv", *dear)
    budget = ["--rho", 1, "--delta", 1e-6, "--price", "rho:0.001"]
    assert "more than its whole budget" in run.fails("serve", "model", "dear", "--port", 0, *budget)
    assert json.loads(run("lineage", "list", "--json").stdout) == []
