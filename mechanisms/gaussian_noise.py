"""Gaussian noise by itself, N(0, sigma^2 I): what perturbs an objective before it is minimised.

Nothing private is added to it here, so there is no grid to fit to a sensitivity: it is drawn on the finest grid that
there is a table for, and whoever uses it accounts for the rounding.
"""

import math
from dataclasses import dataclass

import numpy as np

from accounting import sampling_error
from mechanisms.grid import Floats
from mechanisms.noise import LARGEST_GAUSSIAN_SCALE, rounded_gaussian
from mechanisms.randomness import Randomness


@dataclass(frozen=True)
class GaussianNoise:
    """`size` independent values of N(0, sigma^2), each rounded to the nearest multiple of `step`.

    Raises ValueError for a sigma or a size out of range.
    """

    sigma: float
    size: int

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if not 2.0**-100 <= self.sigma <= 2.0**100:
            raise ValueError(f"the standard deviation must lie between 2^-100 and 2^100, not be {self.sigma}")
        if not 1 <= self.size <= sampling_error.DRAWS_PER_RELEASE:
            raise ValueError(f"a release has between 1 and {sampling_error.DRAWS_PER_RELEASE} values, not {self.size}")

    @property
    def step(self) -> float:
        """The grid step: exactly sigma / 2^16."""
        return self.sigma / LARGEST_GAUSSIAN_SCALE

    @property
    def rounding(self) -> float:
        """How far in L2 the values may be from ideal noise, rounded up.

        Each is an integer k of magnitude up to 12 2^16 times the step: half a step from ideal noise, and the product
        of k and the step is rounded once, by less than 2^-29 of a step.
        """
        return self.step * (0.5 + 2.0**-29) * math.sqrt(self.size) * (1 + 2.0**-40)

    def draw(self, randomness: Randomness) -> Floats:
        """Return the values, (size,). Takes 2 words for each, in order."""
        law = rounded_gaussian(LARGEST_GAUSSIAN_SCALE)
        words = randomness.words(self.size * law.words_per_draw).reshape(self.size, law.words_per_draw)
        drawn: Floats = np.multiply(law.draw(words), self.step)
        return drawn
