"""The three-digit Gaussian against its tables, its characteristic function and the normal law.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

import itertools

import mpmath
import numpy as np
from mpmath import mp

from dpserve.accounting import sampling_error
from dpserve.mechanisms import noise
from dpserve.mechanisms.noise import rounded_gaussian
from dpserve.mechanisms.wide_gaussian import DISTANCE, GUIDE_BITS, distance_from_normal, wide_gaussian


def test_the_distance_is_what_the_budget_reserves_for():
    assert 3 * noise.DISTANCE < DISTANCE <= sampling_error.DISTANCE_PER_DRAW


def test_a_draw_is_as_near_to_a_normal_law_as_is_said():
    """Y + 2^14 U by its density, in 40 digits; V is 2^14 times smaller."""
    half, mp.dps = 2**13, 40
    scale = mpmath.sqrt(2**48 + 2**32 + 2**18)
    wide = mpmath.sqrt(scale**2 + mpmath.mpf(half) ** 2 / 3)
    width = scale / 16
    apart = mpmath.mpf(0)
    for place in range(-192, 193):
        x = place * width
        density = (mpmath.ncdf((x + half) / scale) - mpmath.ncdf((x - half) / scale)) / (2 * half)
        apart += abs(density - mpmath.npdf(x, 0, wide)) * width
    assert 2**-4 * distance_from_normal(1) < apart / 2 < distance_from_normal(1)


def test_the_guide_is_right_at_every_one_of_its_edges_and_at_the_thresholds():
    law = wide_gaussian()
    edges = np.arange(2**GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - GUIDE_BITS)
    for digit, scale in zip(law.digits, (2**10, 2**9, 2**9), strict=True):
        plain = rounded_gaussian(scale)
        around = np.concatenate([edges, edges - np.uint64(1), digit.table.high, digit.table.high - np.uint64(1)])
        words = np.stack([around, np.full(len(around), 2**63, dtype=np.uint64)], axis=1)
        assert np.array_equal(digit.draw(words), plain.draw(words))


def test_the_digits_are_put_together(seeded):
    law = wide_gaussian()
    words = seeded(4).words(6 * 1000).reshape(-1, 6)
    a, b, c = (rounded_gaussian(s).draw(words[:, 2 * i : 2 * i + 2]) for i, s in enumerate((2**10, 2**9, 2**9)))
    assert np.array_equal(law.draw(words), 2**14 * a + 2**7 * b + c)


def test_a_sample_is_the_draws_of_its_words_by_columns(seeded):
    law = wide_gaussian()
    assert np.array_equal(law.sample(1000, seeded(6)), law.draw(seeded(6).words(6 * 1000).reshape(6, 1000).T))


def test_the_law_is_the_convolution_that_is_proved():
    """Smaller digits of the same proportions, exactly: a sum of rounded Gaussians is a Gaussian with a uniform.

    With K = 4 and scales a = 32, b = 16 (b = 4 K, as in the table), K A + B is within 2^-400 of rint(Y + K U).
    """
    with mp.workdps(140):
        K, a, b, reach = 4, 16, 16, 14
        half = mpmath.mpf(1) / 2

        def rounded(scale, k):
            return mpmath.ncdf((k + half) / scale) - mpmath.ncdf((k - half) / scale)

        T = mpmath.sqrt(K**2 * a**2 + b**2)

        def ideal(k):
            """P(rint(Y + K U) = k): second differences of the integral of the normal distribution function."""

            def integral(x):
                return x * mpmath.ncdf(x / T) + T * mpmath.npdf(x / T)

            ends = itertools.product((half, -half), (mpmath.mpf(K) / 2, -mpmath.mpf(K) / 2))
            return sum((1 if x * y > 0 else -1) * integral(k + x + y) for x, y in ends) / K

        of_a = {k: rounded(a, k) for k in range(-reach * a, reach * a + 1)}
        for k in (0, 1, 2, 77):
            drawn = mpmath.fsum(p * rounded(b, k - K * j) for j, p in of_a.items() if abs(k - K * j) <= 40 * b)
            assert abs(drawn - ideal(k)) < mpmath.mpf(2) ** -100 * ideal(k) + mpmath.mpf(10) ** -42
