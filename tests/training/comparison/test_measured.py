"""What owners without rows are shown: the figures of the docs, from the public set most like theirs."""

from pathlib import Path

import pytest

from accounting.budgets import Budget
from training.comparison.measured import MEASURED, nearest

DOCS = Path(__file__).parents[3] / "docs" / "mechanisms.csv"


def whole(epsilon):
    return Budget.from_epsilon_delta(epsilon, 1e-5, "gaussian").picorho


def test_the_packaged_figures_are_those_of_the_docs():
    """Made together: after `dpserve reproduce mechanisms --out docs`, copy docs/mechanisms.csv over the package's."""
    assert MEASURED.read_bytes() == DOCS.read_bytes()


@pytest.mark.parametrize(
    ("n", "classes", "epsilon", "dataset"),
    [
        (3500, 30, 1, "location"),
        (35_000, 100, 4, "retail"),
        (30_000, 2, 0.5, "adult"),
        (9000, 10, 2, "mnist-10k"),
        (60_000, 10, 1, "mnist-60k"),
    ],
)
def test_a_set_is_most_like_itself(n, classes, epsilon, dataset):
    found = nearest(n, classes, whole(epsilon), 1000)
    assert (found.dataset, found.epsilon, found.queries) == (dataset, epsilon, 1000)
    assert dataset.split("-")[0].lower() in found.words.lower()


def test_answers_without_end_are_never_paid_one_by_one_and_numbers_are_the_nearest_measured():
    endless = {each.option: each.mean for each in nearest(3500, 30, whole(1), None).estimates}
    few = nearest(3500, 30, whole(1), 40)
    assert endless["per-query"] is None
    assert endless["class-sums"] == {each.option: each.mean for each in few.estimates}["class-sums"]
    assert few.queries == 100
