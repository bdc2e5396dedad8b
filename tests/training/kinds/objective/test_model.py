"""Objective perturbation as it is trained: what is charged, what is released, and an audit by distinguishing.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from accounting import sampling_error
from accounting.losses import Cost
from mechanisms.gaussian_vector import whole_picorho
from tests.seeded import Seeded
from tests.training.conftest import identity, make_records
from training.errors import BundleError, NotConverged, TrainingError
from training.fitting.objective import RegularisedCrossEntropy
from training.kinds.loading import load_model
from training.kinds.objective.model import (
    CURVATURE_PER_NOISE,
    Perturbation,
    PerturbedHead,
    perturbation_for,
    save_perturbed,
    train_perturbed,
)
from training.pay_once.calibration import Calibration
from training.pay_once.model import ReleasedModel

FALSE_ALARM = 1e-6
WHOLE = whole_picorho("rho:0.5")


def trained(records, seed=0, whole=WHOLE, tolerance=1e-3, lam=None):
    classes = len(records.declaration.classes)
    choices = perturbation_for(whole, classes, lam)
    return train_perturbed(records, "small", identity(records), choices, tolerance, "lineage", Seeded(seed))


@pytest.mark.parametrize("price", ["rho:0.002", "epsilon:1@1e-5", "rho:3"])
@pytest.mark.parametrize(("classes", "lam"), [(2, None), (10, None), (10, 500.0)])
def test_it_costs_what_was_asked_and_no_more(price, classes, lam):
    whole = whole_picorho(price)
    choices = perturbation_for(whole, classes, lam)
    records = make_records(n=3, features=49, classes=classes)
    certificate = train_perturbed(records, "small", identity(records), choices, 1e-3, "l", Seeded(0)).certificate
    cost = Cost.parse(certificate.cost)
    assert 0.999 * whole < cost.picorho <= whole
    assert cost == certificate.derived_cost()
    assert cost.losses[1].rho >= sampling_error.LEAST_RELEASE_RHO
    if lam is None:
        assert certificate.strong_convexity == pytest.approx(CURVATURE_PER_NOISE * certificate.noise)


def test_prices_that_cannot_be_met_are_refused():
    with pytest.raises(ValueError, match="two releases, and costs at least"):
        perturbation_for(whole_picorho("rho:0.0005"), 3)
    with pytest.raises(ValueError, match=r"leave `lam` out"):
        perturbation_for(whole_picorho("epsilon:1@1e-5"), 3, 1.0)


def test_the_perturbed_gradient_and_its_value_fit_each_other():
    generator = np.random.default_rng(0)
    phi = generator.standard_normal((20, 3)) / 3
    objective = RegularisedCrossEntropy.from_rows(
        phi, generator.integers(4, size=20), 4, 2.0, 5 * generator.standard_normal((4, 3))
    )
    W, direction = generator.standard_normal((2, 4, 3))
    step = 1e-6
    slope = (objective.value(W + step * direction) - objective.value(W - step * direction)) / (2 * step)
    assert slope == pytest.approx(np.vdot(objective.gradient(W), direction), rel=1e-7)
    assert objective.gradient_rounding(W) > 0


def test_what_is_released_is_near_the_minimum_of_what_was_perturbed():
    """The noise on the weights is as small as the certificate says: 6 standard deviations on each."""
    records = make_records(n=40)
    model = trained(records)
    certificate = model.certificate
    noise = certificate.perturbing().draw(Seeded(0)).reshape(3, 5)
    objective = RegularisedCrossEntropy.from_rows(
        identity(records)(records.X, {}), records.y, 3, certificate.strong_convexity, noise
    )
    off = np.linalg.norm(objective.gradient(model.weights)) / certificate.strong_convexity
    assert off < 6 * certificate.output().standard_deviation * math.sqrt(15) + certificate.output_sensitivity


def test_a_bundle_round_trips_and_answers_each_row_alone(tmp_path):
    records = make_records(n=60)
    model = trained(records)
    saved = save_perturbed(tmp_path / "bundle", model)
    loaded = load_model(tmp_path / "bundle")
    assert isinstance(loaded, PerturbedHead)
    assert isinstance(loaded, ReleasedModel)
    assert loaded.certificate == saved
    X = np.random.default_rng(0).uniform(size=(9, 4))
    answers = loaded.probabilities(X)
    np.testing.assert_array_equal(answers[3:4], loaded.probabilities(X[3:4]))
    np.testing.assert_allclose(answers.sum(axis=1), 1)


@pytest.mark.parametrize(
    "change",
    [{"strong_convexity": 1.0}, {"tolerance": 1e-6}, {"output_mu": 0.03}, {"noise": 9.0}],
)
def test_a_certificate_whose_numbers_do_not_follow_is_refused(change):
    certificate = trained(make_records(n=20)).certificate
    certificate.verify()
    with pytest.raises(BundleError, match="does not hold"):
        certificate.model_copy(update=change).verify()


def test_weights_off_the_certified_grid_are_refused(tmp_path):
    model = trained(make_records(n=20))
    step = model.certificate.output().step
    save_perturbed(tmp_path / "on", model)
    load_model(tmp_path / "on")
    save_perturbed(tmp_path / "off", replace(model, weights=model.weights + step / 3))
    with pytest.raises(BundleError, match="the tensor weights does not lie on the grid"):
        load_model(tmp_path / "off")


def test_each_part_of_a_release_must_have_a_price_in_range_of_its_own():
    """Much noise before the minimum costs nearly nothing, and has as many draws as ever: the total hides it."""
    certificate = trained(make_records(n=20)).certificate
    most = certificate.model_copy(update={"noise": 1e3, "strong_convexity": 5e3, "output_mu": 0.5})
    output = most.model_copy(update={"output_sensitivity": most.output().sensitivity})
    other = output.model_copy(update={"cost": str(output.derived_cost())})
    perturbed, released, _ = other.derived_cost().losses
    assert perturbed.rho < sampling_error.LEAST_RELEASE_RHO < released.rho
    with pytest.raises(BundleError, match="pay-once model must lie between"):
        other.verify()


def test_failures_have_no_certificate():
    with pytest.raises(NotConverged):
        trained(make_records(n=20), tolerance=1e-12)
    records = make_records(n=20)
    with pytest.raises(TrainingError, match="cannot be perturbed"):
        train_perturbed(records, "small", identity(records), Perturbation(1.0, 1e-9, 0.1), 1e-3, "l", Seeded(0))


def test_who_sees_the_weights_learns_what_is_claimed():
    """The world's records pull against the last one, so that it moves the weights most; false alarms 1e-6.

    The weights along the record's direction tell most. A claim of a quarter of the mu (the planted fault) is convicted.
    """
    records = make_records(n=200, features=1, classes=2)
    records = replace(records, X=np.ones((200, 1)), y=np.r_[np.ones(199, np.int64), 0])
    worlds = (records, replace(records, X=records.X[:-1], y=records.y[:-1]))
    whole, runs = whole_picorho("rho:3"), 350
    choices = perturbation_for(whole, 2)
    honest = math.sqrt(2 * 3)

    scores = np.array(
        [[run(world, choices, seed + which * runs) for seed in range(runs)] for which, world in enumerate(worlds)]
    )
    hits, alarms = (int((world > scores.mean()).sum()) for world in scores)
    power = stats.binomtest(hits, runs).proportion_ci(1 - FALSE_ALARM).low
    level = stats.binomtest(alarms, runs).proportion_ci(1 - FALSE_ALARM).high
    assert power <= stats.norm.sf(stats.norm.isf(level) - honest)
    assert power > stats.norm.sf(stats.norm.isf(level) - 0.25 * honest)


def run(world, choices, seed):
    """Return how far the released weights lie towards the class of the last record."""
    model = train_perturbed(world, "audited", identity(world), choices, 1e-3, "l", Seeded(seed))
    return float(model.weights[0, 0] - model.weights[1, 0])


@pytest.mark.parametrize("lam", [None, 60.0])
def test_intervals_hold_the_median_over_models_with_other_noise(lam):
    """Fewer than 0.86 of 200 models with a true share of 0.95 hold with probability below 1e-6."""
    records, models = make_records(n=60, features=3, classes=3), 200
    assert stats.binom.cdf(int(0.86 * models), models, 0.95) < FALSE_ALARM
    row = records.X[:1]
    found = [trained(records, seed, tolerance=1e-2, lam=lam) for seed in range(models)]
    bare = [replace(model, calibration=Calibration.none(3)) for model in found]
    answers = [model.answers(row) for model in bare]
    median = np.median([shown[0] for shown, _ in answers], axis=0)
    ends = [noise.intervals(shown) for shown, noise in answers]
    held = np.array([(lower[0] <= median) & (median <= upper[0]) for lower, upper in ends])
    assert held.mean(axis=0).min() >= 0.86
    assert np.mean([upper[0, 0] - lower[0, 0] for lower, upper in ends]) < 0.9  # it says something
    assert found[0].answers(row)[1].scale[0] == pytest.approx(found[0].calibration.scale * answers[0][1].scale[0])
