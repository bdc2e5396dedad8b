import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpserve.accounting import conversions
from dpserve.accounting.conversions import (
    gaussian_epsilon,
    gaussian_mu,
    mu_of_rho,
    rdp_epsilon,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from dpserve.accounting.domains import OutOfRange

from .curves import exact_gaussian_delta

REPRESENTABLE = mpmath.mpf(10) ** -300


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


rhos = log_uniform(1e-12, 1e6)
epsilons = log_uniform(1e-6, 1e3)
deltas = st.one_of(log_uniform(1e-300, 0.5), log_uniform(1e-6, 0.5).map(lambda gap: 1 - gap))


def zcdp_delta_to_many_digits(rho: float, epsilon: float) -> mpmath.mpf:
    """Canonne, Kamath and Steinke's bound at its best order, by bisection on a log scale."""
    with mpmath.workdps(60):
        r, e = mpmath.mpf(rho), mpmath.mpf(epsilon)
        low, high = mpmath.mpf(10) ** -400, 2 * max(mpmath.mpf(1), (e + 1) / (2 * r))
        while high / low > 1 + mpmath.mpf(10) ** -25:
            x = mpmath.sqrt(low * high)
            if r * (2 * x + 1) - e - mpmath.log1p(1 / x) > 0:
                high = x
            else:
                low = x
        return mpmath.exp(low * ((1 + low) * r - e) - low * mpmath.log1p(1 / low) - mpmath.log1p(low))


class TestGaussianCurve:
    @settings(deadline=None)
    @given(rho=rhos, delta=deltas)
    def test_epsilon_meets_delta_and_no_smaller_one_does(self, rho: float, delta: float) -> None:
        mu = math.sqrt(2 * rho)
        epsilon = gaussian_epsilon(mu, delta)

        assert exact_gaussian_delta(mu, epsilon) <= delta
        if epsilon > 0:
            assert exact_gaussian_delta(mu, epsilon * (1 - 1e-9)) > delta * (1 - 1e-9)

    @settings(deadline=None)
    @given(epsilon=epsilons, delta=deltas)
    def test_mu_meets_epsilon_and_delta_and_no_larger_one_does(self, epsilon: float, delta: float) -> None:
        mu = gaussian_mu(epsilon, delta)

        assert exact_gaussian_delta(mu, epsilon) <= delta
        assert exact_gaussian_delta(mu * (1 + 1e-9), epsilon) > delta * (1 - 1e-9)

    def test_nothing_spent_costs_nothing(self) -> None:
        assert gaussian_epsilon(0.0, 1e-6) == 0

    @pytest.mark.parametrize("mu", [5e-324, 1e-300, 1e-160, 1e-100, 1e6])
    @pytest.mark.parametrize("delta", [5e-324, 1e-300, 0.5, 1 - 2.0**-53])
    def test_extremes_neither_overflow_nor_fall_below_nothing(self, mu: float, delta: float) -> None:
        assert 0 <= gaussian_epsilon(mu, delta) < 1e13


class TestConcentratedCurve:
    @settings(max_examples=100, deadline=None)
    @given(rho=rhos, surprise=st.floats(0, 680))
    def test_delta_is_never_below_the_best_order_and_close(self, rho: float, surprise: float) -> None:
        epsilon = rho + 2 * math.sqrt(rho * surprise)
        reference = zcdp_delta_to_many_digits(rho, epsilon)
        assume(reference > REPRESENTABLE)

        excess = float(zcdp_delta(rho, epsilon) / reference - 1)

        assert -1e-20 <= excess <= 1e-9

    @given(rho=rhos, delta=deltas)
    def test_epsilon_and_delta_agree(self, rho: float, delta: float) -> None:
        epsilon = zcdp_epsilon(rho, delta)

        assert zcdp_delta(rho, epsilon) <= delta * (1 + 1e-9)
        if epsilon > 0:
            assert zcdp_delta(rho, epsilon) >= delta * (1 - 1e-9)

    @given(epsilon=epsilons, delta=deltas)
    def test_rho_meets_epsilon_and_no_larger_one_does(self, epsilon: float, delta: float) -> None:
        rho = zcdp_rho(epsilon, delta)

        assert zcdp_epsilon(rho, delta) <= epsilon
        assert zcdp_epsilon(rho * (1 + 1e-9), delta) > epsilon * (1 - 1e-9)

    @given(rho=log_uniform(1e-6, 10), delta=log_uniform(1e-30, 0.1))
    def test_renyi_divergences_of_a_zcdp_mechanism_give_no_less(self, rho: float, delta: float) -> None:
        orders = 1 + np.geomspace(1e-4, 1e6, 2001)
        epsilon, order = rdp_epsilon(orders, rho * orders, delta)

        assert epsilon >= zcdp_epsilon(rho, delta) * (1 - 1e-12)
        assert epsilon <= zcdp_epsilon(rho, delta) * 1.01 + 1e-9
        assert order in orders


@given(rho=rhos)
def test_mu_of_rho_is_never_below(rho: float) -> None:
    with mpmath.workdps(40):
        assert mpmath.mpf(mu_of_rho(rho)) ** 2 >= 2 * mpmath.mpf(rho)


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -1e-9, math.nan, math.inf])
def test_an_impossible_delta_is_refused_with_the_valid_range(delta: float) -> None:
    for convert in (gaussian_epsilon, gaussian_mu, zcdp_epsilon, zcdp_rho):
        with pytest.raises(OutOfRange, check=lambda error: error.name == "delta"):
            convert(1.0, delta)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, 1e13])
def test_impossible_amounts_are_refused_with_the_valid_range(value: float) -> None:
    for convert in (gaussian_epsilon, gaussian_mu, zcdp_epsilon, zcdp_rho):
        with pytest.raises(OutOfRange):
            convert(value, 0.5)
    with pytest.raises(ValueError, match="epsilon must lie between 0 and"):
        zcdp_delta(1.0, value)


def test_the_quadrature_rule_is_the_one_the_proof_speaks_of() -> None:
    assert [len(each) for each in conversions._nodes_and_weights()] == [8, 8]
    assert conversions._SMALL_MU <= 0.5
