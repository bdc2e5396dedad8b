"""The published bounds: every printed figure comes out, and the formulas behave as the paper says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.training.kinds.published import bounds
from dpserve.training.kinds.published.bounds import Topology

topologies = st.builds(
    Topology,
    features=st.integers(1, 5000),
    hidden=st.lists(st.integers(1, 500), min_size=1, max_size=4).map(tuple),
    classes=st.integers(2, 200),
)


@given(topologies, st.integers(1, 10**6), st.floats(1e-6, 1.0))
def test_the_deduction_holds_together(topology: Topology, n: int, l2: float) -> None:
    ours = bounds.claimed_sensitivities(topology, n, l2_regulariser=l2)
    assert ours.weight * math.sqrt(topology.weights) == pytest.approx(ours.weights_l2)
    assert ours.oaro == pytest.approx(ours.lipschitz * ours.weights_l2)
    assert 0 < ours.probability <= 1
    more = bounds.claimed_sensitivities(topology, n + 1, l2_regulariser=l2)
    assert more.weights_l2 < ours.weights_l2
    assert more.neuron < ours.neuron


def test_the_keras_constant_is_halved() -> None:
    assert bounds.strong_convexity(0.001) == 0.0005


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_invalid_arguments_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        bounds.weights_l2(wrong, 0.001, 10)
    with pytest.raises(ValueError, match="must be positive and finite"):
        bounds.weights_l2(1.0, wrong, 10)
    with pytest.raises(ValueError, match="must be positive and finite"):
        bounds.strong_convexity(wrong)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        bounds.weights_l2(1.0, 0.1, 0)
    with pytest.raises(ValueError, match="topology"):
        Topology(10, (), 2)
    with pytest.raises(ValueError, match="2 layers feed the output"):
        bounds.lipschitz(Topology(10, (5,), 2), (1.0,))


def test_largest_values_multiply_the_lipschitz_constant() -> None:
    topology = Topology(14, (8, 4), 3)
    assert bounds.lipschitz(topology, (2.0, 0.5, 3.0)) == pytest.approx(3 * bounds.lipschitz(topology))
    assert bounds.lipschitz(topology) == pytest.approx(2 / 3 * math.sqrt(14 * 8 * 4) / 4)
