"""Budgets of pure epsilon: what they mean, and what the sampler adds to them."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting import picorho, sampling_error
from dpserve.accounting.budgets import Budget, accepts_for
from dpserve.accounting.losses import (
    LARGEST_PURE_EPSILON,
    BoundedRangeLoss,
    ClaimedLaplaceLoss,
    Cost,
    GaussianLoss,
    LaplaceLoss,
)


def transcript_error(epsilon):
    """The r of the argument in `sampling_error` for everything that a budget of pure epsilon can buy, rounded up."""
    per_row = sampling_error.DRAWS_PER_ROW * sampling_error.DISTANCE_PER_DRAW
    prices = (math.sqrt(2 * sampling_error.LEAST_ROW_RHO) * (1 - 2.0**-40), float(LARGEST_PURE_EPSILON))
    return epsilon * max(per_row * (1 + math.exp(price)) / price for price in prices) * (1 + 2.0**-20)


@given(st.lists(st.floats(min_value=1e-6, max_value=5), min_size=1, max_size=4), st.booleans())
def test_a_price_is_the_exact_sum_rounded_up(epsilons, bounded):
    loss = BoundedRangeLoss if bounded else LaplaceLoss
    cost = Cost(tuple(loss(epsilon) for epsilon in epsilons))
    exact = sum(map(Fraction, epsilons))
    if exact > 10:
        assert cost.picoepsilon is None
    else:
        assert 0 <= cost.picoepsilon - exact * 10**12 < 1


def test_what_has_no_pure_epsilon_has_no_price_in_it():
    assert Cost((GaussianLoss(0.1),)).picoepsilon is None
    assert Cost((LaplaceLoss(0.1), GaussianLoss(0.1))).picoepsilon is None
    assert Cost((ClaimedLaplaceLoss(50.0),)).picoepsilon == 50 * 10**12


@given(st.fractions(min_value="1/1000000", max_value=20))
def test_a_budget_is_rounded_down_and_its_bounds_are_those_of_pure_privacy(epsilon):
    budget = Budget.pure(epsilon)
    assert 0 <= epsilon * 10**12 - budget.limit < 1
    reported = budget.epsilon_at(budget.limit)
    assert Fraction(budget.limit, 10**12) <= Fraction(reported)
    # Randomised response attains all three: belief, advantage and power (Kairouz, Oh and Viswanath 2015).
    belief, advantage = 1 / (1 + math.exp(-budget.limit / 1e12)), math.tanh(budget.limit / 2e12)
    assert belief <= budget.posterior_belief_at(budget.limit) <= min(1, belief * (1 + 2e-3))
    assert advantage * (1 - 1e-15) <= budget.advantage_at(budget.limit) <= min(1, advantage * (1 + 1e-9) + 1e-15)
    response = 1 / (1 + math.exp(budget.limit / 1e12))
    (power,) = budget.true_positive_rates_at(budget.limit, (response,))
    assert power >= (1 - response) * (1 - 1e-12)


def test_the_samplers_error_over_the_largest_budget_is_within_what_is_kept():
    most = transcript_error(sampling_error.LARGEST_PURE_BUDGET)
    assert most <= sampling_error.RESERVED_SHARE * sampling_error.PURE_DELTA
    with pytest.raises(ValueError, match="20"):
        Budget.pure(20.5)
    assert Budget.pure(20.5, "unproven-pure").limit == 205 * 10**11  # a claim has no sampler's error


def test_no_split_of_a_budget_into_prices_has_a_larger_error():
    """The bound is the worst split, searched over prices on a fine grid, in exact arithmetic of the module's t."""
    t = sampling_error.DRAWS_PER_ROW * sampling_error.DISTANCE_PER_DRAW
    prices = np.geomspace(math.sqrt(2 * sampling_error.LEAST_ROW_RHO), 10, 4001)
    each = t * (1 + np.exp(prices)) / prices
    for epsilon in (0.01, 1.0, 20.0):
        assert epsilon * each.max() <= transcript_error(epsilon)


def test_the_least_price_of_a_row_in_rho_bounds_its_pure_epsilon_from_below():
    for losses in ((LaplaceLoss,), (BoundedRangeLoss,), (BoundedRangeLoss, LaplaceLoss), (LaplaceLoss,) * 3):
        cost = Cost(tuple(loss(0.3 / (place + 1)) for place, loss in enumerate(losses)))
        assert cost.pure_epsilon >= math.sqrt(2 * float(cost.rho)) * (1 - 1e-15)


def test_a_budget_of_pure_epsilon_has_no_delta():
    assert Budget.from_epsilon_delta(1, 0, "pure") == Budget.pure(1)
    for refused in (
        lambda: Budget.from_epsilon_delta(1, 1e-6, "pure"),
        lambda: Budget(10**12, "pure", 1e-6),
        lambda: Budget.from_measure("rho", 1, 0, "pure"),
        lambda: Budget.from_measure("advantage", 0.1, 0, "pure"),
        lambda: Budget.from_epsilon_delta(1, 0, "any"),
        lambda: Budget.pure(1e-13),
    ):
        with pytest.raises(ValueError, match=r"delta|epsilon"):
            refused()


def test_a_belief_makes_a_budget_of_pure_epsilon():
    budget = Budget.from_measure("posterior_belief", 0.75, 0, "pure")
    assert 0.749 <= budget.posterior_belief_at(budget.limit) <= 0.75 * (1 + 1e-12)


def test_the_strictest_account_for_a_cost_counts_rho_unless_it_is_asked_otherwise():
    assert accepts_for(Cost((LaplaceLoss(1.0),))) == "any"
    assert Budget.pure(1).pays_for(Cost((LaplaceLoss(1.0),)))
    assert not Budget.pure(1).pays_for(Cost((GaussianLoss(1.0),)))
    assert not Budget.pure(1).pays_for(Cost((ClaimedLaplaceLoss(1.0),)))
    assert Budget.pure(1, "unproven-pure").pays_for(Cost((ClaimedLaplaceLoss(1.0),)))


@given(st.integers(1, picorho.LARGEST))
def test_the_delta_of_a_longer_sum_keeps_the_sampler_s_error(amount):
    """As of blocks that are read together; no budget of pure epsilon is so large."""
    delta = sampling_error.pure_delta(Fraction(amount, 10**12))
    assert transcript_error(amount / 10**12) <= sampling_error.RESERVED_SHARE * delta
    budget = Budget(amount, "pure", delta)
    assert budget.posterior_belief_at(amount) >= budget.posterior_belief_at(amount // 2)
    if amount > 20 * 10**12:
        for smaller in (sampling_error.PURE_DELTA, delta / 2):
            with pytest.raises(ValueError, match="pure epsilon"):
                Budget(amount, "pure", smaller)
