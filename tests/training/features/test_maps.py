import hashlib
import math
import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dpserve.training.exact.products import matrix_on_grid
from dpserve.training.features.bins import DOUBLING_BINS, UNIFORM_BINS
from dpserve.training.features.feature_map import default_clip_norm
from dpserve.training.features.maps import Bins, Encoder, Fourier, Identity, Quantiles
from dpserve.training.features.quantiles import QuantileRelease
from dpserve.training.features.whole_steps import LENGTH, STEP, TABLE_BITS, cosines, waves_of
from dpserve.training.inputs.columns import (
    BooleanColumn,
    LevelsColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
    coordinates_of,
    encode_rows,
)
from tests.training.features.lengths import squared_length

LOWER, UPPER = (0.0, -5.0, 1e-3), (1.0, 5.0, 1e9)
MAPS = [
    Identity(lower=LOWER, upper=UPPER, clip_norm=default_clip_norm(3), bias=0.0),
    Identity(lower=LOWER, upper=UPPER, clip_norm=3.0, bias=0.7),
    Identity(lower=LOWER, upper=UPPER, clip_norm=2.0**-20, bias=0.0),
    Identity(lower=LOWER, upper=UPPER, clip_norm=2.0**20, bias=0.1),
    Bins(lower=LOWER, upper=UPPER, bias=0.0),
    Bins(lower=LOWER, upper=UPPER, bias=0.3),
    Bins(lower=LOWER, upper=UPPER, bias=0.3, crosses=((0, 2), (1, 0))),
    Quantiles(lower=LOWER, upper=UPPER, bias=0.3),
    Quantiles(lower=LOWER, upper=UPPER, bias=0.0, released=QuantileRelease(mu=0.1, cuts=((1,), (5, 9000), (7, 8, 9)))),
    Fourier(lower=LOWER, upper=UPPER, clip_norm=0.9, bias=0.3, random_features=40, bandwidth=0.4, seed=1),
]


def test_bounds_are_those_of_the_map_however_many_came_and_went():
    for number in range(100):
        low, high = float(number), float(2 * number + 1)
        feature_map = Identity(lower=(low, low), upper=(high, high), clip_norm=2.0, bias=0.0)
        for _ in range(2):
            phi = feature_map(np.array([[low, high]]), {})
            np.testing.assert_allclose(phi, [[0.0, 0.5, 0.0]], atol=2 * STEP)


numbers = st.floats(-1e300, 1e300)


@given(
    rows=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=4),
    bounds=st.tuples(numbers, numbers).map(sorted).filter(lambda each: each[0] < each[1]),
)
def test_a_feature_is_mapped_alike_whether_all_have_its_bounds_or_not(rows, bounds):
    low, high = bounds
    alike, others = (
        Identity(lower=(low,) * 3 + more, upper=(high,) * 3 + tuple(each + 1 for each in more), clip_norm=1.0, bias=0.5)
        for more in ((), (0.25,))
    )
    expected = others(np.array([[*row, 0.25] for row in rows]), {})
    assert alike(np.array(rows), {}).tobytes() == expected[:, [0, 1, 2, 4]].tobytes()


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=4), st.floats(1.0, LENGTH))
def test_waves_are_the_table_s_cosines_times_their_length(turns, length):
    angles = np.rint(np.array(turns) * 2.0**TABLE_BITS).astype(np.int64)
    places = np.hstack([angles, angles - 2 ** (TABLE_BITS - 2)]) % 2**TABLE_BITS
    expected = np.trunc(cosines()[places] * (length / math.sqrt(3)))
    assert waves_of(np.array(turns), length).tobytes() == expected.tobytes()


def test_one_table_is_kept_for_waves_of_one_length():
    tracemalloc.start()
    try:
        waves_of(np.zeros((1, 1)), LENGTH / 7)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.1 * 8 * 2**TABLE_BITS


@pytest.mark.parametrize("feature_map", MAPS, ids=lambda feature_map: feature_map.kind)
@settings(max_examples=200, derandomize=True, deadline=None)
@given(row=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_no_row_is_longer_than_one(feature_map, row):
    phi = feature_map(np.array([row]), feature_map.public_tensors())
    assert phi.shape == (1, feature_map.dimension)
    assert squared_length(phi[0]) <= 1


def test_fourier_features_approximate_the_gaussian_kernel():
    feature_map = Fourier(
        lower=LOWER, upper=UPPER, clip_norm=2.0, bias=0.0, random_features=20000, bandwidth=0.5, seed=2
    )
    X = np.array([[0.0, -5.0, 1e-3], [1.0, 5.0, 1e9], [0.5, 0.0, 1e9]])
    phi = feature_map(X, feature_map.public_tensors())
    v = (X - np.array(LOWER)) / (np.array(UPPER) - np.array(LOWER)) / 2.0
    kernel = np.exp(-((v[:, None] - v[None]) ** 2).sum(axis=2) / (2 * 0.5**2))
    # Each entry is a mean of 10,000 cosines: six standard errors are 0.06.
    np.testing.assert_allclose(phi @ phi.T, kernel, atol=0.06)


@pytest.mark.parametrize(
    ("feature_map", "digest"),
    [(MAPS[6], "b7b783790592d49a"), (MAPS[8], "5d5875f7fcceeb25")],
    ids=["bins", "quantiles"],
)
def test_features_of_tables_are_those_of_this_noise_version(feature_map, digest):
    """A question keeps its noise for ever; `exact/test_questions` has the other maps, `test_hog` those of images."""
    X = np.random.RandomState(9).uniform(LOWER, UPPER, (40, 3))
    content = (feature_map(X, {}) + 0.0).astype("<f8").tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def clip(vector, largest):
    return [value * min(1, largest / max(mpmath.norm(vector), mpmath.mpf(largest))) for value in vector]


def test_a_row_lies_in_one_bin_of_each_kind_for_each_feature():
    feature_map = Bins(lower=(0.0,), upper=(1.0,), bias=0.0)
    values = [0.0, 2.0**-40, 2.0**-31, 0.1, 0.25, 0.5, 1 - 2.0**-53, 1.0]
    phi = feature_map(np.array(values)[:, None], {})[:, :-1]
    uniform, doubling = phi[:, :UNIFORM_BINS], phi[:, UNIFORM_BINS:]
    assert ((uniform > 0).sum(axis=1) == 1).all()
    assert ((doubling > 0).sum(axis=1) == 1).all()
    assert uniform.argmax(axis=1).tolist() == [0, 0, 0, 3, 8, 16, 31, 31]
    # From half of the range up; from a quarter; ...; what is below 2^-31, and the lower bound itself.
    assert doubling.argmax(axis=1).tolist() == [32, 32, 30, 3, 1, 0, 0, 0]


TABLE = (
    NumberColumn(name="age", minimum=0, maximum=100),
    LevelsColumn(name="town", levels=("Ayr", "Bern", "Cork"), unknown="coordinate"),
    BooleanColumn(name="smoker", required=True),
    TimeColumn(name="since", kind="date", minimum="2000-01-01", maximum="2030-01-01", parts=("weekday", "time")),
    TextColumn(name="note", buckets=16),
)


def bins_of_table(bias=0.0):
    _, lower, upper = coordinates_of(TABLE)
    return Bins(lower=lower, upper=upper, bias=bias, columns=TABLE)


def test_only_numbers_and_times_of_a_table_have_bins():
    feature_map = bins_of_table()
    names = coordinates_of(TABLE)[0]
    assert [names[index] for index in feature_map.binned] == ["age", "since"]
    row = {"age": 31.5, "town": "Bern", "smoker": True, "since": "2000-01-03", "note": None}
    (phi,) = feature_map(encode_rows(TABLE, [row]), {})
    ends = 2 * (UNIFORM_BINS + DOUBLING_BINS)
    assert phi.shape == (feature_map.dimension,) == (ends + len(names) - 2 + 1,)
    kept = [names[index] for index in feature_map.kept]
    level = math.sqrt(2)
    # Two bins for each of two numbers; and a town, a smoker, a Monday, and no note.
    each = 1 / math.sqrt(4 + 4 * level**2)
    assert np.flatnonzero(phi[:ends]).tolist() == [10, 32 + 1, 65 + 0, 65 + 32 + 12]
    np.testing.assert_allclose(phi[:ends][phi[:ends] > 0], each, atol=2 * STEP)
    assert {kept[index] for index in np.flatnonzero(phi[ends:-1])} == {
        "town=Bern",
        "smoker",
        "since in Monday",
        "note is missing",
    }
    np.testing.assert_allclose(phi[ends:][phi[ends:] > 0], level * each, atol=2 * STEP)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(data=st.data(), bias=st.sampled_from([0.0, 0.3]))
def test_no_row_of_a_binned_table_is_longer_than_one(data, bias):
    """Whatever numbers are sent, also such as no row by name has."""
    feature_map = bins_of_table(bias)
    width = len(feature_map.lower)
    values = st.sampled_from([0.0, 1.0, 0.5, -1.0, 1e300, 5e-324]) | st.floats(allow_nan=False, allow_infinity=False)
    row = data.draw(st.lists(values, min_size=width, max_size=width))
    (phi,) = feature_map(np.array([row]), {})
    assert squared_length(phi) <= 1


def test_bins_without_a_number_are_refused():
    columns = (LevelsColumn(name="town", levels=("Ayr", "Bern")),)
    _, lower, upper = coordinates_of(columns)
    with pytest.raises(ValidationError, match="no column is a number"):
        Bins(lower=lower, upper=upper, bias=0.0, columns=columns)


def test_the_same_seed_draws_the_same_tensors():
    fourier = next(feature_map for feature_map in MAPS if feature_map.kind == "fourier")
    omega = fourier.public_tensors()["omega"]
    assert (omega == fourier.public_tensors()["omega"]).all()
    # The stream is NumPy's promise, and every bundle out there relies on it.
    assert omega[0, 0] * 2 * math.pi * 0.4 == pytest.approx(1.6243453636632417, rel=1e-7)


@pytest.mark.parametrize(
    "broken",
    [
        {"clip_norm": 0.0},
        {"clip_norm": 1e-200},
        {"clip_norm": math.inf},
        {"bias": 1.0},
        {"bias": -0.1},
        {"lower": UPPER, "upper": LOWER},
        {"lower": LOWER[:2]},
        {"upper": (1.0, 5.0, math.inf)},
    ],
)
def test_invalid_arguments_are_refused(broken):
    with pytest.raises(ValidationError):
        Identity(**{"lower": LOWER, "upper": UPPER, "clip_norm": 1.0, "bias": 0.0} | broken)


class TestEncoder:
    ENCODER = Encoder(lower=LOWER, upper=UPPER, clip_norm=2.0, bias=0.3, width=5, model_sha256="0" * 64)

    @settings(max_examples=200)
    @given(
        b=st.lists(st.floats(width=32), min_size=5, max_size=5),
        clip_norm=st.floats(2.0**-20, 2.0**20),
        bias=st.floats(0, 0.99),
    )
    def test_no_row_is_longer_than_one_whatever_the_model_gives(self, b, clip_norm, bias):
        feature_map = self.ENCODER.model_copy(update={"clip_norm": clip_norm, "bias": bias})
        feature_map = feature_map.computed_by(lambda rows: np.array([b] * len(rows), dtype=np.float32))
        phi = feature_map(np.array([LOWER]), {})
        assert phi.shape == (1, feature_map.dimension) == (1, 6)
        assert squared_length(phi[0]) <= 1
        if not np.isfinite(b).all():
            assert (phi[0, :-1] == 0).all()

    def test_features_are_what_the_model_gave_but_for_their_steps(self):
        b = np.random.default_rng(3).standard_normal((20, 5)).astype(np.float32)
        feature_map = self.ENCODER.computed_by(lambda rows: b)
        shrink = 1 - mpmath.mpf(2) ** -30
        scale, constant = mpmath.sqrt(1 - mpmath.mpf(0.3) ** 2) * shrink / 2, mpmath.mpf(0.3) * shrink
        for row, phi in zip(b.tolist(), feature_map(np.zeros((20, 3)), {}), strict=True):
            with mpmath.workdps(40):
                expected = [value * scale for value in clip([mpmath.mpf(value) for value in row], 2.0)] + [constant]
                off = mpmath.norm([mpmath.mpf(value) - e for value, e in zip(phi, expected, strict=True)])
            assert off <= math.sqrt(6) * STEP + 2.0**-22

    @pytest.mark.parametrize(
        ("input_range", "given"),
        [
            (None, lambda scaled: LOWER + scaled * (np.array(UPPER) - LOWER)),
            ((0.0, 1.0), lambda scaled: scaled),
            ((-1.0, 3.0), lambda scaled: 4 * scaled - 1),
        ],
    )
    def test_the_model_is_given_rows_within_the_bounds(self, input_range, given):
        given_rows = []
        feature_map = self.ENCODER.model_copy(update={"input_range": input_range})
        feature_map = feature_map.computed_by(lambda rows: given_rows.append(rows) or np.zeros((len(rows), 5)))
        feature_map(np.array([[0.5, 0.0, 1e-3], [9.0, -9.0, 2e9]]), {})
        np.testing.assert_allclose(given_rows[0], given(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 1.0]])), atol=2e-3)

    def test_it_computes_nothing_without_its_model(self):
        with pytest.raises(RuntimeError, match="attached"):
            self.ENCODER(np.zeros((1, 3)), {})


CROSSED = ((0, 1), (1, 3), (2, 0))
"""A number with levels, levels with a date's time and weekdays, a boolean with a number."""


def crossed_table(**given):
    _, lower, upper = coordinates_of(TABLE)
    return Bins(**{"lower": lower, "upper": upper, "bias": 0.3, "columns": TABLE, "crosses": CROSSED} | given)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 1e-12, 1e3, 1e300]))
def test_crossed_rows_are_no_longer_than_one_and_the_same_alone_or_among_others(seed, scale):
    """The rows hold any numbers, also such as no table encodes."""
    feature_map = crossed_table()
    X = np.random.default_rng(seed).standard_normal((5, len(feature_map.lower))) * scale
    phi = feature_map(X, {})
    assert phi.shape == (5, feature_map.dimension)
    for row, mapped in zip(X, phi, strict=True):
        assert squared_length(mapped) <= 1
        np.testing.assert_array_equal(feature_map(row[None], {})[0], mapped)
        np.testing.assert_array_equal(feature_map.compact(row[None]).toarray()[0], mapped)


def test_a_cross_has_a_coordinate_for_each_pair_of_levels():
    plain, crossed = crossed_table(crosses=(), bias=0.0), crossed_table(crosses=((0, 1),), bias=0.0)
    # Eight parts of the age and one for a missing age, with three towns, other towns and a missing town.
    assert crossed.dimension - plain.dimension == 9 * 5
    rest = {"smoker": True, "since": "2010-06-01", "note": ""}
    rows = [{"age": age, "town": town, **rest} for age in (0, 30, 100) for town in ("Ayr", "Cork", "Oslo")]
    pairs = crossed(encode_rows(TABLE, rows), {})[:, -46:-1]
    assert [np.flatnonzero(pair).tolist() for pair in pairs] == [
        [part * 5 + town] for part in (0, 2, 7) for town in (0, 2, 3)
    ]
    missing = crossed(encode_rows(TABLE, [{"age": None, "town": None, **rest}]), {})[0, -46:-1]
    assert np.flatnonzero(missing).tolist() == [4, 8 * 5 + 4]


EVERY_PAIR = tuple((one, other) for one in range(12) for other in range(one))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"crosses": ((0, 5),)}, "names column 5, and there are 5"),
        ({"crosses": ((0, 4),)}, "'note' is a text, which has no levels to cross"),
        ({"crosses": ((1, 1),)}, "cannot be crossed with itself"),
        ({"crosses": ((0, 1), (1, 0))}, "crossed twice"),
        (
            {"columns": (), "lower": (0.0,) * 12, "upper": (1.0,) * 12, "crosses": EVERY_PAIR},
            "have 4,224 coordinates, and may have 4,096",
        ),
    ],
)
def test_crosses_that_cannot_be_are_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        crossed_table(**given)


def test_a_map_without_crosses_is_described_as_before():
    assert "crosses" not in crossed_table(crosses=()).model_dump()
    assert Bins.model_validate_json(crossed_table().model_dump_json()) == crossed_table()


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1.0, 1e-12, 1e3, 1e300]),
    bias=st.sampled_from([0.0, 0.3]),
    counts=st.lists(st.integers(1, 31), min_size=1, max_size=6),
)
def test_rows_by_codes_of_their_cuts_are_the_dense_ones_bit_for_bit(seed, scale, bias, counts):
    """Their products with a public matrix on a grid, too, and their lengths: all sums are exact."""
    generator = np.random.default_rng(seed)
    cuts = tuple(
        tuple(sorted(generator.choice(np.arange(1, 16384), count, replace=False).tolist())) for count in counts
    )
    numbers = len(counts)
    feature_map = Quantiles(
        lower=(-1.0,) * numbers, upper=(2.0,) * numbers, bias=bias, released=QuantileRelease(mu=0.1, cuts=cuts)
    )
    X = generator.standard_normal((7, numbers)) * scale
    X[:2] = np.array([[-1.0], [2.0]])
    phi, rows = feature_map(X, {}), feature_map.compact(X)
    np.testing.assert_array_equal(rows.dense(), phi)
    np.testing.assert_array_equal(rows[2:4].dense(), phi[2:4])
    np.testing.assert_array_equal(type(rows).joined([rows[:3], rows[3:]]).dense(), phi)
    assert rows.shape == phi.shape
    matrix = matrix_on_grid(generator.standard_normal((feature_map.dimension, 3)))
    np.testing.assert_array_equal(rows @ matrix, phi @ matrix)
    np.testing.assert_array_equal(rows.squared_lengths(), (phi * phi).sum(axis=1))
    factors = generator.standard_normal((7, 3))
    np.testing.assert_allclose(rows.T @ factors, phi.T @ factors, rtol=0, atol=1e-13)
