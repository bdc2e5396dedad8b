"""The promises of every mechanism; a price is never exceeded."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.accounting import sampling_error
from dpserve.accounting.conversions import zcdp_epsilon
from dpserve.accounting.losses import BoundedRangeLoss, GaussianLoss, LaplaceLoss, PureLoss
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.mechanism import Price
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.registry import all_mechanisms, default_price, names, priced
from dpserve.mechanisms.selected_neuron import SelectedNeuron
from tests.accounting.curves import gaussian_delta

PROVEN = [
    Gaussian(20.0),
    Laplace(0.1),
    SelectedNeuron(0.2, GaussianLoss(0.1)),
    SelectedNeuron(0.2, LaplaceLoss(0.1)),
    Label(0.2),
    SelectedNeuron(0.2, LaplaceLoss(0.1), "permute-and-flip"),
    Label(0.2, "permute-and-flip"),
]
every_proven = pytest.mark.parametrize("mechanism", PROVEN, ids=str)


def rows(seed, n, classes):
    return np.random.default_rng(seed).normal(scale=4, size=(n, classes))


@every_proven
@pytest.mark.parametrize("shape", [(0, 3), (1, 2), (1, 1024), (40, 10)])
def test_answers_are_probabilities(mechanism, shape, seeded):
    answers = mechanism.release(rows(1, *shape), np.full(shape[0], 0.01), seeded(1))
    assert answers.shape == shape
    assert answers.dtype == np.float64
    assert (answers >= 0).all()
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-12)


@every_proven
@pytest.mark.parametrize("sensitivity", [0.0, 5e-324, 1e-9, 1e200])
@pytest.mark.parametrize("size", [0.0, 1e-300, 1.7e308])
def test_extreme_magnitudes_give_probabilities(mechanism, sensitivity, size, seeded):
    logits = size * np.array([[1.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-1.0, 1.0, 1.0]])
    answers = mechanism.release(logits, np.full(3, sensitivity), seeded(2))
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers.sum(axis=1), 1, rtol=1e-12)


@every_proven
def test_rows_are_independent_of_one_another(mechanism, seeded, dealt):
    """Each row with its own words gives the same answer alone, and in any order."""
    logits, sensitivity, recorded = rows(3, 12, 7), np.linspace(0.001, 2, 12), seeded(3)
    together = mechanism.release(logits, sensitivity, recorded)
    words = np.concatenate(recorded.handed_out).reshape(12, -1)
    order = np.random.default_rng(3).permutation(12)
    permuted = mechanism.release(logits[order], sensitivity[order], dealt(words[order].ravel()))
    np.testing.assert_allclose(permuted, together[order], rtol=1e-14)
    for i in range(12):
        alone = mechanism.release(logits[i : i + 1], sensitivity[i : i + 1], dealt(words[i]))
        np.testing.assert_allclose(alone[0], together[i], rtol=1e-14)


@every_proven
def test_the_number_of_words_depends_on_the_shape_alone(mechanism, seeded):
    taken = []
    for logits in (np.zeros((5, 4)), rows(4, 5, 4) * 1e6):
        randomness = seeded(4)
        mechanism.release(logits, np.full(5, 0.1), randomness)
        taken.append(sum(map(len, randomness.handed_out)))
    assert taken[0] == taken[1]


@every_proven
def test_inputs_are_left_as_they_were(mechanism, seeded):
    logits, sensitivity = rows(5, 6, 4), np.full(6, 0.1)
    before = logits.copy(), sensitivity.copy()
    mechanism.release(logits, sensitivity, seeded(5))
    assert (logits == before[0]).all()
    assert (sensitivity == before[1]).all()


@every_proven
def test_nonsense_is_refused_before_any_word_is_drawn(mechanism, dealt):
    nothing = dealt(np.empty(0, dtype=np.uint64))
    for logits, sensitivity in [
        (np.zeros(3), np.ones(1)),
        (np.zeros((1, 1)), np.ones(1)),
        (np.zeros((1, 1025)), np.ones(1)),
        (np.zeros((2, 3)), np.ones(1)),
        (np.zeros((1, 3)), np.full(1, -1.0)),
        (np.zeros((1, 3)), np.full(1, np.nan)),
        (np.full((1, 3), np.inf), np.ones(1)),
    ]:
        with pytest.raises(ValueError, match=r"must"):
            mechanism.release(logits, sensitivity, nothing)


@pytest.mark.parametrize(
    ("make", "least", "most"),
    [
        (lambda x: Gaussian(1 / x), 4.5e-5, 4.0),
        (Laplace, 4.5e-5, 4.0),
        (Label, 9e-5, 8.0),
        (lambda x: SelectedNeuron(x, LaplaceLoss(x)), 1e-4, 3.5),
    ],
    ids=["gaussian", "laplace", "label", "selected-neuron"],
)
def test_parameters_beyond_what_a_row_may_cost_are_refused(make, least, most):
    make(least)
    make(most)
    for nonsense in (least / 4, most * 1.3, 0.0, -1.0, math.nan, math.inf):
        with pytest.raises((ValueError, ZeroDivisionError)):
            make(nonsense)


# --- prices ----------------------------------------------------------------------------------------------------

amounts = st.decimals(min_value=Decimal("0.00001"), max_value=Decimal(3), places=8)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "selected-neuron", "label", "published"])
@given(rho=amounts, classes=st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_a_price_in_rho_is_met_and_never_exceeded(name, rho, classes):
    cost = priced(name, f"rho:{rho}", classes).cost
    assert Fraction(rho) * Fraction(999_999, 1_000_000) <= cost.rho <= Fraction(rho)
    assert cost.picorho <= math.ceil(Fraction(rho) * 10**12)


@pytest.mark.parametrize("name", ["laplace", "selected-neuron", "label", "published"])
@given(epsilon=st.decimals(min_value=Decimal("0.001"), max_value=Decimal(4), places=8))
@settings(max_examples=40, deadline=None)
def test_a_pure_epsilon_is_met_and_never_exceeded(name, epsilon):
    cost = priced(name, f"epsilon:{epsilon}", 10).cost
    total = sum(Fraction(loss.epsilon) for loss in cost.losses)
    assert Fraction(epsilon) * Fraction(999_999, 1_000_000) <= total <= Fraction(epsilon)


def test_a_gaussian_epsilon_and_delta_is_met_and_never_exceeded():
    (loss,) = priced("gaussian", "epsilon:0.1@1e-6", 10).cost.losses
    assert gaussian_delta(loss.mu, 0.1) <= 1e-6 < gaussian_delta(loss.mu * 1.001, 0.1)


@pytest.mark.parametrize("selection", ["exponential", "permute-and-flip"])
@pytest.mark.parametrize("name", ["selected-neuron", "label"])
@given(amount=st.decimals(min_value=Decimal("0.001"), max_value=Decimal(3), places=8))
@settings(max_examples=20, deadline=None)
def test_either_selection_meets_a_price_in_rho_and_in_pure_epsilon(name, selection, amount):
    least = Fraction(amount) * Fraction(999_999, 1_000_000)
    in_rho = priced(name, f"rho:{amount}", 3, selection).cost
    assert least <= in_rho.rho <= Fraction(amount)
    pure = priced(name, f"epsilon:{amount}", 3, selection).cost
    assert least <= sum(Fraction(loss.epsilon) for loss in pure.losses) <= Fraction(amount)
    kind = BoundedRangeLoss if selection == "exponential" else PureLoss
    assert isinstance(in_rho.losses[0], kind)
    assert isinstance(pure.losses[0], kind)


@pytest.mark.parametrize("name", ["selected-neuron", "label"])
def test_a_selection_at_a_delta_is_met_and_never_exceeded(name):
    rho = float(priced(name, "epsilon:0.5@1e-6", 3).cost.rho)
    assert zcdp_epsilon(rho, 1e-6) <= 0.5 < zcdp_epsilon(rho * 1.001, 1e-6)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "published"])
def test_no_selection_is_chosen_where_no_class_is_selected(name):
    with pytest.raises(ValueError, match="selects no class"):
        priced(name, "rho:0.1", 3, "exponential")


def test_what_each_price_means():
    assert priced("gaussian", "noise-multiplier:20", 10) == Gaussian(20.0)
    assert priced("gaussian", "noise-multiplier:20", 10).cost.losses == (GaussianLoss(0.05),)
    assert priced("laplace", "noise-multiplier:20", 10) == Laplace(0.05)
    assert priced("laplace", "epsilon:0.25", 10) == Laplace(0.25)
    assert priced("label", "epsilon:0.5", 10) == Label(0.5, "permute-and-flip")
    assert priced("label", "rho:0.125", 10) == Label(1.0)
    assert priced("selected-neuron", "epsilon:0.5", 10) == SelectedNeuron(0.25, LaplaceLoss(0.25), "permute-and-flip")
    assert priced("selected-neuron", "rho:0.25", 10) == SelectedNeuron(1.0, GaussianLoss(0.5))
    assert priced("selected-neuron", "rho:0.25", 10).cost.losses == (BoundedRangeLoss(1.0), GaussianLoss(0.5))
    assert priced("published", "epsilon:0.5", 10) == Published(10, 0.5, "laplace")
    assert priced("gaussian", Price("rho", Decimal("0.125")), 10) == Gaussian(2.0)


def test_every_name_can_be_priced_and_only_the_published_mechanism_is_unproven():
    assert names() == ("gaussian", "laplace", "selected-neuron", "label", "published")
    assert {name for name in names() if priced(name, "rho:0.01", 10).status == "unproven"} == {"published"}


@pytest.mark.parametrize(
    ("name", "price", "complaint"),
    [
        ("gauss", "rho:0.1", "no mechanism 'gauss'; there are gaussian, laplace"),
        ("gaussian", "0.1", "a price is written rho:R, noise-multiplier:M, epsilon:E or epsilon:E@DELTA, not '0.1'"),
        ("gaussian", "rho:abc", "with numbers"),
        ("gaussian", "rho:0.1@1e-6", "a price is written"),
        ("gaussian", "epsilon:0.1@2", "must lie between 0 and 1"),
        ("gaussian", "rho:nan", "must lie between"),
        ("gaussian", "rho:-1", "must lie between"),
        ("gaussian", "rho:1e-999999999", "must lie between"),
        ("gaussian", "epsilon:0.1", "no pure epsilon"),
        ("gaussian", "rho:9", "between 1e-09 and 8 rho"),
        ("gaussian", "rho:2e-9", "at least"),
        ("gaussian", "noise-multiplier:1e7", "between 1e-09 and 8 rho"),
        ("laplace", "epsilon:0.1@1e-6", "write the price epsilon:E"),
        ("laplace", "epsilon:1e-7", "between 1e-09 and 8 rho"),
        ("label", "noise-multiplier:20", "no noise multiplier"),
        ("selected-neuron", "noise-multiplier:20", "no noise multiplier"),
        ("selected-neuron", "epsilon:100", "between 1e-09 and 8 rho"),
    ],
)
def test_a_price_that_cannot_be_had_is_refused_in_words(name, price, complaint):
    with pytest.raises(ValueError, match=complaint):
        priced(name, price, 10)


def test_the_number_of_classes_is_checked():
    with pytest.raises(ValueError, match="between 2 and 1024 classes, not 1"):
        priced("label", "rho:0.1", 1)
    with pytest.raises(
        ValueError, match=r"gaussian with 1024 classes cannot be priced at rho:1e-8: .* at least 0\.001\d+,"
    ):
        priced("gaussian", "rho:1e-8", 1024)


@pytest.mark.parametrize("text", ["rho:0.001", "noise-multiplier:20", "epsilon:0.1", "epsilon:0.1@1e-06"])
def test_prices_are_written_as_they_were_read(text):
    assert str(Price.parse(text)) == text
    assert Price.parse(str(Price.parse(text))) == Price.parse(text)


def test_no_price_within_the_ledgers_range_escapes_its_check():
    sampling_error.check_row_rho(float(priced("gaussian", "rho:8", 10).cost.rho))


@pytest.mark.parametrize("name", names())
def test_a_default_price_costs_the_same_with_every_mechanism(name):
    assert float(priced(name, default_price(name), 10).cost.rho) == pytest.approx(0.00125, rel=1e-9)
    pure = default_price(name, pure=True)
    if name == "gaussian":
        assert pure == default_price(name)
    else:
        assert priced(name, pure, 10).cost.pure_epsilon == pytest.approx(0.05, rel=1e-9)


def test_each_form_that_is_listed_makes_a_price_and_no_other_does():
    forms = {"rho:R": "rho:0.1", "noise-multiplier:M": "noise-multiplier:3"}
    forms |= {"epsilon:E": "epsilon:0.5", "epsilon:E@D": "epsilon:0.5@1e-6"}
    for name, mechanism in all_mechanisms().items():
        for form, price in forms.items():
            if form in mechanism.prices.forms:
                priced(name, price, 10)
            else:
                with pytest.raises(ValueError, match="cannot be priced"):
                    priced(name, price, 10)
