import json
import math

import numpy as np
import pytest

from accounting.budgets import Accepts, Budget
from accounting.losses import Cost
from mechanisms.mechanism import at_price
from training.planning import answers
from training.planning.answers import MECHANISMS, PublicSample, plan


def held(epsilon: float) -> dict[Accepts, Budget]:
    kinds: tuple[Accepts, ...] = ("gaussian", "any")
    return {kind: Budget.from_epsilon_delta(epsilon, 1e-6, kind) for kind in kinds}


@pytest.fixture
def sample() -> PublicSample:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, 60)
    logits = rng.normal(size=(60, 4))
    logits[np.arange(60), labels] += 3
    return PublicSample(logits, labels, rng.uniform(0.01, 0.05, 60))


def simulated_accuracy(mechanism: str, rho: float, sample: PublicSample, draws: int) -> float:
    """The same answers drawn with plain NumPy noise, by the mechanisms' definitions."""
    rng = np.random.default_rng(20220101)
    shape = (draws, *sample.logits.shape)
    scale = sample.sensitivity[:, None]
    if mechanism == "gaussian":
        answers = np.argmax(sample.logits + rng.normal(size=shape) * scale / math.sqrt(2 * rho), axis=2)
    elif mechanism == "laplace":
        width = scale * math.sqrt(sample.classes) / math.sqrt(2 * rho)
        answers = np.argmax(sample.logits + rng.laplace(size=shape) * width, axis=2)
    else:
        epsilon = math.sqrt((8 if mechanism == "label" else 4) * rho)
        gumbel = rng.gumbel(size=shape)
        answers = np.argmax(epsilon * sample.logits / (math.sqrt(2) * scale) + gumbel, axis=2)
        if mechanism == "selected-neuron":
            rows = np.arange(len(sample.labels))
            total = np.exp(sample.logits).sum(axis=1)
            own = np.exp(sample.logits[rows, answers])
            noise = rng.normal(size=answers.shape) * math.sqrt(2) * sample.sensitivity / math.sqrt(rho)
            lost = np.log(own) - np.log(total - own) + noise < -math.log(sample.classes - 1)
            others = (answers + rng.integers(1, sample.classes, answers.shape)) % sample.classes
            answers = np.where(lost, others, answers)
    return float(np.mean(answers == sample.labels))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("rho", [3e-6, 1e-4, 3e-3])
def test_the_expected_accuracy_is_that_of_drawn_answers(mechanism: str, rho: float, sample: PublicSample) -> None:
    """60 rows, 2000 draws each: Hoeffding puts a false alarm at 0.008 below 1e-6; the quadrature adds 1e-3."""
    expected = answers.expected_accuracy(at_price(mechanism, f"rho:{rho:.12f}", 4), sample)

    assert simulated_accuracy(mechanism, rho, sample, 2000) == pytest.approx(expected, abs=0.009)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_accuracy_grows_with_the_price_where_the_model_is_right(mechanism: str, sample: PublicSample) -> None:
    right = np.argmax(sample.logits, 1) == sample.labels
    sample = PublicSample(sample.logits[right], sample.labels[right], sample.sensitivity[right])
    accuracies = [
        answers.expected_accuracy(at_price(mechanism, f"rho:{rho:.12f}", 4), sample)
        for rho in np.geomspace(1e-8, 8, 30)
    ]

    assert np.all(np.diff(accuracies) >= -1e-9)
    assert accuracies[0] == pytest.approx(1 / 4, abs=0.01)
    assert accuracies[-1] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("queries", [1, 7, 1000, 10**6])
def test_no_option_for_a_number_of_queries_exceeds_the_budget(queries: int, sample: PublicSample) -> None:
    found = plan(held(2.0), classes=4, queries=queries, sample=sample)

    assert found.options
    for option in found.options:
        cost = Cost.parse(option.losses)
        budget = Budget.from_epsilon_delta(2.0, 1e-6, "gaussian" if cost.is_gaussian else "any")
        assert cost.picorho * queries <= budget.limit


def test_an_accuracy_is_reached_at_the_price_of_as_few_queries_as_the_budget_then_buys(sample: PublicSample) -> None:
    found = plan(held(4.0), classes=4, accuracy=0.8, sample=sample)

    for option in found.options:
        cost = Cost.parse(option.losses)
        assert option.accuracy == pytest.approx(0.8, abs=1e-2)
        assert option.accuracy >= 0.8
        budget = Budget.from_epsilon_delta(4.0, 1e-6, "gaussian" if cost.is_gaussian else "any")
        assert option.queries == budget.limit // cost.picorho


def test_a_plan_before_training_needs_no_data() -> None:
    found = plan(held(1.0), classes=10, queries=100, sensitivity=0.02)

    gaussian = next(option for option in found.options if option.mechanism == "gaussian")
    assert gaussian.accuracy is None
    assert 1 <= gaussian.noise / (0.02 * gaussian.noise_multiplier) < 1.02  # rounding on the grid takes 1 %
    json.loads(found.model_dump_json())


def test_a_mechanism_that_refuses_its_price_is_unavailable_and_says_why() -> None:
    found = plan(held(1.0), classes=1000, queries=10**7, sensitivity=0.02)

    assert "laplace" not in [option.mechanism for option in found.options]
    assert "must be at least" in found.unavailable["laplace"]


def test_an_accuracy_out_of_reach_has_no_options() -> None:
    sample = PublicSample.of_margins(np.array([5.0, 5.0, -5.0]), 4, 0.1)

    assert plan(held(1.0), classes=4, accuracy=0.95, sample=sample).options == ()


def test_margins_stand_for_level_rivals() -> None:
    sample = PublicSample.of_margins(np.array([1.0, -1.0]), 3, 0.1)

    assert answers.expected_accuracy(at_price("gaussian", "rho:8", 3), sample) == pytest.approx(0.5, abs=1e-6)


def test_the_curve_of_accuracy_by_queries_falls(sample: PublicSample) -> None:
    queries = np.array([1, 10, 100, 1000, 10**4, 10**12])

    accuracies = answers.accuracy_by_queries("gaussian", held(1.0)["gaussian"], sample, queries)

    assert np.all(np.diff(accuracies[:5]) <= 1e-9)
    assert np.isnan(accuracies[5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 1}, "classes must lie between 2 and 1024"),
        ({"classes": 4, "queries": 0}, "queries must lie between 1 and"),
        ({"classes": 4, "accuracy": 0.9}, "only with public data"),
        ({"classes": 4, "accuracy": 1.5}, "the accuracy must lie strictly between 0 and 1"),
        ({"classes": 4, "accuracy": 0.9, "queries": 3}, "not for both"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(held(1.0), **arguments)


def test_pure_accounts_are_considered_and_ranked_with_the_others(sample: PublicSample) -> None:
    both = held(0.5) | {"pure": Budget.pure(0.5)}
    found = plan(both, classes=4, queries=1, sample=sample)

    ways = {(option.mechanism, option.accepts): option for option in found.options}
    assert set(ways) == {("gaussian", "gaussian")} | {
        (name, accepts) for name in ("laplace", "selected-neuron", "label") for accepts in ("any", "pure")
    }
    assert [option.accuracy for option in found.options] == sorted((o.accuracy for o in found.options), reverse=True)
    for name in ("laplace", "selected-neuron", "label"):
        assert ways[name, "pure"].accuracy > ways[name, "any"].accuracy
        assert ways[name, "pure"].price == "epsilon:0.500000000000"
        assert Cost.parse(ways[name, "pure"].losses).picoepsilon <= both["pure"].limit
    alone = plan({"pure": Budget.pure(0.5)}, classes=4, queries=1, sample=sample)
    assert {option.accepts for option in alone.options} == {"pure"}


def test_an_accuracy_has_a_pure_price(sample: PublicSample) -> None:
    found = plan({"pure": Budget.pure(4.0)}, classes=4, accuracy=0.8, sample=sample)

    assert found.options
    for option in found.options:
        assert 0.8 <= option.accuracy < 0.81
        assert option.queries == 4 * 10**12 // Cost.parse(option.losses).picoepsilon


@pytest.mark.parametrize("epsilon", [0.02, 0.2, 1.0])
def test_the_expected_accuracy_of_permute_and_flip_is_that_of_drawn_answers(
    epsilon: float, sample: PublicSample
) -> None:
    """The noise is NumPy's exponential. 60 rows, 2000 draws each: Hoeffding puts a false alarm at 0.008 below 1e-6."""
    expected = answers.expected_accuracy(at_price("label", f"epsilon:{epsilon}", 4), sample)
    mean = math.sqrt(2) * sample.sensitivity[:, None] / epsilon
    noise = np.random.default_rng(7).exponential(size=(2000, *sample.logits.shape)) * mean
    drawn = np.mean(np.argmax(sample.logits + noise, axis=2) == sample.labels)
    assert drawn == pytest.approx(expected, abs=0.009)
