import mpmath
import numpy as np
import pytest
from scipy.optimize import approx_fprime, check_grad

from dpserve.training.fitting.objective import RegularisedCrossEntropy


@pytest.fixture
def objective():
    generator = np.random.default_rng(3)
    phi = generator.standard_normal((50, 5))
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    return RegularisedCrossEntropy.from_rows(phi, generator.integers(3, size=50), 3, 0.7)


def test_the_gradient_is_the_values(objective):
    w = np.random.default_rng(4).standard_normal(15)

    def value(w):
        return objective.value(w.reshape(3, 5))

    assert check_grad(value, lambda w: objective.gradient(w.reshape(3, 5)).ravel(), w) < 1e-5


def test_the_hessian_is_the_gradients(objective):
    generator = np.random.default_rng(4)
    w, v = generator.standard_normal((2, 3, 5))
    numeric = approx_fprime(w.ravel(), lambda w: objective.gradient(w.reshape(3, 5)).ravel(), 1e-7) @ v.ravel()
    exact = objective.hessian_vector_product(w, v).ravel()
    np.testing.assert_allclose(exact, numeric, atol=1e-5)


def test_it_is_strongly_convex(objective):
    generator = np.random.default_rng(6)
    for _ in range(100):
        w, v = generator.standard_normal((2, 3, 5)) * generator.choice([0.1, 1, 30])
        slope = np.vdot(objective.gradient(w) - objective.gradient(v), w - v)
        assert slope >= 0.7 * np.vdot(w - v, w - v) * (1 - 1e-9)


@pytest.mark.parametrize("scale", [0.1, 10.0, 1000.0])
def test_the_gradient_is_rounded_by_less_than_is_said(scale):
    generator = np.random.default_rng(8)
    n, D, C = 1500, 12, 4
    phi = generator.standard_normal((n, D))
    phi /= np.linalg.norm(phi, axis=1, keepdims=True) * (1 + 1e-12)
    y = generator.integers(C, size=n)
    W = generator.standard_normal((C, D))
    W *= scale / np.linalg.norm(W)
    objective = RegularisedCrossEntropy.from_rows(phi, y, C, 0.3)
    with mpmath.workdps(40):
        total = [[mpmath.mpf(0.3) * mpmath.mpf(w) for w in row] for row in W]
        for row, label in zip(phi, y, strict=True):
            z = [mpmath.fdot(map(mpmath.mpf, w), map(mpmath.mpf, row)) for w in W]
            highest = max(z)
            e = [mpmath.exp(t - highest) for t in z]
            for c in range(C):
                residual = e[c] / sum(e) - (1 if c == label else 0)
                for d in range(D):
                    total[c][d] += residual * mpmath.mpf(row[d])
        computed = objective.gradient(W)
        off = mpmath.sqrt(sum((mpmath.mpf(computed[c, d]) - total[c][d]) ** 2 for c in range(C) for d in range(D)))
    assert float(off) <= objective.gradient_rounding(W)
