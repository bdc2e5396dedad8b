"""A head on a public encoder is served like any other: charged, noised, and given again on a retry."""

import hashlib

import numpy as np

from dpserve.mechanisms.gaussian import Gaussian
from dpserve.training.features.encoder import OnnxEncoder
from dpserve.training.features.maps import Encoder
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.bundle import load_bundle, save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from tests.training.onnx_models import FEATURES, perceptron, weights

CLASSES = 3


def test_answers_are_those_of_the_bundles_encoder(start, tmp_path):
    generator = np.random.default_rng(0)
    content = perceptron()
    feature_map = Encoder(
        lower=(0.0,) * FEATURES, upper=(1.0,) * FEATURES, clip_norm=1.5, bias=0.2,
        width=8, model_sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    declaration = Declaration(("a", "b", "c", "d"), feature_map.lower, feature_map.upper, ("red", "green", "blue"))
    X = generator.random((3000, FEATURES))
    y = X[:, :CLASSES].argmax(axis=1)
    attached = feature_map.computed_by(OnnxEncoder(content, FEATURES).apart, content)
    head = train_head(Records(X, y, declaration, ()), Recipe("deep", attached, 1.0), "deep-lineage")
    save_bundle(tmp_path / "deep", head)
    # The dearest price there is: a noise multiplier of 0.25.
    service = start(load_bundle(tmp_path / "deep"), Gaussian(0.25), lineage_rho=900.0)
    client = service.http(service.add_client(rho=900.0))
    rows = generator.random((40, FEATURES))
    answered = client.post("/predict", json={"instances": rows.tolist()}).raise_for_status().json()
    h = np.maximum(rows.astype(np.float32) @ weights(), 0).astype(np.float64)
    h *= np.minimum(1, 1.5 / np.maximum(np.linalg.norm(h, axis=1), 1e-9))[:, None] / 1.5 * np.sqrt(1 - 0.2**2)
    logits = np.hstack([h, np.full((40, 1), 0.2)]) @ head.weights.T
    said = np.log(answered["predictions"])
    said, logits = (values - values.mean(axis=1, keepdims=True) for values in (said, logits))
    # The noise on a logit has a variance of 0.125, and centred 0.083: with 80 degrees of freedom a mean of squares
    # above 0.2 comes with probability below 1e-9. Answers to other rows would be off by what the logits themselves are.
    assert np.square(said - logits).mean() < 0.2
    assert np.square(logits).mean() > 0.6
    assert answered["receipt"]["charged_rows"] == 40
    again = client.post("/predict", json={"instances": rows.tolist()}).raise_for_status().json()
    assert again["predictions"] == answered["predictions"]
    assert again["receipt"]["charged_rows"] == 0
    shown = client.get("/models/deep").json()
    assert shown["feature_map"]["model_sha256"] == feature_map.model_sha256
