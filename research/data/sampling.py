"""The paper's sampling (Section 5.3): two disjoint random sets of n records each, to train on and to test on."""

import numpy as np

from dpserve.accounting.arrays import Integers
from dpserve.training.errors import DataError


def two_disjoint_sets(records: int, n: int, seed: int) -> tuple[Integers, Integers]:
    """Rows of a training set and of a test set, n each, out of 0..records-1. Raises DataError if 2n do not exist."""
    if n < 1 or 2 * n > records:
        raise DataError(f"two disjoint sets of {n} records need {2 * n} records, and there are {records}")
    order = np.random.default_rng(seed).permutation(records)
    return order[:n], order[n : 2 * n]
