"""The noise laws, on the integers: continuous laws rounded to the nearest integer, drawn from exact tables.

Noise is added to integers (see `dpserve.mechanisms.grid`), and k + rint(Y) = rint(k + Y) for an integer k. Adding
rounded noise is therefore the continuous mechanism on k followed by rounding, which is post-processing: the
continuous mechanism's guarantee holds for the rounded law exactly, with nothing left to floating point.

A draw inverts a distribution function at 127 random bits, by one look-up in a table of thresholds (three for
Laplace) built with integer arithmetic alone. There is no rejection loop, the number of random words is fixed, and
so is the work: which operations are made on how many numbers follows from the number of draws and the table, and
neither from what the noise is added to nor from the noise. How long they take could tell of the noise by one thing
alone: where the table and its lines are read, and so whether that part of them is in a cache.

Promised: the law of a draw is within `DISTANCE` of the ideal law in total variation, well below what
`dpserve.accounting.sampling_error` reserves a share of every delta for.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from dpserve.accounting.arrays import Floats, Integers, Mask, Words

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
_CENTRES_PER_DEVIATION = 64
CENTRES = _GAUSSIAN_REACH * _CENTRES_PER_DEVIATION
"""Number of points around which the Gaussian distribution function is expanded."""
TERMS = 21
"""Number of coefficients of an expansion."""
_AT_ONCE = 2**14  # thresholds that are worked on together: what a process once took for them it keeps
_DIGITS_BITS = 160  # bits after the point of what is multiplied as matrices of digits


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
        places = self._lines.values_at(complements(pairs)).astype(np.int64)
        upper = high.take(places)
        # Both words are compared for every draw, though the first decides nearly all: a branch would tell by its time.
        passed = upper < pairs[:, 0]
        passed |= (upper == pairs[:, 0]) & (low.take(places) <= pairs[:, 1] >> np.uint64(1))
        places += passed
        return (places if values is None else values.take(places)).reshape(words.shape[:-1])

    @functools.cached_property
    def _distinct(self) -> tuple[Words, Words, Integers | None]:
        """The thresholds without repetitions, and the value that as many of them passed stand for, if there are any."""
        # A value of mass below 2^-127 has the threshold of the one before it. A line cannot pass two at one place.
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
        pieces = [slice(start, start + _AT_ONCE) for start in range(0, len(high), _AT_ONCE)]
        places = np.concatenate(
            [complements(np.stack([high[piece], low[piece] << np.uint64(1)], axis=-1)) for piece in pieces]
        )
        counts = np.arange(1.0, len(high) + 1)
        first, last = (int(np.float64(2.0**octave).view(np.int64)) for octave in (_FIRST_OCTAVE, _LAST_OCTAVE))
        seams = np.arange(first, last + (2 << _SEGMENT_SHIFT), 1 << _SEGMENT_SHIFT, dtype=np.int64).view(np.float64)
        passed = np.concatenate([[0.0], places[::-1], [2.0**_LAST_OCTAVE]])
        heights = np.interp(seams, passed, np.concatenate([[len(high) + 0.25], counts[::-1], [0.25]]))
        slopes = np.diff(heights) / np.diff(seams)
        lines = _Lines(heights[:-1] - slopes * seams[:-1] - 0.5, slopes)
        ends = lines.values_at(np.stack([seams[:-1], np.nextafter(seams[1:], 0.0)], axis=-1).ravel())[::-1]
        off = max(np.max(np.abs(lines.values_at(places[piece]) - (counts[piece] - 0.5))) for piece in pieces)
        # Slopes are negative, so -slope x is what a relative error in x can move a line by.
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
        # The bits of a positive double, read as an integer, are its exponent and then its fraction: shifted they number
        # the segments without a logarithm or a search.
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
    """Return the law of rint(Y), Y from N(0, scale^2), within DISTANCE. Built once per scale.

    The magnitude |rint(Y)|, at most K = 12 S, is drawn with a fair sign (a signed zero is zero). It is below k where
    |Y| < k - 1/2, so with F(z) = integral of exp(-s^2/2) over [0, z] the thresholds are

        T_k = F((k - 1/2) / S) / F((K + 1/2) / S),   k = 1, ..., K.

    F is expanded around CENTRES points (`_normal_integral`), each for the S/64 thresholds that lie within 1/128 of it:
    T_k = sum_n c_n t^n with |t| < 1 an odd multiple of 64/S. The sums are products of matrices of whole numbers below
    2^16, the digits of the c_n and of the t^n with 160 bits after the point: every partial sum is below
    21 10 2^32 < 2^53, so doubles hold it exactly, whatever the order of summation.

    Distance from the ideal law:
    - cutting at K and scaling the rest to 1: P(|Y| > 12 S) <= 2 phi(12)/12 < 2^-107.7 (Mills' ratio);
    - F's error, below 2^-162 (`_normal_integral`), in units v = 2^-160 less than 1 v after division by F > 1; 21
      coefficients are rounded by less than v each, and powers of t by v times |c_n|, together below 1 v more;
      products of digits i and j with i + j < 8 are left out: 36 21 2^32 of 2^(16 (7 - 10)) v at most, below 1 v.
      Together below 2^5 v = 2^-155;
    - rounding K thresholds down to 127 bits: each moves by less than 2^-127, and by 2^-155 for the errors above, so
      all together by K (2^-127 + 2^-155) <= 2^-107.4 + 2^-135, which bounds what the masses move by.
    Together below 2^-106 = DISTANCE.

    Raises ValueError unless `scale` is a power of two between 2^8 and 2^16.
    """
    if scale.bit_count() != 1 or not SMALLEST_GAUSSIAN_SCALE <= scale <= LARGEST_GAUSSIAN_SCALE:
        raise ValueError(
            f"the scale must be a power of two between {SMALLEST_GAUSSIAN_SCALE} and {LARGEST_GAUSSIAN_SCALE}, "
            f"not {scale}"
        )
    cell = scale // _CENTRES_PER_DEVIATION
    expansions, unit = _normal_integral(), 1 << _DIGITS_BITS
    total = sum(f * (cell + 1) ** n // cell**n for n, f in enumerate(expansions[-1]))
    coefficients = [[_divided(f * unit, total) for f in row] for row in expansions]
    powers = [[_divided(t**n * unit, cell**n) for t in range(1 - cell, cell, 2)] for n in range(TERMS)]
    return RoundedGaussian(scale, _inversion_table(*_thresholds(_digits(coefficients), _digits(powers))))


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
        # The digits of a geometric number are independent and geometric themselves: three small tables serve for one of
        # 2^33 entries.
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


def _normal_integral() -> tuple[tuple[int, ...], ...]:
    """Return the integral F of exp(-s^2/2) from 0, in fixed point, around each z = (2 j + 1) / 128, j < CENTRES.

    Of each z the coefficients f_n of F(z + t/128) = sum_{n < TERMS} f_n t^n.

    With d = 1/128 and a_m = d^m g^(m)(z) / m! for g = exp(-s^2/2), f_(m+1) = d a_m / (m + 1), and from g' = -s g,

        (m + 1) a_(m+1) = -d z a_m - d^2 a_(m-1).

    F at a point follows from F at the one before by the series of both up to the middle between them.

    Error, with u = 2^-192. What is left out behind N = TERMS - 1 = 20 is at most |d t|^21 max|g^(20)| / 21!, and
    |g^(20)(z)| = |He_20(z)| exp(-z^2/2) <= 1.09 sqrt(20!) (Cramer's inequality, Abramowitz and Stegun 22.14.17): below
    2^-181 for |t| <= 1, and 2^-174 at the t <= 5/4 where `rounded_gaussian` takes the whole. exp(-z^2/2) comes from two
    multiplications a point: the first factors are within 2^4 u, the ratio of step j within 2^5 (j + 1) u, so each is
    within 2^24 u. By |d z| < 0.1 the errors of the a_m do not grow, and each sum of a series is within 2^19 u. F adds
    up 2 CENTRES of them: within 2^30 u + 2^11 2^-181 < 2^-161.9. Divided by 1.25 < F(12) it is below 2^-162.
    """
    density, ratio = _exp_minus(Fraction(1, 2**15)), _exp_minus(Fraction(1, 2**12))
    ratio_of_ratios, integral, terms = ratio, 0, []
    for place in range(1, 2 * CENTRES, 2):
        series, before, now = [0], 0, density
        for m in range(1, TERMS):
            series.append(now // (m << 7))
            before, now = now, -((place * now + before) // (m << 14))
        integral -= sum(f * (-1) ** n for n, f in enumerate(series))
        series[0] = integral
        integral = sum(series)
        terms.append(tuple(series))
        density = density * ratio >> _PRECISION
        ratio = ratio * ratio_of_ratios >> _PRECISION
    return tuple(terms)


def _divided(numerator: int, denominator: int) -> int:
    """Return the quotient, rounded towards zero."""
    quotient = abs(numerator) // denominator
    return -quotient if numerator < 0 else quotient


def _digits(numbers: Sequence[Sequence[int]]) -> Floats:
    """Return the digits to the base 2^16, the last first, of numbers (n, m) of magnitude at most 2^160: (10, n, m).

    They have their number's sign. The first digit of 2^160 is 2^16.
    """
    count = _DIGITS_BITS // 16
    octets = b"".join(abs(number).to_bytes(2 * count + 2, "little") for row in numbers for number in row)
    words = np.frombuffer(octets, dtype="<u2").astype(np.float64).reshape(len(numbers), -1, count + 1)
    words[..., count - 1] += words[..., count] * 2.0**16
    signs = np.array([[-1.0 if number < 0 else 1.0 for number in row] for row in numbers])
    return np.moveaxis(words[..., :count] * signs[..., None], -1, 0)


def _thresholds(coefficients: Floats, powers: Floats) -> tuple[Words, Words]:
    """Return the thresholds' upper 64 and lower 63 bits, from the digits of their series (10, J, n) and t^n (10, n, B).

    Some series at a time: see `_AT_ONCE`.
    """
    high, low = (np.zeros((coefficients.shape[1], powers.shape[2]), dtype=np.uint64) for _ in range(2))
    step = _AT_ONCE // powers.shape[2]
    for start in range(0, len(high), step):
        rows = slice(start, start + step)
        _add_digits(coefficients[:, rows], powers, high[rows], low[rows])
    return high.ravel(), low.ravel()


def _add_digits(coefficients: Floats, powers: Floats, high: Words, low: Words) -> None:
    """Write the thresholds of some series into their places, zeros so far, (J, B) each.

    The products of digits are added up from the least place on, and each place's carry goes to the next.
    """
    count = len(coefficients)
    used: Mask = np.any(coefficients, axis=1)
    carry = np.zeros(high.shape)
    for place in range(count - 2, 2 * count):
        pairs = [(i, place - i) for i in range(max(0, place - count + 1), min(place + 1, count)) if used[i].any()]
        total = carry
        if pairs:
            left = np.concatenate([coefficients[i][:, used[i]] for i, _ in pairs], axis=1)
            total = left @ np.concatenate([powers[j][used[i]] for i, j in pairs]) + carry
        carry = np.floor(total * 2.0**-16)
        digit, at = (total - carry * 2.0**16).astype(np.uint64), 16 * (place - count)
        if at >= 96:
            high |= digit << np.uint64(at - 96)
        elif at >= 33:
            low |= digit << np.uint64(at - 33)
        elif at == 32:
            low |= digit >> np.uint64(1)


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
        # Rounding a small last mass down can reach 2^127 itself, which the words never do.
        octets += min((below << _THRESHOLD_BITS) // total, largest).to_bytes(16, "little")
    words = np.frombuffer(octets, dtype="<u8").astype(np.uint64).reshape(-1, 2)
    return _inversion_table(
        (words[:, 1] << np.uint64(1)) | (words[:, 0] >> np.uint64(63)), words[:, 0] & np.uint64(2**63 - 1)
    )


def _inversion_table(high: Words, low: Words) -> InversionTable:
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
