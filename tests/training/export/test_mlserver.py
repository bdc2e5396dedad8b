"""An exported model in MLServer, from its package, as docs/exporting.md says."""

import json
import os
import re
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving.contenders import PEERS
from benchmarks.serving.environments import make_environment
from benchmarks.serving.processes import free_port, start_server
from training.export.files import exported

from .test_files import LOWER, UPPER, model_of

ROOT = Path(__file__).parents[3]


def settings_in_docs():
    (found,) = re.findall(r"```json\n(\{.*?\})\n```", (ROOT / "docs" / "exporting.md").read_text(), re.DOTALL)
    return json.loads(found)


@pytest.mark.slow  # it installs MLServer
@pytest.mark.parametrize(("kind", "name"), [("class-sums", "fourier"), ("dpsgd-relu", "identity")])
def test_mlserver_answers_as_the_model_does(kind, name, tmp_path):
    python = make_environment(ROOT / ".bench" / "mlserver", (PEERS / "mlserver" / "requirements.txt").read_text())
    model, settings = model_of(kind, name, 3), settings_in_docs()
    (tmp_path / settings["parameters"]["uri"]).write_bytes(exported(model, "sklearn").content)
    (tmp_path / "model-settings.json").write_text(json.dumps(settings))
    ports = {each: str(free_port()) for each in ("HTTP", "GRPC", "METRICS")}
    environment = {f"MLSERVER_{each}_PORT": port for each, port in ports.items()} | {"MLSERVER_PARALLEL_WORKERS": "0"}
    environment |= {"MLSERVER_METRICS_DIR": str(tmp_path), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    base = f"http://127.0.0.1:{ports['HTTP']}/v2/models/{settings['name']}"
    rows = np.random.default_rng(0).uniform(LOWER, UPPER, (20, 5))
    tensor = {"name": "x", "datatype": "FP64", "shape": list(rows.shape), "data": rows.ravel().tolist()}
    asked = {"inputs": [tensor], "outputs": [{"name": "predict_proba"}]}
    command = [str(python.parent / "mlserver"), "start", "."]
    with start_server(command, f"{base}/ready", tmp_path / "log", cwd=tmp_path, env=environment):
        request = urllib.request.Request(
            f"{base}/infer", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            (output,) = json.loads(answer.read())["outputs"]
    found = np.reshape(output["data"], output["shape"])
    classes = list(model.certificate.classes)
    order = sorted(classes) if kind.startswith("dpsgd-") else classes
    wanted = model.probabilities(rows)[:, [classes.index(each) for each in order]]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
