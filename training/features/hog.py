"""Histograms of oriented gradients (Dalal and Triggs 2005), from whole numbers.

What is where in an image is told by the directions in which it grows lighter. Every pixel's gradient votes for two of 8
directions; cells of 8 x 8 pixels, 4 apart, add up the votes near them; and 2 x 2 cells are a block, in which only each
one's share of the votes counts, so that contrast and brightness play no part. Features are the square roots of shares:
inner products then compare histograms as Hellinger does (Arandjelovic and Zisserman 2012). docs/mechanisms.md
says what they reach beside blocks of length 1.

Everything up to a block's votes is a whole number below 2^53, exact in any order of summation, and what follows are
single divisions and square roots: so a row's numbers have the same bits everywhere, alone or in a batch
(`dpserve.training.features.feature_map`). Nothing here is learnt or drawn at random.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats

Shape = tuple[int, int, int]
"""Height, width, channels."""

LEVELS = 1020
"""Pixels are whole numbers up to this: four times 255, so that 8-bit pixels are not rounded."""

CELL, STRIDE, DIRECTIONS = 8, 4, 8
WEIGHTS = _STRAIGHT, _DIAGONAL = 5, 7
"""A diagonal is sqrt(2) long, about 7/5."""
_TENT = (1, 3, 5, 7, 7, 5, 3, 1)
_UNIT = LEVELS * _STRAIGHT * sum(_TENT) ** 2
"""A cell's votes where every gradient is 1 and points the same way."""
FLOOR = _UNIT // 50
"""Added to a block's votes, so that faint noise in an even area counts little."""

COLOURS = 4
"""Each channel of a colour image has so many levels in the histogram of its colours."""
_QUARTERS = 4
COLOUR_SHARE = 0.4
"""The weight of colours beside gradients."""
LEAST_SIDE, MOST_PIXELS = CELL + STRIDE, 2**20


def check_shape(shape: Shape, columns: int) -> None:
    """Raise ValueError for a shape that images with so many values do not have, and for one that is not covered."""
    height, width, channels = shape
    if channels not in (1, 3):
        raise ValueError(f"images have 1 channel or 3, not {channels}")
    if min(height, width) < LEAST_SIDE:
        raise ValueError(f"images must be at least {LEAST_SIDE} pixels high and wide, not {height} by {width}")
    if height * width > MOST_PIXELS:
        raise ValueError(f"images may have up to {MOST_PIXELS:,} pixels, not {height} by {width}")
    if height * width * channels != columns:
        raise ValueError(
            f"images of {height} by {width} pixels and {channels} channel{'s' * (channels > 1)} have "
            f"{height * width * channels:,} values, and a record has {columns:,}"
        )


def width_of(shape: Shape) -> int:
    """Return how many numbers describe an image of this shape."""
    colours = _QUARTERS * COLOURS ** shape[2] if shape[2] > 1 else 0
    return 4 * DIRECTIONS * _blocks(shape) + colours


def described(u: Floats, shape: Shape) -> Floats:
    """Return what describes images (n, height * width * channels), of values from 0 to 1: (n, `width_of`), unscaled.

    Numbers from 0 to 2^9: square roots of shares, and for colour images those of counts, scaled so that together they
    are as long as COLOUR_SHARE of what gradients are at most.
    """
    pixels = levels(u, shape)
    slopes = gradients(pixels)
    if shape[2] == 1:
        return slopes
    return np.hstack([slopes, np.sqrt(colours(pixels)) * colour_scale(shape)])


def centred(described: Floats, shape: Shape) -> Floats:
    """Return what describes images, (n, `width_of`), less the mean of each block, and of the colours in each quarter.

    What all images have in common makes rows long and tells no classes apart, and noise on answers goes by length.
    Numbers are rounded to multiples of 2^-30 first, and nothing is rounded after that: they are at most 2^9 and a mean
    is of 32 or 64, so that sums, means and differences are multiples of 2^-36 of at most 2^15.
    """
    steps: Floats = np.rint(described * 2.0**30) * 2.0**-30
    width = 4 * DIRECTIONS * _blocks(shape)
    edges = steps[:, :width].reshape(len(steps), 4 * DIRECTIONS, -1)
    edges -= edges.mean(axis=1, keepdims=True)
    if shape[2] > 1:
        quarters = steps[:, width:].reshape(len(steps), _QUARTERS, -1)
        quarters -= quarters.mean(axis=2, keepdims=True)
    return steps


def colour_scale(shape: Shape) -> float:
    """Return what roots of colours' counts are multiplied by."""
    return COLOUR_SHARE * math.sqrt(_blocks(shape) / (shape[0] * shape[1]))


def _blocks(shape: Shape) -> int:
    return (cells(shape[0]) - 1) * (cells(shape[1]) - 1)


def colours(pixels: Floats) -> Floats:
    """Return how many pixels of each quarter of the image have each colour: (n, 4 * COLOURS^channels).

    pixels: (n, height, width, channels), whole numbers from 0 to LEVELS. Each channel has COLOURS even levels.
    """
    count, height, width, channels = pixels.shape
    steps = np.minimum(pixels.astype(np.int64) * COLOURS // LEVELS, COLOURS - 1)
    places = quarter_of(height, width) * COLOURS**channels + steps @ COLOURS ** np.arange(channels)
    bins = _QUARTERS * COLOURS**channels
    places += bins * np.arange(count)[:, None, None]
    counts: Floats = np.bincount(places.ravel(), minlength=count * bins).reshape(count, bins).astype(np.float64)
    return counts


@functools.cache
def quarter_of(height: int, width: int) -> NDArray[np.int64]:
    """Return in which quarter of an image each pixel lies, (height, width)."""
    down, across = np.arange(height) * 2 // height, np.arange(width) * 2 // width
    return 2 * down[:, None] + across


def cells(side: int) -> int:
    """Return how many cells there are along a side of so many pixels."""
    return (side - CELL) // STRIDE + 1


def levels(u: Floats, shape: Shape) -> Floats:
    """Return rows (n, height * width * channels) between 0 and 1 as whole numbers (n, *shape) up to LEVELS."""
    whole: Floats = np.rint(u * LEVELS).reshape(-1, *shape)
    return whole


def gradients(pixels: Floats) -> Floats:
    """Return the roots of the shares that each direction in each of its cells has of a block's votes: (n, 32 blocks).

    pixels: (n, height, width, channels), whole numbers from 0 to LEVELS. Of several channels the one with the longest
    gradient counts, the first of equals. A block's squares add up to less than 1.

    A gradient (x, y) is a whole-number sum of two neighbouring directions, as x >= y >= 0 is (x - y) (1, 0) + y (1, 1),
    and that is how it votes: no angle is computed, and a direction that turns moves its votes from one to the next
    continuously.

    Why nothing is rounded. |x| and |y| are at most 1020, a pixel's vote is at most 7 * 1020, and a cell's tent has
    weights that add up to 32^2: no sum in a cell is beyond 7 * 1020 * 2^10 < 2^23, and that of a block's 32 numbers is
    below 2^28.
    """
    summed = _cells(_votes(pixels))
    blocks = np.concatenate(
        [summed[:, :, :-1, :-1], summed[:, :, :-1, 1:], summed[:, :, 1:, :-1], summed[:, :, 1:, 1:]], axis=1
    )
    blocks /= (blocks.sum(axis=1) + FLOOR)[:, None]
    roots: Floats = np.sqrt(blocks).reshape(len(blocks), -1)
    return roots


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
        x, y = (np.take_along_axis(gradient, longest, axis=3)[..., 0] for gradient in (x, y))
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
    summed: Floats = tents(height) @ (votes.reshape(-1, width) @ tents(width).T).reshape(*votes.shape[:3], -1)
    summed[:, ::2] *= _STRAIGHT
    summed[:, 1::2] *= _DIAGONAL
    return summed


@functools.cache
def tents(inner: int) -> Floats:
    """Return the weights (cells, inner) of the pixels along a side, less the outermost, in the cells along it.

    Cells begin where as many pixels are left over before the first as after the last, or one fewer.
    """
    side = inner + 2
    count = cells(side)
    weights = np.zeros((count, side))
    first = ((side - CELL) % STRIDE) // 2
    for cell in range(count):
        weights[cell, first + STRIDE * cell :][:CELL] = _TENT
    inside = np.ascontiguousarray(weights[:, 1:-1])
    inside.setflags(write=False)
    return inside
