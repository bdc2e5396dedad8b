"""Released weights and precision tiers: one noise path, what a coalition holds, and what the certificate says."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.arrays import Floats
from accounting.losses import Cost
from audit.estimators import gdp
from mechanisms.gaussian_vector import GaussianVector
from mechanisms.randomness import NoiseKey, SystemRandomness
from tests.seeded import Seeded
from tests.training.conftest import make_records
from training.bundles.certificate import Certificate, derive, now
from training.errors import BundleError, TrainingError
from training.features.maps import Identity
from training.inputs.records import Records
from training.kinds.head.bundle import CertifiedHead, load_bundle, save_bundle
from training.kinds.head.recipe import Recipe
from training.kinds.head.train import train_head
from training.kinds.loading import load_model
from training.kinds.weights.model import ReleasedWeights, WeightsCertificate, release_weights, save_weights
from training.pay_once.model import ReleasedModel, TieredModel

PRICES = {"coarse": 720 * 10**9, "middle": 911_250 * 10**6, "fine": 1125 * 10**9}
"""mu = 1.2, 1.35 and 1.5."""
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
    return release_weights(head, PRICES, "lineage-of-tests", Seeded(1))


def tiers_drawn_often(model: ReleasedWeights, weights: Floats, seed: int) -> Floats:
    """Every tier's weights, drawn DRAWS times by what draws them in a release: (T, DRAWS, size)."""
    certificate, randomness = model.certificate, Seeded(seed)
    flat = weights.ravel()
    released = np.stack(
        [
            np.stack([vector.release(flat, randomness) for _ in range(DRAWS)])
            for vector in (
                GaussianVector(tier.mu_beyond, flat.size, certificate.weight_sensitivity)
                for tier in certificate.precisions
            )
        ]
    )
    many = replace(model, released=released)
    return np.stack([many.at(tier.name).weights for tier in certificate.precisions])


def test_the_tiers_lie_on_one_brownian_path(model: ReleasedWeights, head: CertifiedHead) -> None:
    """Cov(N_s, N_t) is the variance of the finer one. False alarm rate 1e-6 in all, by the normal limit."""
    noise = tiers_drawn_often(model, head.weights, seed=2) - head.weights.ravel()
    samples = noise.reshape(3, -1)
    variances = [tier.noise**2 for tier in model.certificate.precisions]
    for s in range(3):
        for t in range(s, 3):
            products = samples[s] * samples[t]
            error = math.sqrt((variances[s] * variances[t] + variances[t] ** 2) / samples.shape[1])
            assert abs(products.mean() - variances[t]) < 5.3 * error + 1e-4 * variances[t]
    increments = samples[:-1] - samples[1:]
    for finer, increment in zip(samples[1:], increments, strict=True):
        correlation = float(np.corrcoef(finer, increment)[0, 1])
        assert abs(correlation) < 5.3 / math.sqrt(samples.shape[1])


def best_linear_test(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """The scores of the best linear test that half of what was seen suggests, on the other half."""
    flat = [np.concatenate(list(world), axis=1) for world in (inside, outside)]
    half = DRAWS // 2
    seen = [world[:half] for world in flat]
    # The noise of different weights is independent and the tiers' is not: only these covariances are estimated.
    tiers, size = inside.shape[0], inside.shape[2]
    spread = np.mean(
        [np.cov(np.stack([tier[:half, j] for tier in world])) for world in (inside, outside) for j in range(size)],
        axis=0,
    )
    shift = (seen[0].mean(axis=0) - seen[1].mean(axis=0)).reshape(tiers, size)
    direction = np.linalg.solve(spread, shift).ravel()
    return flat[0][half:] @ direction, flat[1][half:] @ direction


def neighbours(model: ReleasedWeights, head: CertifiedHead) -> tuple[Floats, Floats]:
    """The weights and those of the furthest neighbour there may be, apart in one weight."""
    moved = head.weights.copy()
    moved[0, 0] += model.certificate.weight_sensitivity * (1 - 1e-9)
    return moved, head.weights


def test_a_coalition_of_all_tiers_learns_no_more_than_the_finest_allows(
    model: ReleasedWeights, head: CertifiedHead
) -> None:
    """Clopper and Pearson's limits at a false alarm rate of 1e-6; and the audit is not blind."""
    inside, outside = (
        tiers_drawn_often(model, weights, seed) for seed, weights in enumerate(neighbours(model, head), 5)
    )

    found = gdp(*best_linear_test(inside, outside), 1 - FALSE_ALARM).value

    assert found <= model.certificate.precisions[-1].mu
    assert found > 0.8


def test_the_same_audit_convicts_tiers_with_noise_of_their_own_charged_as_the_finest(
    model: ReleasedWeights, head: CertifiedHead
) -> None:
    """Independent noise for each tier, each of the size its price says, is mu = 2.34 together, not 1.5."""
    worlds = []
    for seed, weights in enumerate(neighbours(model, head), 7):
        flat, randomness = weights.ravel(), Seeded(seed)
        vectors = [
            GaussianVector(tier.mu, flat.size, model.certificate.weight_sensitivity)
            for tier in model.certificate.precisions
        ]
        worlds.append(np.stack([[vector.release(flat, randomness) for _ in range(DRAWS)] for vector in vectors]))

    found = gdp(*best_linear_test(worlds[0], worlds[1]), 1 - FALSE_ALARM).value

    assert found > model.certificate.precisions[-1].mu


def test_who_holds_the_weights_of_a_trained_head_learns_what_is_claimed() -> None:
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
                release_weights(replace(head, certificate=certificate), {"full": PRICES["fine"]}, "l", randomness)
                for _ in range(DRAWS // 2)
            )
            seen.append(np.array([np.vdot(model.weights, direction) for model in released]))
        return gdp(*seen, 1 - FALSE_ALARM).value

    assert 0.5 < found(understated=1) <= 1.5
    assert found(understated=3) > 1.5


@given(st.lists(st.integers(401 * 10**6, 6 * 10**11), min_size=1, max_size=6))
@settings(max_examples=12, deadline=None)
def test_no_tier_costs_more_than_its_price_nor_has_less_noise_than_one_release_of_its_mu(
    module_head: CertifiedHead, steps: list[int]
) -> None:
    prices = {f"t{number}": price for number, price in enumerate(np.cumsum(steps).tolist())}
    certificate = release_weights(module_head, prices, "l", Seeded(0)).certificate
    certificate.verify()
    total, sensitivity = 0, certificate.weight_sensitivity
    for tier, precision, price in zip(certificate.tiers, certificate.precisions, prices.values(), strict=True):
        total += tier.cost.picorho
        assert price - 2 * len(prices) <= total <= price
        assert precision.mu**2 / 2 * 1e12 <= total * (1 + 1e-9)
        assert precision.noise >= sensitivity / precision.mu
        assert precision.noise <= sensitivity / precision.mu * 1.1
    assert Cost.parse(certificate.cost).rho == sum(tier.cost.rho for tier in certificate.tiers)


def test_a_bundle_is_read_back_and_answers_the_same(model: ReleasedWeights, tmp_path: Path) -> None:
    save_weights(tmp_path / "bundle", model)
    loaded = load_model(tmp_path / "bundle")
    assert isinstance(loaded, ReleasedModel)
    assert isinstance(loaded, TieredModel)
    X = np.random.default_rng(3).uniform(size=(9, 4))
    for tier in PRICES:
        np.testing.assert_array_equal(loaded.at(tier).probabilities(X), model.at(tier).probabilities(X))
    np.testing.assert_array_equal(loaded.probabilities(X), model.at("fine").probabilities(X))
    with pytest.raises(KeyError):
        loaded.at("finest")


def test_the_exact_weights_are_not_in_the_bundle(model: ReleasedWeights, head: CertifiedHead, tmp_path: Path) -> None:
    save_weights(tmp_path / "bundle", model)
    content = (tmp_path / "bundle" / "model.safetensors").read_bytes()

    assert not any(weight.tobytes() in content for weight in head.weights.ravel())
    assert not any(weight.tobytes() in content for weight in head.weights.astype(np.float32).ravel())


def test_a_row_has_the_same_bits_alone_and_beside_others(model: ReleasedWeights) -> None:
    X = np.random.default_rng(4).uniform(-1, 2, size=(64, 4))
    together = model.probabilities(X)

    for position in range(64):
        np.testing.assert_array_equal(model.probabilities(X[position : position + 1])[0], together[position])
    np.testing.assert_array_equal(model.probabilities(X[::-1])[::-1], together)
    np.testing.assert_allclose(together.sum(axis=1), 1)
    reference = scipy.special.softmax(model.certificate.feature_map(X, {}) @ model.weights.T, axis=1)
    np.testing.assert_allclose(together, reference, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["precisions"][0].update(mu_beyond=0.4), "the certificate does not hold: cost is"),
        (lambda c: c["precisions"][1].update(noise=1e-9), "precisions is"),
        (lambda c: c["precisions"][1].update(name="coarse"), "a tier is named twice"),
        (lambda c: c.update(weight_sensitivity=1e-6), "weight_sensitivity is"),
        (lambda c: c.update(cost="gaussian:0.01"), "cost is 'gaussian:0.01' and should be"),
        (lambda c: c.update(assumptions=[]), "the assumptions are not those"),
        (lambda c: c.update(release="free"), "does not know"),
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
    cheaper = release_weights(head, {name: price // 2 for name, price in PRICES.items()}, "l", Seeded(1))
    save_weights(tmp_path / "bundle", replace(model, certificate=cheaper.certificate))

    with pytest.raises(BundleError, match="tier coarse does not lie on the grid of noise"):
        load_model(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({}, "between 1 and 16 precisions"),
        ({"a": 10**10, "b": 10**10}, "'b' costs no more than before"),
        ({"a": 10**10, "b": 10**10 + 10**8}, "tier 'b': the price of a pay-once model"),
        ({"a b": 10**10}, "is named with letters"),
        ({"a": 5 * 10**12}, "tier 'a': the price of a pay-once model"),
    ],
)
def test_tiers_that_cannot_be_had_are_refused(head: CertifiedHead, prices: dict[str, int], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        release_weights(head, prices, "l", SystemRandomness())


def test_a_head_that_is_paid_for_row_by_row_is_no_release(head: CertifiedHead, tmp_path: Path) -> None:
    save_bundle(tmp_path / "head", head)

    assert isinstance(load_model(tmp_path / "head"), CertifiedHead)


def test_a_release_is_no_head_and_the_refusal_says_so(model: ReleasedWeights, tmp_path: Path) -> None:
    save_weights(tmp_path / "bundle", model)

    with pytest.raises(BundleError, match="holds a model of the kind 'weights', and this takes a head"):
        load_bundle(tmp_path / "bundle")


def test_what_is_public_names_neither_lineage_nor_digest(model: ReleasedWeights, tmp_path: Path) -> None:
    certificate: WeightsCertificate = save_weights(tmp_path / "bundle", model)

    assert not {"lineage", "weights_sha256", "binding_key", "created"} & set(certificate.public())
    assert json.dumps(certificate.public())


def test_every_tier_is_calibrated_and_pays_for_it(head: CertifiedHead, records: Records, tmp_path: Path) -> None:
    model = release_weights(head, PRICES, "lineage-of-tests", Seeded(1), records)
    certificate = model.certificate
    certificate.verify()
    total = 0
    for tier, whole in zip(certificate.tiers, PRICES.values(), strict=True):
        total += tier.cost.picorho
        assert len(tier.cost.losses) == 2
        assert whole - 2 * len(PRICES) <= total <= whole
    scales = {model.at(tier.name).calibration.scale for tier in certificate.tiers}
    assert len(scales) == len(PRICES)
    save_weights(tmp_path / "model", model)
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, ReleasedWeights)
    assert np.array_equal(loaded.probabilities(records.X), model.probabilities(records.X))
    row = records.X[:1]
    noise = certificate.precisions[-1].noise * np.linalg.norm(certificate.feature_map(row, model.tensors))
    assert model.answers(row)[1].scale[0] == pytest.approx(model.calibration.scale * noise)
