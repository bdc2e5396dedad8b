"""Released models answer many rows at once, and each as if it were alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.mechanisms.elementary import softmax
from dpserve.training.features.maps import Fourier, Identity
from dpserve.training.pay_once.model import CentredProducts, rounded

MAPS = [
    Identity(lower=(0.0,) * 30, upper=(1.0,) * 30, clip_norm=1.0, bias=0.1),
    Fourier(lower=(0.0,) * 30, upper=(1.0,) * 30, clip_norm=2.0, bias=0.1, random_features=500, bandwidth=0.7, seed=3),
]


def questions(feature_map, rows=70):
    X = np.random.default_rng(5).uniform(0, 1, (rows, 30))
    X[3] = 0.0
    return feature_map(X, feature_map.public_tensors())


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e9])
def test_products_are_the_exact_ones_and_round_the_matrix_by_little(feature_map, scale):
    phi = questions(feature_map)
    matrix = scale * np.random.default_rng(1).standard_normal((7, phi.shape[1])) * 10.0 ** np.arange(-3, 4)[:, None]
    on_steps = rounded(matrix)
    found = phi @ on_steps.T
    # Whole numbers of Python have no rounding at all.
    units = 2.0**24
    for row in (0, 3, 41):
        whole = [int(each) for each in phi[row] * units]
        for column in (2, 6):
            step = np.abs(on_steps[column][on_steps[column] != 0]).min()
            exponent = np.frexp(step)[1] - 60
            exact = sum(a * int(np.ldexp(b, -exponent)) for a, b in zip(whole, on_steps[column], strict=True))
            assert found[row, column] * units == np.ldexp(float(exact), exponent)
            assert float(exact) == exact
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    assert (np.abs(on_steps - matrix) <= 2.0**-28 * lengths).all()


@pytest.mark.parametrize("feature_map", MAPS)
def test_a_row_has_the_same_bits_whatever_is_beside_it(feature_map):
    phi = questions(feature_map)
    generator = np.random.default_rng(2)
    matrix, mean = generator.standard_normal((5, phi.shape[1])), 0.01 * generator.standard_normal(phi.shape[1])
    on_steps = rounded(matrix)
    around = CentredProducts.mean(mean, on_steps)
    for answer in (lambda rows: softmax(rows @ on_steps.T), lambda rows: softmax(around.products(rows))):
        together = answer(phi)
        for rows in (1, 2, 3, 17, 64):
            apart = np.concatenate([answer(phi[start : start + rows]) for start in range(0, len(phi), rows)])
            assert apart.tobytes() == together.tobytes()
        assert answer(phi[::-1])[::-1].tobytes() == together.tobytes()
        columns = generator.permutation(phi.shape[1])
        assert (phi[:, columns] @ on_steps[:, columns].T).tobytes() == (phi @ on_steps.T).tobytes()


def test_products_around_a_mean_are_those_of_the_directions():
    phi = questions(MAPS[0])
    generator = np.random.default_rng(2)
    matrix, mean = generator.standard_normal((5, phi.shape[1])), 0.1 * generator.standard_normal(phi.shape[1])
    around = CentredProducts.mean(mean, rounded(matrix))
    u = phi / np.linalg.norm(phi, axis=1, keepdims=True)
    v = (u - mean) / np.linalg.norm(u - mean, axis=1, keepdims=True)
    np.testing.assert_allclose(around.products(phi), v @ rounded(matrix).T, atol=1e-12)


def test_a_row_on_the_mean_and_one_without_a_direction_have_products():
    phi = np.zeros((2, 3))
    phi[0, 1] = 0.5
    mean, matrix = np.array([0.0, 1.0, 0.0]), np.eye(3)
    np.testing.assert_allclose(CentredProducts.mean(mean, matrix).products(phi), [[0, 0, 0], [0, -1, 0]], atol=1e-11)


def test_no_probability_is_0_and_each_row_adds_up_to_1():
    shares = softmax(np.array([[0.0, -600.0, 3.0], [1e6, 0.0, -1e6]]))
    assert (shares > 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


@given(seed=st.integers(0, 2**32), m=st.integers(1, 12), d=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_products_have_the_same_bits_in_another_layout_of_memory(seed, m, d):
    """As where a bundle's tensors lie otherwise in another process."""
    generator = np.random.default_rng(seed)
    matrix, mean = generator.normal(size=(m, d)), generator.normal(size=d) / d
    phi = np.rint(generator.normal(size=(5, d)) / (4 * np.sqrt(d)) * 2**24) / 2**24
    shifted = np.empty(d + 1)[1:]
    shifted[:] = mean
    one = CentredProducts.mean(mean, rounded(matrix)).products(phi)
    other = CentredProducts.mean(shifted, rounded(np.asfortranarray(matrix))).products(phi)
    np.testing.assert_array_equal(one, other)
