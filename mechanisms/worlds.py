"""Rows as the logits of two neighbouring models, which an audit tells apart, and those as far apart as is allowed."""

from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats

_ROUNDING = 1e-9
_LEAST_LOGARITHM = -746.0


@dataclass(frozen=True, eq=False)
class Worlds:
    """Rows as two neighbours' logits. logits_in, logits_out: (n, C); sensitivity: (n,), of the mechanism's input."""

    logits_in: Floats
    logits_out: Floats
    sensitivity: Floats

    @property
    def classes(self) -> int:
        """C."""
        return int(self.logits_in.shape[1])


def worlds_apart(difference: Floats, middle: Floats | float = 0.0) -> Worlds:
    """Return one row of sensitivity 1 whose logits, (C,), differ by this much about `middle`.

    By a hair less, so that rounding here is not what an audit finds.
    """
    half = np.asarray(difference) * (1 - _ROUNDING) / 2
    return Worlds((middle + half)[None], (middle - half)[None], np.ones(1))


def two_classes_apart(classes: int, middle: Floats | float = 0.0) -> Worlds:
    """Return the worlds that differ by 1 in L2, on two classes alone.

    A softmax forgets what is added to all logits alike, so the difference has mean 0 and nothing of it is lost.
    """
    difference = np.zeros(classes)
    difference[:2] = np.array([1.0, -1.0]) / np.sqrt(2)
    return worlds_apart(difference, middle)


def all_classes_apart(classes: int) -> Worlds:
    """Return the worlds that differ by 1 in L2 and as much as is possible in L1: alike on all, or all but one."""
    moved = classes - classes % 2
    difference = np.zeros(classes)
    difference[:moved] = np.where(np.arange(moved) % 2 == 0, 1.0, -1.0) / np.sqrt(moved)
    return worlds_apart(difference)


def logarithms(answers: Floats) -> Floats:
    """Return ln p, a probability that underflowed to 0 being taken for the smallest there is."""
    with np.errstate(divide="ignore"):
        logarithms: Floats = np.maximum(np.log(answers), _LEAST_LOGARITHM)
    return logarithms
