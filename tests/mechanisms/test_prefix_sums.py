"""Noisy prefix sums: what a record or a unit moves, what the noise on a sum is, and what is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.mechanisms.prefix_sums import MOST_COUNTED, WHOLE, PrefixSums

from .conftest import Seeded

CELLS = 322


class Unnoised:
    """A vector's noise taken out, to see what it is added to."""

    def release(self, values, randomness):
        del randomness
        return values


@pytest.fixture
def exact(monkeypatch):
    """Take the noise out of what is released."""
    monkeypatch.setattr(GaussianVector, "release", Unnoised.release)


def sums_of(counts):
    return PrefixSums(1.0, *counts.shape).release(counts, Seeded(0))


@pytest.mark.usefixtures("exact")
@given(
    cells=st.integers(2, 400),
    groups=st.integers(1, 4),
    members=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_a_record_or_a_unit_moves_no_more_than_the_sensitivity(cells, groups, members, seed):
    """Records of one unit, in cells of any groups, whose parts add up to one."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 50, (groups, cells)) * WHOLE
    ends = np.sort(np.append(rng.integers(0, WHOLE + 1, members - 1), [0, WHOLE]))
    more = counts.copy()
    places = rng.integers(0, cells, members) if seed % 3 else np.zeros(members, dtype=np.int64)
    np.add.at(more, (rng.integers(0, groups, members), places), np.diff(ends))

    moved = np.linalg.norm(sums_of(more) - sums_of(counts))

    assert moved <= PrefixSums(1.0, groups, cells).vector.sensitivity


@pytest.mark.usefixtures("exact")
def test_the_largest_counts_are_exact():
    counts = np.zeros((1, CELLS), dtype=np.int64)
    counts[0, 0] = MOST_COUNTED * WHOLE - 1
    counts[0, 7] = 1
    assert sums_of(counts)[0, 0] * WHOLE**2 == (MOST_COUNTED * WHOLE - 1) * WHOLE
    sums = PrefixSums(1.0, 1, CELLS)
    assert abs(sums.excess(sums_of(counts), 7, 0.5) - MOST_COUNTED / 2) < 2.0**-10


def test_the_inverse_is_as_near_as_the_bound_says():
    """The sums of |A M^-1 M - A| in fractions, times the most records, are below the 2^-10 of the bound."""
    sums = PrefixSums(1.0, 1, CELLS)
    coefficients = [Fraction(0)] * CELLS
    for cell in range(CELLS):  # the entries of M, read off the release of one record in the first cell
        coefficients[cell] = Fraction(math.floor(_square_root_series(cell) * WHOLE), WHOLE)
    unit = np.eye(CELLS)
    inverse = [Fraction(sums.excess(unit[[place]], CELLS - 1, 0.0)) for place in range(CELLS)][::-1]
    for cell in range(CELLS):
        total = sum(coefficients[place] * inverse[cell - place] for place in range(cell + 1))
        assert abs(total - 1) * MOST_COUNTED < Fraction(1, 2**11)


def _square_root_series(k):
    return Fraction(math.comb(2 * k, k), 4**k)


def _above(sums, counts, cell, share, quantile, trials, noise_divided_by=1):
    truth = (counts[:, : cell + 1].sum() - share * counts.sum()) / WHOLE
    bound = sums.bound(cell, share, len(counts), quantile) / noise_divided_by
    above = 0
    for seed in range(trials):
        above += sums.excess(sums.release(counts, Seeded(seed)), cell, share) - truth > bound
    return above


@pytest.mark.parametrize(("cell", "share"), [(0, 0.9), (40, 0.9), (200, 0.5), (321, 0.99)])
def test_the_noise_on_a_sum_is_within_its_bound(cell, share):
    """At most a share of 0.1 of 600 releases may be above; P(Binomial(600, 0.1) > 99) < 1e-6.

    The control is a bound half as wide.
    """
    counts = np.random.default_rng(cell).integers(0, 30, (2, CELLS)) * WHOLE
    sums = PrefixSums(0.5, 2, CELLS)
    quantile = float(norm.ppf(0.9))
    assert binom.sf(99, 600, 0.1) < 1e-6
    assert _above(sums, counts, cell, share, quantile, 600) <= 99
    assert _above(sums, counts, cell, share, quantile, 600, noise_divided_by=2) > 99


def test_a_bound_has_the_rounding_of_every_group():
    """Without noise, and less what floating point is off: the same for one group twice."""
    sums = PrefixSums(0.5, 2, CELLS)
    one, two = (sums.bound(40, 0.9, groups, 0.0) - 2.0**-10 for groups in (1, 2))
    assert 0 < one < two
    assert two == pytest.approx(2 * one)


def test_sums_have_much_less_noise_than_cells_added_up():
    sums, last = PrefixSums(0.5, 1, CELLS), CELLS // 2
    cells_alone = GaussianVector(0.5, CELLS, 1.0).standard_deviation * math.sqrt(last + 1)
    assert 3 * sums.bound(last, 0.0, 1, 1.0) < cells_alone


@pytest.mark.parametrize(
    "counts",
    [np.zeros((1, 3), dtype=np.int64), np.zeros((2, 4)), np.full((2, 4), -1), np.full((2, 4), MOST_COUNTED * WHOLE)],
)
def test_other_counts_are_refused(counts):
    with pytest.raises(ValueError, match="count"):
        PrefixSums(1.0, 2, 4).release(counts, Seeded(0))
    with pytest.raises(ValueError, match="cells"):
        PrefixSums(1.0, 1, 1)
