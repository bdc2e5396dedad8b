"""Inputs around a private centre: rows of unit length, less a noisy mean, scaled to one length again.

Rows of unit length often lie about a long mean, which says nothing of their classes and takes up most of every
clipped gradient. A small part of the budget buys the mean once, before training.

Whatever a record adds to a sum must be a function of that record alone, bit for bit. Where features cancel to the
last bit, drawing them to unit length makes a whole vector of that bit: so features are exact
(`dpserve.training.features.feature_map`), and lengths are (`dpserve.training.fitting.unit_rows.unit`).
"""

import functools

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.training.features.maps import FeatureMap
from dpserve.training.fitting.unit_rows import GRID, term_sum
from dpserve.training.inputs.sums import Rows, Shard, Sums


def centre_release(mu: float, dimension: int) -> GaussianVector:
    """Return how `sum_of_rows` is released, as mu-GDP. Raises ValueError where it cannot be.

    Neighbours' sums differ by exactly one record's term, of length at most 1: see `sum_of_rows`.
    """
    return GaussianVector(mu, dimension, 1.0)


def sum_of_rows(records: Sums, rows: Rows) -> Floats:
    """Return the sum (D,) of rows of length at most 1, in steps of 2^-28.

    A row counts as `class_sums.grid_terms` has it: rounded towards zero, and as nothing where it is longer than 1
    all the same; a sparse one likewise (`class_sums.term_sum`). A term depends on its own row alone, and sums of up to
    2^24 of them stay below 2^53 steps, so that nothing is rounded: a row more or less moves the sum by its own term, by
    at most 1, and so do all rows of a unit.
    """
    total: NDArray[np.int64] = records.total(functools.partial(_term, rows=rows))
    return total / GRID


def _term(shard: Shard, _: None, *, rows: Rows) -> NDArray[np.int64]:
    parts = [term_sum(made, weights) for made, _y, weights in shard.blocks(rows)]
    total: NDArray[np.int64] = np.sum(parts, axis=0, dtype=np.int64)
    return total


def mean_of(noisy_sum: Floats, records_declared: int, feature_map: FeatureMap) -> Floats:
    """Return the centre (D,): the noisy sum over the declared number of records, without noise that no mean can have.

    That is what the map knows of means of its rows (`FeatureMap.possible_mean`), and that they lie in the unit ball.
    With cuts it matters where records are few: for 400 records of texture in 11 classes at epsilon 1, held back from
    training, log loss was 1.93 without it, 1.74 with it, and 1.54 with the centre's larger share.
    """
    mean = feature_map.possible_mean(noisy_sum / records_declared)
    return mean / max(1.0, float(np.linalg.norm(mean)))
