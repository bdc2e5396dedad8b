"""The certificate of a head on the convexified objective, its bundle, and its answers by every mechanism."""

from dataclasses import replace

import numpy as np
import pytest

from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.mechanisms.registry import all_mechanisms, at_price
from dpserve.training.bundles.certificate import Certificate
from dpserve.training.errors import BundleError, DataError, TrainingError
from dpserve.training.exact.quantised import is_quantised
from dpserve.training.fitting.sensitivity import Convexity, logit_sensitivity_per_norm
from dpserve.training.inputs.records import Units
from dpserve.training.kinds.head.bundle import load_bundle, save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.weights.bundle import load_weights, save_weights
from dpserve.training.kinds.weights.train import release_weights
from tests.training.conftest import identity, make_records

CONVEXITY = Convexity(0.1, 50)


def trained(records, convexity=CONVEXITY):
    return train_head(records, Recipe("small", identity(records, bias=0.25), 1.0, convexity=convexity), "tests")


@pytest.fixture(scope="module")
def convexified():
    return trained(make_records())


def test_it_states_what_its_bound_is_made_of(convexified, head):
    found, told, plain = convexified.certificate, convexified.certificate.convexified, head.certificate
    assert (told.alpha, told.least_records, told.lam, told.tolerance) == (0.1, 50, 1 / 50, 1e-3 / 50)
    exact = (told.largest_share * (told.gradient_norm + told.lam * told.largest_norm) + 2 * told.tolerance) / told.lam
    assert found.weight_sensitivity == pytest.approx(exact, rel=1e-9)
    assert found.logit_sensitivity_per_norm == logit_sensitivity_per_norm(found.weight_sensitivity)
    assert told.sum_weight_sensitivity == plain.weight_sensitivity
    assert told.price_of_alpha == found.weight_sensitivity / plain.weight_sensitivity > 1
    assert set(found.assumptions) > set(plain.assumptions)
    assert is_quantised(convexified.weights)


def test_a_head_on_the_sum_of_losses_says_nothing_of_it(head):
    assert "convexified" not in head.certificate.model_dump(mode="json")
    assert "convexified" not in head.certificate.public()


@pytest.mark.parametrize(
    "changed",
    [
        {"alpha": 0.01},
        {"least_records": 5000},
        {"largest_share": 1e-3},
        {"largest_loss": 1.0},
        {"largest_norm": 1.0},
        {"gradient_norm": 1.0},
        {"sum_weight_sensitivity": 1.0},
        {"price_of_alpha": 1.0},
    ],
)
def test_a_changed_number_is_found(convexified, changed):
    told = convexified.certificate.convexified.model_copy(update=changed)
    with pytest.raises(BundleError, match="convexified"):
        convexified.certificate.model_copy(update={"convexified": told}).verify()


def test_alpha_cannot_be_left_out_nor_added(convexified, head):
    for found in (convexified.certificate.model_copy(update={"convexified": None}),):
        with pytest.raises(ValueError, match="convexified"):
            Certificate.model_validate(found.model_dump())
        with pytest.raises(BundleError):
            found.verify()
    told = convexified.certificate.convexified
    with pytest.raises(ValueError, match="convexified"):
        Certificate.model_validate(head.certificate.model_dump() | {"convexified": told.model_dump()})


def test_it_is_read_back_as_it_was_written(convexified, tmp_path):
    save_bundle(tmp_path / "m", convexified)
    loaded = load_bundle(tmp_path / "m")
    assert loaded.certificate.convexified == convexified.certificate.convexified
    np.testing.assert_array_equal(loaded.weights, convexified.weights)


@pytest.mark.parametrize("name", [name for name, mechanism in all_mechanisms().items() if mechanism.status == "proven"])
def test_every_mechanism_answers_from_it(convexified, name):
    phi = convexified.features(make_records(seed=1, n=5).X)
    mechanism = at_price(name, "rho:0.01", 3)
    answers = mechanism.release(convexified.logits(phi), convexified.logit_sensitivity(phi), SystemRandomness())
    assert answers.shape == (5, 3)
    assert np.isfinite(answers).all()


def test_released_weights_have_its_sensitivity_and_are_read_back(convexified, tmp_path):
    model = release_weights(convexified, 10**11, "tests", SystemRandomness(), make_records())
    assert model.certificate.weight_sensitivity == convexified.certificate.weight_sensitivity
    save_weights(tmp_path / "w", model)
    assert load_weights(tmp_path / "w").certificate.convexified == convexified.certificate.convexified
    plain = model.certificate.model_copy(
        update={"convexified": model.certificate.convexified.model_copy(update={"alpha": 0.01})}
    )
    with pytest.raises(BundleError):
        plain.verify()


def test_fewer_records_than_declared_train_nothing():
    assert len(make_records()) == 60
    trained(make_records(), Convexity(0.1, 60))
    with pytest.raises(DataError) as refused:
        trained(make_records(), Convexity(0.1, 61))
    assert "60" not in str(refused.value)


def test_units_of_several_records_are_refused():
    records = replace(make_records(), units=Units("person", np.arange(60) // 2))
    with pytest.raises(TrainingError, match="units"):
        trained(records)
    certificate = trained(make_records()).certificate.model_dump()
    unit = {"unit": "person", "neighbouring": "add or remove all records of one unit"}
    with pytest.raises(ValueError, match="units"):
        Certificate.model_validate(certificate | unit)
