"""Inputs around a private centre: rows of unit length, less a noisy mean, drawn to one length again.

Rows of unit length often lie about a long mean, which says nothing of their classes and takes up most of every
clipped gradient. A small part of the budget buys the mean once, before training.

Whatever a record adds to a sum must be a function of that record alone, bit for bit. Where features cancel to the
last bit, drawing them to unit length makes a whole vector of that bit, so one row is computed at a time here, in
arrays of one shape: a product of matrices may round a row by how many rows stand beside it.
"""

import numpy as np
from numpy.typing import NDArray

from mechanisms.gaussian_vector import GaussianVector
from training.feature_maps import FeatureMap
from training.releases.class_sums import grid_terms
from training.releases.class_sums import unit as unit_row
from training.releases.dpsgd.network import MOST_RECORDS, Floats

_GRID = 2**30


def features_of(feature_map: FeatureMap, X: Floats, tensors: dict[str, Floats]) -> Floats:
    """Return the features (n, D) of rows (n, d), each row mapped alone."""
    phi = np.empty((len(X), feature_map.dimension))
    for index in range(len(X)):
        phi[index] = feature_map(X[index : index + 1].copy(), tensors)[0]
    return phi


def unit(phi: Floats) -> Floats:
    """Return rows (n, D) drawn to length 1, or a hair less, each alone; a row too short to have a direction is zero."""
    rows = np.empty(phi.shape)
    for index, row in enumerate(phi):
        rows[index] = unit_row(row)
    return rows


def centre_release(mu: float, dimension: int) -> GaussianVector:
    """Return how `sum_of_rows` is released, as mu-GDP. Raises ValueError where it cannot be.

    Neighbours' sums differ by exactly one record's term, of length at most 1: see `sum_of_rows`.
    """
    return GaussianVector(mu, dimension, 1.0)


def sum_of_rows(rows: Floats) -> Floats:
    """Return the sum (D,) of rows (n, D) of length at most 1, in steps of 2^-30. Raises ValueError for too many.

    A row counts as `class_sums.grid_terms` has it: rounded towards zero, and as nothing where it is longer than 1
    all the same. A term depends on its own row alone, and sums of up to 2^22 of them stay below 2^53 steps, so
    that nothing is rounded: a row more or less moves the sum by its own term, by at most 1.
    """
    if len(rows) > MOST_RECORDS:
        raise ValueError(f"at most {MOST_RECORDS} records can be summed, not {len(rows)}")
    total: NDArray[np.int64] = np.zeros(rows.shape[1], dtype=np.int64)
    for row in rows:
        total += grid_terms(row)
    return total / _GRID


def mean_of(noisy_sum: Floats, records_declared: int) -> Floats:
    """Return the centre (D,): the noisy sum over the declared number of records, drawn into the unit ball."""
    mean: Floats = noisy_sum / records_declared
    return mean / max(1.0, float(np.linalg.norm(mean)))


def inputs_around(centre: Floats, phi: Floats, length: float) -> Floats:
    """Return what the first layer sees of mapped rows (n, D): around the centre (D,), of this length, (n, D).

    Each row is computed alone. One that lies on the centre is zero.
    """
    rows = np.empty(phi.shape)
    for index, row in enumerate(phi):
        rows[index] = unit_row(unit_row(row) - centre) * length
    return rows
