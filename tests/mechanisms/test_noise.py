"""The tables against the laws they stand for, in exact and in 60-digit arithmetic, and draws from them.

Statistical tests have fixed seeds (OpenDP's samplers cannot be seeded); each states its false-alarm rate.
"""

import bisect
import dataclasses
import functools
import itertools
import tracemalloc
from fractions import Fraction
from typing import ClassVar

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from dpserve.accounting import sampling_error
from dpserve.mechanisms import noise
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.grid import LARGEST_CLASSES
from dpserve.mechanisms.noise import (
    DISTANCE,
    LAPLACE_SCALE,
    InversionTable,
    RoundedGaussian,
    rounded_gaussian,
    rounded_laplace,
)
from dpserve.mechanisms.randomness import SystemRandomness


@pytest.fixture(autouse=True)
def _sixty_digits():
    with mp.workdps(60):
        yield


def thresholds(table):
    return [(int(high) << 63) | int(low) for high, low in zip(table.high, table.low, strict=True)]


def masses(table):
    """The exact law of a table, in units of 2^-127."""
    return [after - before for before, after in itertools.pairwise([0, *thresholds(table), 2**127])]


def words_of(value):
    """The two words whose 127 bits are `value`, sign bit 0."""
    return (value >> 63, (value & (2**63 - 1)) << 1)


def to_words(pairs):
    return np.array(pairs, dtype=np.uint64)


def within(scale, k):
    """P(|rint(Y)| <= k) for Y from N(0, scale^2)."""
    return mpmath.erf((k + mpmath.mpf(0.5)) / (scale * mpmath.sqrt(2)))


def test_the_distance_is_what_the_budget_reserves_for():
    assert DISTANCE <= sampling_error.DISTANCE_PER_DRAW
    assert LARGEST_CLASSES <= sampling_error.DRAWS_PER_ROW


# --- the Gaussian table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2**8, 2**9])
def test_the_whole_gaussian_table_is_within_the_distance(scale):
    table = rounded_gaussian(scale).magnitudes
    assert len(table.high) == 12 * scale
    cumulative = [within(scale, k) for k in range(12 * scale)]
    ideal = [after - before for before, after in itertools.pairwise([0, *cumulative])]
    drawn = [mpmath.mpf(mass) / 2**127 for mass in masses(table)]
    beyond = 1 - cumulative[-1]
    last = within(scale, 12 * scale) - cumulative[-1]
    differences = [abs(p - q) for p, q in zip(drawn, [*ideal, last], strict=True)]
    assert (mpmath.fsum(differences) + beyond - last) / 2 <= DISTANCE


@pytest.mark.parametrize("scale", [2**8, 2**11, 2**14, 2**16])
def test_gaussian_thresholds_are_the_rounded_down_distribution_function(scale):
    """The stated error of a threshold: less than 2^-127 below, 2^-130 either way from all other causes."""
    law = rounded_gaussian(scale)
    table, reach = thresholds(law.magnitudes), 12 * scale
    assert table == sorted(table)
    sampled = np.random.default_rng(scale).integers(0, reach, 150).tolist()
    whole = within(scale, reach)
    for k in [0, 1, 2, scale - 1, scale, reach - 1, *sampled]:
        exact = within(scale, k) / whole * 2**127
        assert -(2.0**-3) <= exact - table[k] <= 1 + 2.0**-3


def test_the_gaussian_tail_that_is_cut_off_is_as_small_as_stated():
    assert mpmath.erfc(12 / mpmath.sqrt(2)) < mpmath.mpf(2) ** -107.7
    assert 12 * 2**16 * 2.0**-127 <= 2.0**-107.4
    assert DISTANCE >= 2.0**-107.7 + 2.0**-107.4 + 2.0**-135


def test_expansions_are_long_enough_for_the_error_analysis():
    """The bound on what they leave out, and one expansion beside another that must fail: of 15 terms."""

    def left_out(terms, reach):
        last = mpmath.mpf("1.09") * mpmath.sqrt(mpmath.factorial(terms - 1)) / mpmath.factorial(terms)
        return (mpmath.mpf(reach) / 128) ** terms * last

    assert left_out(noise.TERMS, 1) < mpmath.mpf(2) ** -181
    assert left_out(noise.TERMS, 1.25) < mpmath.mpf(2) ** -174
    assert left_out(15, 1) > mpmath.mpf(2) ** -140


@pytest.mark.parametrize("scale", [0, 1, 2**7, 300, 2**17, -256])
def test_other_gaussian_scales_are_refused(scale):
    with pytest.raises(ValueError, match="power of two between 256 and 65536"):
        rounded_gaussian(scale)


# --- the Laplace tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 3, 2**8, 2**16, LAPLACE_SCALE])
def test_the_laplace_digits_are_within_the_distance(scale):
    total = mpmath.mpf(0)
    for place, table in enumerate(rounded_laplace(scale).digits):
        ratio = mpmath.exp(-mpmath.mpf(2 ** (11 * place)) / (2 * scale))
        whole = 1 - ratio**2048
        drawn = masses(table)
        assert len(drawn) == 2048
        ideal = ((1 - ratio) * ratio**digit / whole for digit in range(2048))
        total += mpmath.fsum(abs(mpmath.mpf(p) / 2**127 - q) for p, q in zip(drawn, ideal, strict=True)) / 2
    beyond = mpmath.exp(-mpmath.mpf(2**33) / (2 * scale))
    assert total + beyond <= DISTANCE


@functools.cache
def laplace_law(scale, largest):
    """The exact law of |N| <= `largest`, in units of 2^-381, from the product of the digits' tables."""
    digits = [masses(table) for table in rounded_laplace(scale).digits]
    half_steps = [
        digits[0][g % 2048] * digits[1][g // 2048 % 2048] * digits[2][g // 2048**2] for g in range(2 * largest + 1)
    ]
    return [half_steps[0], *(half_steps[2 * n - 1] + half_steps[2 * n] for n in range(1, largest + 1))]


def test_the_laplace_law_is_the_rounded_continuous_law():
    scale = 32
    law = laplace_law(scale, 3000)
    assert abs(law[0] / mpmath.mpf(2) ** 381 - (1 - mpmath.exp(-mpmath.mpf(1) / (2 * scale)))) <= DISTANCE
    for n in [1, 2, 31, 32, 33, 500, 1023, 1024, 1025, 3000]:
        low, high = (mpmath.exp(-(mpmath.mpf(n) + half) / scale) for half in (-0.5, 0.5))
        assert abs(law[n] / mpmath.mpf(2) ** 381 - (low - high)) <= DISTANCE


def test_laplace_draws_round_half_steps_to_the_nearest_integer():
    """Digits picked one by one: G = d_0 + 2^11 d_1 + 2^22 d_2 half-steps are floor((G + 1) / 2) steps."""
    law = rounded_laplace(LAPLACE_SCALE)
    for digits in [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (2047, 0, 0), (0, 1, 0), (5, 7, 9)]:
        firsts = [[0, *thresholds(table)][digit] for digit, table in zip(digits, law.digits, strict=True)]
        words = [word for first in firsts for word in words_of(first)]
        half_steps = sum(digit << 11 * place for place, digit in enumerate(digits))
        assert law.draw(to_words([words])).tolist() == [(half_steps + 1) // 2]
        words[-1] |= 1
        assert law.draw(to_words([words])).tolist() == [-((half_steps + 1) // 2)]


@pytest.mark.parametrize("scale", [0, -1, 2**24 + 1])
def test_other_laplace_scales_are_refused(scale):
    with pytest.raises(ValueError, match="between 1 and 16777216"):
        rounded_laplace(scale)


# --- inversion -------------------------------------------------------------------------------------------------


TABLES = {
    "gaussian": lambda: rounded_gaussian(2**8).magnitudes,
    "gaussian, 2^12": lambda: rounded_gaussian(2**12).magnitudes,
    "gaussian, 2^16": lambda: rounded_gaussian(2**16).magnitudes,
    "laplace, low digit": lambda: rounded_laplace(2**24).digits[0],
    "laplace, high digit": lambda: rounded_laplace(2**24).digits[2],
    "laplace, no room": lambda: rounded_laplace(1).digits[1],
}


@pytest.mark.parametrize("name", TABLES)
def test_ties_of_the_high_word_are_decided_by_the_low_word(name):
    """Thresholds and their two neighbours, so that the high words always tie: all, or 4,000 of a large table."""
    table = TABLES[name]()
    ascending = thresholds(table)
    some = {ascending[i] for i in np.linspace(0, len(ascending) - 1, 4000).astype(int)}
    sought = [t + d for t in some for d in (-1, 0, 1) if 0 <= t + d < 2**127]
    found = table.invert(to_words([words_of(value) for value in sought]))
    assert found.tolist() == [bisect.bisect_right(ascending, value) for value in sought]


def searched(table, words):
    """Return the results of a plain search of both words."""
    first, beyond = (np.searchsorted(table.high, words[:, 0], side=side) for side in ("left", "right"))
    for i in np.flatnonzero(beyond > first):
        first[i] += np.searchsorted(table.low[first[i] : beyond[i]], words[i, 1] >> np.uint64(1), side="right")
    return first


@pytest.mark.parametrize("name", TABLES)
def test_a_draw_is_what_a_search_finds(name):
    """At thresholds' upper words and beside them, at the ends and seams of lines, in every octave, and at random."""
    table = TABLES[name]()
    generator = np.random.default_rng(1)
    random = generator.integers(0, 2**64, (100_000, 2), dtype=np.uint64)
    small = random[:20_000, 0] >> generator.integers(0, 64, 20_000, dtype=np.uint64)
    seams = np.arange(2**13, dtype=np.uint64) << np.uint64(51)
    some = table.high[:: max(1, len(table.high) // 3000)]
    for high in (some, some + np.uint64(1), some - np.uint64(1), seams, seams - np.uint64(1), small, ~small):
        for low in (0, 1, 2**63, 2**64 - 1):
            words = np.stack([high, np.full_like(high, low)], axis=-1)
            assert (table.invert(words) == searched(table, words)).all()
    near_the_end = np.stack([np.full_like(small, 2**64 - 1), ~small], axis=-1)
    for words in (random, near_the_end):
        assert (table.invert(words) == searched(table, words)).all()


class Noted(np.ndarray):
    """An array that notes each operation on it, and on how many numbers it is made."""

    made: ClassVar[list[tuple[object, ...]]] = []

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **settings):
        Noted.made.append((ufunc.__name__, method, *(getattr(given, "shape", ()) for given in inputs)))
        plain = [given.view(np.ndarray) if isinstance(given, Noted) else given for given in inputs]
        if out:
            settings["out"] = tuple(given.view(np.ndarray) for given in out)
        found = getattr(ufunc, method)(*plain, **settings)
        return out[0] if out else np.asarray(found).view(Noted)

    def __array_function__(self, function, types, given, settings):
        Noted.made.append((function.__name__, *(getattr(one, "shape", ()) for one in given)))
        return super().__array_function__(function, types, given, settings)

    def take(self, indices, *given, **settings):
        Noted.made.append(("take", indices.shape))
        return np.asarray(self).take(np.asarray(indices), *given, **settings).view(Noted)


def noted(table):
    """The table with arrays that note what is done with them, those that it keeps for its draws among them."""
    copy = InversionTable(table.high.view(Noted), table.low.view(Noted))
    for name, kept in vars(table).items():
        if isinstance(kept, tuple):
            copy.__dict__[name] = tuple(one if one is None else one.view(Noted) for one in kept)
        elif name not in ("high", "low"):
            copy.__dict__[name] = type(kept)(*(getattr(kept, f.name).view(Noted) for f in dataclasses.fields(kept)))
    Noted.made.clear()
    return copy


@pytest.mark.parametrize("count", [1, 2, 600])
@pytest.mark.parametrize("name", TABLES)
def test_the_work_of_draws_is_the_same_whatever_they_are(name, count, seeded):
    """The same operations on as many numbers, and none whose steps follow from the numbers, as a search's do."""
    plain = TABLES[name]()
    random = seeded(1).words(2 * count).reshape(count, 2)
    one_is_large = np.zeros_like(random)
    one_is_large[-1] = 2**64 - 1
    ties = np.stack([np.resize(plain.high, count), np.resize(plain.low << np.uint64(1), count)], axis=-1)
    done = []
    for words in (random, np.zeros_like(random), ~np.zeros_like(random), one_is_large, one_is_large[::-1], ties):
        law = RoundedGaussian(2**8, noted(plain))
        drawn = law.draw(words.view(Noted))
        assert (abs(np.asarray(drawn)) == searched(plain, words)).all()
        done.append(Noted.made.copy())
    assert len(done[0]) > 5
    assert all(made == done[0] for made in done)
    assert not {"searchsorted", "nonzero", "flatnonzero", "where", "any"} & {operation for operation, *_ in done[0]}


def test_what_words_lack_to_the_end_is_within_the_stated_rounding():
    generator = np.random.default_rng(2)
    pairs = generator.integers(0, 2**64, (2000, 2), dtype=np.uint64)
    shifts = generator.integers(0, 64, (2000, 2), dtype=np.uint64)
    extremes = to_words([(0, 0), (2**64 - 1, 2**64 - 2), (2**64 - 1, 0), (2**63, 2**63), (2**64 - 2, 2**64 - 1)])
    words = np.concatenate([pairs, ~(pairs >> shifts), extremes])
    for (high, low), found in zip(words.tolist(), noise.complements(words).tolist(), strict=True):
        exact = Fraction(2**128 - 1 - (high << 64) - low, 2**64)
        assert abs(Fraction(found) - exact) <= exact / 2**51


def test_thresholds_that_no_line_fits_are_refused_and_not_drawn_from():
    """Ten next to each other, in the middle of nothing: which of them a word passes, no line of a segment can say."""
    crowded = InversionTable(np.full(10, 2**62, dtype=np.uint64), np.arange(10, dtype=np.uint64))
    with pytest.raises(ValueError, match="near enough to lines"):
        crowded.invert(np.zeros((1, 2), dtype=np.uint64))


@given(st.lists(st.integers(0, 2**127 - 1), min_size=1, max_size=20))
def test_inversion_counts_the_thresholds_passed(values):
    table = rounded_gaussian(2**8).magnitudes
    ascending = thresholds(table)
    found = table.invert(to_words([words_of(value) for value in values]))
    assert found.tolist() == [bisect.bisect_right(ascending, value) for value in values]


def test_the_extreme_words_give_the_extreme_values():
    law = rounded_gaussian(2**8)
    assert law.draw(to_words([(0, 0), (0, 1)])).tolist() == [0, 0]
    last = 2**64 - 1
    assert law.draw(to_words([(last, last - 1), (last, last)])).tolist() == [12 * 2**8, -12 * 2**8]


@pytest.mark.parametrize("law", [rounded_gaussian(2**8), rounded_laplace(2**24)], ids=["gaussian", "laplace"])
def test_the_last_bit_is_the_sign_and_nothing_else(law, seeded):
    words = seeded(1).words(1000 * law.words_per_draw).reshape(10, 100, law.words_per_draw)
    mirrored = words.copy()
    mirrored[..., -1] ^= np.uint64(1)
    draws = law.draw(words)
    assert draws.shape == (10, 100)
    assert draws.dtype == np.int64
    assert (law.draw(mirrored) == -draws).all()


# --- draws -----------------------------------------------------------------------------------------------------


def test_one_table_serves_rows_of_every_sensitivity():
    """The grid's step follows the row, so that no scale has to be built or rounded for another sensitivity."""
    rounded_gaussian.cache_clear()
    mechanism = Gaussian(20.0)
    mechanism.prepare(10)
    built = rounded_gaussian.cache_info().misses
    sensitivity = np.geomspace(1e-6, 1e3, 500)
    mechanism.release(np.zeros((500, 10)), sensitivity, SystemRandomness())
    assert rounded_gaussian.cache_info().misses == built == 1
    np.testing.assert_array_less(19.99 * sensitivity, mechanism.answer_noise(sensitivity, 10).scale)


def test_making_a_table_takes_little_more_memory_than_the_table():
    tracemalloc.start()
    try:
        table = rounded_gaussian.__wrapped__(32768).magnitudes
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * (table.high.nbytes + table.low.nbytes)  # with all thresholds worked on at once it is 5
