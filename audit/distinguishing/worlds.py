"""Two worlds to tell apart: the exact logits of one row under two neighbouring models, and what they may differ by."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.mechanism import Mechanism

Floats = NDArray[np.float64]

_ROUNDING = 1e-9
_BEYOND_SELECTION = 20.0
"""Exponents below the largest at which the exponential mechanism's floor leaves a class next to nothing."""


@dataclass(frozen=True, eq=False)
class Worlds:
    """Rows as two neighbours' logits. logits_in, logits_out: (n, C); sensitivity: (n,), of the mechanism's input."""

    logits_in: Floats
    logits_out: Floats
    sensitivity: Floats

    def __post_init__(self) -> None:
        """Refuse shapes that do not fit."""
        if self.logits_in.ndim != 2 or self.logits_in.shape != self.logits_out.shape:
            raise ValueError(f"the worlds' logits have shapes {self.logits_in.shape} and {self.logits_out.shape}")
        if self.sensitivity.shape != self.logits_in.shape[:1]:
            raise ValueError(f"{len(self.logits_in)} rows need as many sensitivities, not {self.sensitivity.shape}")

    @property
    def classes(self) -> int:
        """C."""
        return int(self.logits_in.shape[1])


def worst_case(mechanism: Mechanism, classes: int) -> Worlds:
    """Return one row of sensitivity 1 whose logits are exactly as far apart as the mechanism's proof allows.

    A softmax forgets what is added to all logits alike, so the difference d has mean 0 and nothing of it is lost.
    - gaussian, label, selected-neuron: d = (1, -1, 0, ...)/sqrt(2), of L2 norm 1. For the two that select, all
      other classes lie too low to be selected, so that the whole of epsilon is in the choice between two.
    - laplace: equal parts on all classes (on all but one if C is odd), which has the largest L1 norm.
    - published: every two logits change by different amounts, each by at most the claimed 1 of one neuron.
    """
    base = np.zeros(classes)
    if mechanism.name == "published":
        difference = np.linspace(1.0, -1.0, classes)
    elif mechanism.name == "laplace":
        moved = classes - classes % 2
        difference = np.zeros(classes)
        difference[:moved] = np.where(np.arange(moved) % 2 == 0, 1.0, -1.0) / math.sqrt(moved)
    else:
        difference = np.zeros(classes)
        difference[:2] = np.array([1.0, -1.0]) / math.sqrt(2)
        selection = getattr(mechanism, "selection_epsilon", getattr(mechanism, "epsilon", None))
        if mechanism.name in ("label", "selected-neuron") and selection is not None:
            base[2:] = -_BEYOND_SELECTION * math.sqrt(2) / selection
    # A hair less than allowed, so that rounding here is not what an audit finds.
    difference *= 1 - _ROUNDING
    return Worlds((base + difference / 2)[None], (base - difference / 2)[None], np.ones(1))
