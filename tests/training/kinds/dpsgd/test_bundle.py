"""Records become a bundle, and a bundle a model: what is certified, what is refused, and that the model learns."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpserve.accounting import gaussian_envelope
from dpserve.accounting.conversions import gaussian_mu
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss
from dpserve.training.errors import BundleError, TrainingError
from dpserve.training.features.maps import Identity, Quantiles
from dpserve.training.fitting.unit_rows import unit
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.inputs.sums import ROWS, of_rows
from dpserve.training.kinds.dpsgd.bundle import load_dpsgd, save_dpsgd
from dpserve.training.kinds.dpsgd.centre import mean_of, sum_of_rows
from dpserve.training.kinds.dpsgd.choices import HIDDEN, Choices, NetworkChoices, choices_by_rule, choices_for
from dpserve.training.kinds.dpsgd.descent import Descent, descend, noise_of_weights
from dpserve.training.kinds.dpsgd.model import DpSgdModel
from dpserve.training.kinds.dpsgd.steps import CENTRE, NETWORK_STEPS, NOISY_STEPS, usual_scale
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, certify, directions_of, train_dpsgd
from dpserve.training.pay_once.calibration import CALIBRATION
from dpserve.training.pay_once.canaries import Coins
from dpserve.training.pay_once.chain import PublicNumbers, divided
from dpserve.training.pay_once.releases import composed
from tests.seeded import Seeded

SHOWN = (Declaration(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3, ("no", "yes")), "l")
DECLARATION = Declaration(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3, ("no", "yes"))
IDENTITY = Identity(lower=(0.0,) * 3, upper=(1.0,) * 3, clip_norm=1.0, bias=0.0)
WIDE = Identity(lower=(0.0,) * 400, upper=(1.0,) * 400, clip_norm=1.0, bias=0.0)
WIDE_SHOWN = (Declaration(tuple(map(str, range(400))), (0.0,) * 400, (1.0,) * 400, ("no", "yes")), "l")
PRICE = 500_000_000_000
"""rho = 0.5, so that mu = 1."""
CHOICES = Choices(
    records_declared=1000, sampling_rate=0.2, steps=20, learning_rate=0.5, beside=NetworkChoices(6, 0.2, 0.5)
)


def some_records(n: int = 1000, seed: int = 0) -> Records:
    generator = np.random.default_rng(seed)
    X = generator.uniform(size=(n, 3))
    y = (X[:, 0] > X[:, 1]).astype(np.int64)
    return Records(X, y, DECLARATION, tuple(row.tobytes() for row in X))


def recipe(**changes) -> DpSgdRecipe:
    return replace(DpSgdRecipe("small", IDENTITY, CHOICES, PRICE), **changes)


@pytest.fixture(scope="module")
def model() -> DpSgdModel:
    return train_dpsgd(some_records(), recipe(), "lineage-of-tests", Seeded(0))


def test_the_cost_is_that_of_every_release_and_is_derived_again(model):
    certificate = model.certificate
    cost = Cost.parse(certificate.cost)
    assert [release.name for release in certificate.releases] == ["centre", "steps", "network", "calibration"]
    assert cost.losses == (
        GaussianLoss(certificate.mu_of(CENTRE)),
        ApproximateGaussianLoss(certificate.mu_of(NOISY_STEPS), 2.0**-40),
        ApproximateGaussianLoss(certificate.mu_of(NETWORK_STEPS), 2.0**-40),
        GaussianLoss(certificate.mu_of(CALIBRATION)),
    )
    assert PRICE - 4 <= cost.picorho <= PRICE
    assert cost.kind == "gaussian"
    for step, branch in zip((NOISY_STEPS, NETWORK_STEPS), certificate.branches, strict=True):
        mu, noise = certificate.mu_of(step), branch.step.noise_multiplier
        assert gaussian_envelope.covers(mu, noise, 0.2, 20)
        assert not gaussian_envelope.covers(mu, noise * 0.999, 0.2, 20)
    certificate.verify()
    assert not {"weights_sha256", "lineage", "created"} & set(certificate.public())


def test_without_a_centre_the_steps_get_all_but_the_calibration():
    certificate = certify(recipe(choices=replace(CHOICES, centre_share=0.0, beside=None)), *SHOWN)
    assert certificate.release_of(CENTRE) is None
    assert certificate.mu_of(NOISY_STEPS) ** 2 + certificate.mu_of(CALIBRATION) ** 2 == pytest.approx(1.0)


@pytest.mark.parametrize("price", [10**9, 3 * 10**9, 10**10, 10**12])
def test_shares_stay_within_the_price(price):
    releases = divided((CENTRE, NOISY_STEPS), price, PublicNumbers(2, IDENTITY, choices=CHOICES))
    assert len(releases) == 1 + (price >= 2_000_002_000)
    assert composed(releases).rho <= price * 1e-12


def test_a_network_gives_a_row_the_same_bits_beside_any_and_its_values():
    """Products round nothing: another order of a layer's units is another order of its sums."""
    choices = replace(CHOICES, beside=NetworkChoices(70, 0.2, 0.5))
    model = train_dpsgd(some_records(200), recipe(choices=choices), "l", Seeded(0))
    head, branch = model.certificate.branches
    network, generator = branch.network, np.random.default_rng(5)
    parameters = model.parameters[1] * 10.0 ** generator.uniform(-3, 3, network.size)
    model, X = replace(model, parameters=(model.parameters[0], parameters)), some_records(60, seed=3).X
    logits = model.logits(X)
    for row in range(0, 60, 7):
        assert np.array_equal(model.logits(X[row : row + 1])[0], logits[row])
    shuffled, order = parameters.copy(), generator.permutation(70)
    for views, own in zip(network.layers(shuffled), network.layers(parameters), strict=True):
        for view, numbers in zip(views, own, strict=True):
            at = [axis for axis, width in enumerate(numbers.shape) if width == 70]
            view[...] = np.take(numbers, order, axis=at[0]) if at else numbers
    assert np.array_equal(replace(model, parameters=(model.parameters[0], shuffled)).logits(X), logits)
    products = (
        model.first_layer.products(model.certificate.feature_map(X, model.tensors)) * model.certificate.input_norm
    )
    (_, biases), (weights, following) = network.layers(parameters)
    values = np.tanh(products[:, 2:] + biases) @ weights + following
    values += products[:, :2] + head.network.layers(model.parameters[0])[0][1]
    np.testing.assert_allclose(logits, values, rtol=1e-11, atol=1e-11 * np.abs(values).max())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("releases", [{"name": "steps", "cost": "approximate-gaussian:0.9:9.094947017729282e-13"}]),
        ("releases", [{"name": "steps", "cost": "gaussian:1.0"}]),
        ("noise_multiplier", 0.9),
        ("steps", 21),
        ("sampling_rate", 0.21),
        ("sampling_rate", 1.5),
        ("beside", None),
        ("beside", {"hidden": 7}),
        ("beside", {"noise_multiplier": 0.9}),
        ("gradient_clip", 0.0),
    ],
)
def test_a_certificate_that_does_not_hold_is_refused(model, tmp_path: Path, field, value):
    folder = tmp_path / "bundle"
    save_dpsgd(folder, model)
    path = folder / "certificate.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {field: said[field] | value if isinstance(value, dict) else value}))
    with pytest.raises(BundleError):
        load_dpsgd(folder)


@pytest.mark.parametrize("place", [0, 1])
def test_each_branch_has_the_noise_that_its_price_says(model, place):
    """Found by the numbers alone, whatever digests say: less noise, more steps, and more sampling all cost more."""
    certificate = model.certificate
    own = certificate if place == 0 else certificate.beside
    for field, times in (("noise_multiplier", 0.99), ("sampling_rate", 1.02)):
        changed = own.model_copy(update={field: getattr(own, field) * times})
        other = changed if place == 0 else certificate.model_copy(update={"beside": changed})
        with pytest.raises(ValueError, match="does not cover"):
            other.derived_cost()
    with pytest.raises(ValueError, match="does not cover"):
        certificate.model_copy(update={"steps": certificate.steps + 1}).derived_cost()


def test_a_network_and_its_release_come_together(model):
    certificate = model.certificate
    others = tuple(release for release in certificate.releases if release.name != "network")
    for change in ({"beside": None}, {"releases": others}):
        with pytest.raises(ValueError):  # noqa: PT011 - either has a message of its own
            certificate.model_copy(update=change).derived_cost()


def test_a_network_that_its_share_does_not_pay_for_is_refused_and_is_none_by_rule():
    cuts = Quantiles(lower=(0.0,) * 3, upper=(1.0,) * 3, bias=0.0)
    for rho in (0.0005, 0.0012, 0.002, 0.004, 0.01):
        mu = math.sqrt(2 * rho)
        choices = choices_by_rule(10**6, mu, cuts, 2)
        certify(recipe(feature_map=cuts, choices=choices, price=round(rho / 2 * 1e12)), *SHOWN).derived_cost()
    asked = choices_by_rule(10**6, 0.04, cuts, 2, 8)
    with pytest.raises(TrainingError, match="larger budget"):
        certify(recipe(feature_map=cuts, choices=asked, price=round(0.0008e12)), *SHOWN)


def test_a_network_that_no_step_holds_is_refused_before_training():
    with pytest.raises(TrainingError, match="parameters"):
        certify(recipe(choices=replace(CHOICES, beside=NetworkChoices(2**16, 0.2, 0.5)), feature_map=WIDE), *WIDE_SHOWN)


def test_canaries_beside_a_network_are_refused_before_training():
    with pytest.raises(TrainingError, match="linear head alone"):
        certify(recipe(), *SHOWN, canaries=Coins.drawn(64, Seeded(0)).certified())


def test_weights_that_were_changed_are_refused(model, tmp_path: Path):
    folder = tmp_path / "bundle"
    other = replace(model, parameters=tuple(each + 1 for each in model.parameters))
    save_dpsgd(folder, model)
    save_dpsgd(tmp_path / "other", other)
    (folder / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(BundleError, match="was changed"):
        load_dpsgd(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": replace(CHOICES, sampling_rate=1.5)}, "sampling rate"),
        ({"choices": replace(CHOICES, steps=0)}, "number of steps"),
        ({"choices": replace(CHOICES, learning_rate=-1.0)}, "learning rate"),
        ({"choices": replace(CHOICES, beside=NetworkChoices(0, 0.2, 0.5))}, "hidden"),
        ({"noise_multiplier": 0.7}, "cost more than the budget of mu = 0.8032: it needs a noise multiplier of"),
        ({"price": 30 * 10**12}, "mu must lie"),
    ],
)
def test_what_has_no_certificate_is_refused_before_a_record_is_touched(changes, message):
    with pytest.raises(TrainingError, match=message):
        certify(recipe(**changes), *SHOWN)


def test_an_invalid_name_is_refused():
    with pytest.raises(TrainingError, match="a model is named"):
        recipe(name="../x")


def test_more_noise_than_needed_is_kept_and_charged_as_budgeted():
    certificate = certify(recipe(noise_multiplier=9.0), *SHOWN)
    assert certificate.noise_multiplier == 9.0
    assert certificate.cost == certify(recipe(), *SHOWN).cost


def test_nothing_public_depends_on_how_many_records_there_are():
    """But for the digest, the random id and key, and the time, the certificate of one record is that of a thousand."""
    few, many = (train_dpsgd(some_records(n), recipe(), "l", Seeded(2)).certificate for n in (1, 1000))
    changing = {"model_id": "0" * 32, "binding_key": "0" * 64, "created": few.created}
    assert few.model_copy(update=changing) == many.model_copy(update=changing)


def test_the_rule_uses_the_budget_and_takes_what_the_owner_chose():
    mu = gaussian_mu(1.0, 1e-5)
    choices = choices_for(10_000, mu, 500)
    assert choices_for(20_000, mu, 500).learning_rate > choices.learning_rate
    assert choices_for(10_000, mu, 50_000).learning_rate < choices.learning_rate
    assert choices_for(10_000, mu, 500, steps=2 * choices.steps).learning_rate == pytest.approx(
        choices.learning_rate / 2
    )
    assert choices_for(10_000, mu, 500, learning_rate=3.0).learning_rate == 3.0
    assert choices_for(10_000, mu, 500, hidden=8).beside == choices_for(10_000, mu, 900, hidden=8).beside
    assert choices_for(10_000, mu, 500, hidden=8).learning_rate < choices.learning_rate
    assert choices_for(100, mu, 500).sampling_rate == 1
    assert choices_for(200_000, mu, 500).sampling_rate == 0.1
    assert choices_for(1_000_000, mu, 500).sampling_rate == 0.02


def test_where_weights_are_few_the_rule_goes_no_further_than_noise_throws_them():
    """As Adult at epsilon 3, where longer steps swing from side to side."""
    mu = gaussian_mu(3.0, 1e-5)
    choices = choices_for(27_000, mu, 218)
    way = choices.learning_rate * choices.steps * choices.gradient_clip / (1 - choices.momentum)
    assert way == pytest.approx(0.7 * mu * 27_000)
    assert choices.learning_rate < 10


@pytest.mark.parametrize(
    ("momentum", "averaged", "steps"), [(0.9, 0.75, 40), (0.0, 0.5, 9), (0.5, 0.0, 7), (0.9, 1, 1)]
)
def test_the_noise_in_the_weights_is_what_noisy_sums_of_nothing_leave(momentum, averaged, steps):
    """The descent is linear in its sums: a unit in one of them at a time, and the squares of what that leaves."""
    descent = Descent(steps, 0.3, 50.0, momentum=momentum, averaged=averaged)

    class Unit:
        def __init__(self, place):
            self.sums = [float(step == place) for step in range(steps)]

        def noisy_sum(self, parameters):
            return np.array([self.sums.pop(0)])

    left = [descend(Unit(place).noisy_sum, np.zeros(1), descent)[0] for place in range(steps)]
    assert noise_of_weights(descent, 7.0) == pytest.approx(7 * np.linalg.norm(left), rel=1e-12)


def test_a_network_stands_beside_a_head_on_cuts_that_enough_records_of_each_class_let_learn():
    mu, cuts = 0.25, Quantiles(lower=(0.0,) * 3, upper=(1.0,) * 3, bias=0.0)
    units = [
        None if choices.beside is None else choices.beside.hidden
        for choices in (
            choices_by_rule(2400, mu, cuts, 2),
            choices_by_rule(2399, mu, cuts, 2),
            choices_by_rule(2400, mu, cuts, 3),
            choices_by_rule(2400, mu, IDENTITY, 2),
            choices_by_rule(10, mu, IDENTITY, 2, 5),
            choices_by_rule(2400, mu, cuts, 2, 0),
        )
    ]
    assert units == [HIDDEN, None, None, None, 5, None]


def test_logits_are_scaled_until_noise_moves_them_as_is_usually_best_and_keep_their_order():
    hot, cool = (certify(recipe(choices=replace(CHOICES, learning_rate=rate)), *SHOWN) for rate in (500.0, 0.1))
    alone = certify(recipe(choices=replace(CHOICES, learning_rate=500.0, beside=None)), *SHOWN)
    for certificate, moved in ((hot, 0.6), (alone, 0.9)):
        head = certificate.branches[0]
        scale = usual_scale(head, certificate)
        assert scale < 1
        each = noise_of_weights(head.descent, certificate.noise_multiplier) * scale
        assert each * np.hypot(certificate.input_norm, 1) == pytest.approx(moved)
    assert usual_scale(cool.branches[0], cool) == 1


def test_the_centre_is_the_mean_and_moves_by_one_row():
    rows = unit(np.random.default_rng(0).normal(size=(5000, 7)) + 1)
    total, less = (sum_of_rows(of_rows(some, np.zeros(len(some), dtype=np.int64)), ROWS) for some in (rows, rows[1:]))
    assert np.allclose(mean_of(total, 5000, IDENTITY), rows.mean(axis=0), atol=1e-9)
    assert np.linalg.norm(mean_of(total, 10, IDENTITY)) <= 1 + 1e-12
    assert np.linalg.norm(total - less) <= 1


def test_of_cuts_the_centre_is_a_mean_that_rows_can_have():
    """Noise as large as the rows, which no mean of theirs has: what a cut has falls from one to the next."""
    cuts = Quantiles(lower=(0.0,) * 3, upper=(1.0,) * 3, bias=0.0)
    rows = directions_of(some_records(400).X, cuts)
    noisy = rows.sum(axis=0) + 100 * np.random.default_rng(0).standard_normal(cuts.dimension)
    centre = mean_of(noisy, 400, cuts)
    assert (np.diff(centre[:31]) <= 0).all()
    assert np.linalg.norm(centre - rows.mean(axis=0)) < np.linalg.norm(noisy / 400 - rows.mean(axis=0)) / 2
    recipes = replace(recipe(feature_map=cuts), choices=replace(CHOICES, records_declared=400, beside=None))
    trained = train_dpsgd(some_records(400), recipes, "l", Seeded(0))
    assert all((np.diff(trained.centre[start : start + 31]) <= 0).all() for start in (0, 31, 62))


def test_the_fewer_records_there_are_the_larger_is_the_share_of_the_centre():
    """Its noise, the inverse of records times the mu of its share, stays as it is at 250 records times mu."""
    mu = 0.25
    shares = [choices_for(n, mu, 500).centre_share for n in (100, 600, 800, 1000, 10_000)]
    assert shares == pytest.approx([0.19, 0.05 * (250 / 150) ** 2, 0.05 * (250 / 200) ** 2, 0.05, 0.05])
    assert choices_for(600, mu, 500, centre_share=0.1).centre_share == 0.1
    few = certify(recipe(choices=choices_for(100, 1.0, 8)), *SHOWN)
    centre, steps = (few.mu_of(step) ** 2 for step in (CENTRE, NOISY_STEPS))
    assert centre / (centre + steps) == pytest.approx(0.19, rel=1e-3)


def test_more_records_than_a_sum_is_covered_for_are_refused(monkeypatch):
    monkeypatch.setattr("dpserve.training.inputs.sums.MOST_RECORDS", 9)
    with pytest.raises(TrainingError, match="at most 9 records, not 10"):
        train_dpsgd(some_records(10), recipe(), "lineage-of-tests", Seeded(0))
