"""Randomness for tests: seeded, and dealt word by word."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.seeded import Seeded


@dataclass
class Remembered(Seeded):
    """Words of a seeded generator, remembered."""

    handed_out: list[np.ndarray] = field(default_factory=list)

    def words(self, count):
        words = super().words(count)
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
    return Remembered


@pytest.fixture
def dealt():
    return Dealt
