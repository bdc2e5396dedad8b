"""The computations of the benchmark of `GET /budget`: on made times whose figures are known, and on a real service."""

import numpy as np
import pytest

from benchmarks.budget_times import figures, longer_after, rank_correlation


def test_times_that_tell_all_are_told_from_times_that_tell_nothing():
    assert longer_after([3.0, 4.0], [1.0, 2.0]).value == 1.0
    assert longer_after([1.0, 1.0], [1.0, 1.0]).value == 0.5
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 50.0]).value == pytest.approx(1.0)


def test_the_deviations_are_those_of_times_that_tell_nothing():
    """The standard deviation of 400 runs is within 20 % of what is said, but for a chance below 1e-7 (chi-squared)."""
    generator = np.random.default_rng(0)
    runs = [(generator.random(50), generator.random(30)) for _ in range(400)]
    for found in (
        [longer_after(one, other) for one, other in runs],
        [rank_correlation(one[:30], other) for one, other in runs],
    ):
        assert np.std([each.value for each in found]) == pytest.approx(found[0].deviation, rel=0.2)


@pytest.mark.slow
def test_a_service_is_asked_and_each_figure_comes_of_it():
    found = figures(trials=60)
    assert len(found) == 3
    assert all(-1 <= figure.value <= 1 for figure in found.values())
