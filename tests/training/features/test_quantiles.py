"""Noisy quantiles as a value: the cuts that noisy counts make, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from training.features.quantiles import (
    CELLS,
    COUNTS,
    FEWEST_PARTS,
    LEVELS,
    MOST_PARTS,
    QuantileRelease,
    cuts_of,
    levels_of,
    vector_for,
)

MUCH = 100.0


def counted(cells):
    """Return one number's noiseless counts of values in these cells."""
    return levels_of(np.bincount(cells, minlength=CELLS)[None].astype(np.float64))


def test_without_noise_every_part_has_as_many_records():
    cells = np.sort((np.random.default_rng(0).lognormal(size=200_000) * 1000).astype(np.int64).clip(0, CELLS - 1))
    (cuts,) = cuts_of(counted(cells), MUCH)
    assert len(cuts) == MOST_PARTS - 1
    parts = np.diff(np.searchsorted(cells, [0, *cuts, CELLS]))
    np.testing.assert_allclose(parts, len(cells) / MOST_PARTS, rtol=0.05)


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


@pytest.mark.parametrize("cuts", [((),), ((0, 5),), ((5, 5),), ((7, 3),), ((CELLS,),)])
def test_cuts_that_are_none_are_refused(cuts):
    with pytest.raises(ValidationError):
        QuantileRelease(mu=0.1, cuts=cuts)


def test_more_numbers_than_a_release_has_room_for_are_refused():
    with pytest.raises(ValueError, match="769"):
        vector_for(0.1, 769)
