"""Class sums continued by gradient steps: the sensitivity of a step attacked with neighbours, the price, and an audit.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.accounting.budgets import Budget
from dpserve.accounting.losses import Cost
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.errors import BundleError
from dpserve.training.fitting.network import Network
from dpserve.training.fitting.unit_rows import unit
from dpserve.training.inputs.sums import ROWS, of_rows
from dpserve.training.kinds.class_sums.bundle import save_class_sums
from dpserve.training.kinds.class_sums.continued import (
    BIAS,
    CLIP_NORM,
    LARGEST_RATE,
    LOGIT_NOISE,
    START,
    STEPS,
    descended,
    law,
    movement,
    rates,
    share_of,
)
from dpserve.training.kinds.class_sums.steps import CENTRE, DESCENT, TOTALS
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.loading import load_model
from tests.seeded import Seeded
from tests.training.conftest import identity, make_records

WHOLE = whole_picorho("rho:0.5")
DECLARED = 10**6
"""So many that there are steps at every price; how many there are is another matter."""


def trained(records, whole: int, seed: int):
    """Class sums with gradient steps, where the price pays for them."""
    return train_class_sums(records, "m", identity(records), whole, "l", Seeded(seed), records_declared=DECLARED)


def begun(directions):
    return START * np.sqrt(len(directions)) * directions


def step_sum(network, parameters, rows, y):
    """Return the sum that a step releases, before noise."""
    total = network.clipped_sum(parameters, rows, y, math.sqrt(2) * CLIP_NORM)
    network.layers(total)[0][1][:] *= BIAS
    return total


@settings(max_examples=80, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    dimension=st.sampled_from([1, 2, 7, 300]),
    classes=st.integers(2, 5),
    length=st.sampled_from([0.0, 1e-12, 0.3, 1.0]),
    size=st.sampled_from([0.0, 1.0, 30.0, 1e8]),
)
def test_no_record_moves_the_sum_of_a_step_by_more_than_is_said(seed, n, dimension, classes, length, size):
    """Whatever the weights are that the steps before led to."""
    generator = np.random.default_rng(seed)
    rows = unit(generator.standard_normal((n, dimension))) * length
    y = generator.integers(classes, size=n)
    network = Network((dimension, classes))
    parameters = np.zeros(network.size)
    for layer in network.layers(parameters)[0]:
        layer[:] = size * generator.standard_normal(layer.shape)
    gone = generator.integers(n)
    both = [
        step_sum(network, parameters, *some)
        for some in ((rows, y), (np.delete(rows, gone, axis=0), np.delete(y, gone)))
    ]
    assert np.linalg.norm(both[0] - both[1]) <= movement(dimension)


def test_the_movement_of_a_step_is_nearly_reached():
    network = Network((3, 2))
    row = np.array([[1.0, 0.0, 0.0]]) * (1 - 2.0**-30)
    total = step_sum(network, np.zeros(network.size), row, np.array([0]))
    assert np.linalg.norm(total) > movement(3) * (1 - 3e-4)


def test_all_noise_together_moves_a_weight_as_far_as_the_rule_says():
    noise = law(0.7, 3, 5).standard_deviation
    assert np.linalg.norm(rates(noise, 3, 10)) * noise == pytest.approx(LOGIT_NOISE)
    assert noise >= math.sqrt(STEPS) * CLIP_NORM / 0.7


def test_no_rate_is_above_the_limit_which_falls_to_nothing():
    many = rates(law(0.7, 3, 5).standard_deviation, 3, 10**9) * 10**9 / 3
    assert many[0] == pytest.approx(LARGEST_RATE)
    assert (np.diff(many) < 0).all()
    assert many[-1] == pytest.approx(LARGEST_RATE / STEPS)


@pytest.mark.parametrize("price", ["rho:0.004", "rho:0.05", "rho:3.9"])
def test_steps_cost_a_sixth_and_the_whole_no_more_than_the_price(price):
    records = make_records(n=30)
    whole = whole_picorho(price)
    certificate = train_class_sums(
        records, "m", identity(records), whole, "l", Seeded(0), records_declared=DECLARED
    ).certificate
    squared = {step.name: certificate.mu_of(step) ** 2 for step in (CENTRE, TOTALS, DESCENT)}
    assert squared["steps"] == pytest.approx(sum(squared.values()) / 6, rel=1e-6)
    assert whole - 5 <= Cost.parse(certificate.cost).picorho <= whole


def test_a_price_that_pays_for_no_steps_leaves_the_sums_as_they_are():
    assert share_of(WHOLE, 3, 5, DECLARED) > 0
    assert share_of(whole_picorho("rho:0.0015"), 3, 5, DECLARED) == 0
    assert share_of(WHOLE, 1000, 2000, DECLARED) == 0  # more numbers than one release may have
    assert share_of(WHOLE, 3, 5, 100) == share_of(WHOLE, 3, 5, None) == 0
    records = make_records(n=30)
    model = train_class_sums(
        records, "m", identity(records), whole_picorho("rho:0.0015"), "l", Seeded(0), records_declared=DECLARED
    )
    assert model.stepped is None
    assert model.certificate.release_of(DESCENT) is None
    assert model.certificate.assumptions == type(model.certificate).ASSUMPTIONS


@pytest.mark.parametrize(
    ("records", "classes", "dimension", "from_epsilon"),
    [
        (30_000, 2, 493, 0.5),  # Adult with bins
        (10_000, 10, 801, 0.5),  # MNIST with histograms of gradients
        (1_437, 10, 65, 3.0),  # digits
        (35_000, 100, 601, 0.5),  # retail baskets
        (3_500, 30, 447, math.inf),  # Location
    ],
)
def test_the_rule_takes_steps_where_they_were_worth_their_price_and_at_every_larger_budget(
    records, classes, dimension, from_epsilon
):
    for epsilon in (0.5, 1.0, 3.0, 4.0, 8.0):
        whole = Budget.from_epsilon_delta(epsilon, 1e-5, "gaussian").limit
        assert (share_of(whole, classes, dimension, records) > 0) == (epsilon >= from_epsilon)


def test_cuts_of_one_number_count_together_where_records_are_few_beside_weights():
    """Texture's 3,520 records in 11 classes: 31 cuts of each of 40 numbers are many weights that tell little apart."""
    whole = Budget.from_epsilon_delta(4, 1e-5, "gaussian").limit
    assert share_of(whole, 11, 1241, 3520) == 0
    assert share_of(whole, 11, 1241, 3520, degrees=321) > 0


def test_a_bundle_without_its_steps_is_refused(tmp_path):
    records = make_records(n=50)
    model = trained(records, WHOLE, 2)
    save_class_sums(tmp_path / "m", replace(model, stepped=None))
    with pytest.raises(BundleError):
        load_model(tmp_path / "m")


def test_steps_learn_what_the_sums_do_not_say():
    """Two classes whose sums point the same way: the second is right on one corner alone."""
    generator = np.random.default_rng(0)
    rows = unit(generator.standard_normal((4000, 3)))
    y = (rows[:, 0] > 0.2).astype(np.int64)
    same = np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    weights, constants, _ = descended(begun(same), of_rows(rows, y), ROWS, 1.0, 4000, Seeded(3))
    assert ((rows @ weights.T + constants).argmax(axis=1) == y).mean() > 0.75
    assert ((rows @ same.T).argmax(axis=1) == y).mean() < 0.7


def test_answers_after_gradient_steps_say_that_nothing_is_known_of_their_noise():
    records = make_records(n=40, features=9, classes=4)
    model = train_class_sums(
        records, "small", identity(records), WHOLE, "lineage", Seeded(0), records_declared=DECLARED
    )
    assert model.stepped is not None
    _, noise = model.answers(records.X[:3])
    shown = model.values(records.X[:3])
    assert noise.ends(shown) is None
    assert noise.undecided(shown) is None
    assert "gradient steps" in noise.no_interval
