"""Following noisy sums of gradients downhill: all of it post-processing of what `step` releases.

Nothing here may look at the records. The expected size of a batch divides the sums, not the size that a batch
happened to have.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats


@dataclass(frozen=True)
class Descent:
    """The public choices of a descent.

    learning_rate: the same in every step. expected_batch: what sums are divided by; public.
    averaged: the share of the steps, the last ones, whose iterates are averaged into the result; 0 for the last one.
    """

    steps: int
    learning_rate: float
    expected_batch: float
    momentum: float = 0.9
    averaged: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what is no descent."""
        if self.steps < 1:
            raise ValueError(f"the number of steps must be at least 1, not {self.steps}")
        for name, value in (("learning rate", self.learning_rate), ("expected batch", self.expected_batch)):
            if not 0 < value < np.inf:
                raise ValueError(f"the {name} must be positive and finite, not {value}")
        if not (0 <= self.momentum < 1 and 0 <= self.averaged <= 1):
            raise ValueError("momentum must be from 0 to below 1, the averaged share from 0 to 1")

    @property
    def first_averaged(self) -> int:
        """Number of steps before the first whose iterate is averaged."""
        return min(self.steps - 1, round(self.steps * (1 - self.averaged)))


def noise_of_weights(descent: Descent, noise: float) -> float:
    """Return the standard deviation that noise of this deviation on every coordinate of every sum gives each weight.

    Momentum is linear: of what is added to the gradient of step s, the weights after step t have taken learning_rate
    (1 - momentum^(t - s + 1))/(1 - momentum), and the result the mean of that over the averaged steps; the squares of
    independent steps add up. What later gradients make of it is left out, so this is about what noise alone does.
    """
    first, steps, m = descent.first_averaged, descent.steps, descent.momentum
    added = np.arange(steps)
    since = np.maximum(added, first)
    faded = (m ** (since - added + 1) - m ** (steps - added + 1)) / (1 - m)
    taken = (steps - since - faded) / (1 - m) / (steps - first)
    return float(np.linalg.norm(taken)) * descent.learning_rate * noise / descent.expected_batch


Observer = Callable[[int, Floats, Floats], None]
"""Told after every step how many are done, the noisy sum that was released, and the parameters it led to."""


def descend(
    noisy_sum: Callable[[Floats], Floats],
    parameters: Floats,
    descent: Descent,
    observe: Observer = lambda _, __, ___: None,
) -> Floats:
    """Return the parameters (size,) that `descent.steps` private steps lead to from `parameters`.

    noisy_sum: from the parameters to what a step releases, (size,).
    """
    current, result = parameters.copy(), np.zeros_like(parameters)
    moving, start = np.zeros_like(parameters), descent.first_averaged
    for done in range(descent.steps):
        released = noisy_sum(current)
        moving = descent.momentum * moving + released / descent.expected_batch
        current -= descent.learning_rate * moving
        if done >= start:
            result += current
        observe(done + 1, released, current)
    return result / (descent.steps - start)
