"""Counting records for `dpserve.training.features.quantiles`, and the release of a feature map cut at their
quantiles."""

import functools

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Integers, Mask
from dpserve.accounting.messages import Message
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.errors import TrainingError
from dpserve.training.features.maps import Quantiles
from dpserve.training.features.quantiles import CELLS, COUNTS, QuantileRelease, cuts_of, levels_of, vector_for
from dpserve.training.inputs.records import AnyRecords
from dpserve.training.inputs.sums import Shard, Sums, check_count

_GRID = 2**28


def cut_at_quantiles(
    feature_map: Quantiles, records: AnyRecords, whole: int, model: int, randomness: Randomness
) -> Quantiles:
    """Return the map cut at the records' noisy quantiles, released for at most `whole` picorho.

    model: what all of the model may cost, in picorho: how many cuts there are follows from it. Do it once: every call
    is a release of its own. Raises TrainingError for a price that cannot be, and for too many numbers or records.
    """
    check_count(len(records))
    mu = mu_for(whole)
    try:
        vector = vector_for(mu, len(feature_map.counted))
    except ValueError as error:
        raise TrainingError(Message("{quantile_share}: {}", error)) from error
    counts = levels_of(counts_of(records.sums, feature_map))
    noisy = vector.release(counts, randomness).reshape(-1, COUNTS)
    released = QuantileRelease(mu=mu, cuts=cuts_of(noisy, mu_for(model)))
    return Quantiles.model_validate(feature_map.model_dump() | {"released": released.model_dump()})


def counts_of(records: Sums, feature_map: Quantiles) -> Floats:
    """Return how many records have each counted number in each cell, (d, CELLS), exactly; units by their weights."""
    total: Integers = records.total(functools.partial(_counts_term, feature_map=feature_map))
    return total / _GRID


def cells_of(feature_map: Quantiles, X: Floats) -> tuple[NDArray[np.int64], Mask]:
    """Return the cell of each counted number of rows (n, d), and whether the number is there: (n, k) each.

    Each row's from that row alone, by operations that IEEE 754 rounds in one way and a product that is exact.
    """
    shares = feature_map.shares_of(X)[:, feature_map.counted]
    cells = np.minimum((shares * CELLS).astype(np.int64), CELLS - 1)
    there = np.ones(cells.shape, dtype=bool)
    for place, number in enumerate(feature_map.counted):
        if (absent := feature_map.absent[number]) is not None:
            there[:, place] = X[:, absent] != 1
    return cells, there


def _counts_term(shard: Shard, _: None, *, feature_map: Quantiles) -> Integers:
    """Return a shard's counts in steps of 2^-28, (d, CELLS)."""
    numbers = len(feature_map.counted)
    total = np.zeros(numbers * CELLS, dtype=np.int64)
    for X, _y, weights in shard.blocks():
        steps = np.full(len(X), _GRID, dtype=np.int64)
        if weights is not None:
            steps = np.floor(weights * _GRID).astype(np.int64)
        cells, there = cells_of(feature_map, X)
        places = cells + np.arange(numbers) * CELLS
        np.add.at(total, places[there], np.broadcast_to(steps[:, None], cells.shape)[there])
    return total.reshape(numbers, CELLS)
