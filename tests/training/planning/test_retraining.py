"""Retrainings over a window of blocks: no block pays more than its budget, and figures follow the trainings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.mechanisms.gaussian_vector import LARGEST_PRICE, LEAST_PRICE, whole_picorho
from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.planning.retraining import (
    retrainings_of,
    schedule_by_rule,
    schedule_by_simulation,
    share_of,
    windows,
)
from tests.training.conftest import make_records


@settings(max_examples=200, derandomize=True, deadline=None)
@given(count=st.integers(1, 60), window=st.integers(1, 60), budget=st.integers(LEAST_PRICE * 60, 10**13))
def test_no_block_pays_more_than_its_budget_and_a_picorho_more_a_model_would(count, window, budget):
    """The oracle charges each block of each retraining, one by one."""
    price, spent = share_of(budget, window), dict.fromkeys(range(1, count + 1), 0)
    for each in windows(count, window, 1000):
        for block in range(each.first, each.last + 1):
            spent[block] += price
    assert max(spent.values()) <= budget
    if count >= 2 * window and price < LARGEST_PRICE:
        assert max(spent.values()) + window > budget


def test_each_retraining_is_on_the_last_blocks():
    assert [(each.first, each.last, each.records) for each in windows(4, 2, 400)] == [
        (1, 1, 100),
        (1, 2, 200),
        (2, 3, 200),
        (3, 4, 200),
    ]


def test_periods_are_as_many_as_a_year_has():
    assert [retrainings_of(words) for words in ("year", "quarter", "month", "week", "7")] == [1, 4, 12, 52, 7]
    for words in ("0", "-1", "day", "1.5", "1001"):
        with pytest.raises(WrongOption):
            retrainings_of(words)


def test_a_budget_that_buys_no_model_of_a_window_is_refused():
    with pytest.raises(WrongOption) as refused:
        share_of(LEAST_PRICE * 5, 6)
    assert refused.value.field == "window"


def learnable(n):
    records = make_records(n=n)
    records.y[:] = records.X[:, :3].argmax(axis=1)
    return records


def test_a_simulation_asks_held_out_rows_after_each_retraining_and_repeats_itself():
    budget = whole_picorho("epsilon:3@1e-6")
    made = [
        schedule_by_simulation(learnable(1500), n=None, count=3, window=2, budget=budget, seeds=2) for _ in range(2)
    ]
    assert made[0] == made[1]
    accuracies = [each.accuracy for each in made[0].retrainings]
    assert made[0].price == budget // 2
    assert np.all(np.array(accuracies) > 0.45)
    with pytest.raises(TrainingError):
        schedule_by_simulation(learnable(60), n=None, count=55, window=2, budget=budget, seeds=1)


def test_more_records_are_simulated_by_less_noise():
    budget = whole_picorho("epsilon:0.5@1e-6")
    few, many = (
        schedule_by_simulation(learnable(600), n=n, count=2, window=2, budget=budget, seeds=3).retrainings[-1].accuracy
        for n in (None, 60_000)
    )
    assert many > few


def test_without_rows_the_rule_chooses_and_no_accuracy_is_known():
    found = schedule_by_rule(40_000, 2, 12, 3, whole_picorho("epsilon:3@1e-6"))
    assert found.option == "dpsgd-quantiles"
    assert len(found.retrainings) == 12
    assert all(each.accuracy is None for each in found.retrainings)
