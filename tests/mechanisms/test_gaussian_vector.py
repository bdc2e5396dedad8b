import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest, norm

from dpserve.accounting.budgets import Budget
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.accounting.sampling_error import LARGEST_RELEASE_RHO, LEAST_RELEASE_RHO
from dpserve.mechanisms import grid
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for, whole_picorho

from .conftest import Seeded

mus = st.floats(math.sqrt(2 * LEAST_RELEASE_RHO) * 1.01, math.sqrt(2 * LARGEST_RELEASE_RHO) * 0.99)


# A larger vector is refused at the least of these.
@given(mu=mus, size=st.integers(1, 2**19), sensitivity=st.floats(1e-12, 1e12), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_neighbours_on_the_grid_are_never_further_apart_than_was_paid_for(
    mu: float, size: int, sensitivity: float, seed: int
) -> None:
    """Worst cases of rounding are sought: values half a step from the grid, and a shift that rounds outwards."""
    vector = GaussianVector(mu, size, sensitivity)
    scale = grid.gaussian_noise(mu, size)[0]
    step = vector.step
    rng = np.random.default_rng(seed)
    some = min(size, 2000)
    values = (rng.integers(-1000, 1000, some) + 0.5 * rng.choice([-1, 1], some)) * step
    direction = rng.normal(size=some) if seed % 2 else np.ones(some)
    moved = values + direction * (sensitivity * (1 - 2.0**-40) / np.linalg.norm(direction))
    steps = np.full(some, step)
    apart = np.linalg.norm((grid.on_grid(values, steps) - grid.on_grid(moved, steps)).astype(float))

    # The rest of the coordinates, left out here, may each round apart by as much as the proof allows.
    allowed = sensitivity / step + float(grid.ROUNDING) * math.sqrt(size)
    assert allowed <= scale * mu * (1 + 1e-12)
    assert apart <= sensitivity / step + float(grid.ROUNDING) * math.sqrt(some) + 1e-9
    assert vector.standard_deviation >= sensitivity / mu


def test_the_noise_is_gaussian_of_the_stated_size() -> None:
    """False alarm rate 1e-7 for each statement."""
    size = 20_000
    vector = GaussianVector(0.3, size, 2.0)
    values = np.random.default_rng(0).normal(size=size).reshape(4, -1)
    noise = (vector.release(values, Seeded(1)) - values).ravel()
    sigma = vector.standard_deviation

    assert kstest(noise / sigma, norm.cdf).pvalue > 1e-7
    low, high = chi2.ppf([5e-8, 1 - 5e-8], size)
    assert low * sigma**2 <= float(noise @ noise) <= high * sigma**2
    assert abs(float(noise[:-1] @ noise[1:])) < 5.33 * sigma**2 * math.sqrt(size)


def test_every_value_is_a_whole_number_of_steps_and_parts_are_drawn_in_order() -> None:
    size = 2**18 + 5
    vector = GaussianVector(1.0, size, 1.0)
    released = vector.release(np.zeros(size), Seeded(3))

    np.testing.assert_array_equal(released, np.rint(released / vector.step) * vector.step)
    assert len(np.unique(released[:100])) > 90


def test_however_small_the_sensitivity_no_ordinary_value_is_clipped() -> None:
    values = np.array([1024.0, -1024.0])

    released = GaussianVector(1.0, 2, 1e-30).release(values, Seeded(4))

    np.testing.assert_allclose(released, values, atol=1e-3)


def test_two_calls_never_share_noise() -> None:
    vector = GaussianVector(1.0, 50, 1.0)
    randomness = Seeded(5)

    assert not np.array_equal(vector.release(np.zeros(50), randomness), vector.release(np.zeros(50), randomness))


@given(rho=st.decimals("0.00041", "4", places=7))
def test_a_price_in_whole_picorho_is_never_exceeded(rho) -> None:
    whole = whole_picorho(f"rho:{rho}")
    mu = mu_for(whole)

    assert Cost((GaussianLoss(mu),)).picorho <= whole
    assert Fraction(math.nextafter(mu, math.inf)) ** 2 / 2 * 10**12 > whole


@given(epsilon=st.sampled_from([0.5, 1, 2, 4, 8]), delta=st.sampled_from([1e-5, 1e-6]))
def test_an_epsilon_and_a_delta_are_the_whole_of_a_budget_opened_with_them(epsilon: float, delta: float) -> None:
    whole = whole_picorho(f"epsilon:{epsilon}@{delta}")

    assert whole == Budget.from_epsilon_delta(epsilon, delta, "gaussian").limit
    assert whole - 1 <= Cost((GaussianLoss(mu_for(whole)),)).picorho <= whole


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianVector(0.0, 10, 1.0), "mu must be positive"),
        (lambda: GaussianVector(1e-3, 10, 1.0), "pay-once model must lie between"),
        (lambda: GaussianVector(9.0, 10, 1.0), "pay-once model must lie between"),
        (lambda: GaussianVector(1.0, 0, 1.0), "between 1 and 16777216 values"),
        (lambda: GaussianVector(1.0, 2**24 + 1, 1.0), "between 1 and 16777216 values"),
        (lambda: GaussianVector(0.05, 2**24, 1.0), "so much noise cannot be drawn exactly"),
        (lambda: GaussianVector(1.0, 10, 0.0), "the sensitivity must be positive"),
        (lambda: GaussianVector(1.0, 3, 1.0).release(np.zeros(4), Seeded(0)), "there must be 3 values"),
        (lambda: GaussianVector(1.0, 1, 1.0).release(np.array([np.nan]), Seeded(0)), "must be finite"),
        (lambda: whole_picorho("epsilon:1"), "no pure epsilon"),
        (lambda: whole_picorho("rho:0.0001"), "pay-once model must lie between"),
    ],
)
def test_invalid_arguments_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
