"""Figures for owners without rows: ranges over public sets like theirs, or none."""

import math

import pytest

from accounting.budgets import Budget
from training.planning import measured
from training.planning.measured import FAR, LEAST_SETS, SETS, Similar, similar_sets
from training.planning.options import default_option


def whole(epsilon):
    return Budget.from_epsilon_delta(epsilon, 1e-5, "gaussian").limit


def names(similar):
    return {place.dataset for place in similar.places}


@pytest.mark.parametrize(
    ("dataset", "epsilon", "modality"),
    [("location", 1, None), ("retail", 4, None), ("magic", 1, "table"), ("mnist-60k-hog", 1, "images")],
)
def test_a_set_is_like_itself(dataset, epsilon, modality):
    public = SETS[dataset]
    found = similar_sets(public.n, public.classes, whole(epsilon), None, modality)
    (place,) = (each for each in found.places if each.dataset == dataset)
    assert (place.epsilon, place.signal) == (epsilon, pytest.approx(found.signal))


def test_tables_are_compared_with_tables_alone_and_never_with_pixels():
    for classes in (2, 3, 5, 10, 19, 26):
        for n in (500, 16_000, 10**6):
            assert {place.public.modality for place in similar_sets(n, classes, whole(1), None, "table").places} <= {
                "table"
            }


def test_at_least_ten_tables_of_different_sizes_widths_and_classes_are_known():
    tables = [each for name, each in SETS.items() if each.modality == "table"]
    assert len(tables) >= 10
    assert max(each.n for each in tables) > 50 * min(each.n for each in tables)
    assert len({each.classes for each in tables}) >= 4


def test_sets_far_from_the_records_do_not_count():
    found = similar_sets(20_000, 2, whole(1), None, "table")
    assert found.places
    assert all(1 / FAR <= place.signal / found.signal <= FAR for place in found.places)
    assert similar_sets(10**9, 2, whole(4), None, "table").places == ()


@pytest.mark.parametrize("n", [100, 500, 3000])
def test_of_a_table_the_part_counts_whose_signal_is_nearest(n):
    found = similar_sets(n, 6, whole(1), None, "table")
    tables = [place.public.table for place in found.places]
    assert len(tables) == len(set(tables)) >= LEAST_SETS
    parts = {name for name, each in SETS.items() if each.table == "satimage"}
    assert len(parts) > 1
    (taken,) = (place for place in found.places if place.public.table == "satimage")
    signals = [measured.signal_of(*key) for key in measured.measured_cells() if key[0] in parts]
    assert abs(math.log(taken.signal / found.signal)) == min(abs(math.log(each / found.signal)) for each in signals)


def test_of_few_sets_there_is_no_range():
    found = similar_sets(60_000, 10, whole(1), None, "images")
    assert 0 < len(found.places) < LEAST_SETS
    assert not found.predictable
    assert found.expected == ()


def test_a_range_goes_from_the_least_to_the_largest_figure():
    found = similar_sets(20_000, 2, whole(1), None, "table")
    name = default_option("table")
    (shown,) = (each for each in found.expected if each.option == name)
    right = [place.estimates[name].mean for place in found.places]
    losses = [place.estimates[name].log_loss for place in found.places]
    assert (shown.accuracy.lowest, shown.accuracy.highest, shown.accuracy.sets) == (min(right), max(right), len(right))
    assert (shown.log_loss.lowest, shown.log_loss.highest) == (min(losses), max(losses))


def test_a_group_without_any_set_has_no_places():
    assert similar_sets(1000, 10, whole(1), None, "images").places
    assert similar_sets(1000, 500, whole(1), None, "table").places == ()


def places(*differences):
    """Similar sets on which an option's log loss differs by so much from the default's 0.5."""
    made = []
    for index, apart in enumerate(differences):
        figures = {"default": 0.5} | ({} if apart is None else {"dpsgd-unit": 0.5 + apart})
        estimates = {name: measured.Estimate(name, 0.8, None, 1, loss) for name, loss in figures.items()}
        made.append(measured.Place(f"s{index}", 1.0, 10.0, estimates))
    return Similar(10.0, tuple(made), 10.0)


@pytest.mark.parametrize(
    ("differences", "taken"),
    [
        ((-0.05, -0.04, -0.06, -0.05), "dpsgd-unit"),
        ((-0.05, -0.04, -0.06), "default"),  # too few sets
        ((-0.005, -0.004, -0.006, -0.005), "default"),  # too little
        ((-0.5, 0.1, 0.2, 0.1), "default"),  # by one set alone
        ((-0.05, None, None, -0.06, -0.05), "default"),
        ((0.05, 0.05, 0.05, 0.05), "default"),
    ],
)
def test_another_option_is_taken_where_it_did_clearly_better_on_enough_sets(differences, taken):
    assert places(*differences).best(lambda _: True, "default") == taken
    assert places(*differences).best(lambda _: False, "default") == "default"
