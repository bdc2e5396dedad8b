"""The comparison on the bundled digits: what it measures, that it resumes, and what it refuses."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from audit.pieces import ResultStore
from research.comparison import experiment, tables
from research.comparison.__main__ import app
from research.comparison.cases import Drawn
from research.comparison.experiment import Cell, Comparison
from research.comparison.options import OPTIONS
from research.data.retail import read as read_baskets
from training.errors import DataError
from training.features import rules
from training.kinds.cases import Heads, Quality
from training.kinds.planned import UNLIMITED, Trial

ONCE = ("non-private", "weights", "dpsgd")


def reproduced(folder, *arguments):
    return CliRunner().invoke(
        app,
        ["--dataset", "digits", "--pieces", str(folder / "pieces"), *arguments],
        catch_exceptions=False,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    options = [word for name in (*ONCE, "per-query") for word in ("--option", name)]
    done = reproduced(folder, *options, "--epsilons", "1,8", "--seeds", "2", "--out", str(folder / "out"))
    assert done.exit_code == 0
    return folder, options, tables.read_csv(folder / "out" / "measured.csv")


def test_noise_on_each_answer_loses_with_queries_and_a_release_does_not(measured):
    _, _, cells = measured

    def mean(option, epsilon, queries):
        return experiment.at(cells, "digits", option, epsilon, queries).mean

    assert mean("non-private", 1.0, "10") > 0.9
    for epsilon in (1.0, 8.0):
        each = [mean("per-query", epsilon, queries) for queries in ("10", "100", "1000")]
        assert each[0] > each[1] > each[2]
        for release in ("weights", "dpsgd"):
            assert mean(release, epsilon, "10") == mean(release, epsilon, UNLIMITED) > each[0]
    assert experiment.at(cells, "digits", "per-query", 1.0, UNLIMITED) is None
    assert all(len(cell.figures) == 2 for cell in cells)


def test_what_was_measured_is_not_measured_again(measured):
    folder, options, _ = measured
    pieces = {path: path.stat().st_mtime_ns for path in (folder / "pieces").iterdir()}
    assert len(pieces) == 4 * 2 * 2
    gone = next(path for path in pieces if "weights" in path.name)
    held = json.loads(gone.read_text())
    gone.unlink()

    again = reproduced(folder, *options, "--epsilons", "1,8", "--seeds", "2", "--out", str(folder / "again"))

    assert again.exit_code == 0
    assert json.loads(gone.read_text()) == held
    assert {path: path.stat().st_mtime_ns for path in pieces if path != gone} == {
        path: time for path, time in pieces.items() if path != gone
    }
    assert (folder / "again" / "measured.csv").read_bytes() == (folder / "out" / "measured.csv").read_bytes()


def test_the_summary_holds_what_was_measured_and_says_what_was_not(measured):
    folder, _, cells = measured
    lines = tables.summary(cells).splitlines()
    released = experiment.at(cells, "digits", "weights", 1.0, UNLIMITED)
    assert f"| released weights | {released.mean:.3f}, {released.log_loss:.2f} (2) |" in lines
    assert "| DP-SGD, 128 tanh units | - |" in lines
    assert "| Algorithm 1, at its claimed cost (unproven) | - / - |" in lines
    assert imread(folder / "out" / "images" / "mechanisms-digits.png").ndim == 3


def test_stored_pieces_are_shown_without_measuring(measured, tmp_path):
    folder, _, cells = measured
    shown = reproduced(folder, "--stored", "--epsilons", "1,8", "--seeds", "5", "--out", str(tmp_path))
    assert shown.exit_code == 0
    assert tables.read_csv(tmp_path / "measured.csv") == cells


def test_a_mechanism_that_refuses_is_shown_as_refusing(tmp_path):
    """The grid has no place for the noise of ten million answers; a figure for it would be invented."""
    asked = Trial(Heads(Drawn.read("digits", tmp_path).case(0)), 10_000_000, "tiny", queries=(100_000,))
    assert OPTIONS["per-query"].qualities(asked) == {"100000": None}
    cell = Cell("digits", "per-query", 1.0, "10", (None, None))
    assert cell.mean is None
    assert "| refused / - |" in tables.summary((cell,))


def test_every_seed_asks_about_the_same_rows_and_has_noise_of_its_own(tmp_path):
    drawn = Drawn.read("digits", tmp_path)
    first, other = drawn.case(0), drawn.case(1)
    assert first.split == other.split
    assert np.array_equal(first.asked, other.asked)
    assert len(first.y) == 1437
    assert len(first.answers) == 360
    words = [Trial(Heads(case), 10**9, "noise").randomness("weights").words(4) for case in (first, other)]
    assert not np.array_equal(*words)


def test_heads_are_of_one_split(tmp_path):
    first = Drawn.read("digits", tmp_path).case(0)
    with pytest.raises(ValueError, match="one split"):
        Heads(first).for_case(replace(first, split="another"))


@pytest.mark.parametrize("mu", [0.001, 0.05, 0.268, 1.0, 3.9])
def test_the_rule_for_lambda_leaves_a_quarter_of_noise_on_a_logit(mu):
    noise = math.sqrt(2) / (rules.strong_convexity(mu) * mu)
    assert 0.25 / math.sqrt(2) <= noise <= 0.25 * math.sqrt(2)


def test_wrong_input_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="no option 'magic'; there are non-private"):
        Comparison(("digits",), options=("magic",))
    with pytest.raises(ValueError, match="at least 1 seed"):
        Comparison(("digits",), seeds=0)
    with pytest.raises(ValueError, match="no data set 'iris'"):
        experiment.run(Comparison(("iris",)), tmp_path, ResultStore(tmp_path))
    with pytest.raises(DataError, match=r"missing: put .*retail100_proxy\.npz"):
        read_baskets(Path(tmp_path))
    with pytest.raises(ValueError, match="separated by commas"):
        reproduced(tmp_path, "--epsilons", "1;2")


def test_a_table_keeps_what_is_not_measured_again(tmp_path):
    older = (
        Cell("adult", "weights", 1.0, "unlimited", (Quality(0.8),)),
        Cell("adult", "dpsgd", 1.0, "unlimited", (Quality(0.5), None)),
    )
    newer = Cell("adult", "dpsgd", 1.0, "unlimited", (Quality(0.75, 0.5, 0.25), Quality(0.25, 0.5, 0.75)))
    tables.write_csv(tables.renew_cells(older, [newer]), tmp_path / "table.csv")
    read = tables.read_csv(tmp_path / "table.csv")
    assert read == (older[0], newer)
    assert (read[0].log_loss, read[1].log_loss, read[1].calibration_error) == (None, 0.5, 0.5)
