"""Sensitivities measured on neighbours: within the certificate's, and computed as they are defined."""

import numpy as np
import pytest

from dpserve.audit.distinguishing.neighbours import KINDS
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.published.train import train_published
from research.sensitivity import Measurement, measure_certified_head, measure_published_network, sensitivity_report

DECLARATION = Declaration(tuple("abcd"), (0.0,) * 4, (1.0,) * 4, ("red", "green", "blue"))


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    return Records(rng.uniform(size=(40, 4)), rng.integers(3, size=40), DECLARATION, ())


def test_a_certified_head_moves_as_far_as_its_certificate_allows_at_most(records):
    feature_map = Identity(lower=DECLARATION.lower, upper=DECLARATION.upper, clip_norm=1.0, bias=0.0)
    seen = []
    found = measure_certified_head(
        records, lambda some: train_head(some, Recipe("r", feature_map, 5.0), "l"), 0, seen.append
    )
    assert len(seen) == len(KINDS)
    weights, logits = found
    assert 0.1 < logits.share <= weights.share <= 1
    assert weights.claimed == pytest.approx((2**0.5 + 2e-3) / 5, rel=1e-6)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_published_networks_movement_is_measured_beside_the_printed_bounds(records, replaced):
    trainings = []

    def training(some):
        trainings.append(some)
        return train_published(some, "net", "l", hidden=(8,), epochs=2)

    found = measure_published_network(records, training, 2, 0, replaced=replaced)
    assert [len(some) for some in trainings] == [40, *([40] if replaced else [39]) * 2]
    by_name = {one.quantity: one for one in found}
    assert 0 < by_name["one weight"].measured <= by_name["weights, L2"].measured
    assert by_name["one neuron's logit"].measured > 0
    # Eq. 18 spreads the L2 bound evenly over the 4 * 8 + 8 * 3 weights.
    assert by_name["one weight"].claimed == pytest.approx(by_name["weights, L2"].claimed / (4 * 8 + 8 * 3) ** 0.5)


def test_shares_of_claims_are_drawn():
    found = {"left out": (Measurement("weights", "a theorem", 0.5, 1.0), Measurement("logits", "another", 2.0, 1.0))}
    report = sensitivity_report("published", found)
    assert report.verdict == "Convicted: beyond what is claimed for logits."
    assert report.picture.png.startswith(b"\x89PNG")
