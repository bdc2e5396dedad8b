"""The noise laws, on the integers: continuous laws rounded to the nearest integer, drawn from exact tables.

Noise is added to integers (see `mechanisms.grid`), and k + rint(Y) = rint(k + Y) for an integer k. Adding
rounded noise is therefore the continuous mechanism on k followed by rounding, which is post-processing: the
continuous mechanism's guarantee holds for the rounded law exactly, with nothing left to floating point.

A draw inverts a distribution function at 127 random bits, by one search in a table of thresholds (three for
Laplace) built with integer arithmetic alone. There is no rejection loop, the number of random words is fixed,
and the time does not depend on what the noise is added to; the few steps by which one search is longer than
another depend on the random words only.

Promised: the law of a draw is within `DISTANCE` of the ideal law in total variation, well below what
`accounting.sampling_error` reserves a share of every delta for.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mechanisms.randomness import Words

Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

DISTANCE = 2.0**-106
"""The total variation distance of one draw, of any law of this module, from its ideal law, at most."""

SMALLEST_GAUSSIAN_SCALE = 2**8
LARGEST_GAUSSIAN_SCALE = 2**16
LAPLACE_SCALE = 2**24
"""The scale at which the Laplace mechanism works: its tables are small whatever the scale."""

_THRESHOLD_BITS = 127
_GAUSSIAN_REACH = 12  # standard deviations
_DIGIT_BITS = 11
_DIGITS = 3
_KNOT_BITS = 12
_ROUNDING_OF_LINES = 2.0**-24  # more than three roundings of numbers below 2^21 in doubles can move a line's ends
_LARGEST_SEARCHED = 1 << 14
_PRECISION = 192  # bits after the point in fixed-point arithmetic
_ONE = 1 << _PRECISION


class NoiseLaw(Protocol):
    """A symmetric law on the integers."""

    @property
    def words_per_draw(self) -> int:
        """How many random words one draw takes."""
        ...

    def draw(self, words: Words) -> Integers:
        """Turn uniform words, shape (..., words_per_draw), into independent draws, shape (...)."""
        ...


@dataclass(frozen=True, eq=False)
class InversionTable:
    """A law on 0, 1, ..., K, by its K thresholds of 127 bits: value v is drawn if v of them are <= the bits.

    `high` holds the upper 64 bits of the thresholds, ascending, and `low` the lower 63.
    """

    high: Words
    low: Words

    def invert(self, words: Words) -> Integers:
        """Return the values, shape (...), that uniform words of shape (..., 2) select.

        The first word is the upper 64 bits, the second without its last bit the lower 63. The upper bits
        decide unless they equal a threshold's, which happens with probability K / 2^64 per draw. Which of them a
        table in no cache is read for depends on the words alone, as the number of a search's steps does.
        """
        high, low = words[..., 0].ravel(), words[..., 1].ravel()
        if len(self.high) < _LARGEST_SEARCHED:
            return self._searched(high, low).reshape(words.shape[:-1])
        values, open_ = self._guessed(high)
        if len(open_):
            values[open_] = self._searched(high[open_], low[open_])
        return values.reshape(words.shape[:-1])

    def _searched(self, high: Words, low: Words) -> Integers:
        values = np.searchsorted(self.high, high, side="left").astype(np.int64, copy=False)
        undecided = self.high[np.minimum(values, len(self.high) - 1)] == high
        for i in np.flatnonzero(undecided):
            beyond = np.searchsorted(self.high, high[i], side="right")
            within = self.low[values[i] : beyond]
            values[i] += np.searchsorted(within, low[i] >> np.uint64(1), side="right")
        return values

    def _guessed(self, high: Words) -> tuple[Integers, npt.NDArray[np.intp]]:
        """Return values, and the places of those that are guesses: all others are exact, and no threshold was read.

        A table that no cache holds takes longer to search than all else of a draw. Let c(u) be how many upper bits lie
        below u: k between the k-th threshold T_k and the next. In each of 2^12 segments of the words `_lines` has a
        rising line l and an e with |l(T_k) - k| <= e for every T_k in it, from a value in [k, k + 1] at its
        beginning, where c is k, to one such at its end. A u in (T_k, T_k+1] so has k - e <= l(u) <= k + 1 + e,
        whether these thresholds lie in the segment or not. Hence floor(l(u)) = k wherever the fraction of l(u) lies
        between e and 1 - e, for e < 1/2: were it k - 1, the fraction would be at least 1 - e, and were it k + 1, at
        most e. Words that equal a threshold's are never among these. What is computed is a rising function of u too,
        and e is measured on what is computed.
        """
        starts, slopes, certain = self._lines
        segments = (high >> np.uint64(64 - _KNOT_BITS)).astype(np.intp)
        heights = (high & np.uint64((1 << (64 - _KNOT_BITS)) - 1)).astype(np.float64)
        heights *= slopes.take(segments)
        heights += starts.take(segments)
        values = heights.astype(np.int64)
        heights -= values
        heights -= 0.5
        np.abs(heights, out=heights)
        return values, np.flatnonzero(heights >= certain.take(segments))

    @functools.cached_property
    def _lines(self) -> tuple[_Floats, _Floats, _Floats]:
        """Of each segment: the line's value at its beginning, its slope, and 1/2 - e; see `_guessed`."""
        knots = np.arange(1 << _KNOT_BITS, dtype=np.uint64) << np.uint64(64 - _KNOT_BITS)
        below = np.searchsorted(self.high, knots, side="left")
        least = np.where(below > 0, self.high[below - 1], np.uint64(0))
        most = np.where(below < len(self.high), self.high[np.minimum(below, len(self.high) - 1)], np.uint64(2**64 - 1))
        fractions = (knots - least).astype(np.float64) / np.maximum(most - least, np.uint64(1)).astype(np.float64)
        starts = below + np.clip(fractions, 0.0, 1.0)
        slopes = np.diff(starts, append=len(self.high) + 1.0) / 2.0 ** (64 - _KNOT_BITS)
        segments = (self.high >> np.uint64(64 - _KNOT_BITS)).astype(np.intp)
        heights = (self.high & np.uint64((1 << (64 - _KNOT_BITS)) - 1)).astype(np.float64) * slopes[segments]
        errors = np.full(1 << _KNOT_BITS, _ROUNDING_OF_LINES)
        np.maximum.at(
            errors, segments, np.abs(heights + starts[segments] - np.arange(1, len(segments) + 1)) + _ROUNDING_OF_LINES
        )
        return starts, slopes, 0.5 - errors


@dataclass(frozen=True, eq=False)
class RoundedGaussian:
    """rint(Y), Y from N(0, scale^2). Made by `rounded_gaussian`."""

    scale: int
    magnitudes: InversionTable
    words_per_draw: int = 2

    def draw(self, words: Words) -> Integers:
        """See `NoiseLaw`. The last bit of the words, which the inversion leaves alone, is the sign."""
        return _signed(self.magnitudes.invert(words), words)


@dataclass(frozen=True, eq=False)
class RoundedLaplace:
    """rint(Y), Y from Laplace(scale). Made by `rounded_laplace`."""

    scale: int
    digits: tuple[InversionTable, ...]
    words_per_draw: int = 2 * _DIGITS

    def draw(self, words: Words) -> Integers:
        """See `NoiseLaw`."""
        half_steps: Integers = np.zeros(words.shape[:-1], dtype=np.int64)
        for i, digit in enumerate(self.digits):
            half_steps += digit.invert(words[..., 2 * i : 2 * i + 2]) << (_DIGIT_BITS * i)
        return _signed((half_steps + 1) >> 1, words)


@functools.lru_cache(maxsize=16)
def rounded_gaussian(scale: int) -> RoundedGaussian:
    """Return the law of rint(Y), Y from N(0, scale^2), within DISTANCE. Built once per scale, in up to 1 s.

    The magnitude |rint(Y)| is drawn with a fair sign (a signed zero is zero). Its masses are, with f the
    density of N(0, S^2) and k = 0, 1, ..., K = 12 S,

        w_0 = p_0,  w_k = 2 p_k,   p_k = integral of f over [k - 1/2, k + 1/2].

    Taylor's theorem at k, where odd orders cancel and the m-th even one integrates to 1 / (4^m (2m+1)!), gives

        p_k = f(k) sum_{m=0..M} He_2m(k/S) / (S^2m 4^m (2m+1)!) + R_k,
        |R_k| <= max |f^(2M+2)| / (4^(M+1) (2M+3)!),   |f^(n)| <= sqrt(n!) / (2 S^(n+1)),

    the last because f^(n) = +-He_n(x) phi(x) / S^(n+1) at x = k/S and |He_n(x)| <= 1.09 sqrt(n!) e^(x^2/4)
    (Cramer's inequality, Abramowitz and Stegun 22.14.17). M is the smallest with 2 (K+1) |R_k| <= 2^-132.
    The factor f(k)/f(0) = exp(-k^2/2S^2) comes from two multiplications a step, in fixed point with 192 bits.

    Distance from the ideal law:
    - cutting at K and scaling the rest to 1: P(|Y| > 12 S) <= 2 phi(12)/12 < 2^-107.7 (Mills' ratio);
    - Taylor's remainder: 2^-132;
    - fixed point, u = 2^-192: exp(-1/2S^2) and exp(-1/S^2) are within 2^4 u, hence the ratio of step k within
      2^5 (k+1) u; hence exp(-k^2/2S^2) within u sum_{j<=k} (2^5 (j+1) e^(-j^2/2S^2) + 1) <= 2^7 S^2 u; Horner's
      rule at k^2/S^2 <= 144 is within 2 * 145^M u <= 2^-140 for M <= 7; the polynomial is below 2. The errors
      of all masses together, over the masses' sum (2.5 S, in units of f(0)), are below 2^-137;
    - rounding K thresholds down to 127 bits: each moves by less than 2^-127, so K 2^-127 <= 2^-107.4.
    Together below 2^-106 = DISTANCE.

    Raises ValueError unless `scale` is a power of two between 2^8 and 2^16.
    """
    if scale.bit_count() != 1 or not SMALLEST_GAUSSIAN_SCALE <= scale <= LARGEST_GAUSSIAN_SCALE:
        raise ValueError(
            f"the scale must be a power of two between {SMALLEST_GAUSSIAN_SCALE} and {LARGEST_GAUSSIAN_SCALE}, "
            f"not {scale}"
        )
    reach = _GAUSSIAN_REACH * scale
    masses = itertools.islice(_gaussian_masses(scale), reach + 1)
    centre = next(masses)
    return RoundedGaussian(scale, _table([centre, *(2 * mass for mass in masses)]))


@functools.lru_cache(maxsize=4)
def rounded_laplace(scale: int) -> RoundedLaplace:
    """Return the law of rint(Y), Y from Laplace(scale), within DISTANCE.

    |Y| is exponential, so G = floor(2 |Y|) is geometric, P(G >= g) = x^g with x = exp(-1/(2 scale)), and
    rint(|Y|) = floor((G + 1) / 2), since |Y| in [n - 1/2, n + 1/2) means G in {2n - 1, 2n}. The digits of G to
    the base B = 2^11 are independent, because x^G is the product of x^(B^i D_i): digit i has masses in
    proportion to x_i^d, x_i = x^(B^i). Three digits are drawn from a table each.

    Distance from the ideal law: cutting at B^3 = 2^33, where P(G >= 2^33) <= e^-256 for scales up to 2^24;
    fixed point with u = 2^-192: x within 2^6 u, x_i after at most 22 squarings within 2^29 u, each of B masses
    within 2^41 u, all together, over a sum of at least 1, within 2^52 u; rounding 3 B thresholds down to 127 bits:
    2^-114.4. Together below 2^-114 < DISTANCE.

    Raises ValueError unless 1 <= scale <= 2^24.
    """
    if not 1 <= scale <= LAPLACE_SCALE:
        raise ValueError(f"the scale must lie between 1 and {LAPLACE_SCALE}, not {scale}")
    ratio = _exp_minus(Fraction(1, 2 * scale))
    digits = []
    for _ in range(_DIGITS):
        digits.append(_table(list(itertools.islice(_powers(ratio), 1 << _DIGIT_BITS))))
        for _ in range(_DIGIT_BITS):
            ratio = ratio * ratio >> _PRECISION
    return RoundedLaplace(scale, tuple(digits))


def _gaussian_masses(scale: int) -> Iterator[int]:
    """Yield the masses p_0, p_1, ... of `rounded_gaussian`, over f(0), in fixed point."""
    coefficients = [int(c * _ONE) for c in reversed(_correction(scale, _taylor_order(scale)))]
    leading, others = coefficients[0], coefficients[1:]
    scale_bits = 2 * (scale.bit_length() - 1)
    density = _ONE
    ratio = _exp_minus(Fraction(1, 2 * scale**2))
    ratio_of_ratios = _exp_minus(Fraction(1, scale**2))
    for k in itertools.count():
        polynomial = leading
        for coefficient in others:
            polynomial = (polynomial * (k * k) >> scale_bits) + coefficient
        yield density * polynomial >> _PRECISION
        density = density * ratio >> _PRECISION
        ratio = ratio * ratio_of_ratios >> _PRECISION


def _taylor_order(scale: int) -> int:
    """Return the smallest M whose remainder, over the whole table of `rounded_gaussian`, is at most 2^-132."""
    entries = 2 * (_GAUSSIAN_REACH * scale + 1)
    for order in itertools.count(1):
        n = 2 * order + 2
        largest_derivative = Fraction(math.isqrt(math.factorial(n)) + 1, 2 * scale ** (n + 1))
        if entries * largest_derivative / (2**n * math.factorial(n + 1)) <= Fraction(1, 2**132):
            return order
    raise AssertionError("unreachable: the remainder tends to 0")


def _correction(scale: int, order: int) -> list[Fraction]:
    """Return the coefficients, by powers of (k/S)^2, of sum_{m<=order} He_2m(k/S) / (S^2m 4^m (2m+1)!).

    He_2m(x) = sum_j (-1)^j (2m)! / (j! (2m-2j)! 2^j) x^(2m-2j).
    """
    coefficients = [Fraction(0)] * (order + 1)
    for m in range(order + 1):
        for j in range(m + 1):
            hermite = Fraction(
                (-1) ** j * math.factorial(2 * m), math.factorial(j) * math.factorial(2 * (m - j)) * 2**j
            )
            coefficients[m - j] += hermite / (scale ** (2 * m) * 4**m * math.factorial(2 * m + 1))
    return coefficients


def _exp_minus(x: Fraction) -> int:
    """Return e^-x for 0 < x <= 1/2 in fixed point, within 2^6 units of the last place (2^4 for x <= 2^-17)."""
    total = term = _ONE
    for n in itertools.count(1):
        term = term * x.numerator // (x.denominator * n)
        if term == 0:
            break
        total += term if n % 2 == 0 else -term
    return total


def _powers(ratio: int) -> Iterator[int]:
    """Yield 1, r, r^2, ... in fixed point."""
    return itertools.accumulate(itertools.repeat(ratio), lambda power, r: power * r >> _PRECISION, initial=_ONE)


def _table(masses: list[int]) -> InversionTable:
    """Return the table of the law on 0, 1, ... with masses in proportion to `masses`."""
    *sums, total = itertools.accumulate(masses)
    largest = (1 << _THRESHOLD_BITS) - 1
    octets = b"".join(min((s << _THRESHOLD_BITS) // total, largest).to_bytes(16, "little") for s in sums)
    words = np.frombuffer(octets, dtype="<u8").astype(np.uint64).reshape(-1, 2)
    high = (words[:, 1] << np.uint64(1)) | (words[:, 0] >> np.uint64(63))
    low = words[:, 0] & np.uint64(2**63 - 1)
    high.setflags(write=False)
    low.setflags(write=False)
    return InversionTable(high, low)


def _signed(magnitudes: Integers, words: Words) -> Integers:
    """Give `magnitudes` the sign that the last bit of the last word says."""
    signs = (words[..., -1] & np.uint64(1)).astype(np.int64)
    return magnitudes * (1 - 2 * signs)
