"""The convexified objective, and its bound against re-solved neighbours: no violation may be found."""

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from dpserve.training.errors import NotConverged
from dpserve.training.fitting.log_mean_exp import RegularisedLogMeanExp
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.sensitivity import (
    LARGEST_ALPHA,
    ConvexifiedSensitivity,
    Convexity,
    convexified_sensitivity,
    weight_sensitivity,
)
from dpserve.training.fitting.solver import gradient_bound, minimise
from dpserve.training.inputs.sums import LocalSums, Shard

TOLERANCE = 1e-6
ALPHAS = (1e-3, 0.03, 0.3, 1.0, 3.0, 10.0)
PAIRS = 240


def data(seed: int, n: int, dimension: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows on the unit sphere, some of one class and direction: a crowd that leaves outliers a large share."""
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(n, dimension))
    y = rng.integers(0, classes, size=n)
    crowd = rng.random(n) < rng.choice([0.0, 0.5, 1.0])
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


def share_of_last(objective: RegularisedLogMeanExp, phi: np.ndarray, y: np.ndarray, W: np.ndarray) -> float:
    """The share of the last record in the gradient at W, where it is added to the others."""
    Z = phi @ W.T
    losses = np.log(np.exp(Z).sum(axis=1)) - Z[np.arange(len(y)), y]
    shares = np.exp(objective.convexity.alpha * (losses - losses.max()))
    return float(shares[-1] / shares.sum())


@cache
def pairs() -> list[tuple[float, ConvexifiedSensitivity, float, float, float, float]]:
    """For each pair: how far apart its weights are, what is certified, that without alpha, and what else is bounded.

    The smaller set has n_min - 1 records for half of the pairs, whose larger one is at the least that trains.
    """
    found = []
    for seed in range(PAIRS):
        rng = np.random.default_rng(seed)
        n, dimension, classes = int(rng.integers(2, 30)), int(rng.integers(1, 6)), int(rng.integers(2, 6))
        alpha = ALPHAS[seed % len(ALPHAS)]
        phi, y = data(seed, n, dimension, classes)
        extra_phi, extra_y = outlier(phi, y, classes, seed)
        least = max(2, n + seed % 2)
        convexity, strength = Convexity(alpha, least), float(10 ** rng.uniform(-2, 0.7)) * least
        larger = np.vstack([phi, extra_phi]), np.append(y, extra_y)
        objectives = [
            RegularisedLogMeanExp.from_rows(*each, classes, strength, convexity) for each in ((phi, y), larger)
        ]
        V, V_with = (minimise(objective, TOLERANCE) for objective in objectives)
        certified = convexified_sensitivity(convexity, strength, TOLERANCE, 1.0, classes)
        plain = weight_sensitivity(strength, TOLERANCE, 1.0)
        share = share_of_last(objectives[1], *larger, V)
        norm = max(float(np.linalg.norm(each)) for each in (V, V_with))
        found.append((float(np.linalg.norm(V - V_with)), certified, plain, share, norm, TOLERANCE / strength))
    return found


def test_neighbours_are_never_farther_apart_than_certified() -> None:
    assert len(pairs()) >= 200
    for apart, certified, _, share, norm, slack in pairs():
        assert apart <= certified.weights
        assert norm <= certified.largest_norm + slack
        assert share <= certified.largest_share * (1 + 1e-3)


def test_a_bound_that_leaves_alpha_out_is_found_out() -> None:
    """The bounds are those of a record's share 1/n_min, and of the plain sum."""
    evenly = [
        apart / (certified.weights / certified.largest_share / least)
        for (apart, certified, *_), least in zip(pairs(), map(_least, range(PAIRS)), strict=True)
    ]
    assert max(evenly) > 1.2
    assert max(apart / plain for apart, _, plain, *_ in pairs()) > 1.2


def _least(seed: int) -> int:
    return max(2, int(np.random.default_rng(seed).integers(2, 30)) + seed % 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(1, 4), st.integers(2, 4), st.floats(0.1, 10))
def test_the_gradient_and_hessian_are_those_of_the_value(
    seed: int, n: int, dimension: int, classes: int, alpha: float
) -> None:
    phi, y = data(seed, n, dimension, classes)
    objective = RegularisedLogMeanExp.from_rows(phi, y, classes, 0.3, Convexity(alpha, 2))
    rng = np.random.default_rng(seed)
    W, V = rng.normal(size=(2, classes, dimension))
    numeric = approx_fprime(W.ravel(), lambda w: objective.value(w.reshape(W.shape)), 1e-7)
    np.testing.assert_allclose(objective.gradient(W).ravel(), numeric, atol=4e-5)
    step = 1e-6
    along = (objective.gradient(W + step * V) - objective.gradient(W - step * V)) / (2 * step)
    np.testing.assert_allclose(objective.hessian_vector_product(W, V), along, atol=4e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 10), st.floats(0.01, 5))
def test_the_objective_is_strongly_convex(seed: int, alpha: float, strength: float) -> None:
    phi, y = data(seed, 8, 3, 3)
    objective = RegularisedLogMeanExp.from_rows(phi, y, 3, strength, Convexity(alpha, 8))
    A, B = np.random.default_rng(seed).normal(size=(2, 3, 3)) * 3
    chord = np.vdot(objective.gradient(A) - objective.gradient(B), A - B)
    assert chord >= strength * np.vdot(A - B, A - B) * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 5), st.floats(0.1, 50))
def test_the_rounding_bound_covers_the_difference_to_extended_precision(
    seed: int, alpha: float, magnitude: float
) -> None:
    n, least, strength = 2500, 900, 180.0
    phi, y = data(seed, n, 5, 4)
    W = np.random.default_rng(seed).normal(size=(4, 5)) * magnitude
    exact_phi, exact_W = phi.astype(np.longdouble), W.astype(np.longdouble)
    Z = exact_phi @ exact_W.T
    E = np.exp(Z - Z.max(axis=1, keepdims=True))
    losses = Z.max(axis=1) + np.log(E.sum(axis=1)) - Z[np.arange(n), y]
    shares = np.exp(np.longdouble(alpha) * (losses - losses.max()))
    residual = E / E.sum(axis=1, keepdims=True)
    residual[np.arange(n), y] -= 1
    exact = least * ((residual * (shares / shares.sum())[:, None]).T @ exact_phi) + strength * exact_W
    objective = RegularisedLogMeanExp.from_rows(phi, y, 4, strength, Convexity(alpha, least))
    error = np.linalg.norm((objective.gradient(W) - exact).astype(np.float64))
    assert error <= objective.gradient_rounding(W) < 1e-6


def test_shards_add_up_whatever_they_hold() -> None:
    """Empty ones too, and ones whose losses are far apart."""
    phi, y = data(3, 3000, 4, 3)
    rng = np.random.default_rng(3)
    W, V = rng.normal(size=(2, 3, 4)) * 30
    whole = RegularisedLogMeanExp.from_rows(phi, y, 3, 2.0, Convexity(5.0, 100))
    cuts = (0, 0, 7, 1500, 3000, 3000)
    sums = LocalSums([Shard(phi[a:b], y[a:b]) for a, b in pairwise(cuts)])
    parts = RegularisedLogMeanExp(sums, 3, 4, 2.0, Convexity(5.0, 100))
    assert parts.value(W) == pytest.approx(whole.value(W), rel=1e-13)
    np.testing.assert_allclose(parts.gradient(W), whole.gradient(W), rtol=1e-11)
    np.testing.assert_allclose(
        parts.hessian_vector_product(W, V), whole.hessian_vector_product(W, V), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("alpha", [1e-4, 0.1, 1.0, 10.0, 100.0])
def test_the_kept_optimiser_reaches_the_tolerance(alpha: float) -> None:
    phi, y = data(11, 1500, 8, 4)
    objective = RegularisedLogMeanExp.from_rows(phi, y, 4, 3.0, Convexity(alpha, 1000))
    assert gradient_bound(objective, minimise(objective, 1e-3)) <= 1e-3


def test_a_small_alpha_trains_the_plain_sum() -> None:
    phi, y = data(5, 400, 6, 3)
    plain = minimise(RegularisedCrossEntropy.from_rows(phi, y, 3, 4.0), 1e-6)
    convexified = minimise(RegularisedLogMeanExp.from_rows(phi, y, 3, 4.0, Convexity(1e-6, 400)), 1e-6)
    np.testing.assert_allclose(convexified, plain, atol=1e-4)


@given(st.floats(1e-3, 50), st.floats(1e-3, 1e5), st.integers(2, 100), st.integers(2, 10**6))
def test_the_bound_grows_with_alpha_and_never_exceeds_that_of_opposite_gradients(
    alpha: float, strength: float, classes: int, least: int
) -> None:
    found, more = (
        convexified_sensitivity(Convexity(each, least), strength, 1e-3, 1.0, classes) for each in (alpha, 2 * alpha)
    )
    rho, share, lam = math.sqrt(2), found.largest_share, strength / least
    assert found.weights <= ((2 * rho * share + 2 * 1e-3 / least) / lam + 1e-9) * (1 + 1e-9)
    assert 1 / least <= share <= 1
    assert found.weights <= more.weights
    assert found.weights >= weight_sensitivity(strength, 1e-3, 1.0)


def test_a_huge_alpha_does_not_overflow() -> None:
    certified = convexified_sensitivity(Convexity(LARGEST_ALPHA, 1000), 1e-6, 1e-9, 1.0, 10)
    assert certified.largest_share == 1
    assert math.isfinite(certified.weights)
    phi, y = data(1, 10, 3, 2)
    objective = RegularisedLogMeanExp.from_rows(phi, y, 2, 0.1, Convexity(LARGEST_ALPHA, 2))
    assert np.isfinite(objective.gradient(np.ones((2, 3)) * 1e3)).all()
    with pytest.raises(NotConverged):
        minimise(objective, 1e-12)


@pytest.mark.parametrize(("alpha", "least"), [(0.0, 10), (-1.0, 10), (math.nan, 10), (math.inf, 10), (1.0, 1)])
def test_choices_without_a_bound_are_refused(alpha: float, least: int) -> None:
    with pytest.raises(ValueError, match="must"):
        Convexity(alpha, least)
