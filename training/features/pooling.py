"""Means of an image's pixels over a coarse grid: how light each part is, which gradients do not tell.

Sums of whole numbers below 2^53 are exact in any order, and each is divided once: a row's numbers have the same bits
everywhere, alone or in a batch (`dpserve.training.features.feature_map`).
"""

import functools

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.training.features.hog import Shape, levels

MOST_CELLS = 16
"""Along a side."""


def cells(side: int) -> int:
    """Return how many cells there are along a side of so many pixels: each has two pixels, or more."""
    return min(side // 2, MOST_CELLS)


def width_of(shape: Shape) -> int:
    """Return how many means an image of this shape has."""
    return cells(shape[0]) * cells(shape[1]) * shape[2]


def pooled(u: Floats, shape: Shape) -> Floats:
    """Return the means of images (n, height * width * channels), of values from 0 to 1, in levels: (n, `width_of`)."""
    height, width, channels = shape
    rows = (members(height) @ levels(u, shape).reshape(-1, height, width * channels)).reshape(-1, width, channels)
    sums = (members(width) @ rows).reshape(len(u), -1)
    return sums / counts(shape)


@functools.cache
def members(side: int) -> Floats:
    """Return which pixels along a side are in which cell along it: (cells, side), 1 or 0."""
    place = np.arange(side) * cells(side) // side
    found: Floats = (place == np.arange(cells(side))[:, None]).astype(np.float64)
    found.setflags(write=False)
    return found


@functools.cache
def counts(shape: Shape) -> NDArray[np.float64]:
    """Return of how many pixels each mean is: (`width_of`,)."""
    each = np.outer(members(shape[0]).sum(axis=1), members(shape[1]).sum(axis=1)).ravel()
    repeated: Floats = np.repeat(each, shape[2])
    repeated.setflags(write=False)
    return repeated
