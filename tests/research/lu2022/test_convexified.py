"""The convexified objective's bound against re-solved neighbours: no violation may be found."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from research.lu2022.convexified import (
    RegularisedLogMeanExp,
    convexified_sensitivity,
    gradient_bound,
    minimise,
)
from training.errors import DataError, NotConverged

TOLERANCE = 1e-7


def data(seed: int, n: int, dimension: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows on the unit sphere, half of them of one class and direction: a crowd that leaves outliers a large share."""
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(n, dimension))
    y = rng.integers(0, classes, size=n)
    crowd = rng.random(n) < rng.choice([0.0, 0.5, 0.9])
    phi[crowd], y[crowd] = phi[0], y[0]
    return phi / np.linalg.norm(phi, axis=1, keepdims=True), y


def outlier(phi: np.ndarray, y: np.ndarray, classes: int, seed: int) -> tuple[np.ndarray, int]:
    """A record made to hurt: along the crowd with another class, against it, or anywhere."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3)
    if kind == 2:
        direction = rng.normal(size=phi.shape[1])
        return direction / np.linalg.norm(direction), int(rng.integers(0, classes))
    return (phi[0] if kind == 0 else -phi[0]), int((y[0] + (kind == 0)) % classes)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(3, 30),
    st.integers(1, 5),
    st.integers(2, 5),
    st.floats(0.05, 8),
    st.floats(0.02, 5),
)
def test_neighbours_are_never_farther_apart_than_certified(
    seed: int, n: int, dimension: int, classes: int, alpha: float, lam: float
) -> None:
    phi, y = data(seed, n, dimension, classes)
    extra_phi, extra_y = outlier(phi, y, classes, seed)
    certified = convexified_sensitivity(alpha, lam, TOLERANCE, 1.0, classes, n)
    smaller = RegularisedLogMeanExp(phi, y, classes, alpha, lam)
    larger = RegularisedLogMeanExp(np.vstack([phi, extra_phi]), np.append(y, extra_y), classes, alpha, lam)
    V, V_with = (minimise(objective, TOLERANCE, n) for objective in (smaller, larger))
    assert np.linalg.norm(V - V_with) <= certified.weights
    slack = TOLERANCE / lam
    for objective, weights in ((smaller, V), (larger, V_with)):
        assert np.linalg.norm(weights) <= certified.largest_norm + slack
        losses, _ = objective.losses(weights)
        assert losses.min() >= 0
        assert losses.max() <= certified.largest_loss + math.sqrt(2) * slack
        shares = objective.terms(weights)[2]
        assert shares.max() <= certified.largest_share * (1 + 1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(1, 4), st.integers(2, 4), st.floats(0.1, 10))
def test_the_gradient_and_hessian_are_those_of_the_value(
    seed: int, n: int, dimension: int, classes: int, alpha: float
) -> None:
    phi, y = data(seed, n, dimension, classes)
    objective = RegularisedLogMeanExp(phi, y, classes, alpha, 0.3)
    rng = np.random.default_rng(seed)
    W, V = rng.normal(size=(2, classes, dimension))
    numeric = approx_fprime(W.ravel(), lambda w: objective.value(w.reshape(W.shape)), 1e-7)
    np.testing.assert_allclose(objective.gradient(W).ravel(), numeric, atol=2e-5)
    step = 1e-6
    along = (objective.gradient(W + step * V) - objective.gradient(W - step * V)) / (2 * step)
    np.testing.assert_allclose(objective.hessian_product(W)(V), along, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 10), st.floats(0.01, 5))
def test_the_objective_is_strongly_convex(seed: int, alpha: float, lam: float) -> None:
    phi, y = data(seed, 8, 3, 3)
    objective = RegularisedLogMeanExp(phi, y, 3, alpha, lam)
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(2, 3, 3)) * 3
    chord = np.vdot(objective.gradient(A) - objective.gradient(B), A - B)
    assert chord >= lam * np.vdot(A - B, A - B) * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 5), st.floats(0.1, 50))
def test_the_rounding_bound_covers_the_difference_to_extended_precision(
    seed: int, alpha: float, magnitude: float
) -> None:
    phi, y = data(seed, 20, 5, 4)
    W = np.random.default_rng(seed).normal(size=(4, 5)) * magnitude
    exact_phi, exact_W = phi.astype(np.longdouble), W.astype(np.longdouble)
    Z = exact_phi @ exact_W.T
    E = np.exp(Z - Z.max(axis=1, keepdims=True))
    losses = Z.max(axis=1) + np.log(E.sum(axis=1)) - Z[np.arange(20), y]
    shares = np.exp(alpha * (losses - losses.max()))
    residual = E / E.sum(axis=1, keepdims=True)
    residual[np.arange(20), y] -= 1
    exact = (residual * (shares / shares.sum())[:, None]).T @ exact_phi + np.longdouble(0.2) * exact_W
    objective = RegularisedLogMeanExp(phi, y, 4, alpha, 0.2)
    error = np.linalg.norm((objective.gradient(W) - exact).astype(np.float64))
    assert error <= objective.gradient_rounding(W)


@given(st.floats(1e-3, 50), st.floats(1e-4, 100), st.integers(2, 100), st.integers(2, 10**6))
def test_the_price_of_alpha_grows_with_it_and_vanishes_to_the_mean(
    alpha: float, lam: float, classes: int, least: int
) -> None:
    certified = convexified_sensitivity(alpha, lam, 1e-9, 1.0, classes, least)
    assert certified.mean_of_losses <= certified.weights * (1 + 1e-9)
    assert certified.sum_of_losses <= certified.mean_of_losses
    assert 1 / least * (1 - 1e-9) <= certified.largest_share <= 1
    assert certified.price >= 1
    more = convexified_sensitivity(2 * alpha, lam, 1e-9, 1.0, classes, least)
    assert more.weights >= certified.weights
    mild = convexified_sensitivity(1e-12, lam, 1e-9, 1.0, classes, least)
    assert mild.weights == pytest.approx(mild.mean_of_losses, rel=1e-6)


def test_a_huge_alpha_does_not_overflow() -> None:
    certified = convexified_sensitivity(1e6, 1e-6, 1e-9, 1.0, 10, 1000)
    assert certified.largest_share == 1
    assert math.isfinite(certified.weights)
    phi, y = data(1, 10, 3, 2)
    W = np.ones((2, 3)) * 1e3
    assert np.isfinite(RegularisedLogMeanExp(phi, y, 2, 1e4, 0.1).gradient(W)).all()


def test_too_few_records_and_an_unreachable_tolerance_train_nothing() -> None:
    phi, y = data(1, 10, 3, 2)
    objective = RegularisedLogMeanExp(phi, y, 2, 1.0, 0.1)
    with pytest.raises(DataError, match="at least 11 records"):
        minimise(objective, TOLERANCE, 11)
    with pytest.raises(NotConverged, match="could only be shown"):
        minimise(objective, 1e-17, 10)
    assert gradient_bound(objective, minimise(objective, 1e-9, 10)) <= 1e-9


def test_invalid_arguments_are_refused() -> None:
    for index, name in enumerate(("alpha", "lambda", "tolerance", "R")):
        arguments = [1.0, 1.0, 1.0, 1.0]
        for wrong in (0.0, -1.0, math.nan, math.inf):
            arguments[index] = wrong
            with pytest.raises(ValueError, match=f"{name} must be positive"):
                convexified_sensitivity(*arguments, 2, 10)
    with pytest.raises(ValueError, match="two classes"):
        convexified_sensitivity(1, 1, 1, 1, 1, 10)
    with pytest.raises(ValueError, match="at least 2"):
        convexified_sensitivity(1, 1, 1, 1, 2, 1)
