"""The rivals: what they are told, and what is said where they are not there."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from dpserve.training.errors import DataError
from dpserve.training.inputs.columns import LevelsColumn, NumberColumn, coordinates_of
from dpserve.training.inputs.records import Declaration
from dpserve.training.kinds.cases import Case, Heads
from research.comparison import rivals, trainers
from research.comparison.options import RIVALS, measured

LIVE = os.environ.get("DPSERVE_RIVALS_PYTHON")
"""The interpreter that has them."""

COLUMNS = (
    NumberColumn(name="age", kind="number", minimum=0, maximum=50, required=True),
    LevelsColumn(name="job", levels=("a", "b", "c"), required=True),
    NumberColumn(name="dose", kind="number", minimum=-1, maximum=1, required=False),
)


def people(n):
    declared = Declaration(*coordinates_of(COLUMNS), ("well", "ill"), COLUMNS)
    X = np.tile(np.array([[25.0, 0, 1, 0, 0, 0], [50.0, 0, 0, 1, -1, 1]]), (n // 2, 1))
    y = np.tile([0, 1], n // 2)
    return Case("people", 3, X, y, X[:2], y[:2], 2, "s", declared)


def test_a_rival_is_told_bounds_and_levels_and_nothing_else_of_a_table():
    task = rivals.task_of(people(2), "opacus", 0.5, 1.0)
    assert task["numbers_records"].tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 1.0]]
    assert task["codes_records"].tolist() == [[1], [2]]
    assert task["coded_asked"][:1].tolist() == [[0.5, 0, 1, 0, 0.5, 0]]
    (words,) = json.loads(task["tasks"])
    assert (words["choice"], words["epsilon"], words["delta"]) == (0.5, 1.0, 1e-5)
    assert set(task) == {"y", "tasks"} | {
        f"{a}_{b}" for a in ("coded", "numbers", "codes") for b in ("records", "asked")
    }


def test_an_interpreter_without_the_rivals_is_refused_in_one_line():
    heads = Heads(people(100))
    with pytest.raises(DataError, match=r"dp-ebm on people: .*interpret.*requirements\.txt"):
        measured(heads, "dp-ebm", 1.0, Path(sys.executable))
    for python in (None, Path("no-such-python")):
        with pytest.raises(DataError, match=r"requirements\.txt"):
            measured(heads, "opacus-0.5", 1.0, python)


def test_every_rival_has_an_option():
    assert set(RIVALS.values()) == set(trainers.RIVALS)


@pytest.mark.skipif(LIVE is None, reason="DPSERVE_RIVALS_PYTHON names no interpreter that has the rivals")
@pytest.mark.parametrize("option", ["dp-ebm", "diffprivlib-1", "opacus-0.5"])
def test_each_rival_trains_and_answers_with_probabilities(option):
    (found,) = measured(Heads(people(400)), option, 8.0, Path(str(LIVE))).values()
    assert 0 <= found.accuracy <= 1
    assert found.log_loss > 0
