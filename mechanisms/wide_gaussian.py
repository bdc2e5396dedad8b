"""Gaussian noise on a grid so fine that rounding a long vector to it costs next to nothing.

`dpserve.mechanisms.noise` tabulates N(0, S^2) for S up to 2^16 steps. Rounding d coordinates to the grid moves
neighbours by up to about sqrt(d) steps, which for a gradient of 10^5 coordinates under much noise is no longer little
beside S. Three tables, one for each digit of a draw, make S = 2^24.

The time of drawing depends on the draws, a little: some are looked up twice. It is for training, whose time nobody who
asks is shown, and not for answers.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpserve.accounting.arrays import Integers, Words
from dpserve.mechanisms.noise import InversionTable, rounded_gaussian
from dpserve.mechanisms.randomness import Randomness

SCALE = 2**24
"""S, in steps: a draw has at least the noise of N(0, S^2)."""

DISTANCE = 2.0**-104
"""The total variation distance of one draw from its ideal law, at most."""

_DIGIT_SCALES = (2**10, 2**9, 2**9)
_DIGIT_BITS = 7
GUIDE_BITS = 18
"""More cells leave fewer draws to the search; so many still fit the cache."""


@dataclass(frozen=True, eq=False)
class WideGaussian:
    """2^14 A + 2^7 B + C with A, B, C rounded Gaussians of scales 2^10, 2^9, 2^9. Made by `wide_gaussian`."""

    digits: tuple["_Digit", ...]
    scale: int = SCALE
    words_per_draw: int = 2 * len(_DIGIT_SCALES)

    def draw(self, words: Words) -> Integers:
        """See `dpserve.mechanisms.noise.NoiseLaw`."""
        total: Integers = np.zeros(words.shape[:-1], dtype=np.int64)
        for i, digit in enumerate(self.digits):
            total <<= _DIGIT_BITS
            total += digit.draw(words[..., 2 * i : 2 * i + 2])
        return total

    def sample(self, size: int, randomness: Randomness) -> Integers:
        """Return `size` draws, (size,). Takes 6 `size` words: all first ones, then all second ones, and so on.

        They are asked for one digit at a time: what is read next is still in the cache, and no block of memory is so
        large that the system takes it back at once and hands it out again page by page.
        """
        total: Integers = np.zeros(size, dtype=np.int64)
        for digit in self.digits:
            total <<= _DIGIT_BITS
            total += digit.draw(randomness.words(2 * size).reshape(2, size).T)
        return total


@dataclass(frozen=True, eq=False)
class _Digit:
    """A rounded Gaussian and a guide to its table: the value that the upper 18 bits select, or -1 if they do not."""

    table: InversionTable
    guide: npt.NDArray[np.int16]

    def draw(self, words: Words) -> npt.NDArray[np.int16]:
        """Invert as `InversionTable` does, but search only where the guide leaves more than one value."""
        cells = (words[..., 0] >> np.uint64(64 - GUIDE_BITS)).view(np.int64)
        # There are as many cells as such numbers: "wrap" spares the check, which takes longer than the look-up.
        values: npt.NDArray[np.int16] = self.guide.take(cells, mode="wrap")
        open_ = np.nonzero(values < 0)
        values[open_] = self.table.invert(words[open_])
        # The conversion keeps the lowest bits, of which the last is the sign.
        last = words[..., -1].astype(np.uint8) & np.uint8(1)
        values *= np.int16(1) - (last << np.uint8(1)).view(np.int8)
        return values


def distance_from_normal(draws: int) -> float:
    """Return how far a sum of draws, each before it is rounded to an integer, is from a normal law, in total variation.

    The normal law has the same variance. A draw is rint(Y + 2^14 U + 2^7 V) (`wide_gaussian`). Put a normal N of the
    variance v = 2^28/12 in the place of one 2^14 U = W: their first three moments are the same, and what else is added
    has a normal part of variance s^2 > draws 2^48, with density g. By Taylor's theorem the densities of the sums are at
    most (E W^4 + E N^4)/24 |g|_1 apart in L1; E W^4 = 1.8 v^2, E N^4 = 3 v^2, and |g|_1 = E|He_4(Z)|/s^4 <=
    sqrt(24)/s^4. That is 0.98 v^2/s^4 < 2^-47.2/draws^2. There are so many draws, the variance of each 2^7 V is 2^14
    times smaller, and the total variation is half of it.
    """
    return 2.0**-48 / draws


@functools.lru_cache(maxsize=1)
def wide_gaussian() -> WideGaussian:
    """Return the law of rint(Y + 2^14 U + 2^7 V), Y from N(0, T^2), U and V uniform on [-1/2, 1/2], within DISTANCE.

    T^2 = 2^28 2^20 + 2^14 2^18 + 2^18 > SCALE^2, and Y, U, V are independent. Adding this law to an integer k is
    rint(k + Y + 2^14 U + 2^7 V): the Gaussian mechanism with T, and post-processing.

    Why the sum of digits has this law. rint of N(0, s^2) has the characteristic function sum_j phi(s (t + 2 pi j))
    sinc((t + 2 pi j)/2), with phi(u) = e^(-u^2/2) and sinc(u) = sin(u)/u (Poisson's summation). That of N = K^2 A +
    K B + C, K = 2^7, is the product at K^2 t, K t and t: a sum over (j, k, l). Its terms with j = K^2 l and k = K l
    are phi(T u) sinc(K^2 u/2) sinc(K u/2) sinc(u/2) at u = t + 2 pi l, which is the law above. Every other term is
    at most phi(a (K^2 u + 2 pi j')) phi(b (K u + 2 pi k')) phi(c u), with j' = j - K^2 l and k' = k - K l not both
    0. Where k' is not 0 the last two factors' exponent is at least, over all u, (2 pi k')^2 / (2 (K^2/c^2 + 1/b^2)) >
    7.99 (2 pi k')^2; where k' = 0 the same holds for j' of the first two, K u in the place of u. So each is below
    2^-450, and so are they all together, integrated over u, and summed over the 2^29 values that a draw can take.

    Three tables are within `noise.DISTANCE` = 2^-106 of their laws each, the ideal law's own tails beyond those
    values among it: 3 2^-106 + 2^-107 + 2^-420 < DISTANCE.
    """
    return WideGaussian(tuple(_digit(rounded_gaussian(scale).magnitudes) for scale in _DIGIT_SCALES))


def _digit(table: InversionTable) -> _Digit:
    edges = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - GUIDE_BITS)
    below = np.searchsorted(table.high, edges, side="left").astype(np.int64)
    following = np.append(below[1:], len(table.high))
    # Small enough for the cache: a table has 12 2^10 values at most.
    guide = np.where(below == following, below, -1).astype(np.int16)
    guide.setflags(write=False)
    return _Digit(table, guide)
