"""Released weights: what whoever has them learns, and what the certificate says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.audit.estimators import gdp
from dpserve.mechanisms.randomness import NoiseKey, SystemRandomness
from dpserve.training.bundles.certificate import Certificate, derive, now
from dpserve.training.errors import BundleError, TrainingError
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.head.bundle import CertifiedHead, load_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.weights.bundle import save_weights
from dpserve.training.kinds.weights.model import ReleasedWeights
from dpserve.training.kinds.weights.steps import WEIGHTS
from dpserve.training.kinds.weights.train import release_weights
from tests.seeded import Seeded
from tests.training.conftest import make_records

PRICE = 1125 * 10**9
"""mu = 1.5."""
DRAWS = 2400
FALSE_ALARM = 1e-6


@pytest.fixture(scope="module")
def module_head() -> CertifiedHead:
    feature_map = Identity(lower=(0.0,) * 2, upper=(1.0,) * 2, clip_norm=1.0, bias=0.25)
    certificate = {
        "name": "small",
        "model_id": "0" * 32,
        "created": now(),
        "classes": ("a", "b"),
        "feature_names": ("x", "y"),
        "feature_map": feature_map.model_dump(),
        "strong_convexity": 1.0,
        "tolerance": 1e-3,
        "lineage": "l",
    }
    certified = Certificate.model_validate(certificate | derive(1.0, 1e-3, 2, feature_map.dimension))
    return CertifiedHead(certified, np.zeros((2, 3)), {}, NoiseKey.fresh())


@pytest.fixture
def model(head: CertifiedHead) -> ReleasedWeights:
    return release_weights(head, PRICE, "lineage-of-tests", Seeded(1))


def test_who_has_the_weights_of_a_trained_head_learns_what_is_claimed() -> None:
    """Two neighbours, trained and released over and over; the best direction is known. False alarms 1e-6.

    Weights with noise for a third of the sensitivity (the planted fault) are convicted, so the audit is not blind.
    """
    records = make_records(n=3, features=1, classes=20)
    records = replace(records, X=np.ones((3, 1)), y=np.array([0, 1, 2]))
    feature_map = Identity(lower=(0.0,), upper=(1.0,), clip_norm=1.0, bias=0.0)
    worlds = [
        train_head(world, Recipe("small", feature_map, 8.0, 1e-6), "l")
        for world in (records, replace(records, X=records.X[:-1], y=records.y[:-1]))
    ]
    direction = worlds[0].weights - worlds[1].weights

    def found(understated: float) -> float:
        seen = []
        for seed, head in enumerate(worlds):
            certified = head.certificate.weight_sensitivity
            certificate = head.certificate.model_copy(update={"weight_sensitivity": certified / understated})
            randomness = Seeded(20 + seed)
            released = (
                release_weights(replace(head, certificate=certificate), PRICE, "l", randomness)
                for _ in range(DRAWS // 2)
            )
            seen.append(np.array([np.vdot(model.weights, direction) for model in released]))
        return gdp(*seen, 1 - FALSE_ALARM).value

    assert 0.5 < found(understated=1) <= 1.5
    assert found(understated=3) > 1.5


@given(st.integers(401 * 10**6, 4 * 10**12))
@settings(max_examples=12, deadline=None)
def test_no_model_costs_more_than_its_price_nor_has_less_noise_than_its_mu_says(
    module_head: CertifiedHead, price: int
) -> None:
    certificate = release_weights(module_head, price, "l", Seeded(0)).certificate
    certificate.verify()
    assert price - 2 <= certificate.price.picorho <= price
    least = certificate.weight_sensitivity / certificate.mu_of(WEIGHTS)
    assert least <= certificate.noise <= least * 1.1


def test_a_calibration_that_no_release_paid_for_is_refused(module_head: CertifiedHead, tmp_path: Path) -> None:
    model = release_weights(module_head, 10**11, "l", Seeded(0))
    calibrated = replace(model, calibration=replace(model.calibration, scale=2.0))
    save_weights(tmp_path / "bundle", calibrated)
    with pytest.raises(BundleError, match="no release of a calibration"):
        load_model(tmp_path / "bundle")


def test_the_exact_weights_are_not_in_the_bundle(model: ReleasedWeights, head: CertifiedHead, tmp_path: Path) -> None:
    save_weights(tmp_path / "bundle", model)
    content = (tmp_path / "bundle" / "model.safetensors").read_bytes()

    assert not any(weight.tobytes() in content for weight in head.weights.ravel())
    assert not any(weight.tobytes() in content for weight in head.weights.astype(np.float32).ravel())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["releases"][0].update(cost="gaussian:0.4"), "the certificate does not hold: cost is"),
        (lambda c: c.update(noise=1e-9), "noise is"),
        (lambda c: c.update(weight_sensitivity=1e-6), "weight_sensitivity is"),
        (lambda c: c.update(release="free"), "'free', which is not installed here.*Install the package"),
        (lambda c: c.update(name="other"), "the files of two bundles were mixed, or it was edited"),
    ],
)
def test_a_changed_certificate_is_refused(model: ReleasedWeights, tmp_path: Path, change, message: str) -> None:
    folder = tmp_path / "bundle"
    save_weights(folder, model)
    content = json.loads((folder / "certificate.json").read_text())
    change(content)
    (folder / "certificate.json").write_text(json.dumps(content))

    with pytest.raises(BundleError, match=message):
        load_model(folder)


def test_a_certificate_of_other_noise_than_was_drawn_is_refuted(
    model: ReleasedWeights, head: CertifiedHead, tmp_path: Path
) -> None:
    cheaper = release_weights(head, PRICE // 3, "l", Seeded(1))
    save_weights(tmp_path / "bundle", replace(model, certificate=cheaper.certificate))

    with pytest.raises(BundleError, match="released does not lie on the grid of noise"):
        load_model(tmp_path / "bundle")


@pytest.mark.parametrize("price", [10**8, 5 * 10**12])
def test_a_price_that_cannot_be_had_is_refused(head: CertifiedHead, price: int) -> None:
    with pytest.raises(TrainingError, match="the price of a pay-once model"):
        release_weights(head, price, "l", SystemRandomness())


def test_a_release_is_no_head_and_the_refusal_says_so(model: ReleasedWeights, tmp_path: Path) -> None:
    save_weights(tmp_path / "bundle", model)

    with pytest.raises(BundleError, match="holds a model of the kind 'weights', and this takes a head"):
        load_bundle(tmp_path / "bundle")


def test_weights_are_calibrated_and_pay_for_it(head: CertifiedHead, records: Records, tmp_path: Path) -> None:
    model = release_weights(head, PRICE, "lineage-of-tests", Seeded(1), records)
    certificate = model.certificate
    certificate.verify()
    assert len(certificate.price.losses) == 2
    assert PRICE - 2 <= certificate.price.picorho <= PRICE
    save_weights(tmp_path / "model", model)
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, ReleasedWeights)
    assert np.array_equal(loaded.values(records.X), model.values(records.X))
    row = records.X[:1]
    noise = certificate.noise * np.linalg.norm(certificate.feature_map(row, model.tensors))
    assert model.answers(row)[1].scale[0] == pytest.approx(model.calibration.scale * noise)
