"""Randomness that repeats, in place of the operating system's."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Seeded:
    """Words of a generator that starts from a seed."""

    seed: int

    def __post_init__(self):
        self.generator = np.random.Philox(self.seed)

    def words(self, count):
        return self.generator.random_raw(count).astype(np.uint64, copy=False)
