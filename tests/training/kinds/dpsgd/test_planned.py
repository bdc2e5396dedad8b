"""DP-SGD's options of the planner."""

import numpy as np

from dpserve.accounting.budgets import Budget
from dpserve.training.inputs.columns import LevelsColumn, coordinates_of
from dpserve.training.inputs.records import Declaration
from dpserve.training.kinds.cases import Case, Heads
from dpserve.training.kinds.dpsgd.planned import PLANNED
from dpserve.training.kinds.planned import Trial


def levels_alone(n):
    """Records of three columns of four levels each, the first of which says the class."""
    columns = tuple(LevelsColumn(name=name, levels=tuple("abcd"), required=True) for name in ("x", "y", "z"))
    codes = np.random.default_rng(0).integers(0, 4, (n, 3))
    X = np.eye(4)[codes].reshape(n, -1)
    y = (codes[:, 0] > 1).astype(np.int64)
    half = n // 2
    declared = Declaration(*coordinates_of(columns), ("no", "yes"), columns)
    return Case("levels", 0, X[:half], y[:half], X[half:], y[half:], 2, "a", declared)


def test_options_that_are_one_model_on_a_table_have_one_quality():
    """Few records without numbers: cuts and a network make no difference, and noise makes none."""
    heads, whole = Heads(levels_alone(400)), Budget.from_epsilon_delta(1, 1e-5, "gaussian").limit
    cut = [one for one in PLANNED if one.features in ("quantiles", "even")]
    assert len(cut) == 3
    assert len({str(option.qualities(Trial(heads, whole, "1"))) for option in cut}) == 1
