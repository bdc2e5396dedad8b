"""A fully connected network that gives the same bits everywhere: how published networks answer.

Weights and activations are whole multiples of public steps, and so small that no sum is rounded. Between two layers
the activations are computed from additions, multiplications and divisions alone (`dpserve.mechanisms.elementary`).
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms import elementary
from dpserve.training.devices import Arithmetic, Matrix, product

Layers = tuple[tuple[Floats, Floats], ...]
"""Weights (in, out) and biases (out,) of every layer."""

PlacedLayers = Sequence[tuple[Matrix, Floats]]
"""The layers of a network, their weights where an `Arithmetic` put them."""

Activation = Literal["tanh", "sigmoid"]
"""Activations of the hidden layers. Both are bounded by 1."""

STEP = 2.0**-18
"""The grid step of inputs, weights, biases and activations."""

_LARGEST_SUM = 2.0**17


def rounded(values: Floats) -> Floats:
    """Return the values in steps, rounded to the nearest."""
    steps: Floats = np.rint(values / STEP) * STEP
    return steps


def exact_layers(layers: Layers) -> Layers:
    """Return a trained network's layers rounded to steps, and scaled down to the bounds of `logits`.

    No trained network comes near the bounds; one that diverged, to infinities or none-numbers, becomes some network.
    """
    exact = []
    for weights, biases in layers:
        bound = _LARGEST_SUM / (len(weights) + 1)
        exact.append((_clip(weights, bound), _clip(biases, bound)))
    return tuple(exact)


def are_exact(layers: Layers) -> bool:
    """Whether layers are as `exact_layers` returns them."""
    same = zip(layers, exact_layers(layers), strict=True)
    return all(np.array_equal(a, b) for ours, theirs in same for a, b in zip(ours, theirs, strict=True))


def placed(layers: Layers, arithmetic: Arithmetic) -> PlacedLayers:
    """Return layers where an arithmetic puts their weights."""
    return tuple((arithmetic.matrix(weights), biases) for weights, biases in layers)


def logits(layers: PlacedLayers, inputs: Floats, activation: Activation) -> Floats:
    """Return the logits (n, C) of inputs (n, in) between -1 and 1, whole multiples of STEP.

    Proof that no sum is rounded. A layer's inputs are multiples of STEP = 2^-18 of magnitude at most 1. Its weights and
    biases are multiples of STEP of magnitude at most B, with B (in + 1) = 2^17. So the absolute values of all terms of
    a sum add up to at most 2^17 = 2^53 STEP^2, and every partial sum, in any order, is a whole multiple of STEP^2 that
    a double holds.
    """
    hidden = inputs
    for index, (weights, biases) in enumerate(layers):
        hidden = product(hidden, weights) + biases
        if index < len(layers) - 1:
            hidden = rounded(_activated(hidden, activation))
    return hidden


def _activated(values: Floats, activation: Activation) -> Floats:
    if activation == "tanh":
        return elementary.tanh(values)
    # Of the negative magnitude, so that the exponential never overflows.
    small = elementary.exp(-np.abs(values))
    larger = 1 / (1 + small)
    return np.where(values >= 0, larger, 1 - larger)


def _clip(values: Floats, bound: float) -> Floats:
    # Down to a whole step: rounding must not carry a value beyond the bound.
    bound = math.floor(bound / STEP) * STEP
    return rounded(np.clip(np.nan_to_num(values.astype(np.float64)), -bound, bound))
