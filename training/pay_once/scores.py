"""The public grid on which held-back records are counted, by the probability that a model gives their own class."""

import numpy as np

from dpserve.accounting.arrays import Floats, Integers
from dpserve.mechanisms import elementary

_FURTHEST, _PER_UNIT = 10, 16

_LOG_ODDS = np.arange(_FURTHEST * _PER_UNIT, -_FURTHEST * _PER_UNIT - 1, -1) / _PER_UNIT
_SMALL = elementary.exp(-np.abs(_LOG_ODDS))

EDGES: Floats = np.where(_LOG_ODDS >= 0, 1 / (1 + _SMALL), _SMALL / (1 + _SMALL))
"""The least probability in each cell but the last, falling: log-odds of 10 to -10 in steps of 1/16. The last cell has
all that is below. They are the same bits everywhere."""

CELLS = len(EDGES) + 1
"""Number of cells."""


def cells_of(probabilities: Floats) -> Integers:
    """Return the cell of each probability, (n,): the first whose edge is not above it."""
    return np.searchsorted(-EDGES, -probabilities, side="left").astype(np.int64)


def least_in(cell: int) -> float:
    """Return the least probability in a cell or in one before it: 0 in the last."""
    return float(EDGES[cell]) if cell < CELLS - 1 else 0.0
