"""The planner's recommendations: by simulation and by measurements; never what the trainer would refuse."""

from typing import get_args

import numpy as np
import pytest

from dpserve import DPSGD, ClassSums, Head
from dpserve.accounting.budgets import Budget
from dpserve.mechanisms.gaussian_vector import LEAST_PRICE, mu_for
from dpserve.training.errors import TrainingError
from dpserve.training.features import rules
from dpserve.training.features.rules import Modality, strong_convexity
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.cases import Quality, numbers_declared
from dpserve.training.planning.options import default_option, option_named, planned_options
from dpserve.training.planning.ranking import Ranking
from dpserve.training.planning.recommendation import (
    LARGEST_PRICE,
    MOST_ROWS,
    MOST_TABLE_ROWS,
    Recommendation,
    case_of,
    most_rows,
    recommend_by_rule,
    recommend_by_simulation,
    refusal,
)

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


recommended = recommend_by_rule


def test_a_release_beats_noise_on_each_of_many_answers_in_a_simulation():
    rows = blobs(600, 5)
    many = recommend_by_simulation(rows, n=None, whole=whole(1), queries=10_000, seeds=2, options=FEW)
    assert many.option in ("class-sums", "weights")
    assert "paid for once" in many.reason
    estimates = {each.option: each.mean for each in many.estimates}
    assert estimates["per-query"] is None or estimates["per-query"] < estimates[many.option]


def test_more_records_than_rows_mean_less_noise():
    rows = blobs(400, 5)
    few, more = (
        recommend_by_simulation(rows, n=n, whole=whole(0.1), queries=None, seeds=2, options=("weights",))
        for n in (None, 20_000)
    )
    assert more.estimates[0].mean > few.estimates[0].mean + 0.2


def test_answers_without_end_are_never_paid_one_by_one():
    rows = blobs(200, 3)
    found = recommend_by_simulation(rows, n=None, whole=whole(1), queries=None, seeds=2, options=FEW)
    assert {each.option: each.mean for each in found.estimates}["per-query"] is None
    with pytest.raises(TrainingError, match="none of the mechanisms"):
        recommend_by_simulation(rows, n=None, whole=whole(1), queries=None, seeds=2, options=("per-query",))


def test_options_are_those_that_train_takes():
    assert Recommendation("class-sums", "").training_options(3500, 10**10, None) == (ClassSums(), 10**10)
    assert Recommendation("dpsgd-linear", "").training_options(60_000, 10**10, None) == (DPSGD(hidden=0), 10**10)
    lam = strong_convexity(mu_for(10**8))
    assert Recommendation("per-query", "").training_options(9, 10**10, 100) == (Head(lam=lam), 10**8)


def test_invalid_arguments_are_refused():
    rows = blobs(20, 2)
    with pytest.raises(TrainingError, match="at least 50 rows, and there are 20"):
        recommend_by_simulation(rows, n=None, whole=whole(1), queries=10)


def test_answers_that_no_budget_can_be_shared_among_are_refused():
    found = Recommendation("per-query", "")
    found.training_options(1000, 10**10, 100)
    with pytest.raises(ValueError, match=r"100,000,000 answers cannot share 0.01 rho: .*at most 9,990,009 answers"):
        found.training_options(1000, 10**10, 100_000_000)
    with pytest.raises(ValueError, match="the price of one row must lie between"):
        found.training_options(1000, 9 * 10**12, 1)


def test_labels_that_no_row_tells_anything_of_are_warned_of():
    rng = np.random.default_rng(0)
    rows = labelled(rng.random((400, 5)), (rng.random(400) < 0.2).astype(np.int64), 2)
    found = recommend_by_simulation(
        rows, n=None, whole=whole(1), queries=100, seeds=2, options=("class-sums", "per-query")
    )
    said = " ".join(found.warnings)
    assert "no better than always naming the commonest class, which is right on 0.7" in said
    assert "tell no more than the shares of the classes do" in said


def test_answers_worth_having_are_not_warned_of():
    rows = blobs(2000, 5)
    found = recommend_by_simulation(rows, n=None, whole=whole(4), queries=None, seeds=2, options=("class-sums",))
    assert found.warnings == ()
    (estimate,) = found.estimates
    assert estimate.log_loss < 0.5
    assert f"with log loss {estimate.log_loss:.3f}" in found.reason


def test_of_more_rows_than_records_as_many_are_trained_on():
    """A budget that is scaled down to their share of the rows would buy no release at all."""
    rows, budget = blobs(5000, 2), whole(1)
    few, all_of_them = (
        recommend_by_simulation(rows, n=n, whole=budget, queries=None, seeds=1, options=("weights",)).estimates[0]
        for n in (60, 4000)
    )
    assert few.mean is not None
    assert few.log_loss > all_of_them.log_loss + 0.1


def test_every_kind_whose_noise_is_known_is_planned_with_its_intervals():
    """Fifty records at the least price: of class sums there is nothing but noise."""
    kinds = ("class-sums", "weights", "dpsgd")
    found = recommend_by_simulation(blobs(50, 2), n=None, whole=2 * LEAST_PRICE, queries=None, seeds=1, options=kinds)
    widths = {each.option: each.interval for each in found.estimates if each.mean is not None}
    assert set(widths) == set(kinds)
    assert widths.pop("dpsgd") is None
    undecided = {each.option: each.undecided for each in found.estimates}
    assert undecided.pop("dpsgd") is None
    assert all(share is not None and 0 < share <= 1 for share in undecided.values())
    assert all(width is not None and width > 0.2 for width in widths.values())
    alone = recommend_by_simulation(
        blobs(50, 2), n=None, whole=2 * LEAST_PRICE, queries=None, seeds=1, options=kinds[:1]
    )
    assert "which covers nearly everything" in " ".join(alone.warnings)


def ranked(**losses):
    """A ranking of a table's options by the log losses of their seeds."""
    figures = {name.replace("_", "-"): [Quality(0.8, loss) for loss in each] for name, each in losses.items()}
    return Ranking(figures, "dpsgd-quantiles")


def test_options_are_ranked_by_log_loss_and_the_default_stays_within_chance():
    """The standard error of the mean of 5 splits is sqrt(1/5 + 1/4) standard deviations, at most."""
    steady = [0.50, 0.51, 0.49, 0.50, 0.50]
    better = [loss - 0.02 for loss in steady]
    assert ranked(dpsgd_quantiles=steady, class_sums_quantiles=better).chosen == "class-sums-quantiles"
    swinging = [loss - 0.02 + swing for loss, swing in zip(steady, (0.2, -0.2, 0.1, -0.1, 0.0), strict=True)]
    close = ranked(dpsgd_quantiles=steady, class_sums_quantiles=swinging)
    assert close.least == "class-sums-quantiles"
    assert close.chosen == "dpsgd-quantiles"
    assert close.undecided == "class-sums-quantiles"
    mean, error = close.difference("class-sums-quantiles", "dpsgd-quantiles")
    assert mean == pytest.approx(-0.02)
    assert error == pytest.approx(np.std((0.2, -0.2, 0.1, -0.1, 0.0), ddof=1) * np.sqrt(1 / 5 + 1 / 4))
    assert ranked(class_sums_quantiles=steady, weights_quantiles=better).chosen == "weights-quantiles"


def test_rows_too_few_to_rank_are_said_to_be():
    rng = np.random.default_rng(0)
    rows = labelled(rng.random((120, 5)), (rng.random(120) < 0.5).astype(np.int64), 2)
    pair = ("dpsgd-quantiles", "class-sums-quantiles", "weights-quantiles")
    found = recommend_by_simulation(rows, n=None, whole=whole(1), queries=None, seeds=4, options=pair)
    assert "too few to rank" in " ".join(found.warnings)


@pytest.mark.parametrize("modality", [*get_args(Modality), None])
@pytest.mark.parametrize("classes", [2, 10, 20])
def test_every_modality_has_a_default_that_suits_it(modality, classes):
    option = planned_options()[default_option(modality, classes)]
    assert option.pays == "once"
    assert option.suits is None or modality in option.suits


def test_many_classes_of_presence_or_of_numbers_as_they_are_get_class_sums_and_all_others_dp_sgd():
    assert recommended(3_500, 20, whole(1)).option == "class-sums"
    assert recommended(3_500, 19, whole(1)).option == "dpsgd"
    assert recommended(3_500, 10, whole(1), "presence").option == "class-sums"
    assert recommended(3_500, 9, whole(1), "presence").option == "dpsgd-quantiles"
    for modality, option in (("table", "dpsgd-quantiles"), ("images", "dpsgd"), ("text", "dpsgd")):
        for classes in (2, 100):
            assert recommended(30_000, classes, whole(0.5), modality).option == option
    assert recommended(30_000, 100, whole(1), own_features=True).option == "dpsgd"


def test_options_that_would_be_the_same_are_simulated_once():
    """A narrow table has bins for an option of any features but cuts."""
    rng = np.random.default_rng(0)
    X = rng.random((200, 3))
    rows = labelled(X, (X[:, 0] > 0.5).astype(np.int64), 2)
    pair = ("weights", "weights-fourier")
    found = recommend_by_simulation(rows, n=None, whole=whole(1), queries=None, seeds=1, options=pair)
    assert [each.option for each in found.estimates] == ["weights"]


def squares(n):
    """Rows of two numbers and a number that says nothing: classes differ by whether the first two are alike."""
    X = np.random.default_rng(0).random((n, 3))
    return labelled(X, ((X[:, 0] > 0.5) == (X[:, 1] > 0.5)).astype(np.int64), 2)


def test_columns_that_tell_classes_apart_together_get_crosses():
    pair = ("dpsgd-linear", "dpsgd-crosses")
    found = recommend_by_simulation(squares(1500), n=None, whole=whole(4), queries=None, seeds=3, options=pair)
    assert found.option == "dpsgd-crosses"
    by_cuts, crossed = (each.log_loss for each in found.estimates)
    assert crossed < by_cuts - 0.05


def test_a_simulation_takes_more_rows_of_a_table_as_far_as_they_fit():
    narrow, wide = numbers_declared(3, 2), numbers_declared(32, 2)
    assert most_rows(narrow) == MOST_TABLE_ROWS
    assert MOST_ROWS < most_rows(wide) < MOST_TABLE_ROWS
    assert most_rows(numbers_declared(784, 2)) == most_rows(numbers_declared(144, 2), (12, 12, 1)) == MOST_ROWS
    X = np.random.default_rng(0).random((30_000, 3))
    case = case_of(labelled(X, (X[:, 0] > 0.5).astype(np.int64), 2), 0)
    assert (len(case.y), len(case.answers)) == (24_000, 6_000)


def test_tables_that_cannot_be_crossed_get_no_crosses():
    """One number: its option would be that of bins."""
    declared = numbers_declared(1, 2)
    assert not rules.feature_map("crosses", declared).cross_buckets
    assert rules.feature_map("crosses", numbers_declared(2, 2)).cross_buckets == rules.CROSS_BUCKETS
    assert rules.feature_map("crosses", numbers_declared(40, 2)) == rules.feature_map("unit", numbers_declared(40, 2))


@pytest.mark.parametrize("n", [100, 30_000, 1_000_000])
def test_without_rows_tables_get_no_crosses(n):
    assert recommended(n, 2, whole(4), "table").chosen.features != "crosses"


def test_without_rows_images_get_histograms_alone():
    """On MNIST they did better, so that only rows speak for more."""
    assert recommended(60_000, 10, whole(1), "images").option == "dpsgd"


@pytest.mark.parametrize(
    ("n", "classes", "modality"),
    [
        # Every two values together; `make test-all` takes all of them.
        pytest.param(n, classes, modality, marks=[] if (row + column) % 2 == half else pytest.mark.slow)
        for row, n in enumerate((1, 9_000, 4_194_305))
        for column, classes in enumerate((2, 10, 150))
        for half, modality in enumerate(("table", None))
    ],
)
def test_what_is_recommended_can_be_trained(n, classes, modality):
    for price in (401_000_000, 799_999_999, 800_000_010, 35_921_474_698, LARGEST_PRICE, 6 * 10**12):
        found = recommended(n, classes, price, modality)
        assert refusal(found.option, n, classes, price) is None
        assert found.training_options(n, price, None)[1] <= min(price, LARGEST_PRICE)


def test_quantiles_that_the_budget_cannot_buy_give_way_to_even_cuts():
    price = 801_000_000
    assert recommended(9_000, 2, price, "table").option == "dpsgd-quantiles"
    many = recommend_by_rule(9_000, 2, price, "table", numbers=100)
    assert many.chosen.features == "even"
    assert "cuts at quantiles would come first, but quantiles of 100 numbers cost at least" in many.reason


def test_the_reason_says_what_would_have_come_first_and_the_largest_price():
    assert (
        "at most epsilon = 16.86 at delta = 1e-06, so it takes that of the epsilon = 21.71"
        in recommended(10_000, 10, whole(20)).reason
    )
    weights = recommended(20_000_000, 2, 500_000_000)
    assert weights.option == "weights"  # the budget is too small to calibrate them, so that nothing is counted
    assert "DP-SGD, linear head would come first, but releases are exact for at most 16,777,216" in weights.reason
    with pytest.raises(
        ValueError,
        match=r"no pay-once model can be trained for epsilon = \S+ at delta = 1e-06: it costs at least epsilon",
    ):
        recommended(10_000, 30, 300_000_000)
    with pytest.raises(ValueError, match="at least 1 record and 2 classes"):
        recommended(0, 2, whole(1))


TOO_MANY = r"at most 16,777,216 records, not 20,000,000: .* What is left is noise on each answer of a head"


@pytest.mark.parametrize("modality", ["table", "images", "text", None])
def test_of_too_many_records_for_any_release_nothing_is_recommended_but_what_is_left(modality):
    for refused in (
        lambda: recommended(20_000_000, 2, whole(1), modality),
        lambda: recommend_by_rule(20_000_000, 2, whole(1), own_features=True),
        lambda: recommend_by_simulation(blobs(80, 2), n=20_000_000, whole=whole(1), queries=None, seeds=1),
    ):
        with pytest.raises((ValueError, TrainingError), match=TOO_MANY):
            refused()
    answered = recommend_by_simulation(blobs(80, 2), n=20_000_000, whole=whole(1), queries=10, seeds=1)
    assert {option_named(each.option).pays for each in answered.estimates} == {"each answer"}


def test_every_option_that_is_paid_for_once_knows_how_many_records_it_can_take():
    for name, option in planned_options().items():
        if option.pays == "once":
            assert refusal(name, 2**24, 2, whole(1)) is None
            assert "at most 16,777,216 records" in refusal(name, 2**24 + 1, 2, whole(1)), name


def test_a_signal_less_than_was_ever_measured_is_warned_of():
    (warning,) = recommended(20, 2, whole(0.1), "table").warnings
    assert "less than on any set that was measured: expect answers no better than always naming" in warning
    assert recommended(30_000, 2, whole(1), "table").warnings == ()
    assert "n = 30,000 and C = 2, a signal mu n / C of 4,0" in recommended(30_000, 2, whole(1), "table").reason


def test_an_option_too_large_for_its_noise_is_refused():
    assert "has between 1 and" in refusal("class-sums", 1000, 100, whole(1), features=10**6)
    assert refusal("class-sums", 1000, 100, whole(1), features=1000) is None
