"""Randomness for tests: seeded, and dealt word by word."""

from dataclasses import dataclass, field

import numpy as np
import pytest


@dataclass
class Seeded:
    """Words of a seeded generator, remembered."""

    seed: int
    handed_out: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self):
        self.generator = np.random.Philox(self.seed)

    def words(self, count):
        words = self.generator.random_raw(count).astype(np.uint64)
        self.handed_out.append(words)
        return words


@dataclass
class Dealt:
    """Exactly these words."""

    remaining: np.ndarray

    def words(self, count):
        dealt, self.remaining = self.remaining[:count], self.remaining[count:]
        assert len(dealt) == count
        return dealt


@pytest.fixture
def seeded():
    return Seeded


@pytest.fixture
def dealt():
    return Dealt
