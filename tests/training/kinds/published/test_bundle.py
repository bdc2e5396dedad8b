"""A published network's bundle: read without PyTorch, unproven everywhere, refused where it must be."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dpserve.accounting.losses import LaplaceLoss  # noqa: E402
from dpserve.mechanisms.gaussian import Gaussian  # noqa: E402
from dpserve.mechanisms.label import Label  # noqa: E402
from dpserve.mechanisms.laplace import Laplace  # noqa: E402
from dpserve.mechanisms.mechanism import Mechanism  # noqa: E402
from dpserve.mechanisms.published import Published  # noqa: E402
from dpserve.mechanisms.randomness import SystemRandomness  # noqa: E402
from dpserve.mechanisms.selected_neuron import SelectedNeuron  # noqa: E402
from dpserve.training.bundles.sealing import kind_of  # noqa: E402
from dpserve.training.errors import BundleError  # noqa: E402
from dpserve.training.inputs.records import Declaration, Records  # noqa: E402
from dpserve.training.kinds.head.bundle import load_bundle  # noqa: E402
from dpserve.training.kinds.published.bundle import (  # noqa: E402
    NoCertificate,
    PublishedNetwork,
    load_published,
    save_published,
)
from dpserve.training.kinds.published.train import train_published  # noqa: E402


@pytest.fixture(scope="module")
def network() -> PublishedNetwork:
    rng = np.random.default_rng(0)
    X = rng.uniform([-1.0, 0.0], [1.0, 50.0], size=(120, 2))
    declaration = Declaration(("a", "b"), (-1.0, 0.0), (1.0, 50.0), ("no", "yes", "perhaps"))
    y = ((X[:, 0] > 0) + (X[:, 1] > 25)).astype(np.int64)
    return train_published(Records(X, y, declaration, ()), "rival", "people", hidden=(6, 5), epochs=40)


def test_it_comes_back_as_it_was_and_answers(network: PublishedNetwork, tmp_path: Path) -> None:
    certificate = save_published(tmp_path / "bundle", network)
    assert kind_of(tmp_path / "bundle") == "published"
    back = load_published(tmp_path / "bundle")
    assert back.certificate == certificate
    X = np.random.default_rng(1).uniform([-1.0, 0.0], [1.0, 50.0], size=(7, 2))
    phi = back.features(X)
    np.testing.assert_array_equal(back.logits(phi), network.logits(network.features(X)))
    assert phi.shape == (7, 2)
    assert back.noise_key == network.noise_key
    answers = Published(3, 1.0, "laplace").release(back.logits(phi), back.logit_sensitivity(phi), SystemRandomness())
    np.testing.assert_allclose(answers.sum(axis=1), 1)
    with pytest.raises(BundleError, match="exists already"):
        save_published(tmp_path / "bundle", network)


def test_rows_beyond_the_bounds_are_clipped(network: PublishedNetwork) -> None:
    inside, beyond = np.array([[1.0, 0.0]]), np.array([[9.0, -5.0]])
    np.testing.assert_array_equal(network.features(inside), network.features(beyond))


def test_it_says_unproven_and_why_but_not_what_is_private(network: PublishedNetwork) -> None:
    public = network.certificate.public()
    assert public["status"] == "unproven"
    assert any("no finite epsilon" in objection for objection in public["objections"])
    assert not {"records", "lineage", "weights_sha256"} & public.keys()
    assert not [name for name in public if name.startswith("claimed")], "they show how many records there are"


@pytest.mark.parametrize(
    "mechanism", [Gaussian(20.0), Laplace(0.1), Label(0.1), SelectedNeuron(0.1, LaplaceLoss(0.1))], ids=lambda m: m.name
)
def test_no_proven_mechanism_serves_it(network: PublishedNetwork, mechanism: Mechanism) -> None:
    for accept in (True, False):
        with pytest.raises(NoCertificate, match=r"needs a certificate.*dpserve train.*`accept_unproven`"):
            network.certificate.check_mechanism(mechanism, accept_unproven=accept)


def test_the_published_mechanism_needs_to_be_accepted(network: PublishedNetwork) -> None:
    published = Published(3, 1.0, "gaussian")
    with pytest.raises(NoCertificate, match=r"unproven.*`accept_unproven`"):
        network.certificate.check_mechanism(published, accept_unproven=False)
    network.certificate.check_mechanism(published, accept_unproven=True)


def test_it_is_no_certified_head(network: PublishedNetwork, tmp_path: Path) -> None:
    save_published(tmp_path / "bundle", network)
    with pytest.raises(BundleError, match="status"):
        load_bundle(tmp_path / "bundle")
    assert kind_of(tmp_path / "nothing") != "published"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("status", "proven", "status"),
        ("claimed_neuron_sensitivity", 0.01, "claimed_neuron_sensitivity is 0.01 and should be"),
        ("objections", [], "objections"),
        ("hidden", [6, 4], "claimed_lipschitz is"),
    ],
)
def test_a_changed_certificate_is_refused(
    network: PublishedNetwork, tmp_path: Path, field: str, value: object, said: str
) -> None:
    save_published(tmp_path / "bundle", network)
    path = tmp_path / "bundle" / "certificate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(BundleError, match=said):
        load_published(tmp_path / "bundle")


def test_changed_and_missing_weights_are_refused(network: PublishedNetwork, tmp_path: Path) -> None:
    save_published(tmp_path / "bundle", network)
    model = tmp_path / "bundle" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(BundleError, match="was changed"):
        load_published(tmp_path / "bundle")
    model.unlink()
    with pytest.raises(BundleError, match="cannot read"):
        load_published(tmp_path / "bundle")


def test_serving_it_imports_no_torch() -> None:
    program = (
        "import sys, dpserve.training.kinds.published.bundle, dpserve.mechanisms.published;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
