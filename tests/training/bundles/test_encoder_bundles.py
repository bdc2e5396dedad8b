"""A head on an encoder: from `dpserve train` to a service that charges, and what its bundle refuses."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dpserve.cli import app
from dpserve.training.bundles.certificate import ASSUMPTIONS, ENCODER_ASSUMPTIONS
from dpserve.training.bundles.sealing import CERTIFICATE_FILE
from dpserve.training.errors import BundleError, NotExportable
from dpserve.training.export.files import exported
from dpserve.training.features.encoded import ENCODER_FILE
from dpserve.training.features.feature_map import NORM_BOUND
from dpserve.training.kinds.head.bundle import load_bundle, save_bundle
from dpserve.training.kinds.loading import load_model
from tests.training.onnx_models import FEATURES, perceptron

CONTENT = perceptron()


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path / "home"))
    generator = np.random.default_rng(4)
    np.savez(tmp_path / "records.npz", X=generator.random((60, FEATURES)), y=generator.integers(0, 3, 60))
    (tmp_path / "public.onnx").write_bytes(CONTENT)
    return tmp_path


def train(folder, *options):
    arguments = [
        "train", "--data", str(folder / "records.npz"), "--out", str(folder / "bundle"), "--classes", "0,1,2",
        "--lineage", "images", "--bounds", "0:1", *options,
    ]  # fmt: skip
    return CliRunner().invoke(app, arguments)


def encoder(folder):
    return "head", "--lam", "1", "--encoder", str(folder / "public.onnx")


@pytest.fixture
def bundle(trained):
    done = train(trained, *encoder(trained))
    assert done.exit_code == 0, done.output
    return trained / "bundle"


def test_it_loads_what_was_trained(bundle):
    head = load_bundle(bundle)
    feature_map = head.certificate.feature_map
    assert feature_map.model_sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert (bundle / ENCODER_FILE).read_bytes() == CONTENT
    assert (bundle / ENCODER_FILE).stat().st_mode & 0o077 == 0
    assert head.certificate.assumptions == (*ASSUMPTIONS, *ENCODER_ASSUMPTIONS)
    assert feature_map.clip_norm == np.sqrt(8) / 2
    assert head.on_encoder
    phi = head.features(np.random.default_rng(0).random((70, FEATURES)))
    assert phi.shape == (70, 9)
    assert (np.linalg.norm(phi, axis=1) <= NORM_BOUND).all()
    assert head.logits(phi).shape == (70, 3)


def test_another_model_is_found(bundle):
    (bundle / ENCODER_FILE).write_bytes(perceptron(seed=1))
    with pytest.raises(BundleError, match="the certificate says"):
        load_bundle(bundle)
    (bundle / ENCODER_FILE).unlink()
    with pytest.raises(BundleError, match="lacks its encoder"):
        load_bundle(bundle)


def test_a_certificate_without_the_assumption_is_found(bundle):
    path = bundle / CERTIFICATE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"assumptions": ASSUMPTIONS}))
    with pytest.raises(BundleError, match="assumptions are not those"):
        load_bundle(bundle)


def test_a_bundle_is_saved_again_with_its_encoder_and_not_with_another(bundle, tmp_path):
    head = load_bundle(bundle)
    save_bundle(tmp_path / "again", head)
    assert (tmp_path / "again" / ENCODER_FILE).read_bytes() == CONTENT
    for wrong in (None, CONTENT + b" "):
        feature_map = head.certificate.feature_map.computed_by(lambda rows: rows, wrong)
        with pytest.raises(BundleError, match="SHA-256"):
            save_bundle(
                tmp_path / "another",
                replace(head, certificate=head.certificate.model_copy(update={"feature_map": feature_map})),
            )
    assert not (tmp_path / "another").exists()


def test_a_model_of_another_width_is_found(bundle):
    feature_map = load_bundle(bundle).certificate.feature_map
    with pytest.raises(BundleError, match="gives 8 features, and the certificate says 9"):
        feature_map.model_copy(update={"width": 9}).open_files(bundle)


@pytest.mark.parametrize("release", ["class-sums", "weights --lam 1", "dpsgd --n 60 --steps 20"])
def test_a_pay_once_model_stands_on_an_encoder(trained, release):
    options = (*release.split(), "--rho", "0.5", "--encoder", str(trained / "public.onnx"))
    done = train(trained, *options)
    assert done.exit_code == 0, done.output
    model = load_model(trained / "bundle", "cpu")
    assert (trained / "bundle" / ENCODER_FILE).read_bytes() == CONTENT
    assert set(ENCODER_ASSUMPTIONS) < set(model.certificate.assumptions)
    rows = np.random.default_rng(0).random((70, FEATURES))
    answers = model.values(rows)
    np.testing.assert_allclose(answers[:1], model.values(rows[:1]), atol=1e-3)
    with pytest.raises(NotExportable, match="'encoder'"):
        exported(model, "onnx")
    (trained / "bundle" / ENCODER_FILE).unlink()
    with pytest.raises(BundleError, match="lacks its encoder"):
        load_model(trained / "bundle")


def test_a_budget_is_planned_for_on_the_owners_encoder(trained):
    public = ("--encoder", str(trained / "public.onnx"))
    done = train(trained, "--epsilon", "1", "--delta", "1e-5", "--n", "60", *public)
    assert done.exit_code == 0, done.output + str(done.exception)
    model = load_model(trained / "bundle", "cpu")
    assert model.certificate.feature_map.kind == "encoder"
    assert model.certificate.release == "dpsgd"
    assert (trained / "bundle" / ENCODER_FILE).read_bytes() == CONTENT
    assert "by rule; n = 60" in " ".join(done.output.split())


def test_public_rows_are_not_simulated_on_the_owners_encoder(trained):
    budget = ("--epsilon", "1", "--delta", "1e-5", "--n", "60", "--public", str(trained / "records.npz"))
    done = train(trained, *budget, "--encoder", str(trained / "public.onnx"))
    assert done.exit_code != 0
    assert "leave yours out" in " ".join((done.output + str(done.exception)).split())
