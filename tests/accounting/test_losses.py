import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting.losses import (
    LARGEST_COIN,
    ApproximateGaussianLoss,
    BoundedRangeLoss,
    ClaimedGaussianLoss,
    ClaimedLaplaceLoss,
    ClaimedLoss,
    Cost,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    SubsampledGaussianLoss,
)

parameters = st.floats(1e-9, 1e6)
losses: st.SearchStrategy[PrivacyLoss] = st.one_of(
    parameters.map(GaussianLoss),
    parameters.map(LaplaceLoss),
    parameters.map(BoundedRangeLoss),
    st.builds(SubsampledGaussianLoss, parameters, st.floats(1e-9, 1.0)),
    st.builds(ApproximateGaussianLoss, parameters, st.floats(1e-30, LARGEST_COIN)),
)
costs = st.lists(losses, max_size=4).map(lambda parts: Cost(tuple(parts)))


@given(cost=costs)
def test_text_reads_back_exactly(cost: Cost) -> None:
    assert Cost.parse(str(cost)) == cost


@given(first=costs, second=costs)
def test_rho_adds_up_exactly(first: Cost, second: Cost) -> None:
    assert Cost(first.losses + second.losses).rho == first.rho + second.rho


@given(cost=costs)
def test_the_charge_is_the_price_rounded_up(cost: Cost) -> None:
    if cost.rho <= 9000:
        assert 0 <= Fraction(cost.picorho) - cost.rho * 10**12 < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaussian", "is written gaussian:MU"),
        ("gaussian:1:2", "is written gaussian:MU"),
        ("sgm:1", "is written sgm:NOISE_MULTIPLIER:SAMPLING_RATE"),
        ("sgm:1:1.5", "the sampling rate must lie above 0 and be at most 1"),
        (
            "poisson:1",
            "unknown privacy loss 'poisson'; known are approximate-gaussian, .*, exponential, gaussian",
        ),
        ("approximate-gaussian:1", "is written approximate-gaussian:MU:DELTA"),
        ("approximate-gaussian:1:1e-9", "must be at most 2\\^-40"),
        ("approximate-gaussian:1:0", "must be positive and finite"),
        ("laplace:-1", "must be positive and finite"),
        ("laplace:nan", "must be positive and finite"),
        ("laplace:x", "must be numbers"),
    ],
)
def test_other_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cost.parse(text)


@given(sigma=st.floats(0.3, 20), rate=st.floats(1e-4, 1), order=st.floats(1.01, 30))
def test_sampling_never_costs_more_than_its_rho(sigma: float, rate: float, order: float) -> None:
    """The Renyi divergences of the mixture, both ways round, by quadrature: at most alpha rho."""
    loss = SubsampledGaussianLoss(sigma, rate)
    x = np.linspace(-40, 40 + 2 * order, 20001) / min(sigma, 1)
    base = -0.5 * x**2 - 0.5 * math.log(2 * math.pi)
    moved = -0.5 * (x - 1 / sigma) ** 2 - 0.5 * math.log(2 * math.pi)
    mixture = np.logaddexp(math.log1p(-rate) + base, math.log(rate) + moved) if rate < 1 else moved
    for upper, lower in ((mixture, base), (base, mixture)):
        integrand = order * upper + (1 - order) * lower
        divergence = (np.logaddexp.reduce(integrand) + math.log(x[1] - x[0])) / (order - 1)
        assert divergence <= order * float(loss.rho) * (1 + 1e-6) + 1e-9


@given(epsilon=st.floats(0.01, 10), ends=st.floats(0, 1), order=st.floats(1.01, 50))
def test_bounded_range_two_point_laws_stay_within_rho(epsilon: float, ends: float, order: float) -> None:
    """Every loss of range epsilon is a mixture of two-point ones at the ends t and t - epsilon."""
    t = ends * epsilon
    likely = math.expm1(epsilon - t) / -math.expm1(-epsilon) * math.exp(t - epsilon)
    terms = [likely * math.exp((order - 1) * t), (1 - likely) * math.exp((order - 1) * (t - epsilon))]

    assert math.log(sum(terms)) / (order - 1) <= order * float(BoundedRangeLoss(epsilon).rho) * (1 + 1e-6) + 1e-9


def test_equal_costs_have_equal_texts():
    assert str(Cost((GaussianLoss(1),))) == str(Cost((GaussianLoss(1.0),)))
    assert str(Cost((GaussianLoss(np.float64(0.5)),))) == "gaussian:0.5"


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ((), "gaussian"),
        ((GaussianLoss(0.1),), "gaussian"),
        ((ApproximateGaussianLoss(0.1, 1e-13), GaussianLoss(0.1)), "gaussian"),
        ((GaussianLoss(0.1), LaplaceLoss(0.1)), "proven"),
        ((GaussianLoss(0.1), ClaimedGaussianLoss(0.1)), "unproven"),
        ((ClaimedLaplaceLoss(0.1),), "unproven"),
    ],
)
def test_a_claim_is_charged_as_claimed_and_never_as_proven(losses, kind):
    cost = Cost(losses)
    assert cost.kind == kind
    assert Cost.parse(str(cost)) == cost
    claims = Cost(tuple(loss.claim if isinstance(loss, ClaimedLoss) else loss for loss in losses))
    assert cost.picorho == claims.picorho
    assert cost.pure_epsilon == claims.pure_epsilon


def test_the_coins_of_a_cost_are_counted_and_are_no_part_of_its_price():
    cost = Cost((ApproximateGaussianLoss(0.1, 1e-13), ApproximateGaussianLoss(0.2, 3e-13), GaussianLoss(0.3)))

    assert cost.coins == 2
    assert cost.rho == Cost((GaussianLoss(0.1), GaussianLoss(0.2), GaussianLoss(0.3))).rho
    assert Cost((GaussianLoss(0.3),)).coins == 0
