"""Exact lengths of mapped rows: their coordinates are whole steps, which Python's integers square and add up."""

from fractions import Fraction

import numpy as np

from dpserve.training.features.whole_steps import STEP, STEP_BITS


def squared_length(row):
    """Return a row's squared length; fails where a coordinate is no whole number of steps."""
    steps = np.asarray(row) / STEP  # exact, for a step is a power of two
    whole = steps.astype(np.int64)
    assert (whole == steps).all()
    return Fraction(int(np.square(whole.astype(object)).sum()), 4**STEP_BITS)
