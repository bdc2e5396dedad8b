"""A small public network with random weights."""

import numpy as np
import pytest
from safetensors.numpy import save

FEATURES, WIDTHS = 4, (16, 8)


def perceptron_weights(features=FEATURES, widths=WIDTHS, seed=0):
    generator = np.random.default_rng(seed)
    tensors, width = {}, features
    for index, following in enumerate(widths):
        tensors[f"{index}.weight"] = generator.standard_normal((following, width)).astype(np.float32)
        tensors[f"{index}.bias"] = generator.standard_normal(following).astype(np.float32)
        width = following
    return tensors


@pytest.fixture
def content():
    """The network's safetensors file."""
    return save(perceptron_weights())
