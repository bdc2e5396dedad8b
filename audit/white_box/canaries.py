"""Canaries: the record, or the gradient, whose presence an audit tells from its absence.

A gradient canary stands for a record whose gradient the auditor chooses, as a client of federated learning does. An
input canary is a record, and passes through all the code that a record does. Both are chosen without looking at
noise, as the guarantee allows: it holds for every pair of neighbouring data sets, however chosen.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.releases.dpsgd.network import Network

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Example:
    """One record: x (width,) and its label."""

    x: Floats
    label: int


class Canary(Protocol):
    """Either a gradient, the same at all parameters, or an example, which may be made anew for each."""

    def at(self, parameters: Floats) -> "Example | Floats":
        """Return the canary of the step that starts from these parameters (size,)."""
        ...


@dataclass(frozen=True)
class DiracCanary:
    """A gradient (size,) of zeros but for one coordinate, `length` there (Nasr et al. 2023, Section 5.3).

    Clipping brings any length above the clipping norm down to it, so that a great length changes nothing where
    gradients are clipped one by one, and shows where they are not.
    """

    size: int
    coordinate: int
    length: float

    def at(self, parameters: Floats) -> Floats:
        """Return the gradient."""
        del parameters
        gradient = np.zeros(self.size)
        gradient[self.coordinate] = self.length
        return gradient


@dataclass(frozen=True, eq=False)
class FixedCanary:
    """The same record at every step."""

    example: Example

    def at(self, parameters: Floats) -> Example:
        """Return the record."""
        del parameters
        return self.example


def blank(width: int, label: int) -> FixedCanary:
    """Return an input of zeros (Nasr et al. 2023, Section 6.4)."""
    return FixedCanary(Example(np.zeros(width), label))


def mislabelled(inputs: Floats, labels: Labels, classes: int, seed: int) -> FixedCanary:
    """Return one of the records (n, width), drawn evenly, with a wrong label, drawn evenly."""
    draw = np.random.default_rng(seed)
    row = int(draw.integers(len(labels)))
    return FixedCanary(Example(inputs[row], int((labels[row] + 1 + draw.integers(classes - 1)) % classes)))


def quiet_coordinate(network: Network, parameters: Floats, inputs: Floats, labels: Labels) -> int:
    """Return the coordinate in which the gradients of such records are least; among equals the first.

    There a Dirac canary meets the least interference. The records (n, width) are others of the same distribution.
    """
    return int(np.square(network.record_gradients(parameters, inputs, labels)).sum(axis=0).argmin())
