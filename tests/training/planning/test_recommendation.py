"""The planner's recommendations: by simulation and by measurements; never what the trainer would refuse."""

import numpy as np
import pytest

from accounting.budgets import Budget
from mechanisms.gaussian_vector import LEAST_PRICE
from training.errors import TrainingError
from training.inputs.records import Records
from training.kinds.cases import Estimate, Quality, numbers_declared
from training.planning.recommendation import (
    LARGEST_PRICE,
    Recommendation,
    best,
    by_rule,
    by_simulation,
    refusal,
    warnings_of,
)

TOLERANCE = 0.005
"""Largest distance of the recommended option below the best one measured in a cell."""

FEW = ("class-sums", "weights", "per-query")


def whole(epsilon, delta=1e-5):
    return Budget.from_epsilon_delta(epsilon, delta, "gaussian").limit


def blobs(n, classes, seed=0):
    """Rows about one corner for each class, which any of the options can learn."""
    rng = np.random.default_rng(seed)
    corners = (rng.random((classes, 40)) < 0.3).astype(float)
    y = rng.integers(classes, size=n)
    return labelled(np.clip(corners[y] + 0.2 * rng.standard_normal((n, 40)), 0, 1), y, classes)


def labelled(X, y, classes):
    return Records(X, y, numbers_declared(X.shape[1], classes), (b"rows",))


def recommended(n, classes, picorho, queries=None, kind=None):
    return by_rule(n, classes, picorho, queries, kind)[0]


def test_a_release_beats_noise_on_each_of_many_answers_in_a_simulation():
    rows = blobs(600, 5)
    many = by_simulation(rows, n=None, whole=whole(1), queries=10_000, seeds=2, options=FEW)
    assert many.option in ("class-sums", "weights")
    assert "paid for once" in many.reason
    estimates = {each.option: each.mean for each in many.estimates}
    assert estimates["per-query"] is None or estimates["per-query"] < estimates[many.option]


def test_one_query_costs_alike_either_way():
    """One answer from noisy weights has the law of one noisy answer: only the spread of few rows is between them."""
    rows = blobs(600, 5)
    only = by_simulation(rows, n=None, whole=whole(2), queries=1, seeds=3, options=("weights", "per-query"))
    released, each = (estimate.mean for estimate in only.estimates)
    assert abs(released - each) < 0.1
    assert only.option in ("weights", "per-query")


def test_more_records_than_rows_mean_less_noise():
    rows = blobs(400, 5)
    few, more = (
        by_simulation(rows, n=n, whole=whole(0.1), queries=None, seeds=2, options=("weights",)) for n in (None, 20_000)
    )
    assert more.estimates[0].mean > few.estimates[0].mean + 0.2


def test_answers_without_end_are_never_paid_one_by_one():
    rows = blobs(200, 3)
    found = by_simulation(rows, n=None, whole=whole(1), queries=None, seeds=2, options=FEW)
    assert {each.option: each.mean for each in found.estimates}["per-query"] is None
    with pytest.raises(TrainingError, match="none of the mechanisms"):
        by_simulation(rows, n=None, whole=whole(1), queries=None, seeds=2, options=("per-query",))


def test_options_are_those_that_train_takes():
    sums = Recommendation("class-sums", "").training_options(3500, 10**10, None)
    assert sums == {"price": 10**10, "records_declared": 3500}
    descent = Recommendation("dpsgd-fourier", "").training_options(60_000, 10**10, None)
    assert descent["records_declared"] == 60_000
    assert descent["price"] == 10**10


def test_invalid_arguments_are_refused():
    rows = blobs(20, 2)
    with pytest.raises(TrainingError, match="at least 50 rows, and there are 20"):
        by_simulation(rows, n=None, whole=whole(1), queries=10)


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
    rows = labelled(rng.random((400, 5)), (rng.random(400) < 0.2).astype(np.int64), 2)
    found = by_simulation(rows, n=None, whole=whole(1), queries=100, seeds=2, options=("class-sums", "per-query"))
    said = " ".join(found.warnings)
    assert "no better than always naming the commonest class, which is right on 0.7" in said
    assert "tell no more than the shares of the classes do" in said


def test_answers_worth_having_are_not_warned_of():
    rows = blobs(2000, 5)
    found = by_simulation(rows, n=None, whole=whole(4), queries=None, seeds=2, options=("class-sums",))
    assert found.warnings == ()
    (estimate,) = found.estimates
    assert estimate.log_loss < 0.5
    assert f"with log loss {estimate.log_loss:.3f}" in found.reason


def test_an_interval_that_covers_nearly_everything_is_warned_of():
    worth_little = Estimate("per-query", 0.9, 0.0, 3, log_loss=0.3, interval=0.95)
    (said,) = warnings_of(worth_little, Quality(0.5, 0.69))
    assert "an interval 0.95 wide on average, which covers nearly everything" in said


def test_of_more_rows_than_records_as_many_are_trained_on():
    """A budget that is scaled down to their share of the rows would buy no release at all."""
    rows, budget = blobs(5000, 2), whole(1)
    few, all_of_them = (
        by_simulation(rows, n=n, whole=budget, queries=None, seeds=1, options=("weights",)).estimates[0]
        for n in (60, 4000)
    )
    assert few.mean is not None
    assert few.log_loss > all_of_them.log_loss + 0.1


def test_the_owner_is_told_that_answers_come_without_intervals():
    found = by_simulation(blobs(60, 2), n=None, whole=whole(1), queries=None, seeds=1, options=("dpsgd",))
    assert "its answers come without intervals" in found.reason
    assert "its answers come without intervals" in by_rule(20_000, 2, whole(1))[0].reason


def test_every_kind_whose_noise_is_known_is_planned_with_its_intervals():
    """Fifty records at the least price: of class sums there is nothing but noise."""
    kinds = ("class-sums", "weights", "objective", "dpsgd")
    found = by_simulation(blobs(50, 2), n=None, whole=2 * LEAST_PRICE, queries=None, seeds=1, options=kinds)
    widths = {each.option: each.interval for each in found.estimates if each.mean is not None}
    assert set(widths) == set(kinds)
    assert widths.pop("dpsgd") is None
    assert all(width is not None and width > 0.2 for width in widths.values())
    alone = by_simulation(blobs(50, 2), n=None, whole=2 * LEAST_PRICE, queries=None, seeds=1, options=kinds[:1])
    assert "which covers nearly everything" in " ".join(alone.warnings)


def test_of_equally_right_options_the_one_of_less_log_loss_is_taken():
    estimates = (
        Estimate("class-sums", 0.900, 0.0, 3, log_loss=0.9),
        Estimate("weights", 0.897, 0.0, 3, log_loss=0.3),
        Estimate("dpsgd", 0.899, 0.0, 3, log_loss=0.295),
        Estimate("objective", 0.850, 0.0, 3, log_loss=0.1),
    )
    assert best(estimates).option == "weights"


def test_few_records_of_many_classes_get_class_sums_and_many_of_few_get_descent():
    assert recommended(3500, 30, whole(1)).option == "class-sums"
    assert recommended(35_000, 100, whole(1)).option == "class-sums"
    assert recommended(60_000, 10, whole(1)).option == "dpsgd-fourier"
    assert recommended(30_000, 2, whole(0.5)).option == "dpsgd"


def test_where_the_schema_allows_features_of_its_own_they_are_taken():
    images, similar = by_rule(20_000, 10, whole(1), None, "images")
    assert (images.option, similar.dataset) == ("dpsgd", "mnist-10k-hog")
    assert by_rule(30_000, 2, whole(1), None, "table")[1].dataset == "adult-bins"
    assert recommended(60_000, 10, whole(1), None, "table").chosen.features == "identity"


@pytest.mark.parametrize("epsilon", [0.5, 1, 4])
@pytest.mark.parametrize("classes", [20, 100])
def test_hashed_texts_get_no_class_sums_for_their_number_of_classes(classes, epsilon):
    found = recommended(11_314, classes, whole(epsilon), None, "text")
    assert found.option == "dpsgd"
    assert "at epsilon = 1 DP-SGD had 0.412 right and class sums 0.270" in found.reason


def test_options_that_would_be_the_same_are_simulated_once():
    """A narrow table has bins, whatever features an option asks for."""
    rng = np.random.default_rng(0)
    X = rng.random((200, 3))
    rows = labelled(X, (X[:, 0] > 0.5).astype(np.int64), 2)
    pair = ("weights", "weights-fourier")
    found = by_simulation(rows, n=None, whole=whole(1), queries=None, seeds=1, options=pair)
    assert [each.option for each in found.estimates] == ["weights"]


@pytest.mark.parametrize("n", [1, 9_000, 4_194_305])
@pytest.mark.parametrize("classes", [2, 10, 150])
def test_what_is_recommended_can_be_trained(n, classes):
    for price in (401_000_000, 799_999_999, 800_000_010, 35_921_474_698, LARGEST_PRICE, 6 * 10**12):
        found = recommended(n, classes, price)
        assert refusal(found.option, n, classes, price) is None
        assert found.training_options(n, price, None)["price"] <= min(price, LARGEST_PRICE)


def test_the_reason_says_what_would_have_come_first_and_the_largest_price():
    assert "at most 4 rho, so it takes that of the 5.943" in recommended(10_000, 10, whole(20)).reason
    many = recommended(20_000_000, 2, whole(1))
    assert many.option == "weights"
    assert "DP-SGD, linear head would come first, but releases are exact for at most 16,777,216 records" in many.reason
    little = recommended(50_000, 100, 500_000_000)
    assert little.option == "dpsgd"
    assert "cost at least 0.0008 rho" in little.reason
    with pytest.raises(ValueError, match=r"no pay-once model can be trained for 0.0003 rho: it costs at least 0.0004"):
        recommended(10_000, 30, 300_000_000)
    with pytest.raises(ValueError, match="at least 1 record and 2 classes"):
        recommended(0, 2, whole(1))


@pytest.mark.parametrize(("n", "classes"), [(4_000_000, 3), (200, 19), (4_000_000, 40), (50, 2), (9_000, 10)])
@pytest.mark.parametrize("epsilon", [0.5, 1, 8])
def test_the_figures_shown_do_not_speak_against_the_recommendation(n, classes, epsilon):
    found, similar = by_rule(n, classes, whole(epsilon))
    means = {each.option: each.mean for each in similar.estimates if each.mean is not None}
    assert means[found.option] >= max(means.values()) - TOLERANCE
    assert f"{means[found.option]:.3f} on {similar.place}" in found.reason


def test_far_fewer_records_than_were_ever_measured_are_warned_of():
    few = recommended(20, 2, whole(0.5))
    assert any("no better than always naming the commonest class" in each for each in few.warnings)
    assert recommended(30_000, 2, whole(1)).warnings == ()
    assert recommended(3500, 30, whole(4)).warnings == ()


def test_fewer_answers_than_were_measured_are_named():
    found = recommended(3500, 30, whole(1), 3)
    weights = next(each.mean for each in found.estimates if each.option == "weights")
    assert "fewer than 10 answers were not measured" in found.reason
    assert f"{weights:.3f} there" in found.reason
    assert "were not measured" not in recommended(3500, 30, whole(1), 10).reason


def test_an_option_too_large_for_its_noise_is_refused():
    assert "has between 1 and" in refusal("class-sums", 1000, 100, whole(1), features=10**6)
    assert refusal("class-sums", 1000, 100, whole(1), features=1000) is None
