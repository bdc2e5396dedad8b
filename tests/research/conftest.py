import numpy as np
import pytest

from dpserve.training.fitting.network import Network
from research.white_box.observations import Records


@pytest.fixture(scope="package")
def network():
    return Network((6, 5, 3))


@pytest.fixture(scope="package")
def records():
    draw = np.random.default_rng(5)
    inputs = draw.random((60, 6))
    return Records(inputs, draw.integers(3, size=60))
