"""That networks' sums are exact at the largest weights they may have, and close to the ones that were trained."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit

from dpserve.training.exact.network import STEP, are_exact, exact_layers, logits, rounded


def layers_of(generator, widths, scale):
    shapes = pairwise(widths)
    return tuple((generator.normal(size=shape) * scale, generator.normal(size=shape[1]) * scale) for shape in shapes)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 1e3, 1e300])
def test_every_layers_sums_are_exact(activation, scale):
    generator = np.random.default_rng(0)
    layers = exact_layers(layers_of(generator, (40, 33, 5), scale))
    assert are_exact(layers)
    inputs = rounded(generator.uniform(-1, 1, (6, 40)))
    for weights, biases in layers:
        assert (np.abs(weights).sum(axis=0) + np.abs(biases) <= 2.0**17).all()
    hidden = inputs
    exact = [
        [
            sum((Fraction(h) * Fraction(w) for h, w in zip(row, column, strict=True)), Fraction(b))
            for column, b in zip(layers[0][0].T.tolist(), layers[0][1].tolist(), strict=True)
        ]
        for row in hidden.tolist()
    ]
    first = logits(layers[:1], inputs, activation)
    assert [[Fraction(value) for value in row] for row in first.tolist()] == exact
    together = logits(layers, inputs, activation)
    for row, found in zip(inputs, together, strict=True):
        np.testing.assert_array_equal(logits(layers, row[None], activation)[0], found)


@pytest.mark.parametrize(("activation", "function"), [("tanh", np.tanh), ("sigmoid", expit)])
def test_answers_are_those_of_the_trained_network_nearly(activation, function):
    generator = np.random.default_rng(1)
    layers = layers_of(generator, (20, 128, 4), 0.3)
    inputs = generator.uniform(0, 1, (50, 20))
    expected = function(inputs @ layers[0][0] + layers[0][1]) @ layers[1][0] + layers[1][1]
    found = logits(exact_layers(layers), rounded(inputs), activation)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_network_that_diverged_becomes_some_network():
    broken = ((np.array([[np.nan, np.inf], [-np.inf, 1e308]]), np.array([np.nan, 1.0])),)
    layers = exact_layers(broken)
    assert are_exact(layers)
    assert np.isfinite(logits(layers, np.ones((1, 2)), "tanh")).all()


def test_layers_off_their_steps_or_beyond_their_bounds_are_found():
    layers = exact_layers(layers_of(np.random.default_rng(2), (3, 2), 1.0))
    ((weights, biases),) = layers
    assert not are_exact(((weights + STEP / 2, biases),))
    assert not are_exact(((weights + 2.0**17, biases),))
