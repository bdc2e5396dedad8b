"""k8s/exported: an exported model as a KServe InferenceService, valid by KServe's own definitions."""

import copy
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from benchmarks.serving.environments import make_environment

from .conftest import ROOT, kustomize

KSERVE = "kserve==0.21.0\n"


@pytest.fixture(scope="module")
def service():
    done = kustomize(ROOT / "k8s" / "exported")
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


@pytest.fixture(scope="module")
def complaints():
    """Return a function that lists KServe's objections to a resource."""
    python = make_environment(ROOT / ".bench" / "kserve", KSERVE)

    def ask(resource):
        command = [python, Path(__file__).with_name("kserve_schema.py")]
        done = subprocess.run(
            command, input=json.dumps(resource), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def test_it_serves_the_file_that_export_writes_by_the_open_inference_protocol(service):
    model = service["spec"]["predictor"]["model"]
    assert (model["modelFormat"]["name"], model["protocolVersion"]) == ("sklearn", "v2")
    assert model["storageUri"].startswith("pvc://")


@pytest.mark.slow  # it installs kserve
def test_it_is_valid(service, complaints):
    assert complaints(service) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec["predictor"]["model"].update(storageURI="pvc://x"), "storageURI is not known"),
        (lambda spec: spec["predictor"].update(minReplicas="one"), "minReplicas should be int"),
        (lambda spec: spec.pop("predictor"), "predictor"),
        (lambda spec: spec["predictor"]["model"]["env"].append({"value": "1"}), "name"),
        (lambda spec: spec["predictor"]["securityContext"].update(runAsNonRoot="yes"), "runAsNonRoot should be bool"),
    ],
)
def test_the_definitions_find_what_is_wrong(service, complaints, change, said):
    wrong = copy.deepcopy(service)
    change(wrong["spec"])
    assert any(said in each for each in complaints(wrong)), complaints(wrong)
