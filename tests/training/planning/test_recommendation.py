"""What the planner recommends: in clear-cut cases, by rule and by simulation, and as the tables say."""

import numpy as np
import pytest

from accounting.budgets import Budget
from training.errors import TrainingError
from training.planning.cases import Quality
from training.planning.recommendation import Estimate, Recommendation, by_simulation, warnings_of

FEW = ("class-sums", "weights", "per-query")


def whole(epsilon, delta=1e-5):
    return Budget.from_epsilon_delta(epsilon, delta, "gaussian").picorho


def blobs(n, classes, seed=0):
    """Rows about one corner for each class, which any of the options can learn."""
    rng = np.random.default_rng(seed)
    corners = (rng.random((classes, 40)) < 0.3).astype(float)
    y = rng.integers(classes, size=n)
    return np.clip(corners[y] + 0.2 * rng.standard_normal((n, 40)), 0, 1), y


def test_a_release_beats_noise_on_each_of_many_answers_in_a_simulation():
    X, y = blobs(600, 5)
    many = by_simulation(X, y, classes=5, n=None, whole=whole(1), queries=10_000, seeds=2, options=FEW)
    assert many.option in ("class-sums", "weights")
    assert "paid for once" in many.reason
    estimates = {each.option: each.mean for each in many.estimates}
    assert estimates["per-query"] is None or estimates["per-query"] < estimates[many.option]


def test_one_query_costs_alike_either_way():
    """One answer from noisy weights has the law of one noisy answer: only the spread of few rows is between them."""
    X, y = blobs(600, 5)
    only = by_simulation(X, y, classes=5, n=None, whole=whole(2), queries=1, seeds=3, options=("weights", "per-query"))
    released, each = (estimate.mean for estimate in only.estimates)
    assert abs(released - each) < 0.1
    assert only.option in ("weights", "per-query")


def test_more_records_than_rows_mean_less_noise():
    X, y = blobs(400, 5)
    few, more = (
        by_simulation(X, y, classes=5, n=n, whole=whole(0.1), queries=None, seeds=2, options=("weights",))
        for n in (None, 20_000)
    )
    assert more.estimates[0].mean > few.estimates[0].mean + 0.2


def test_answers_without_end_are_never_paid_one_by_one():
    X, y = blobs(200, 3)
    found = by_simulation(X, y, classes=3, n=None, whole=whole(1), queries=None, seeds=2, options=FEW)
    assert {each.option: each.mean for each in found.estimates}["per-query"] is None
    with pytest.raises(TrainingError, match="none of the mechanisms"):
        by_simulation(X, y, classes=3, n=None, whole=whole(1), queries=None, seeds=2, options=("per-query",))


def test_options_are_those_that_train_takes():
    sums = Recommendation("class-sums", "").training_options(3500, 10**10, None)
    assert sums == {"price": "rho:0.01", "records_declared": 3500}
    descent = Recommendation("dpsgd-fourier", "").training_options(60_000, 10**10, None)
    assert descent["records_declared"] == 60_000
    assert descent["price"] == "rho:0.01"


def test_nonsense_is_refused():
    X, y = blobs(20, 2)
    with pytest.raises(TrainingError, match="at least 50 rows, and there are 20"):
        by_simulation(X, y, classes=2, n=None, whole=whole(1), queries=10)


def test_answers_that_no_budget_can_be_shared_among_are_refused():
    for option in ("teachers", "per-query"):
        found = Recommendation(option, "")
        found.training_options(1000, 10**10, 100)
        with pytest.raises(ValueError, match=r"100,000,000 answers cannot share 0.01 rho: .*at most 9,990,009 answers"):
            found.training_options(1000, 10**10, 100_000_000)
        with pytest.raises(ValueError, match="the price of one row must lie between"):
            found.training_options(1000, 9 * 10**12, 1)


def test_labels_that_no_row_tells_anything_of_are_warned_of():
    rng = np.random.default_rng(0)
    X, y = rng.random((400, 5)), (rng.random(400) < 0.2).astype(np.int64)
    found = by_simulation(
        X, y, classes=2, n=None, whole=whole(1), queries=100, seeds=2, options=("class-sums", "per-query")
    )
    said = " ".join(found.warnings)
    assert "no better than always naming the commonest class, which is right on 0.7" in said
    assert "tell no more than the shares of the classes do" in said


def test_answers_worth_having_are_not_warned_of():
    X, y = blobs(2000, 5)
    found = by_simulation(X, y, classes=5, n=None, whole=whole(4), queries=None, seeds=2, options=("class-sums",))
    assert found.warnings == ()
    (estimate,) = found.estimates
    assert estimate.log_loss < 0.5
    assert f"with log loss {estimate.log_loss:.3f}" in found.reason


def test_an_interval_that_covers_nearly_everything_is_warned_of():
    worth_little = Estimate("per-query", 0.9, 0.0, 3, log_loss=0.3, interval=0.95)
    (said,) = warnings_of(worth_little, Quality(0.5, 0.69))
    assert "an interval 0.95 wide on average, which covers nearly everything" in said


def test_of_equally_right_options_the_one_of_less_log_loss_is_taken():
    from training.planning.recommendation import _best

    estimates = (
        Estimate("class-sums", 0.900, 0.0, 3, log_loss=0.9),
        Estimate("weights", 0.897, 0.0, 3, log_loss=0.3),
        Estimate("dpsgd", 0.899, 0.0, 3, log_loss=0.295),
        Estimate("objective", 0.850, 0.0, 3, log_loss=0.1),
    )
    assert _best(estimates, None, Quality(0.1, 2.3)).option == "weights"
