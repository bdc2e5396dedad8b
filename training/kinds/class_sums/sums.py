"""The exact centre and class sums of records, before noise."""

import functools
import math

import numpy as np

from dpserve.accounting.arrays import Floats, Integers
from dpserve.mechanisms.elementary import row_sums
from dpserve.training.fitting.around import around
from dpserve.training.fitting.network import check_shards
from dpserve.training.fitting.unit_rows import GRID, grid_terms, term_sum, unit
from dpserve.training.inputs.sums import Rows, Shard, Sums

COUNT_COORDINATE = 0.2
SPARSE_LENGTH = 1.0 - 2.0**-12
"""The length of v for a sparse row (`sparse_sums_of`)."""


def centre_of(records: Sums, rows: Rows) -> Floats:
    """Return the sum over the rows u of (sqrt(1 - b^2) u, b), exactly as `steps.Centre` says: (D + 1,)."""
    total: Integers = records.total(functools.partial(_centre_term, rows=rows))
    return total / GRID


def _centre_term(shard: Shard, _: None, *, rows: Rows) -> Integers:
    """Return a shard's part of the centre, (D + 1,), in steps."""
    parts = [term_sum(u, weights, COUNT_COORDINATE) for u, _y, weights in shard.blocks(rows)]
    total: Integers = np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros((), dtype=np.int64)
    return total


def mean_of(centre: Floats) -> Floats:
    """Return the noisy mean m of the directions, (D,), from the noisy centre: in the unit ball, as every mean is."""
    count = max(float(centre[-1]) / COUNT_COORDINATE, 1.0)
    mean = centre[:-1] / (math.sqrt(1 - COUNT_COORDINATE**2) * count)
    scaled: Floats = mean / max(1.0, math.sqrt(float(row_sums((mean * mean)[None])[0])))
    return scaled


def sums_of(records: Sums, rows: Rows, classes: int, mean: Floats) -> Floats:
    """Return for each class the sum of v over its rows u, dense ones, exactly as `steps.ClassTotals` says: (C, D)."""
    total: Integers = records.total(functools.partial(_sums_term, rows=rows, classes=classes, mean=mean))
    return total / GRID


def _sums_term(shard: Shard, _: None, *, rows: Rows, classes: int, mean: Floats) -> Integers:
    """Return a shard's part of the class sums, (C, D), in steps: products with 0 and 1, which are exact."""
    total = np.zeros((classes, len(mean)), dtype=np.int64)
    for u, y, weights in shard.blocks(rows):
        terms = grid_terms(unit(u - mean), weights)
        for each in np.unique(y):
            total[each] += terms[y == each].sum(axis=0).astype(np.int64)
    return total


def sparse_sums_of(records: Sums, rows: Rows, classes: int, mean: Floats) -> Floats:
    """Return the sums of v for sparse rows u (n, D), each v `SPARSE_LENGTH` of what it is for dense ones: (C, D).

    One record, or all records of one unit with their weights, move what is computed by at most 1. Proof. v is at most
    SPARSE_LENGTH (1 + 2^-50) long, a function of its record and of the released mean (`SparseCentred`), and its
    contribution is v in the row of its class: weights add up to at most 1, so that by the triangle inequality a unit
    moves the exact sums by no more. Rounding moves neighbours' sums apart by at most SUM_ERROR, as
    `Network.clipped_sum` counts it with c = 1: blocks, shards and records are the same, and the factors, at most 1 long
    for a row, are the classes' 0 and 1 in place of gradients. Together less than 1 - 2^-12 + 2^-50 + 2^-13 < 1.
    """
    check_shards(records)
    term = functools.partial(_sparse_sums_term, rows=around(rows, mean, SPARSE_LENGTH), classes=classes)
    total: Floats = records.total(term)
    return total.T


def _sparse_sums_term(shard: Shard, _: None, *, rows: Rows, classes: int) -> Floats:
    """Return a shard's part of the class sums, (D, C)."""
    total: Floats = np.zeros(())
    for v, y, weights in shard.blocks(rows):
        shares = np.zeros((len(y), classes))
        shares[np.arange(len(y)), y] = 1.0 if weights is None else weights
        total = total + v.summed(shares)
    return total
