"""Counts of records in cells: how far one record, or one unit, can move all of them, and what their release costs."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.mechanisms.gaussian_vector import mu_for, whole_picorho
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.training.errors import TrainingError
from dpserve.training.features.maps import Quantiles
from dpserve.training.features.quantiles import CELLS, LEVELS, TAIL, levels_of
from dpserve.training.fitting.histograms import cells_of, counts_of, cut_at_quantiles
from dpserve.training.inputs.columns import LevelsColumn, NumberColumn, coordinates_of
from dpserve.training.inputs.records import Declaration, Records, Units
from dpserve.training.inputs.sums import of_rows
from tests.seeded import Seeded

COLUMNS = (
    NumberColumn(name="a", minimum=-1.0, maximum=3.0, required=True),
    LevelsColumn(name="b", levels=("x", "y"), required=True),
    NumberColumn(name="c", minimum=0.0, maximum=1e-3),
)
NAMES, LOWER, UPPER = coordinates_of(COLUMNS)
MAP = Quantiles(lower=LOWER, upper=UPPER, bias=0.0, columns=COLUMNS)
NUMBERS = 2
WHOLE = whole_picorho("rho:0.01")

SHARES = st.sampled_from([0.0, 1.0, 0.5, 1 / CELLS, 1 - 2.0**-53, 0.3]) | st.floats(0, 1)
RECORD = st.tuples(SHARES, SHARES, st.booleans())


def records_of(drawn, units=None):
    """Return records whose numbers are these shares of their ranges; the second is missing where that is said."""
    a = np.array([-1.0 + 4.0 * share for share, _, _ in drawn])
    c = np.array([0.0 if missing else 1e-3 * share for _, share, missing in drawn])
    absent = np.array([float(missing) for _, _, missing in drawn])
    X = np.column_stack([a, np.ones(len(a)), np.zeros(len(a)), c, absent])
    made = None if units is None else Units("who", np.array(units, dtype=np.int64))
    declaration = Declaration(NAMES, LOWER, UPPER, ("no", "yes"), COLUMNS)
    return Records(X, np.arange(len(a)) % 2, declaration, (b"",) * len(a), made)


def test_few_whole_numbers_have_public_cuts_and_are_not_counted():
    """The release moves by the one other number alone, whatever the whole numbers are."""
    columns = (
        NumberColumn(name="children", kind="integer", minimum=0, maximum=4, required=True),
        NumberColumn(name="a", minimum=0.0, maximum=1.0, required=True),
        NumberColumn(name="steps", kind="integer", minimum=0, maximum=10_000, required=True),
    )
    names, lower, upper = coordinates_of(columns)
    chosen = Quantiles(lower=lower, upper=upper, bias=0.0, columns=columns)
    assert chosen.counted == (1, 2)
    X = np.array([[0, 0.2, 5], [4, 0.4, 9000], [2, 0.9, 44]], dtype=np.float64)
    records = Records(X, np.array([0, 1, 0]), Declaration(names, lower, upper, ("no", "yes"), columns), (b"",) * 3)
    assert counts_of(records.sums, chosen).sum(axis=1).tolist() == [3.0, 3.0]
    cut = cut_at_quantiles(chosen, records, WHOLE, WHOLE, SystemRandomness())
    assert len(cut.released.cuts) == 2
    assert cut.cuts[0] == chosen.cuts[0] == (0.125, 0.375, 0.625, 0.875)
    children = np.column_stack([np.arange(5.0), np.full(5, 0.5), np.full(5, 7.0)])
    phi = cut(children, {})[:, :4]
    assert ((phi > 0).sum(axis=1) == np.arange(5)).all()


def squared_distance(one, other):
    """Return the squared L2 distance of all levels' counts, exactly."""
    moved = levels_of(counts_of(one.sums, MAP)) - levels_of(counts_of(other.sums, MAP))
    return sum(Fraction(value) ** 2 for value in moved[moved != 0])


@settings(max_examples=25, derandomize=True, deadline=None)
@given(drawn=st.lists(RECORD, min_size=2, max_size=8), data=st.data())
def test_no_record_moves_the_counts_further_than_the_sensitivity(drawn, data):
    place = data.draw(st.integers(0, len(drawn) - 1))
    without = drawn[:place] + drawn[place + 1 :]
    moved = squared_distance(records_of(drawn), records_of(without))
    missing = drawn[place][2]
    assert moved == (NUMBERS - missing) * LEVELS
    assert moved <= Fraction(release().vector.sensitivity) ** 2


@settings(max_examples=25, derandomize=True, deadline=None)
@given(drawn=st.lists(RECORD, min_size=3, max_size=12), data=st.data())
def test_no_unit_moves_the_counts_further_than_the_sensitivity(drawn, data):
    units = data.draw(st.lists(st.integers(0, 2), min_size=len(drawn), max_size=len(drawn)))
    units = [2, *units[1:]]
    kept = [place for place, unit in enumerate(units) if unit != 2] or [0]
    whole, without = records_of(drawn, units), records_of([drawn[p] for p in kept], [units[p] for p in kept])
    if kept == [0]:
        return
    assert squared_distance(whole, without) <= NUMBERS * LEVELS


def test_a_unit_whose_records_counted_fully_would_move_them_further():
    """A control: the weights of units are what keeps the bound."""
    drawn = [(0.5, 0.5, False)] * 4
    without = records_of(drawn[:1])
    assert squared_distance(records_of(drawn), without) > NUMBERS * LEVELS
    weighted = records_of(drawn, [0, 1, 1, 1])
    alone = records_of(drawn[:1], [0])
    moved = squared_distance(weighted, alone)
    assert 0.999 * NUMBERS * LEVELS < moved <= NUMBERS * LEVELS


def test_a_records_cells_do_not_depend_on_the_records_beside_it():
    X = records_of([(share, 1 - share, False) for share in np.random.default_rng(0).uniform(size=50)]).X
    together, _ = cells_of(MAP, X)
    for row, cells in zip(X, together, strict=True):
        alone, there = cells_of(MAP, row[None])
        assert alone.tolist() == [cells.tolist()]
        assert there.all()


def test_shards_count_as_one():
    records = records_of([(share, share, share > 0.5) for share in np.random.default_rng(1).uniform(size=600)])
    parts = of_rows(records.X, records.y, files=(1, 99, 500))
    assert np.array_equal(counts_of(parts, MAP), counts_of(records.sums, MAP))


def release(randomness=None):
    records = records_of([(share, share**3, False) for share in np.linspace(0, 1, 2000)])
    cut = cut_at_quantiles(MAP, records, WHOLE, 20 * WHOLE, randomness or SystemRandomness())
    assert cut.released is not None
    return cut.released


def test_the_release_costs_at_most_its_price():
    released = release()
    assert released.mu == mu_for(WHOLE)
    assert released.cost.picorho <= WHOLE
    assert released.vector.sensitivity >= math.sqrt(NUMBERS * LEVELS)


def test_the_noise_is_as_large_as_the_law_says():
    """The counts of no records are noise alone: the mean of k squares is off by sqrt(2/k), six times that by 2e-9."""
    vector = release().vector
    drawn = vector.release(np.zeros(vector.size), Seeded(3))
    least = NUMBERS * LEVELS / vector.mu**2
    assert vector.standard_deviation**2 >= least
    off = np.square(drawn).mean() / vector.standard_deviation**2 - 1
    assert abs(off) < 6 * math.sqrt(2 / vector.size)
    assert np.square(drawn / math.sqrt(10)).mean() < least / 2, "the control: a tenth of the noise"


def test_bounds_much_too_wide_still_have_cuts_where_the_records_are():
    columns = (NumberColumn(name="a", minimum=-200.0, maximum=200.0, required=True),)
    names, lower, upper = coordinates_of(columns)
    X = np.random.default_rng(2).normal(size=(20_000, 1))
    records = Records(X, np.arange(20_000) % 2, Declaration(names, lower, upper, ("no", "yes"), columns), ())
    wide = Quantiles(lower=lower, upper=upper, bias=0.0, columns=columns)
    cut = cut_at_quantiles(wide, records, whole_picorho("rho:0.05"), whole_picorho("rho:1"), Seeded(4))
    ends = -200.0 + 400.0 * np.array(cut.cuts[0])
    shares = np.searchsorted(np.sort(X[:, 0]), ends) / len(X)
    assert len(ends) == 31
    low, high = np.quantile(X[:, 0], (TAIL, 1 - TAIL))
    widths = np.clip((ends - low) / (high - low), 0, 1)
    np.testing.assert_allclose((shares + widths) / 2, np.arange(1, 32) / 32, atol=0.02)


@pytest.mark.parametrize("numbers", [769])
def test_too_many_numbers_are_refused_with_the_option(numbers):
    bounds = {"lower": (0.0,) * numbers, "upper": (1.0,) * numbers}
    names = tuple(f"x{place}" for place in range(numbers))
    X = np.zeros((2, numbers))
    records = Records(X, np.array([0, 1]), Declaration(names, *bounds.values(), ("no", "yes")), ())
    with pytest.raises(TrainingError, match="quantile_share"):
        cut_at_quantiles(Quantiles(**bounds, bias=0.0), records, WHOLE, WHOLE, Seeded(0))
