"""A whole run: that it goes downhill as described, and that who sees all its steps learns no more than is claimed.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dpserve.accounting.arrays import Floats
from dpserve.training.kinds.dpsgd.descent import Descent, descend


def told(sums: list[Floats]) -> Callable[[Floats], Floats]:
    """Return a function that releases these sums, one after another."""
    remaining = iter(sums)
    return lambda _: next(remaining)


def test_momentum_and_averaging_follow_their_definition():
    descent = Descent(steps=4, learning_rate=0.1, expected_batch=2.0, momentum=0.5, averaged=0.5)
    sums = [np.full(6, value) for value in (2.0, 4.0, 0.0, 6.0)]
    weights, velocity, seen = 1.0, 0.0, []
    for value in (1.0, 2.0, 0.0, 3.0):
        velocity = 0.5 * velocity + value
        weights -= 0.1 * velocity
        seen.append(weights)
    found = descend(told(sums), np.ones(6), descent)
    assert np.allclose(found, np.mean(seen[2:]))
    last = descend(told(sums), np.ones(6), replace(descent, averaged=0.0))
    assert np.allclose(last, seen[-1])


def test_what_is_no_descent_is_refused():
    for changes in (
        {"steps": 0},
        {"learning_rate": 0.0},
        {"expected_batch": np.inf},
        {"momentum": 1.0},
        {"averaged": 2.0},
    ):
        with pytest.raises(ValueError, match="must be"):
            Descent(**({"steps": 1, "learning_rate": 1.0, "expected_batch": 1.0} | changes))
