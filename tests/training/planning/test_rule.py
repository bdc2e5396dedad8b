"""The planner's rule: it takes what the tables found best, and never what the trainer would refuse."""

import pytest

from accounting.budgets import Budget
from mechanisms.gaussian_vector import whole_picorho
from training.planning.rule import LARGEST_PRICE, by_rule, refusal

TOLERANCE = 0.005
"""How far below the best option measured in a cell the recommended one may lie."""


def whole(epsilon):
    return Budget.from_epsilon_delta(epsilon, 1e-5, "gaussian").picorho


def recommended(n, classes, picorho, queries=None):
    return by_rule(n, classes, picorho, queries)[0]


def test_few_records_of_many_classes_get_class_sums_and_many_of_few_get_descent():
    assert recommended(3500, 30, whole(1)).option == "class-sums"
    assert recommended(35_000, 100, whole(1)).option == "class-sums"
    assert recommended(60_000, 10, whole(1)).option == "dpsgd-fourier"
    assert recommended(1_000_000, 30, whole(1)).option == "dpsgd"
    assert recommended(30_000, 2, whole(0.5)).option == "dpsgd"


@pytest.mark.parametrize("n", [1, 9_000, 4_194_305])
@pytest.mark.parametrize("classes", [2, 10, 150])
def test_what_is_recommended_can_be_trained(n, classes):
    for price in (401_000_000, 799_999_999, 800_000_010, 35_921_474_698, LARGEST_PRICE, 6 * 10**12):
        found = recommended(n, classes, price)
        assert refusal(found.option, n, classes, price) is None
        assert whole_picorho(found.training_options(n, price, None)["price"]) <= min(price, LARGEST_PRICE)


def test_the_reason_says_what_would_have_come_first_and_the_largest_price():
    assert "at most 4 rho, so it takes that of the 5.943" in recommended(10_000, 10, whole(20)).reason
    many = recommended(20_000_000, 10, whole(1))
    assert many.option == "weights"
    assert "Fourier features would come first, but releases are exact for at most 16,777,216 records" in many.reason
    little = recommended(10_000, 30, 500_000_000)
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
    limit = 0.12 if classes == 40 else TOLERANCE
    assert means[found.option] >= max(means.values()) - limit
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
