"""Inputs around a private centre: rows of unit length, less a noisy mean, drawn to one length again.

Rows of unit length often lie about a long mean, which says nothing of their classes and takes up most of every
clipped gradient. A small part of the budget buys the mean once, before training.
"""

import numpy as np

from mechanisms.gaussian_vector import GaussianVector
from training.releases.dpsgd.network import MOST_RECORDS, SUM_ERROR, Floats

_BLOCK = 2048


def unit(phi: Floats) -> Floats:
    """Return rows (n, D) drawn to length 1; a row of zeros stays."""
    rows = phi.copy()
    _draw_to(rows, 1.0)
    return rows


def centre_release(mu: float, dimension: int) -> GaussianVector:
    """Return how `sum_of_rows` is released, as mu-GDP. Raises ValueError where it cannot be.

    Neighbours' exact sums differ by one row, of length at most 1. Computed in blocks of 2,048 rows, each coordinate of
    a sum is off by at most (2048 + n/2048 + 8) 2^-53 times the sum of its absolute values, so the sum by n times
    that: the L2 sensitivity is at most 1 + SUM_ERROR for up to MOST_RECORDS rows (`Network.clipped_sum`).
    """
    return GaussianVector(mu, dimension, 1 + SUM_ERROR)


def sum_of_rows(rows: Floats) -> Floats:
    """Return the sum (D,) of rows (n, D) of length at most 1. Raises ValueError for too many."""
    if len(rows) > MOST_RECORDS:
        raise ValueError(f"at most {MOST_RECORDS} records can be summed, not {len(rows)}")
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _BLOCK):
        total += (rows[start : start + _BLOCK] * (1 - 2.0**-40)).sum(axis=0)
    return total


def mean_of(noisy_sum: Floats, records_declared: int) -> Floats:
    """Return the centre (D,): the noisy sum over the declared number of records, drawn into the unit ball."""
    mean: Floats = noisy_sum / records_declared
    return mean / max(1.0, float(np.linalg.norm(mean)))


def inputs_around(centre: Floats, phi: Floats, length: float) -> Floats:
    """Return what the first layer sees of mapped rows (n, D): around the centre (D,), of this length, (n, D)."""
    rows = unit(phi)
    rows -= centre
    _draw_to(rows, length)
    return rows


def _draw_to(rows: Floats, length: float) -> None:
    """Give rows (n, D) this length, in their place; there may be as many as memory holds."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows *= np.divide(length, norms, out=np.zeros_like(norms), where=norms > 0)[:, None]
