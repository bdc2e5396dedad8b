"""The planner against the tables: its summary holds their figures, and its rule takes what they found best."""

from pathlib import Path

import pytest

from accounting.budgets import Budget
from research.comparison import experiment, tables
from research.comparison.options import OPTIONS
from training.planning.measured import MEASURED, SETS
from training.planning.recommendation import by_rule

FIGURES = Path(tables.__file__).with_name("measured.csv")

TOLERANCE = 0.005
"""Largest distance of the recommended option below the best one measured in a cell."""


def whole(epsilon):
    return Budget.from_epsilon_delta(epsilon, 1e-5, "gaussian").limit


def test_the_summary_is_that_of_the_figures(tmp_path):
    tables.write_summary(tables.read_csv(FIGURES), tmp_path / "summary.csv")
    assert (tmp_path / "summary.csv").read_text() == MEASURED.read_text()


@pytest.mark.parametrize("dataset", SETS)
@pytest.mark.parametrize("epsilon", experiment.EPSILONS)
def test_the_rule_takes_what_the_tables_found_best(dataset, epsilon):
    """On every set, epsilon and number of queries: within TOLERANCE of the best proven option that was measured."""
    cells = tables.read_csv(FIGURES)
    public = SETS[dataset]
    found, similar = by_rule(public.n, public.classes, whole(epsilon), None, public.modality)
    assert (similar.dataset, similar.epsilon) == (dataset, epsilon)
    for queries in tables.COLUMNS:
        means = {
            name: cell.mean
            for name, option in OPTIONS.items()
            if option.status == "proven"
            and (cell := experiment.at(cells, dataset, name, epsilon, queries)) is not None
            and cell.mean is not None
        }
        assert means[found.option] >= max(means.values()) - TOLERANCE, (queries, found.option, means)
