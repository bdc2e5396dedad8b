"""The price of objective perturbation, attacked with densities that are computed exactly.

For D = 1 the law of the released W is known in closed form, up to a sum over the records: W is released with density
N(-(grad L(W) + Lambda W); sigma^2) det(Hessian). Its hockey-stick divergences are integrated over a grid, and the
gradient of its log-ratio is compared with the bound that the proof rests on.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from accounting.losses import LARGEST_COIN
from mechanisms.elementary import softmax
from training.kinds.objective import bound as objective_bound
from training.kinds.objective.bound import perturbation_bound


def basis(classes: int):
    """Orthonormal columns orthogonal to (1, ..., 1), (C, C - 1): along the ones neighbours' laws are the same."""
    return np.linalg.svd(np.ones((1, classes)))[2][1:].T


def log_density(points, phi, y, classes, sigma, strong_convexity):
    """ln of the density of W (D = 1) at points (m, C - 1) in `basis`: the noise's density times the Jacobian's."""
    Q = basis(classes)
    W = points @ Q.T
    gradient = strong_convexity * W
    hessian = np.broadcast_to(strong_convexity * np.eye(classes), (len(W), classes, classes)).copy()
    for feature, label in zip(phi, y, strict=True):
        p = softmax(W * feature)
        gradient += (p - np.eye(classes)[label]) * feature
        hessian += (np.einsum("ij,jk->ijk", p, np.eye(classes)) - np.einsum("ij,ik->ijk", p, p)) * feature**2
    within = Q.T @ hessian @ Q
    squares = np.square(gradient @ Q).sum(axis=1)
    constant = (classes - 1) * math.log(math.sqrt(2 * math.pi) * sigma)
    return -squares / (2 * sigma**2) - constant + np.linalg.slogdet(within)[1]


def grid_of(sigma, strong_convexity, records, classes, points):
    """A grid of W that holds all but 1e-12 of either law, and the volume of a cell."""
    reach = (7.5 * sigma + records + 2) / strong_convexity
    axis = np.linspace(-reach, reach, points)
    mesh = np.stack(np.meshgrid(*[axis] * (classes - 1), indexing="ij"), axis=-1).reshape(-1, classes - 1)
    return mesh, (axis[1] - axis[0]) ** (classes - 1)


def delta_gaussian(epsilon, mu):
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


DATA = {
    "none": ([], []),
    "one like it": ([1.0], [0]),
    "one against it": ([1.0], [1]),
    "many": ([1.0] * 6, [1] * 6),
    "balanced": ([1.0, 1.0, 0.3], [1, -1, 0]),
    "pushed to an edge": ([0.7] * 5, [-1, 1, -1, 1, -1]),
}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("sigma", "ratio"), [(1.0, 2.0), (1.0, 6.0), (3.0, 1.5), (3.0, 20.0), (0.8, 8.0)])
def test_no_exact_profile_exceeds_the_bound(classes, data, sigma, ratio, monkeypatch):
    monkeypatch.setattr(objective_bound, "_LARGEST_MU", 50.0)
    strong_convexity = ratio * sigma
    phi, labels = DATA[data]
    y = [label % classes for label in labels]
    mesh, cell = grid_of(sigma, strong_convexity, len(phi), classes, 6001 if classes == 2 else 241)
    one = np.exp(log_density(mesh, phi, y, classes, sigma, strong_convexity)) * cell
    two = np.exp(log_density(mesh, [*phi, 1.0], [*y, 0], classes, sigma, strong_convexity)) * cell
    assert abs(one.sum() - 1) < 1e-6
    assert abs(two.sum() - 1) < 1e-6
    loss = perturbation_bound(sigma, strong_convexity, 1.0, classes).loss
    for epsilon in (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 3.0):
        bound = loss.delta + (1 - loss.delta) * delta_gaussian(epsilon, loss.mu)
        for first, second in ((one, two), (two, one)):
            exact = np.maximum(first - math.exp(epsilon) * second, 0).sum()
            assert exact <= bound + 1e-6


def test_the_bound_is_nearly_reached():
    """So that the test above could fail: where K = 1, a mu that is a sixth less is exceeded."""
    sigma, strong_convexity = 1.0, 40.0
    bound = perturbation_bound(sigma, strong_convexity, 1.0, 2)
    assert bound.factor == pytest.approx(1)
    data = [1.0] * 400, [1] * 400
    mesh, cell = grid_of(sigma, strong_convexity, len(data[0]), 2, 8001)
    one = np.exp(log_density(mesh, *data, 2, sigma, strong_convexity)) * cell
    two = np.exp(log_density(mesh, [*data[0], 1.0], [*data[1], 0], 2, sigma, strong_convexity)) * cell
    exact = np.maximum(one - math.exp(0.5) * two, 0).sum()
    assert exact > delta_gaussian(0.5, 5 / 6 * bound.loss.mu)


def log_ratio(u, phi, y, record, label, classes, sigma, strong_convexity, start):
    """ln F(u) and W, for any D: W solved from u = -(grad L + Lambda W) by Newton's method."""
    shape = u.shape
    W = start.copy()

    def hessian_of(rows, at):
        total = np.zeros((u.size, u.size))
        for row in rows:
            p = softmax((at @ row)[None])[0]
            total += np.kron(np.diag(p) - np.outer(p, p), np.outer(row, row))
        return total

    for _ in range(50):
        residual = u + strong_convexity * W
        for row, c in zip(phi, y, strict=True):
            residual = residual + np.outer(softmax((W @ row)[None])[0] - np.eye(classes)[c], row)
        H = hessian_of(phi, W) + strong_convexity * np.eye(u.size)
        if np.linalg.norm(residual) < 1e-12:
            break
        W = W - np.linalg.solve(H, residual.ravel()).reshape(shape)
    g = np.outer(softmax((W @ record)[None])[0] - np.eye(classes)[label], record)
    h = hessian_of([record], W)
    shift = (np.sum(u**2) - np.sum((u - g) ** 2)) / (2 * sigma**2)
    return shift + np.linalg.slogdet(np.eye(u.size) + np.linalg.solve(H, h))[1], W


@settings(max_examples=120, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(2, 5),
    dimension=st.integers(1, 3),
    n=st.integers(0, 4),
    sigma=st.sampled_from([0.5, 2.0, 8.0]),
    ratio=st.sampled_from([0.3, 1.0, 4.0, 15.0]),
    noise=st.sampled_from(["drawn", "wide", "at the edge"]),
)
def test_the_log_ratio_is_as_steep_as_proved(seed, classes, dimension, n, sigma, ratio, noise):
    generator = np.random.default_rng(seed)
    phi = generator.standard_normal((n + 1, dimension))
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    y = generator.integers(classes, size=n + 1)
    record, label = phi[-1], y[-1]
    strong_convexity = ratio * sigma
    oscillation = objective_bound.oscillation_bound(sigma, strong_convexity, 1.0, classes)
    spread = (oscillation + 2) / strong_convexity
    factor = objective_bound.growth_factor(spread, 4 * (sigma / strong_convexity) ** 2, classes)
    u = generator.standard_normal((classes, dimension)) * sigma * (3 if noise == "wide" else 1)
    z = u @ record
    if noise == "at the edge":
        # Two classes as far apart as they may be, the others between: where the proof's bound is largest.
        wanted = generator.permutation(np.r_[0.0, oscillation, generator.uniform(0, oscillation, classes - 2)])
        u = u + np.outer(wanted - z, record)
    elif np.ptp(z) > oscillation:
        return
    W = np.zeros_like(u)
    arguments = (phi[:-1], y[:-1], record, label, classes, sigma, strong_convexity)
    _, W = log_ratio(u, *arguments, W)
    gradient = np.zeros(u.size)
    step = 1e-5 * sigma
    for index in range(u.size):
        moved = np.zeros(u.size)
        moved[index] = step
        up = log_ratio(u + moved.reshape(u.shape), *arguments, W)[0]
        down = log_ratio(u - moved.reshape(u.shape), *arguments, W)[0]
        gradient[index] = (up - down) / (2 * step)
    assert sigma**2 * np.linalg.norm(gradient) <= math.sqrt(2) * factor * (1 + 1e-5) + 1e-6


def test_the_factor_is_one_where_lambda_is_large_and_grows_as_it_shrinks():
    factors = [perturbation_bound(5.0, strong_convexity, 1.0, 10).factor for strong_convexity in (500, 40, 20)]
    assert factors[0] == pytest.approx(1)
    assert factors == sorted(factors)
    assert perturbation_bound(5.0, 500, 1.0, 10).loss.delta == LARGEST_COIN
    assert perturbation_bound(5.0, 500, 1.0, 10).loss.mu == pytest.approx(math.sqrt(2) / 5)


def test_the_factor_is_the_maximum_that_the_proof_names():
    """Against a fine grid over v, for many slopes."""
    v = np.linspace(0, 0.5, 20001)
    s = np.linspace(0, 1, 20001)
    for spread in (0.0, 0.3, 0.5, 0.55, 0.7, 1.5, 4.0):
        for curvature in (0.0, 0.01, 0.2, 0.7, 3.0):
            largest = (np.sqrt(1 - v) + spread * np.minimum(v, 0.25) + curvature * v).max()
            assert objective_bound.growth_factor(spread, curvature, 3) == pytest.approx(largest, rel=1e-6)
            largest = (s + (spread + curvature) * s * (1 - s)).max()
            assert objective_bound.growth_factor(spread, curvature, 2) == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize(
    "numbers", [(0.0, 1.0, 1.0, 3), (1.0, math.inf, 1.0, 3), (1.0, 1.0, -1.0, 3), (5.0, 50.0, 1, 1)]
)
def test_what_means_nothing_is_refused(numbers):
    with pytest.raises(ValueError, match=r"must be positive|at least two classes"):
        perturbation_bound(*numbers)


def test_too_little_noise_is_refused():
    with pytest.raises(ValueError, match=r"above the largest that is proved|too little noise"):
        perturbation_bound(0.1, 50.0, 1.0, 10)
