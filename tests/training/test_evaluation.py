"""Private evaluation: what one record can move, what the figures and intervals are worth, and an audit of the release.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.evaluated_sets import coverages
from dpserve.training.evaluation import EDGES, SHARES, USUAL, Evaluation, Law, evaluate
from dpserve.training.inputs.records import Units
from dpserve.training.intervals import CONFIDENCE
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.pay_once.prediction_sets import counts_of, record_parts, release_sets
from dpserve.training.roc import SURE
from tests.training.conftest import identity, make_records

ONE = 2**28
FALSE_ALARM = 1e-6

answers = st.lists(st.floats(0, 1) | st.sampled_from([math.nan, math.inf, 0.0, 5e-324, 1.0]), min_size=4, max_size=4)
some_parts = st.sets(st.sampled_from(["log-loss", "calibration", "confusion", "coverage", "set-size"])).map(
    lambda chosen: ("accuracy", *(part for part in SHARES if part in chosen))
)


LEAST = np.array([[0.7, 0.6, 0.5, 0.4], [0.3] * 4, [0.1] * 4, [0.0] * 4])
"""Least probabilities in sets, falling from coverage to coverage."""


@dataclass(frozen=True, eq=False)
class Answering:
    """A model whose answers are its rows."""

    certificate: object

    def values(self, X):
        return X


def model_of(classes: int = 4) -> Answering:
    records = make_records(n=40, classes=classes)
    trained = train_class_sums(
        records, "small", identity(records), whole_picorho("rho:0.5"), "own", SeededRandomness(0, ("model",))
    )
    return Answering(trained.certificate)


def words(seed: int) -> SeededRandomness:
    return SeededRandomness(seed, ("evaluation",))


def paid(law: Law, evaluation_id: str) -> None:
    del law, evaluation_id


def asked(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Answers (n, classes), and classes drawn by them."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.full(classes, 0.3), size=n)
    return p, (p.cumsum(axis=1) > generator.uniform(size=(n, 1))).argmax(axis=1)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(probabilities=answers, label=st.integers(0, 3), parts=some_parts)
def test_a_record_adds_at_most_one_whatever_the_model_answers(probabilities, label, parts):
    """Whole numbers, so that the squares are summed without rounding."""
    for sets in ("all", "class"):
        for more in ((), ("roc",)):
            term = Law(0.1, 4, (*parts, *more), sets).term(np.array(probabilities), label, LEAST)
            assert sum(int(value) ** 2 for value in term) <= ONE**2
    two = np.array(probabilities[:2])
    term = Law(0.1, 2, ("accuracy", "roc")).term(two, label % 2)
    assert sum(int(value) ** 2 for value in term) <= ONE**2


@pytest.mark.parametrize("parts", [("accuracy",), ("accuracy", "confusion"), USUAL])
def test_nearly_all_of_what_a_record_may_move_is_used(parts):
    law = Law(0.1, 3, parts)
    terms = (law.term(np.array(p), 0) for p in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]))
    assert max(math.hypot(*map(int, term)) for term in terms) > ONE * (1 - 1e-6)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 30), data=st.data())
def test_neighbours_differ_by_the_record_s_own_term_and_nothing_else(seed, n, data):
    """The same noise on both: what is released differs by the grid's rounding of one term."""
    model, (X, y) = model_of(), asked(n, 4, seed)
    gone = data.draw(st.integers(0, n - 1))
    whole = whole_picorho("rho:0.02")
    both = [
        evaluate(model, *rows, whole, words(seed), pay=paid)
        for rows in ((X, y), (np.delete(X, gone, axis=0), np.delete(y, gone)))
    ]
    law = both[0].law
    difference = np.array(both[0].released) - np.array(both[1].released)
    assert np.abs(difference - law.term(X[gone], int(y[gone])) / ONE).max() <= law.vector.step
    assert law.cost.picorho <= whole


@settings(max_examples=40, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 40), people=st.integers(2, 5), data=st.data())
def test_all_records_of_a_unit_move_the_release_by_one_at_most(seed, n, people, data):
    """The same noise on both; one unit may have nearly all records, all of them alike."""
    model, (X, y) = model_of(), asked(n, 4, seed)
    of = np.minimum(np.random.default_rng(seed).integers(people * 3, size=n), people - 1)
    gone = data.draw(st.sampled_from(sorted(set(of.tolist()))))
    X[of == gone], y[of == gone] = X[0], y[0]
    rest = of != gone
    whole = whole_picorho("rho:0.02")
    all_of_them, others = (
        evaluate(model, X[rows], y[rows], whole, words(seed), units=Units("who", of[rows]), pay=paid)
        for rows in (np.full(n, True), rest)
    )
    difference = np.array(all_of_them.released) - np.array(others.released)
    step = all_of_them.law.vector.step
    assert np.linalg.norm(difference) <= 1 + step * math.sqrt(len(difference))
    assert np.abs(difference - all_of_them.law.term(X[0], int(y[0])) / ONE).max() <= step + n / ONE
    assert all_of_them.unit == "who"
    with pytest.raises(ValidationError):
        Evaluation.model_validate(all_of_them.model_dump() | {"unit": None})


def test_a_unit_counts_once_whatever_it_has_of_records():
    """One person with 900 wrong records beside 100 people with a right one each: 100 of 101, and not a tenth."""
    p = np.tile([1.0, 0.0, 0.0, 0.0], (1000, 1))
    y, of = np.where(np.arange(1000) < 900, 1, 0), np.maximum(np.arange(1000) - 899, 0)
    found = evaluate(model_of(), p, y, whole_picorho("rho:3"), words(2), units=Units("who", of), pay=paid)
    assert found.records.estimate == pytest.approx(101, abs=6 * found.records.standard_error)
    assert found.accuracy.estimate == pytest.approx(100 / 101, abs=6 * found.accuracy.standard_error)


def test_an_account_is_charged_before_noise_is_drawn():
    class Refused(Exception):
        pass

    class NoWords:
        def words(self, count):
            pytest.fail("noise was drawn before it was paid for")

    def refuse(law: Law, evaluation_id: str) -> None:
        raise Refused(law.cost, evaluation_id)

    with pytest.raises(Refused):
        evaluate(model_of(), *asked(10, 4), whole_picorho("rho:0.02"), NoWords(), pay=refuse)


def test_the_standard_error_of_accuracy_is_two_in_a_thousand_at_ten_thousand_records():
    """mu = 0.05, nothing but accuracy reported; and 0.0024 with what every classifier has."""
    p = np.tile([0.9, 0.05, 0.05, 0.0], (10_000, 1))
    y = np.where(np.arange(10_000) < 300, 1, 0)
    for parts, error in ((("accuracy",), 0.002), (USUAL, 0.0024)):
        found = evaluate(model_of(), p, y, whole_picorho("rho:0.00125"), words(1), parts, pay=paid)
        assert found.mu == pytest.approx(0.05, rel=1e-4)
        assert found.accuracy.standard_error == pytest.approx(error, rel=0.05)
        assert found.accuracy.estimate == pytest.approx(0.97, abs=6 * error)


def test_intervals_hold_the_true_figures_as_often_as_they_say():
    """400 evaluations of the same 100 records; P(Binomial(400, 0.05) > 45) < 2.5e-7 for each of four figures.

    The control: intervals of half the width miss more often.
    """
    model, (X, y) = model_of(), asked(100, 4)
    likeliest = X.argmax(axis=1)
    bound = 2 + math.log(4)
    truths = {
        "records": 100,
        "accuracy": float((likeliest == y).mean()),
        "log_loss": float(np.minimum(-np.log(X[np.arange(100), y]), bound).mean()),
        "cell": float(((y == 2) & (likeliest == 1)).sum()),
    }
    missed, missed_by_half = dict.fromkeys(truths, 0), 0
    for seed in range(400):
        found = evaluate(model, X, y, whole_picorho("rho:0.7"), words(seed), pay=paid)
        shown = {
            "records": found.records,
            "accuracy": found.accuracy,
            "log_loss": found.log_loss,
            "cell": found.confusion[2][1],
        }
        for name, interval in shown.items():
            missed[name] += not interval.lower <= truths[name] <= interval.upper
        missed_by_half += abs(found.records.estimate - 100) > (found.records.upper - found.records.lower) / 4
    most = 45
    assert binom.sf(most, 400, 1 - CONFIDENCE) < FALSE_ALARM / 4
    assert all(count <= most for count in missed.values()), missed
    assert missed_by_half > most


def test_with_little_noise_every_figure_is_the_exact_one():
    model, (X, y) = model_of(), asked(4000, 4)
    found = evaluate(model, X, y, whole_picorho("rho:3"), words(0), pay=paid)
    likeliest, sure = X.argmax(axis=1), X.max(axis=1)
    assert found.records.estimate == pytest.approx(4000, abs=10)
    assert found.accuracy.estimate == pytest.approx((likeliest == y).mean(), abs=1e-3)
    exact = np.minimum(-np.log(X[np.arange(4000), y]), found.law.largest_loss).mean()
    assert found.log_loss.estimate == pytest.approx(exact, abs=0.01)
    for place, each in enumerate(found.calibration):
        inside = (sure >= EDGES[place]) & ((sure < EDGES[place + 1]) | (place == len(EDGES) - 2))
        assert each.records.estimate == pytest.approx(inside.sum(), abs=20)
        if inside.sum() > 300:
            assert each.right.estimate == pytest.approx((likeliest == y)[inside].mean(), abs=0.05)
    assert found.confusion[1][2].estimate == pytest.approx(((y == 1) & (likeliest == 2)).sum(), abs=10)


def test_what_noise_drowns_has_the_interval_of_all_that_is_possible():
    found = evaluate(model_of(), *asked(0, 4), whole_picorho("rho:0.0005"), words(3), pay=paid)
    assert (found.accuracy.lower, found.accuracy.upper) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("mu", 0.05), ("cost", "gaussian:0.001"), ("assumptions", ("none",)), ("parts", ("accuracy",))],
)
def test_a_changed_evaluation_is_refused_when_it_is_read(field, value):
    found = evaluate(model_of(), *asked(50, 4), whole_picorho("rho:0.02"), words(0), pay=paid)
    assert Evaluation.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValidationError):
        Evaluation.model_validate(found.model_dump() | {field: value})


def test_parts_without_accuracy_are_refused():
    with pytest.raises(ValueError, match="always reports accuracy"):
        Law(0.1, 3, ("confusion",))


def test_the_area_below_the_curve_is_within_its_interval():
    """Three noise seeds; the exact area of rounded probabilities, by ranks. False alarm below 0.05^3, fixed seeds."""
    generator = np.random.default_rng(0)
    y = generator.integers(2, size=1500)
    p = 1 / (1 + np.exp(-(generator.normal(size=1500) + 1.5 * y - 0.75)))
    answers = np.column_stack([1 - p, p])
    cells = -SURE.of(p)
    greater = (cells[y == 1][:, None] > cells[y == 0]).mean() + (cells[y == 1][:, None] == cells[y == 0]).mean() / 2
    for seed in range(3):
        found = evaluate(model_of(2), answers, y, whole_picorho("rho:0.7"), words(seed), pay=paid).roc
        assert found.area.lower <= greater <= found.area.upper
        assert abs(found.area.estimate - greater) < 0.02
        middle = found.points[len(found.points) // 2]
        share = (p[y == 1] >= middle.threshold).mean()
        assert abs(middle.true_positives.estimate - share) < 0.05


def test_the_areas_of_each_class_against_the_rest_are_within_their_intervals():
    """Against scikit-learn's of probabilities that are rounded as the curve's are; false alarm below 0.05^3."""
    p, y = asked(2000, 3, seed=2)
    cells = -SURE.of(p.ravel()).reshape(p.shape)
    exact = [roc_auc_score(y == label, cells[:, label]) for label in range(3)]
    for seed in range(3):
        found = evaluate(model_of(3), p, y, whole_picorho("rho:4"), words(seed), ("accuracy", "roc"), pay=paid).areas
        for area, true in zip((*found.by_class, found.mean), (*exact, np.mean(exact)), strict=True):
            assert area.lower <= true <= area.upper
            assert abs(area.estimate - true) < 0.02


def test_points_of_the_curve_hold_the_true_shares_as_often_as_they_say():
    """Points of 20 releases: P(Binomial(20, 0.05) > 8) < 1e-6; intervals a tenth as wide fail."""
    generator = np.random.default_rng(1)
    y = generator.integers(2, size=600)
    p = np.clip(generator.beta(2, 2, size=600) + 0.2 * y, 0, 1)
    answers = np.column_stack([1 - p, p])
    missed = narrow = 0
    for seed in range(20):
        found = evaluate(model_of(2), answers, y, whole_picorho("rho:0.05"), words(seed), ("accuracy", "roc"), pay=paid)
        point = found.roc.points[34]
        share = (p[y == 1] >= point.threshold).mean()
        interval = point.true_positives
        missed += not interval.lower <= share <= interval.upper
        narrow += abs(share - interval.estimate) > (interval.upper - interval.lower) / 20
    assert binom.sf(8, 20, 0.05) < FALSE_ALARM
    assert missed <= 8
    assert narrow > 8


def test_coverage_and_sizes_of_sets_are_those_of_the_rows():
    """Six standard errors for each of twelve figures: below 1e-6 in all."""
    p, y = asked(3000, 3)
    counts = counts_of(p[np.arange(3000), y], y, record_parts(None, 3000), 3)
    sets = release_sets(counts, 1.0, 6, words(9))
    for each in (sets, release_sets(counts.sum(axis=0, keepdims=True), 1.0, 6, words(10))):
        certificate = model_of(3).certificate.model_copy(update={"prediction_sets": each})
        found = evaluate(Answering(certificate), p, y, whole_picorho("rho:1"), words(11), pay=paid)
        assert found.sets == each.by
        for at in found.coverage:
            inside = each.sets_of(p, round(at.asked * 1000))
            covered = inside[np.arange(3000), y]
            assert at.reached.estimate == pytest.approx(covered.mean(), abs=6 * at.reached.standard_error)
            assert at.size.estimate == pytest.approx(inside.sum(axis=1).mean(), abs=6 * at.size.standard_error)
            for label, interval in enumerate(at.reached_by_class):
                assert interval.estimate == pytest.approx(covered[y == label].mean(), abs=6 * interval.standard_error)
        assert len(found.coverage[0].reached_by_class) == 3
        Evaluation.model_validate(found.model_dump())


def test_the_interval_of_the_worst_class_holds_the_least_coverage_of_a_class():
    """Twelve classes that are all covered alike: the least estimate is far below, and 0.05 of intervals may miss it.

    Of 200 more than 29 would, by chance, once in a million times. Intervals of one class by itself miss it in about
    half: the least of so many lies below its own truth by more than its noise.
    """
    generator, noise, missed, alone = np.random.default_rng(4), 20.0, 0, 0
    exact = np.tile([0.0, 450.0, 0.0, 0.0, 50.0], (12, 1))
    for _ in range(200):
        counts = exact + noise * generator.standard_normal(exact.shape)
        at = next(at for at in coverages(counts, noise, None, 0.0, 6000.0, 1.0, 12) if at.asked == 0.9)
        missed += not at.worst_class.lower <= 0.9 <= at.worst_class.upper
        least = min(at.reached_by_class, key=lambda share: share.estimate)
        alone += not least.lower <= 0.9 <= least.upper
        assert at.worst_class.lower <= at.worst_class.estimate <= at.worst_class.upper
    assert binom.sf(29, 200, 0.05) < FALSE_ALARM
    assert missed <= 29 < alone


def test_records_of_many_classes_are_counted_together_where_sets_are_for_all():
    sizes = [Law(1.0, classes, ("accuracy", "coverage"), "all").sizes["coverage"] for classes in (2, 10, 11)]
    assert sizes == [10, 50, 5]
    assert Law(1.0, 11, ("accuracy", "coverage"), "class").sizes["coverage"] == 55


@pytest.mark.parametrize(("classes", "parts"), [(3, ("accuracy", "set-size")), (2, ("accuracy", "coverage"))])
def test_what_a_model_does_not_have_is_refused_with_why(classes, parts):
    with pytest.raises(ValueError, match="cannot be reported"):
        Law(0.1, classes, parts)
