"""The paper's tables that need no data: every printed correlation and bracket, Table I and Finding 5's formula."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from research.lu2022 import closed_forms, printed
from research.lu2022.__main__ import app
from research.lu2022.correlations import correlations

CORRELATIONS = {(one.sets, one.panel, one.coefficient): one for one in correlations()}


def rows_of(*arguments: str) -> list[list[dict[str, str]]]:
    found = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    return [table["rows"] for table in json.loads(found.stdout)["tables"]]


@pytest.mark.parametrize("key", printed.FIGURE_2)
def test_every_printed_correlation_follows_from_the_printed_rows(key: tuple[str, str]) -> None:
    one = CORRELATIONS[(9, *key)]
    assert (round(one.value, 4), round(one.p_value, 4)) == one.printed == printed.FIGURE_2[key]


def test_with_all_eleven_sets_the_correlation_with_leakage_is_not_significant() -> None:
    one = CORRELATIONS[11, "2b", "Pearson"]
    assert (round(one.value, 4), round(one.p_value, 2), one.printed) == (0.5644, 0.07, None)
    assert all(CORRELATIONS[11, "2b", name].p_value > 0.05 for name in ("Pearson", "Spearman", "Kendall"))


def test_two_of_the_printed_gaps_are_not_the_printed_differences() -> None:
    """Adult's lacks its sign, and CIFAR-100's with cross-entropy is 0.01 too large."""
    others = {
        (row.dataset, place): (gap, round(pair[0] - pair[1], 4))
        for row in printed.ROWS.values()
        for place, (gap, pair) in enumerate(zip(row.gaps, (row.cross_entropy, row.convexified), strict=True))
        if gap != round(pair[0] - pair[1], 4)
    }
    assert others == {("adult", 1): (0.0002, -0.0002), ("cifar-100", 0): (0.1647, 0.1547)}


def test_the_figures_points_and_correlations_are_shown() -> None:
    points, found = rows_of("figure-2")
    assert [row["data set"] for row in points] == list(printed.ROWS)
    assert [row["same digits"] for row in found] == ["yes"] * 9 + [""] * 9


def test_table_vi_shows_every_set_and_the_bracketed_column() -> None:
    (rows,) = rows_of("--dataset", "all")
    assert [row["data set"] for row in rows] == list(printed.ROWS)
    for row in rows:
        ours, theirs = (float(row[f"exp(2 Delta z) - 1, {whose}"]) for whose in ("ours", "printed"))
        assert ours == pytest.approx(theirs, rel=0.003)


def test_table_i_values_every_bound_on_every_set() -> None:
    conditions, values = rows_of("table-1")
    assert len(conditions) == 5
    by_set = {row["data set"]: row for row in values}
    assert {name for name, row in by_set.items() if row["Chaudhuri, binary"] != "-"} == {"adult", "purchase-2"}
    for row in values:
        assert float(row["this work"]) <= float(row["Wu, constant step"])
        assert float(row["this work"]) <= float(row["Chaudhuri, any classes"])


@given(st.integers(1, 10_000), st.integers(1, 1000), st.integers(2, 200), st.integers(1, 10**6))
def test_with_one_hidden_layer_its_width_and_rho_cancel(features: int, hidden: int, classes: int, n: int) -> None:
    """Delta z = 2 (C - 1)/C sqrt(m/(m + C))/(lambda n).

    rho = (C - 1)/C sqrt(m h)/h (Eq. 21) and |W| = h (m + C), so that Delta z = h 2 rho/(lambda n sqrt(|W|)) (Eq. 18
    and 19) has no h left, and of m only sqrt(m/(m + C)): what makes rho differ between data sets cancels.
    """
    exact = 2 * (classes - 1) / classes * math.sqrt(features / (features + classes)) / (closed_forms.LAMBDA * n)
    found = closed_forms.sensitivities_of(features, (hidden,), classes, n).neuron
    assert found == pytest.approx(exact, rel=1e-9)


def test_the_sweep_shows_what_cancels_and_what_does_not() -> None:
    by_classes, _, by_features, by_width, by_layers = rows_of("finding-5")
    assert by_classes[0]["classes"] == "2"
    assert {row["Delta z"] for row in by_width} == {"0.3664"}
    assert float(by_features[-1]["rho to base"]) > 3 > 1.1 > float(by_features[-1]["Delta z to base"])
    assert float(by_layers[1]["Delta z to base"]) > 10


def test_the_objective_is_above_both_ends_between_a_network_and_its_negative() -> None:
    pytest.importorskip("torch")
    (rows,) = rows_of("convexity", "--epochs", "3")
    assert len(rows) == 5
    for row in rows:
        assert row["L(W)"] == row["L(-W)"] < row["L((W + -W)/2)"] == "2.3026"
        assert row["convex there"] == "no"
