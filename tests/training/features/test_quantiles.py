"""Noisy quantiles as a value: the cuts that noisy counts make, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dpserve.mechanisms.gaussian_vector import LARGEST_SIZE, least_price, mu_for
from dpserve.training.features.maps import Bins, Quantiles, map_as_shown
from dpserve.training.features.quantiles import (
    CELLS,
    COUNTS,
    FEWEST_PARTS,
    LEVELS,
    MOST_PARTS,
    TAIL,
    QuantileRelease,
    cuts_between,
    cuts_of,
    levels_of,
    price_of_counts,
    vector_for,
)

MUCH = 100.0


def counted(cells):
    """Return one number's noiseless counts of values in these cells."""
    return levels_of(np.bincount(cells, minlength=CELLS)[None].astype(np.float64))


def test_without_noise_half_of_every_part_is_records_and_half_is_width():
    """A part has a 32nd of the sum of its share of the records and its share of the bulk's width, halved."""
    cells = np.sort((np.random.default_rng(0).lognormal(size=200_000) * 1000).astype(np.int64).clip(0, CELLS - 1))
    (cuts,) = cuts_of(counted(cells), MUCH)
    assert len(cuts) == MOST_PARTS - 1
    first, last = (int(cells[round(len(cells) * share)]) for share in (TAIL, 1 - TAIL))
    ends = np.array([0, *cuts, CELLS])
    records = np.diff(np.searchsorted(cells, ends)) / len(cells)
    width = np.diff(np.clip((ends - first) / (last + 1 - first), 0, 1))
    np.testing.assert_allclose((records + width) / 2, 1 / MOST_PARTS, rtol=0.05)


def test_wide_bounds_take_no_cuts_to_where_no_records_are():
    cells = np.random.default_rng(0).integers(8000, 8200, 50_000)
    (cuts,) = cuts_of(counted(cells), MUCH)
    assert sum(8000 <= cut <= 8200 for cut in cuts) >= len(cuts) - 2


@pytest.mark.parametrize(
    ("minimum", "maximum", "cuts"),
    [(0, 1, (0.5,)), (-0.5, 2.5, (1 / 3, 2 / 3)), (0, 31, 31), (0, 32, None), (3, 3.5, None)],
)
def test_whole_numbers_are_cut_between_each_two_where_they_are_few(minimum, maximum, cuts):
    made = cuts_between(minimum, maximum)
    if cuts is None:
        assert made is None
    elif isinstance(cuts, tuple):
        assert made == pytest.approx(cuts)
    else:
        assert len(made) == cuts


def test_a_value_that_many_records_share_is_a_part_by_itself():
    cells = np.concatenate([np.full(5000, 300), np.full(5000, 301), np.arange(0, CELLS, 16)])
    (cuts,) = cuts_of(counted(cells), MUCH)
    assert {300, 301, 302} <= set(cuts)


@pytest.mark.parametrize(("records", "mu", "parts"), [(100, 0.01, FEWEST_PARTS), (60_000, 0.01, 12), (10**6, 1, 32)])
def test_parts_are_as_many_as_records_and_price_fill(records, mu, parts):
    cells = np.linspace(0, CELLS - 1, records).astype(np.int64)
    (cuts,) = cuts_of(counted(cells), mu)
    assert len(cuts) == parts - 1


@settings(max_examples=50, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.0, 1.0, 1e3, 1e9]), numbers=st.integers(1, 3))
def test_any_noisy_counts_make_cuts_that_a_map_takes(seed, scale, numbers):
    noisy = np.random.default_rng(seed).normal(size=(numbers, COUNTS)) * scale
    cuts = cuts_of(noisy, 1.0)
    made = QuantileRelease(mu=0.1, cuts=cuts)
    assert len(made.cuts) == numbers
    assert QuantileRelease.model_validate_json(made.model_dump_json()) == made


def test_levels_count_the_same_records():
    cells = np.random.default_rng(1).integers(0, CELLS, 500)
    counts = counted(cells)[0]
    ends = np.cumsum([4**level for level in range(1, LEVELS + 1)])
    assert [each.sum() for each in np.split(counts, ends[:-1])] == [500.0] * LEVELS


def test_who_is_not_shown_the_cuts_makes_a_map_with_even_ones():
    """An adversary's model in a served one's likeness needs some map of the same columns."""
    bounds = {"lower": (0.0,), "upper": (1.0,), "bias": 0.0}
    served = Quantiles(**bounds, released=QuantileRelease(mu=0.1, cuts=((5, 9000),)))
    told = served.model_dump()
    assert map_as_shown(told) == served
    del told["released"]["cuts"]
    assert map_as_shown(told) == Quantiles(**bounds)


@pytest.mark.parametrize("released", [None, QuantileRelease(mu=0.1, cuts=((1,), (5, 900, 9000), tuple(range(7, 20))))])
@pytest.mark.parametrize("seed", range(20))
def test_a_possible_mean_of_cuts_is_nearer_than_the_noisy_one_and_a_true_one_stays(released, seed):
    """The means are a convex set: the nearest of it to any point is no further from each of its points."""
    generator = np.random.default_rng(seed)
    chosen = Quantiles(lower=(0.0,) * 3, upper=(1.0,) * 3, bias=0.0, released=released)
    rows = chosen(generator.uniform(size=(30, 3)) ** generator.uniform(0.2, 5.0, 3), {})
    mean = (rows * generator.uniform(size=(30, 1))).mean(axis=0)
    assert chosen.possible_mean(mean) == pytest.approx(mean, abs=1e-12)
    noisy = mean + 10.0 ** generator.uniform(-3, 1) * generator.standard_normal(mean.shape)
    found = chosen.possible_mean(noisy)
    assert np.linalg.norm(found - mean) < np.linalg.norm(noisy - mean)
    assert chosen.possible_mean(found) == pytest.approx(found, abs=1e-12)
    steps = len(chosen.steps[0])
    assert np.array_equal(found[steps:], noisy[steps:])


def test_of_other_maps_nothing_is_known_of_means():
    noisy = np.array([3.0, -2.0, 1.0])
    assert Bins(lower=(0.0,), upper=(1.0,), bias=0.0).possible_mean(noisy) is noisy


@pytest.mark.parametrize("cuts", [((),), ((0, 5),), ((5, 5),), ((7, 3),), ((CELLS,),)])
def test_cuts_that_are_none_are_refused(cuts):
    with pytest.raises(ValidationError):
        QuantileRelease(mu=0.1, cuts=cuts)


def test_more_numbers_than_a_release_has_room_for_are_refused():
    with pytest.raises(ValueError, match="769"):
        vector_for(0.1, 769)


@pytest.mark.parametrize("numbers", [1, 57, 300])
def test_counts_take_their_share_or_what_noise_that_fits_the_grid_costs(numbers):
    """A picorho less than the price of the least budget is refused by the mechanism or by the share of a half."""
    assert price_of_counts(10**12, numbers) == 5 * 10**10
    least = least_price(numbers * COUNTS)
    assert price_of_counts(2 * least, numbers) == least
    vector_for(mu_for(least), numbers)
    with pytest.raises(ValueError, match="at most half"):
        price_of_counts(2 * least - 2, numbers)


def test_the_least_price_of_many_counts_is_hardly_more_than_the_grid_needs():
    with pytest.raises(ValueError, match="too low"):
        vector_for(mu_for(least_price(57 * COUNTS)) / (1 + 2.0**-7), 57)


def test_too_many_numbers_are_refused():
    with pytest.raises(ValueError, match="more counts than a release may"):
        price_of_counts(10**12, LARGEST_SIZE // COUNTS + 1)
