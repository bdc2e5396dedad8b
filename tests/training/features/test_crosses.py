"""Hashed pairs of fields: each pair of a row in one bucket, by a public function, from that row alone."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dpserve.training.features.crosses import (
    MOST_BUCKETS,
    PARTS_OF_NUMBER,
    Field,
    bucket,
    buckets_of,
    counted,
    fields_of,
)
from dpserve.training.features.maps import Bins
from dpserve.training.inputs.columns import (
    BooleanColumn,
    LevelsColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
    coordinates_of,
    encode_rows,
)

TABLE = (
    NumberColumn(name="age", minimum=0, maximum=100),
    LevelsColumn(name="town", levels=("Ayr", "Bern", "Cork"), unknown="coordinate"),
    BooleanColumn(name="smoker", required=True),
    TimeColumn(name="since", kind="date", minimum="2000-01-01", maximum="2030-01-01", parts=("weekday", "time")),
    TextColumn(name="note", buckets=16),
)
LEVELS = (TABLE[1], LevelsColumn(name="work", levels=("no", "yes", "part")))
ROW = {"age": 31.5, "town": "Bern", "smoker": True, "since": "2000-01-03", "note": "hers"}


def parts_of(row):
    (u,) = scaled([row])
    return [int(field.part(u[None])[0]) for field in fields_of(TABLE, 0)]


def scaled(rows):
    _, lower, upper = coordinates_of(TABLE)
    return (encode_rows(TABLE, rows) - np.array(lower)) / (np.array(upper) - np.array(lower))


def mixed(one, other):
    """SplitMix64's finaliser in whole numbers of Python."""
    x = ((one << 32) + other + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_each_thing_that_a_row_says_is_a_part_of_a_field():
    number = int(0.315 * PARTS_OF_NUMBER)
    assert parts_of(ROW) == [number, 2, 1, 1, 0]
    assert parts_of(ROW | {"town": "Oslo", "smoker": False}) == [number, 4, 0, 1, 0]
    missing = ROW | {"age": None, "town": None, "since": None}
    assert parts_of(missing) == [PARTS_OF_NUMBER, 5, 1, 8, 0]
    assert parts_of(ROW | {"age": 100, "since": "2030-01-01"})[0::4] == [PARTS_OF_NUMBER - 1] * 2
    assert [field.parts for field in fields_of(TABLE, 0)] == [PARTS_OF_NUMBER + 1, 6, 2, 9, PARTS_OF_NUMBER]


def test_every_pair_of_fields_is_hashed_once():
    fields = fields_of(TABLE, 0)
    starts = np.cumsum([0, *(field.parts for field in fields)])
    wanted = [mixed(int(a), int(b)) % 97 for a, b in combinations(np.add(parts_of(ROW), starts[:-1]), 2)]
    assert buckets_of(fields, scaled([ROW]), 97)[0].tolist() == wanted


WHOLE = (
    NumberColumn(name="month", kind="integer", minimum=1, maximum=12),
    NumberColumn(name="day", kind="integer", minimum=1, maximum=31, required=True),
    NumberColumn(name="metres", kind="integer", minimum=0, maximum=9000, required=True),
    LevelsColumn(name="town", levels=tuple(f"t{place}" for place in range(60))),
)


def test_whole_numbers_of_which_few_are_possible_have_a_part_each():
    _, lower, upper = coordinates_of(WHOLE)
    rows = [{"month": 1 + place % 12, "day": 1 + place, "metres": 300 * place, "town": "t7"} for place in range(31)]
    u = (encode_rows(WHOLE, rows) - np.array(lower)) / (np.array(upper) - np.array(lower))
    month, day, metres, _ = fields_of(WHOLE, 0, whole=True)
    assert (month.parts, day.parts, metres.parts) == (13, 31, PARTS_OF_NUMBER)
    assert day.part(u).tolist() == list(range(31))
    assert month.part(u).tolist() == [place % 12 for place in range(31)]
    assert metres.part(u).max() == PARTS_OF_NUMBER - 1
    absent = u[:1].copy()
    absent[0, 1] = 1.0
    assert month.part(absent).tolist() == [12]
    assert [field.parts for field in fields_of(WHOLE, 0)][1] == PARTS_OF_NUMBER


def test_whole_numbers_that_the_owner_crosses_have_a_part_each():
    _, lower, upper = coordinates_of(WHOLE)
    shared = {"lower": lower, "upper": upper, "bias": 0.0, "columns": WHOLE, "crosses": ((0, 1),)}
    made, earlier = Bins(**shared, cross_cells=512), Bins(**shared)
    assert [pair[0].width * pair[1].width for pair in (*made.crossed, *earlier.crossed)] == [13 * 31, 9 * 8]
    rows = [{"month": 2, "day": 29, "metres": 5, "town": "t7"}, {"month": None, "day": 1, "metres": 5, "town": "t7"}]
    phi = made(encode_rows(WHOLE, rows), {})[:, -1 - 13 * 31 : -1]
    assert [np.flatnonzero(row).tolist() for row in phi] == [[1 * 31 + 28], [0, 12 * 31]]
    np.testing.assert_array_equal(made.compact(encode_rows(WHOLE, rows)).toarray(), made(encode_rows(WHOLE, rows), {}))


def test_pairs_of_fields_with_many_cells_are_left_out():
    _, lower, upper = coordinates_of(WHOLE)
    made = Bins(lower=lower, upper=upper, bias=0.0, columns=WHOLE, cross_buckets=900, cross_cells=512)
    assert [pair.tolist() for pair in made.paired] == [[0, 0, 1], [1, 2, 2]]
    (phi,) = made(np.array(lower)[None] + 0.0, {})
    assert phi[-901:-1].astype(bool).sum() == 3
    everything = Bins(lower=lower, upper=upper, bias=0.0, columns=WHOLE, cross_buckets=900)
    assert len(everything.paired[0]) == 6
    with pytest.raises(ValidationError, match="more than 90 pairs of parts"):
        Bins(lower=lower, upper=upper, bias=0.0, columns=WHOLE, cross_buckets=900, cross_cells=90)


@given(st.integers(0, 2**31), st.integers(0, 2**31), st.integers(1, 2**14))
def test_the_bucket_is_the_generators(one, other, buckets):
    assert bucket(np.array([one]), np.array([other]), buckets)[0] == mixed(one, other) % buckets


@given(st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7), min_size=1, max_size=5))
def test_each_place_is_counted_once(rows):
    places, counts = counted(np.array(rows))
    for row, where, number in zip(rows, places, counts, strict=True):
        there = {int(place): int(count) for place, count in zip(where, number, strict=True) if count}
        assert there == Counter(row)
        assert (number > 0).sum() == len(there)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 1e-12, 1e300]), buckets=st.sampled_from([1, 7, 900]))
@pytest.mark.parametrize(
    ("columns", "cells"), [(TABLE, 0), (TABLE, 110), (LEVELS, 0)], ids=["table", "few cells", "levels alone"]
)
def test_hashed_rows_are_no_longer_than_one_and_the_same_alone_or_sparse(seed, scale, buckets, columns, cells):
    """The rows hold any numbers, also such as no table encodes."""
    _, lower, upper = coordinates_of(columns)
    shared = {"lower": lower, "upper": upper, "bias": 0.3, "columns": columns}
    feature_map = Bins(**shared, cross_buckets=buckets, cross_cells=cells, crosses=((0, 1),))
    X = np.random.default_rng(seed).standard_normal((5, len(lower))) * scale
    _check_rows(feature_map, X)


def _check_rows(feature_map, X):
    phi = feature_map(X, {})
    whole = [[int(value * 2**24) for value in row] for row in phi]
    assert all(sum(value**2 for value in row) <= 2**48 for row in whole)
    for row, mapped in zip(X, phi, strict=True):
        np.testing.assert_array_equal(feature_map(row[None], {})[0], mapped)
    sparse = feature_map.compact(X)
    np.testing.assert_array_equal(sparse.toarray(), phi)
    assert (sparse.data != 0).all()


def test_as_many_columns_have_pairs_as_there_are_buckets_for():
    feature_map = Bins(lower=(0.0,) * 181, upper=(1.0,) * 181, bias=0.3, cross_buckets=4096, cross_cells=512)
    assert len(feature_map.paired[0]) == 181 * 180 // 2 <= MOST_BUCKETS < 182 * 181 // 2
    _check_rows(feature_map, np.random.default_rng(0).uniform(size=(40, 181)))


@pytest.mark.parametrize("cells", [0, 256])
def test_pairs_have_twice_the_weight_of_what_else_a_row_says(cells):
    feature_map = Bins(lower=(0.0,) * 4, upper=(1.0,) * 4, bias=0.0, cross_buckets=5000, cross_cells=cells)
    (phi,) = feature_map(np.full((1, 4), 0.3), {})
    pairs = phi[-5001:-1]
    assert (pairs > 0).sum() == 6
    assert np.square(pairs).sum() == pytest.approx(2 / 3, rel=1e-5)


@pytest.mark.parametrize("numbers", [1, 182])
def test_too_few_or_too_many_fields_are_refused(numbers):
    with pytest.raises(ValidationError, match="pairs are hashed of 2 to 181 fields"):
        Bins(lower=(0.0,) * numbers, upper=(1.0,) * numbers, bias=0.0, cross_buckets=10)


def test_numbers_without_a_schema_are_fields():
    assert fields_of((), 2) == (Field(0, ()), Field(1, ()))
