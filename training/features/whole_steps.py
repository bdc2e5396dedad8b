"""Operations on rows in whole steps, which round in one way or not at all: of these feature maps are made.

`dpserve.training.features.feature_map` says why, and which operations there are.
"""

import functools
import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.elementary import row_maxima
from dpserve.training.devices import Matrix, product

STEP_BITS = 24
STEP = 2.0**-STEP_BITS
"""Every coordinate of phi is a whole multiple of this."""
SHRINK = 1.0 - 2.0**-30
LENGTH = 2.0**STEP_BITS * SHRINK
"""A vector of norm 1, in steps."""
EXACT_BITS = 53
LEAST_EXPONENT = -64
"""Numbers below 2^-64 count as nothing: after division by the smallest clip norm they are far below STEP."""
TABLE_BITS = 16
LARGEST_DIMENSION = 2**22
CLIP_NORMS = (2.0**-20, 2.0**20)
"""Within these no square that matters underflows or overflows when a norm is computed."""
UNIT_ROWS = CLIP_NORMS[0]
"""A clip norm that draws every row to length 1."""

Waves = Annotated[int, Field(ge=2, le=LARGEST_DIMENSION, multiple_of=2)]
"""The number of Fourier features: a cosine and a sine of each frequency."""
Bandwidth = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def standard_normal(seed: int, shape: tuple[int, int]) -> Floats:
    """Return numbers that a public seed draws."""
    # NumPy promises never to change this generator's stream, so that every later version can check the tensors.
    return np.random.RandomState(seed).standard_normal(shape)


def into_ball(
    vectors: Floats, radius: float, length: float, width: int | None = None, often: Floats | None = None
) -> Floats:
    """Return whole numbers (n, k): `length` x / max(radius, ||x||) for each row x of `vectors`, rounded towards zero.

    So a row is at most `length` (1 + 2^-50) long: what `SHRINK` is for. x is rounded first, to whole multiples
    m of 2^(e - b), e being the exponent of its largest coordinate, with k 4^b <= 2^53: the sum of the squares of m is
    a whole number of at most 2^53, exact in any order of summation, and its square root is rounded once.

    width: k, where coordinates that are 0 were left out, or that are up to their signs others. often: how many each
    coordinate then stands for.
    """
    bits = exact_bits(vectors.shape[1] if width is None else width)
    exponents = np.frexp(row_maxima(np.abs(vectors)))[1]
    exponents = np.maximum(exponents, LEAST_EXPONENT) - bits
    whole = vectors * np.ldexp(1.0, -exponents)[:, None]
    np.rint(whole, out=whole)
    units = np.ldexp(1.0, exponents)
    norms = np.sqrt(np.vecdot(whole, whole if often is None else whole * often)) * units
    whole *= (length * units / np.maximum(radius, norms))[:, None]
    scaled: Floats = np.trunc(whole, out=whole)
    return scaled


def without_zeros(places: NDArray[np.int64], values: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the places and values (n, k) of rows with their zeros left out, where k is less for all of them."""
    rows, which = np.nonzero(values)
    counts = np.bincount(rows, minlength=len(values))
    most = int(counts.max(initial=0))
    if 2 * most > values.shape[1]:
        return places, values
    at = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    fewer, kept = np.zeros((len(values), most), dtype=np.int64), np.zeros((len(values), most))
    fewer[rows, at], kept[rows, at] = places[rows, which], values[rows, which]
    return fewer, kept


def exact_bits(width: int) -> int:
    """Return the b of `into_ball` for vectors of so many coordinates k: k 4^b <= 2^53."""
    return (EXACT_BITS - width.bit_length()) // 2


def rounded_for_products(omega: Floats) -> Floats:
    """Return `omega` (k, d) in steps of a power of two, such that `products_with` is exact.

    The step is the smallest of which a row's norm has less than 2^28: with a little to spare for rounding the row.
    """
    longest = math.sqrt(float(np.square(omega).sum(axis=1).max()))
    step = math.ldexp(1.0, math.frexp(longest)[1] - (EXACT_BITS - STEP_BITS - 1))
    rounded: Floats = np.rint(omega / step) * step
    return rounded


def frequencies(seed: int, shape: tuple[int, int], bandwidth: float) -> Floats:
    """Return the frequencies of Fourier features, (k, d), in turns, drawn from a public seed."""
    return rounded_for_products(standard_normal(seed, shape) / (2 * math.pi * bandwidth))


def waves_of(turns: Floats, length: float) -> Floats:
    """Return cosines and sines of `turns`, (n, k), as whole numbers (n, 2k): rows at most `length` long."""
    angles = np.rint(turns * 2.0**TABLE_BITS).astype(np.int64)
    # sin(t) = cos(t - a quarter turn)
    places = np.hstack([angles, angles - (1 << TABLE_BITS - 2)])
    places &= (1 << TABLE_BITS) - 1
    return _whole_cosines(length / math.sqrt(turns.shape[1])).take(places)


@functools.lru_cache(maxsize=4)
def _whole_cosines(length: float) -> Floats:
    """Return the cosines of 2^16 angles times `length`, as whole numbers rounded towards zero."""
    whole: Floats = np.trunc(cosines() * length)
    whole.setflags(write=False)
    return whole


def products_with(whole: Floats, omega: Matrix) -> Floats:
    """Return Omega v, (n, k), exactly, for v in steps of STEP, whole numbers (n, d), and `rounded_for_products`.

    Omega's rows have norms below 2^28 of their step before they are rounded, and below 2^28 + sqrt(d)/2 < 2^29 after;
    those of v are at most 2^24 of its own. By Cauchy and Schwarz the absolute values of the products in a row's sum add
    up to less than 2^53: every partial sum, in any order, is a whole number that a double holds. STEP is a power of
    two: scaling by it rounds nothing.
    """
    return product(whole, omega.T) * STEP


def cosines() -> Floats:
    """Return the cosines of 2^16 angles, a whole turn, within 2^-50: from the series of an eighth of a turn."""
    eighth = 1 << TABLE_BITS - 3
    x = np.arange(eighth + 1) * (2 * math.pi / (1 << TABLE_BITS))
    squared = x * x
    cosine, sine = np.ones_like(x), np.ones_like(x)
    for n in range(18, 0, -2):
        cosine = 1.0 - squared / (n * (n - 1)) * cosine
        sine = 1.0 - squared / (n * (n + 1)) * sine
    sine *= x
    quarter = np.concatenate([cosine, sine[-2::-1]])
    half = np.concatenate([quarter, -quarter[-2::-1]])
    turn = np.concatenate([half, half[-2:0:-1]])
    turn.setflags(write=False)
    return turn
