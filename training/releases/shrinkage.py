"""Denoising a noisy matrix whose noise is known: what is done to class sums after they were paid for.

Everything here takes only what is released already, and public numbers, so it is post-processing: it may choose
between estimators by looking at the noisy values, and costs nothing.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SPLITS = 4
_SPLIT_SEED = 0

SHORTEST_ROW = 2.0**-300
"""A row that is no longer has no direction: its squares might underflow."""


def by_coordinate(noisy: Floats, sigma: float) -> Floats:
    """Shrink every column by its share of signal: S_cj v_j / (v_j + sigma^2), v_j = (mean_c S_cj^2 - sigma^2)+.

    The posterior mean under S_cj ~ N(0, v_j) with v_j estimated from the column (Efron and Morris 1973). It suits
    sums whose signal lies in few coordinates. noisy: (C, D) with N(0, sigma^2) on each value.
    """
    signal = np.maximum(np.square(noisy).mean(axis=0) - sigma**2, 0.0)
    shrunk: Floats = noisy * (signal / (signal + sigma**2))
    return shrunk


def by_singular_value(noisy: Floats, sigma: float) -> Floats:
    """Shrink every singular value s to s (1 - (|D - C| - 1) sigma^2 / s^2)+: the estimator of Efron and Morris (1972).

    It suits sums whose signal lies in few directions, whichever these are. noisy: (C, D).
    """
    left, values, right = np.linalg.svd(noisy, full_matrices=False)
    excess = max(abs(noisy.shape[0] - noisy.shape[1]) - 1, 0)
    kept = np.maximum(values - excess * sigma**2 / np.maximum(values, sigma * 2.0**-40), 0.0)
    shrunk: Floats = (left * kept) @ right
    return shrunk


def by_both(noisy: Floats, sigma: float) -> Floats:
    """Shrink the singular values, then every coordinate by its share of signal in the noisy matrix."""
    signal = np.maximum(np.square(noisy).mean(axis=0) - sigma**2, 0.0)
    shrunk: Floats = by_singular_value(noisy, sigma) * (signal / (signal + sigma**2))
    return shrunk


ESTIMATORS = (by_coordinate, by_singular_value, by_both)


def shrunk(noisy: Floats, sigma: float) -> Floats:
    """Return the matrix under the noise, (C, D), as the best of ESTIMATORS has it."""
    return estimator_for(noisy, sigma)(noisy, sigma)


def estimator_for(noisy: Floats, sigma: float) -> Callable[[Floats, float], Floats]:
    """Return the estimator whose directions agree best with the true ones, as far as the noisy matrix (C, D) tells.

    With fresh noise E of the same law, S + E and S - E are independent given the truth, so that the mean over c of
    <direction of row c found in S + E, row c of S - E> estimates the inner product with the truth without bias
    (Oliveira, Lei and Tibshirani 2021). E comes from a fixed public seed.
    """
    generator = np.random.RandomState(_SPLIT_SEED)
    agreement = np.zeros(len(ESTIMATORS))
    for _ in range(_SPLITS):
        extra = sigma * generator.standard_normal(noisy.shape)
        for index, estimator in enumerate(ESTIMATORS):
            found = unit_rows(estimator(noisy + extra, sigma * np.sqrt(2)))
            agreement[index] += np.vdot(found, noisy - extra)
    return ESTIMATORS[int(agreement.argmax())]


def unit_rows(matrix: Floats) -> Floats:
    """Return the rows scaled to unit length; a row too short to have a direction becomes zero."""
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    scaled: Floats = np.where(lengths > SHORTEST_ROW, matrix / np.maximum(lengths, SHORTEST_ROW), 0.0)
    return scaled
