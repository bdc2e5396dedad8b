"""Randomness for experiments: every draw follows from one public seed. Never for a service."""

import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SeededRandomness:
    """A source of words for mechanisms that gives the same words for the same seed and purpose.

    seed: the experiment's. purpose: what the words are for, as in ("gaussian", "0.1", "repeat 3").
    """

    seed: int
    purpose: tuple[str, ...]
    _generator: "np.random.Philox" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Start the stream."""
        sequence = np.random.SeedSequence([self.seed, *map(_number, self.purpose)])
        object.__setattr__(self, "_generator", np.random.Philox(sequence))

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` 64-bit words."""
        return self._generator.random_raw(count).astype(np.uint64, copy=False)


def derived_seed(seed: int, *purpose: str) -> int:
    """A seed of 32 bits for one purpose of an experiment."""
    return int(np.random.SeedSequence([seed, *map(_number, purpose)]).generate_state(1)[0])


def _number(text: str) -> int:
    return zlib.crc32(text.encode())
