"""Histograms of oriented gradients (Dalal and Triggs 2005), from whole numbers.

What is where in an image is told by the directions in which it grows lighter. Every pixel's gradient votes for two of 8
directions; cells of 8 x 8 pixels, 4 apart, add up the votes near them; and 2 x 2 cells are a block, divided by its
length, so that contrast and brightness play no part.

Everything up to a block's length is a whole number below 2^53, exact in any order of summation, and what follows are
single divisions, square roots and comparisons: so a row's numbers have the same bits everywhere, alone or in a batch
(`training.feature_maps`). Nothing here is learnt or drawn at random.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shape = tuple[int, int, int]
"""Height, width, channels."""

LEVELS = 1020
"""Pixels are whole numbers up to this: four times 255, so that 8-bit pixels are not rounded."""

CELL, STRIDE, DIRECTIONS = 8, 4, 8
_STRAIGHT, _DIAGONAL = 5, 7
"""A diagonal is sqrt(2) long, about 7/5."""
_TENT = (1, 3, 5, 7, 7, 5, 3, 1)
_UNIT = LEVELS * _STRAIGHT * sum(_TENT) ** 2
"""A cell's votes where every gradient is 1 and points the same way."""
_FLOOR = 0.02 * _UNIT
"""Added to a block's length, so that faint noise in an even area counts little."""
_MOST = 0.4
"""Of a block's length that one direction in one cell may have."""

COLOURS = 4
"""Each channel of a colour image has so many levels in the histogram of its colours."""
_QUARTERS = 2
LEAST_SIDE = CELL + STRIDE


def width_of(shape: Shape) -> int:
    """Return how many numbers `gradients` has for an image of this shape."""
    return 4 * DIRECTIONS * (cells(shape[0]) - 1) * (cells(shape[1]) - 1)


def cells(side: int) -> int:
    """Return how many cells there are along a side of so many pixels."""
    return (side - CELL) // STRIDE + 1


def levels(u: Floats, shape: Shape) -> Floats:
    """Return rows (n, height * width * channels) between 0 and 1 as whole numbers (n, *shape) up to LEVELS."""
    whole: Floats = np.rint(u * LEVELS).reshape(-1, *shape)
    return whole


def gradients(pixels: Floats) -> Floats:
    """Return every block's share of each direction in each of its cells: (n, `width_of`), from 0 to 0.4.

    pixels: (n, height, width, channels), whole numbers from 0 to LEVELS. Of several channels the one with the longest
    gradient counts, the first of equals.

    A gradient (x, y) is a whole-number sum of two neighbouring directions, as x >= y >= 0 is (x - y) (1, 0) + y (1, 1),
    and that is how it votes: no angle is computed, and a direction that turns moves its votes from one to the next
    continuously.

    Why nothing is rounded. |x| and |y| are at most 1020, a pixel's vote is at most 7 * 1020, and a cell's tent has
    weights that add up to 32^2: no sum in a cell is beyond 7 * 1020 * 2^10 < 2^23, and that of a block's 32 squares not
    beyond 2^5 * 2^46 = 2^51.
    """
    summed = _cells(_votes(pixels))
    blocks = np.concatenate(
        [summed[:, :, :-1, :-1], summed[:, :, :-1, 1:], summed[:, :, 1:, :-1], summed[:, :, 1:, 1:]], axis=1
    )
    lengths = np.sqrt(np.einsum("nkyx,nkyx->nyx", blocks, blocks))
    blocks /= (lengths + _FLOOR)[:, None]
    np.minimum(blocks, _MOST, out=blocks)
    return blocks.reshape(len(blocks), -1)


def _votes(pixels: Floats) -> Floats:
    """Return the votes (n, 8, height - 2, width - 2) of every pixel that has neighbours on all sides.

    Straight votes are in units of 1 and diagonal ones of sqrt(2).
    """
    x = pixels[:, 1:-1, 2:] - pixels[:, 1:-1, :-2]
    y = pixels[:, 2:, 1:-1] - pixels[:, :-2, 1:-1]
    if pixels.shape[3] == 1:
        x, y = x[..., 0], y[..., 0]
    else:
        longest = np.argmax(x * x + y * y, axis=3)[..., None]
        x, y = (np.take_along_axis(each, longest, axis=3)[..., 0] for each in (x, y))
    votes = np.empty((len(x), DIRECTIONS, *x.shape[1:]))
    right, up = np.abs(x), np.abs(y)
    np.subtract(x, up, out=votes[:, 0])
    np.minimum(x, y, out=votes[:, 1])
    np.subtract(y, right, out=votes[:, 2])
    np.minimum(-x, y, out=votes[:, 3])
    np.subtract(-x, up, out=votes[:, 4])
    np.minimum(-x, -y, out=votes[:, 5])
    np.subtract(-y, right, out=votes[:, 6])
    np.minimum(x, -y, out=votes[:, 7])
    return np.maximum(votes, 0.0, out=votes)


def _cells(votes: Floats) -> Floats:
    """Return the votes in each cell, in units of a fifth: (n, 8, cells down, cells across)."""
    height, width = votes.shape[2:]
    summed: Floats = _tents(height) @ (votes.reshape(-1, width) @ _tents(width).T).reshape(*votes.shape[:3], -1)
    summed[:, ::2] *= _STRAIGHT
    summed[:, 1::2] *= _DIAGONAL
    return summed


@functools.cache
def _tents(inner: int) -> Floats:
    """Return the weights (cells, inner) of the pixels along a side, less the outermost, in the cells along it.

    Cells begin where as many pixels are left over before the first as after the last, or one fewer.
    """
    side = inner + 2
    count = cells(side)
    weights = np.zeros((count, side))
    first = ((side - CELL) % STRIDE) // 2
    for cell in range(count):
        weights[cell, first + STRIDE * cell :][:CELL] = _TENT
    tents = np.ascontiguousarray(weights[:, 1:-1])
    tents.setflags(write=False)
    return tents
