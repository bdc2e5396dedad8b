"""Tapes of a training: what each release of it was computed from, and what came out of it.

A training takes its randomness from outside. A tape stands in for it: what is released passes through it. So a training
on records can be recorded, and played again on neighbouring records, where each release gives what it gave before
(`dpserve.audit.replay`). Never for a model that is served: what is on a tape is private.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats, Mask, Words
from dpserve.mechanisms.randomness import Randomness


@dataclass(frozen=True)
class Law:
    """A release as it is declared. sensitivity: how far one record may move its values, in L2, all parts together.

    name: of what draws the noise. scale: what else the noise follows from. whole: whether it has no further parts.
    """

    name: str
    sensitivity: float
    scale: tuple[float, ...]
    whole: bool = True

    def __str__(self) -> str:
        """Return the name and the scale."""
        return f"{self.name} ({', '.join(map('{:g}'.format, self.scale))})"


class Tape(ABC):
    """Randomness that releases pass through."""

    @abstractmethod
    def words(self, count: int) -> Words:
        """Return words that no record has a say in, (count,): the same when it is played."""

    @abstractmethod
    def coins(self, count: int) -> Words:
        """Return a word for each record or unit, (count,), in their order: each one's own when it is played."""

    @abstractmethod
    def next_part(self) -> None:
        """Note that what follows is released of other records, kept apart from those before."""

    release: str = ""
    """The name of the certificate's release that is made now; empty where a training says none."""

    @abstractmethod
    def released(self, law: Law, values: Floats, draw: Callable[[Randomness], Floats]) -> Floats:
        """Return what was released of the values. draw: draws it, with the randomness that it is given."""


def next_part(randomness: Randomness) -> None:
    """Note, where there is a tape, that what follows is released of other records than what was before."""
    if isinstance(randomness, Tape):
        randomness.next_part()


@contextmanager
def during(release: str, randomness: Randomness) -> Iterator[None]:
    """Note, where there is a tape, which release is made in a block, by its name in the certificate."""
    if isinstance(randomness, Tape):
        randomness.release = release
    yield
    if isinstance(randomness, Tape):
        randomness.release = ""


def coins(count: int, threshold: int, randomness: Randomness) -> Mask:
    """Return for each of so many records or units whether its coin fell, (count,): each with threshold / 2^64.

    A coin is a uniform number of 64 bits, and falls where it is below the threshold. Its lower 48 bits are drawn where
    the upper 16 leave it open, which is rare.
    """
    if isinstance(randomness, Tape):
        return randomness.coins(count) < np.uint64(threshold)
    upper = randomness.words(-(-count // 4)).view(np.uint16)[:count]
    fell = upper < threshold >> 48
    (open_,) = np.nonzero(upper == threshold >> 48)
    fell[open_] = randomness.words(len(open_)) >> np.uint64(16) < threshold & 2**48 - 1
    return fell


def release(law: Law, values: Floats, randomness: Randomness, draw: Callable[[Randomness], Floats]) -> Floats:
    """Return what `draw` makes of the values with the randomness."""
    return randomness.released(law, values, draw) if isinstance(randomness, Tape) else draw(randomness)
