"""The noise laws, on the integers: continuous laws rounded to the nearest integer, drawn from exact tables.

Noise is added to integers (see `mechanisms.grid`), and k + rint(Y) = rint(k + Y) for an integer k. Adding
rounded noise is therefore the continuous mechanism on k followed by rounding, which is post-processing: the
continuous mechanism's guarantee holds for the rounded law exactly, with nothing left to floating point.

A draw inverts a distribution function at 127 random bits, by one look-up in a table of thresholds (three for
Laplace) built with integer arithmetic alone. There is no rejection loop, the number of random words is fixed, and
so is the work: which operations are made on how many numbers follows from the number of draws and the table, and
neither from what the noise is added to nor from the noise. How long they take could tell of the noise by one thing
alone: where the table and its lines are read, and so whether that part of them is in a cache.

Promised: the law of a draw is within `DISTANCE` of the ideal law in total variation, well below what
`accounting.sampling_error` reserves a share of every delta for.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from accounting.arrays import Floats, Integers, Words

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
_WEIGHTS = np.array([1.0, 2.0**32, 2.0**-64, 2.0**-32])  # of two words' halves, the lower half first
_SEGMENT_BITS = 7  # 2^7 lines to an octave keep the Gaussian's largest table within 1/4 of its lines
_FIRST_OCTAVE, _LAST_OCTAVE = -65, 64
_SEGMENT_SHIFT = 52 - _SEGMENT_BITS  # of a double's bits: what is left are exponent and leading digits
_PRECISION = 192  # bits after the point in fixed-point arithmetic
_ONE = 1 << _PRECISION
_SUM_BYTES = _PRECISION // 8 + 4  # of up to 2^32 masses of at most 1


class NoiseLaw(Protocol):
    """A symmetric law on the integers."""

    @property
    def words_per_draw(self) -> int:
        """Number of random words that one draw takes."""
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

        The first word is the upper 64 bits, the second without its last bit the lower 63. The work depends on
        nothing but the number of draws and the table: a line says for every draw which one threshold can still decide,
        and that one is read for every draw (see `_lines`). A search would take more steps for some draws than for
        others, NumPy's even as many as the draw before leaves to it.
        """
        high, low, values = self._distinct
        pairs = words.reshape(-1, 2)
        found = self._lines.values_at(complements(pairs)).astype(np.int64)
        upper = high.take(found)
        passed = upper < pairs[:, 0]
        passed |= (upper == pairs[:, 0]) & (low.take(found) <= pairs[:, 1] >> np.uint64(1))
        found += passed
        return (found if values is None else values.take(found)).reshape(words.shape[:-1])

    @functools.cached_property
    def _distinct(self) -> tuple[Words, Words, Integers | None]:
        """The thresholds without repetitions, and the value that as many of them passed stand for, if there are any."""
        last = np.append((self.high[1:] != self.high[:-1]) | (self.low[1:] != self.low[:-1]), True)
        if last.all():
            return self.high, self.low, None
        return self.high[last], self.low[last], np.append(0, np.flatnonzero(last) + 1)

    @functools.cached_property
    def _lines(self) -> "_Lines":
        """The lines that leave one threshold to read.

        Let T_1 < ... < T_K be the thresholds and c(u) how many of them are <= u. The lines together are a function f of
        u with 1/4 <= f <= K + 1/4 and, for an e < 1/2,

            |f(T_k) - k| <= e for every k,   f(u) >= f(v) - d and f(v) <= f(u) + d for u >= v,   e + d < 1/2.

        So c(u) = k means k - 1/2 < f(u) < k + 3/2, by T_k <= u < T_(k+1), and i = floor(f(u) - 1/2), or 0 if that is
        -1, is k - 1 or k, at least 0 and at most K - 1. Were it k - 1, T_(i+1) = T_k is <= u; were it k, T_(i+1) > u.
        Either way c(u) is i and one more if T_(i+1) <= u.

        e is measured at all thresholds, on what is computed. d is how far the computed f falls anywhere, as it may at
        the seam of two lines by rounding, plus what the rounding of u itself can do: `complements` errs by less than
        2^-51 of its result x, which moves a line by less than its slope times x times 2^-49, also beyond a seam.

        Raises ValueError for thresholds that lines of such segments do not fit; those of this module's laws all do.
        """
        high, low, _ = self._distinct
        places, counts = complements(np.stack([high, low << np.uint64(1)], axis=-1)), np.arange(1.0, len(high) + 1)
        first, last = (int(np.float64(2.0**octave).view(np.int64)) for octave in (_FIRST_OCTAVE, _LAST_OCTAVE))
        seams = np.arange(first, last + (2 << _SEGMENT_SHIFT), 1 << _SEGMENT_SHIFT, dtype=np.int64).view(np.float64)
        passed = np.concatenate([[0.0], places[::-1], [2.0**_LAST_OCTAVE]])
        heights = np.interp(seams, passed, np.concatenate([[len(high) + 0.25], counts[::-1], [0.25]]))
        slopes = np.diff(heights) / np.diff(seams)
        lines = _Lines(heights[:-1] - slopes * seams[:-1] - 0.5, slopes)
        ends = lines.values_at(np.stack([seams[:-1], np.nextafter(seams[1:], 0.0)], axis=-1).ravel())[::-1]
        off = np.max(np.abs(lines.values_at(places) - (counts - 0.5)))
        falls = np.max(np.maximum.accumulate(ends) - ends) + np.max(-slopes * seams[1:]) * 2.0**-48 + 2.0**-30
        if not off + falls < 0.5:
            raise ValueError("the table's thresholds do not lie near enough to lines to be drawn from")
        return lines


@dataclass(frozen=True, eq=False)
class _Lines:
    """A line for each of 2^7 equal segments of each octave of x: its value at x = 0, less 1/2, and its slope."""

    starts: Floats
    slopes: Floats

    def values_at(self, x: Floats) -> Floats:
        """Return the lines' values, less 1/2, at x >= 0, shape (n,)."""
        segments = x.view(np.int64) >> _SEGMENT_SHIFT
        segments -= (_FIRST_OCTAVE + 1023) << _SEGMENT_BITS
        heights = self.slopes.take(segments, mode="clip")
        heights *= x
        heights += self.starts.take(segments, mode="clip")
        return heights


def complements(pairs: Words) -> Floats:
    """Return what words (n, 2), as numbers of 64 bits before and 64 behind the point, lack to 2^64, shape (n,).

    Less the last place, so that nothing lacks to the largest. Halves of words are doubles exactly, and so are they
    times powers of two; three roundings of a sum of them leave the result within 2^-51 of itself, near 2^64 as near 0:
    where the thresholds are close to each other these numbers are small. Doubles of whole words would take a branch.
    """
    halves = np.invert(pairs, order="C").view(np.uint32).astype(np.float64)
    complements: Floats = halves @ _WEIGHTS
    return complements


@dataclass(frozen=True, eq=False)
class RoundedGaussian:
    """rint(Y), Y from N(0, scale^2). Made by `rounded_gaussian`."""

    scale: int
    magnitudes: InversionTable
    words_per_draw: int = 2

    def draw(self, words: Words) -> Integers:
        """See `NoiseLaw`. The last bit of the words, which the inversion leaves alone, is the sign."""
        return _add_signs(self.magnitudes.invert(words), words)


@dataclass(frozen=True, eq=False)
class RoundedLaplace:
    """rint(Y), Y from Laplace(scale). Made by `rounded_laplace`."""

    scale: int
    digits: tuple[InversionTable, ...]
    words_per_draw: int = 2 * _DIGITS

    def draw(self, words: Words) -> Integers:
        """See `NoiseLaw`."""
        return _add_signs((_number(self.digits, words) + 1) >> 1, words)


@dataclass(frozen=True, eq=False)
class FlooredExponential:
    """floor(Y), Y exponential with mean `scale`: g or more with probability e^(-g/scale). See `floored_exponential`."""

    scale: int
    digits: tuple[InversionTable, ...]
    words_per_draw: int = 2 * _DIGITS

    def draw(self, words: Words) -> Integers:
        """Turn uniform words, shape (..., words_per_draw), into independent draws, shape (...)."""
        return _number(self.digits, words)


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
    return RoundedGaussian(scale, _table(itertools.chain([centre], (2 * mass for mass in masses))))


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
        digits.append(_table(itertools.islice(_powers(ratio), 1 << _DIGIT_BITS)))
        for _ in range(_DIGIT_BITS):
            ratio = ratio * ratio >> _PRECISION
    return RoundedLaplace(scale, tuple(digits))


def floored_exponential(scale: int) -> FlooredExponential:
    """Return the law of floor(Y), Y exponential with mean `scale`, within 2^-114.

    It is the G of `rounded_laplace`(scale / 2).

    Raises ValueError unless `scale` is even and at most 2^25.
    """
    if scale % 2:
        raise ValueError(f"the scale must be even, not {scale}")
    return FlooredExponential(scale, rounded_laplace(scale // 2).digits)


def _gaussian_masses(scale: int) -> Iterator[int]:
    """Yield the masses p_0, p_1, ... of `rounded_gaussian`, over f(0), in fixed point."""
    coefficients = [int(c * _ONE) for c in reversed(_correction(scale, taylor_order(scale)))]
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


def taylor_order(scale: int) -> int:
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


def _table(masses: Iterable[int]) -> InversionTable:
    """Return the table of the law on 0, 1, ... with masses in proportion to `masses`.

    The numbers on the way are kept as bytes: nearly a million Python integers at once leave a process 12 MB larger for
    good, because what else is made meanwhile lies between them.
    """
    total, sums = 0, bytearray()
    for mass in masses:
        sums += total.to_bytes(_SUM_BYTES, "little")
        total += mass
    largest, octets = (1 << _THRESHOLD_BITS) - 1, bytearray()
    for place in range(_SUM_BYTES, len(sums), _SUM_BYTES):
        below = int.from_bytes(sums[place : place + _SUM_BYTES], "little")
        octets += min((below << _THRESHOLD_BITS) // total, largest).to_bytes(16, "little")
    words = np.frombuffer(octets, dtype="<u8").astype(np.uint64).reshape(-1, 2)
    high = (words[:, 1] << np.uint64(1)) | (words[:, 0] >> np.uint64(63))
    low = words[:, 0] & np.uint64(2**63 - 1)
    high.setflags(write=False)
    low.setflags(write=False)
    table = InversionTable(high, low)
    table.invert(np.zeros((1, 2), dtype=np.uint64))  # the first draw fits the lines: not while somebody waits
    return table


def _number(digits: tuple[InversionTable, ...], words: Words) -> Integers:
    """Draw a number's digits to the base 2^11, the last one first."""
    number: Integers = np.zeros(words.shape[:-1], dtype=np.int64)
    for i, digit in enumerate(digits):
        number += digit.invert(words[..., 2 * i : 2 * i + 2]) << (_DIGIT_BITS * i)
    return number


def _add_signs(magnitudes: Integers, words: Words) -> Integers:
    """Give `magnitudes` the sign that the last bit of the last word says."""
    signs = (words[..., -1] & np.uint64(1)).astype(np.int64)
    return magnitudes * (1 - 2 * signs)
