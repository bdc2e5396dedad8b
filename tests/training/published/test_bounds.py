"""The published bounds: every printed figure comes out, and the formulas behave as the paper says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.lu2022 import printed
from training.published import bounds
from training.published.bounds import Topology

ROWS = [pytest.param(row, id=row.dataset) for row in printed.ROWS.values()]


def agrees(ours: float, theirs: float, decimals: int = 4) -> bool:
    """Within 0.3 %, or equal once rounded as the paper rounds: 0.0109 holds two significant digits and a half."""
    return abs(ours / theirs - 1) <= 0.003 or round(ours, decimals) == theirs


@pytest.mark.parametrize("row", ROWS)
def test_every_figure_of_tables_v_and_vi_comes_out(row: printed.Row) -> None:
    ours = bounds.claimed_sensitivities(row.topology, row.n, l2_regulariser=printed.L2_REGULARISER)
    assert ours.lipschitz == pytest.approx(row.rho, rel=0.003)
    assert agrees(ours.weight, row.weight)
    assert ours.neuron == pytest.approx(row.neuron, rel=0.003)
    assert ours.probability == pytest.approx(row.probability, rel=0.003)
    assert agrees(ours.oaro, row.oaro)


def test_the_bracketed_probabilities_of_table_vi_come_out() -> None:
    printed_in_brackets = {"mnist": 1.0450, "location": 510.8338, "cifar-100": 1.1802, "texas-100": 1.1937}
    for name, theirs in printed_in_brackets.items():
        row = printed.row(name)
        ours = bounds.claimed_sensitivities(row.topology, row.n).neuron
        assert bounds.untruncated_probability(ours) == pytest.approx(theirs, rel=0.003)


def test_there_are_eleven_rows_and_an_unknown_one_is_named() -> None:
    assert len(printed.ROWS) == 11
    with pytest.raises(ValueError, match=r"no data set 'iris'.*texas-100"):
        printed.row("iris")


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


@given(st.floats(0.01, 100), st.floats(1e-6, 1), st.integers(1, 10**6), st.integers(2, 100), st.floats(1, 50))
def test_the_rivals_of_table_i_are_not_tighter(rho: float, lam: float, n: int, classes: int, norm: float) -> None:
    ours = bounds.weights_l2(rho, lam, n)
    assert bounds.chaudhuri_binary_normalised(rho, lam, n) == ours
    assert bounds.wu_decreasing_steps(rho, lam, n) == ours
    assert bounds.chaudhuri_multiclass(rho, lam, n, classes, norm) >= ours * (1 - 1e-12)


@given(st.floats(0.01, 100), st.floats(1e-4, 1), st.integers(1, 10**6), st.floats(1e-6, 0.9))
def test_the_constant_step_bound_is_the_printed_formula_and_never_below_its_limit(
    rho: float, lam: float, n: int, step: float
) -> None:
    value = bounds.wu_constant_step(rho, lam, n, step)
    assert value >= 2 * step * rho
    assert value >= 2 * rho / (lam * n) * (1 - 1e-9)  # 1 - (1 - x)^n <= n x


def test_the_keras_constant_is_halved() -> None:
    assert bounds.strong_convexity(0.001) == 0.0005


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_nonsense_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        bounds.weights_l2(wrong, 0.001, 10)
    with pytest.raises(ValueError, match="must be positive and finite"):
        bounds.weights_l2(1.0, wrong, 10)
    with pytest.raises(ValueError, match="must be positive and finite"):
        bounds.strong_convexity(wrong)
    with pytest.raises(ValueError, match="must be positive and finite"):
        bounds.wu_constant_step(1.0, 0.1, 10, wrong)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        bounds.weights_l2(1.0, 0.1, 0)
    with pytest.raises(ValueError, match="topology"):
        Topology(10, (), 2)
    with pytest.raises(ValueError, match="2 layers feed the output"):
        bounds.lipschitz(Topology(10, (5,), 2), (1.0,))
    with pytest.raises(ValueError, match="eta lambda"):
        bounds.wu_constant_step(1.0, 2.0, 10, 0.5)


def test_largest_values_multiply_the_lipschitz_constant() -> None:
    topology = Topology(14, (8, 4), 3)
    assert bounds.lipschitz(topology, (2.0, 0.5, 3.0)) == pytest.approx(3 * bounds.lipschitz(topology))
    assert bounds.lipschitz(topology) == pytest.approx(2 / 3 * math.sqrt(14 * 8 * 4) / 4)
