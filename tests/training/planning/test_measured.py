"""Figures for owners without rows: those of the docs, from the public set most like theirs."""

import pytest

from accounting.budgets import Budget
from training.planning.measured import nearest


def whole(epsilon):
    return Budget.from_epsilon_delta(epsilon, 1e-5, "gaussian").limit


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


def test_unlimited_answers_are_never_paid_for_singly_and_figures_are_of_the_nearest_number_measured():
    endless = {each.option: each.mean for each in nearest(3500, 30, whole(1), None).estimates}
    few = nearest(3500, 30, whole(1), 40)
    assert endless["per-query"] is None
    assert endless["class-sums"] == {each.option: each.mean for each in few.estimates}["class-sums"]
    assert few.queries == 100


@pytest.mark.parametrize(
    ("n", "classes", "kind"),
    [(5_000_000, 3, "mnist"), (100, 19, "mnist"), (10**6, 2, "adult"), (50, 20, "location"), (10**6, 900, "retail")],
)
def test_only_sets_of_the_same_group_of_classes_are_shown(n, classes, kind):
    assert nearest(n, classes, whole(1), None).dataset.startswith(kind)


def test_how_far_apart_the_nearest_is_and_how_many_seeds_it_has():
    assert nearest(3500, 30, whole(1), None).apart == pytest.approx(1)
    assert nearest(3500, 300, whole(1), None).apart > 2
    assert nearest(30 * 10**6, 2, whole(8), None).apart == pytest.approx(1000)
    estimates = {each.option: each for each in nearest(3500, 30, whole(1), None).estimates if each.mean is not None}
    assert {each.seeds for each in estimates.values()} <= set(range(1, 6))
    assert estimates["class-sums"].log_loss < estimates["weights"].log_loss < 3.37
