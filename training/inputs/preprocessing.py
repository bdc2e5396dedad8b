"""Signs that columns were fitted on the records themselves before they came here.

A scaler or an imputer that is fitted on private records holds exact figures of them, and columns made by it depend on
every record: nothing proved here covers that, and such records are not recognised in another lineage. Some of these
steps leave an exact trace, which is looked for: StandardScaler, RobustScaler, MinMaxScaler, an imputed mean, and what
is centred, as by PCA. Others leave none (medians, vocabularies, selected columns), nor does a part of the rows that the
step was fitted on.

False alarms. Scaled by public figures instead, n records have a mean within 1e-6 of 0 and a deviation within 1e-6 of 1
with a probability of about 0.9 n 1e-12, and a mean within 1e-9 deviations of 0 with one of about 8e-10 sqrt(n). All
columns of numbers reach exactly 0 and 1 where the owner has such data (ratings, percentages): the words say so. Values
that are mirrored around their mean, as sines of all months are, have it exactly without a step, and count for none.
What is said are signs, not proofs, and the words name what else may be.

What is found depends on private records, so it is for their owner alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats
from accounting.messages import OptionName
from training.inputs.columns import NumberColumn
from training.inputs.records import Records

_STANDARD = 1e-6
_EXACT = 1e-9
_ROUNDING = 8 * float(np.finfo(np.float64).eps)
_REPEATED = 3
_DECIMALS = 6
_CHANCE = 1e-6
"""That the mean of values in steps of s, around 0 with deviation d, is 0: s / (d sqrt(2 pi n)) among n."""
_COARSE = 1e-3
"""Steps in which values may have median 0 and quartiles 1 apart."""
_AT_ONCE = 2**20
_SHOWN = 6

ADVICE = (
    "Such a step holds exact figures of the records, which no budget covers, and hides records from the lineages that "
    "have them. Give the columns as they are, with bounds known without the records, by which the model scales them; "
    + OptionName("missing", {"COLUMN": "VALUE"})
    + " declares what a missing value counts as."
)


@dataclass(frozen=True, eq=False)
class Numbers:
    """Columns of numbers among the coordinates of records.

    names: of these columns. X: (n, d), not finite where a value is missing. places: where in X each column is. absent:
    by place, the coordinate that is 1 where the value is missing.
    """

    names: Sequence[str]
    X: Floats
    places: Sequence[int]
    absent: Mapping[int, int]

    def rows(self, rows: slice) -> Floats:
        """Return some of the rows, NaN where a value is missing."""
        rows_of_columns = self.X[rows] if self.places == range(self.X.shape[1]) else self.X[rows][:, self.places]
        for index, absent in self._marked:
            rows_of_columns[self.X[rows, absent] == 1, index] = np.nan
        return rows_of_columns

    @cached_property
    def _marked(self) -> list[tuple[int, int]]:
        return [(index, self.absent[place]) for index, place in enumerate(self.places) if place in self.absent]

    def column(self, index: int) -> Floats:
        """Return the values of a column that are not missing."""
        values, place = self.X[:, self.places[index]], self.places[index]
        is_known = np.isfinite(values)
        if place in self.absent:
            is_known &= self.X[:, self.absent[place]] != 1
        return values[is_known]


def numbers_of(records: Records) -> Numbers:
    """Return the numbers of records as they were read: within their bounds."""
    declared = records.declaration
    if not declared.columns:
        return Numbers(declared.feature_names, records.X, range(declared.features), {})
    names, places, absent, start = [], [], {}, 0
    for column in declared.columns:
        end = start + len(column.coordinates)
        if isinstance(column, NumberColumn):
            names.append(column.name)
            places.append(start)
            if column.marks_missing:
                absent[start] = end - 1
        start = end
    return Numbers(names, records.X, places, absent)


def signs(numbers: Numbers) -> list[str]:
    """Say which columns look as if a step fitted on these records had made them, a sentence for each kind of step."""
    if not numbers.names:
        return []
    signs: dict[str, list[str]] = {}
    columns = [(place, column) for place, column in enumerate(_figures(numbers)) if column is not None]
    for place, column in columns:
        if (kind := column.sign(partial(numbers.column, place))) is not None:
            signs.setdefault(kind, []).append(numbers.names[place])
    if not signs and (scaled := _scaled(numbers, columns)):
        kind = "reach exactly the same least and largest value, as from a MinMaxScaler, or as ratings may"
        signs[kind] = [numbers.names[place] for place in scaled]
    return [
        f"{_listed(columns)} {kind}. This is a sign of a step that was fitted on these records, no proof"
        for kind, columns in signs.items()
    ]


def _scaled(numbers: Numbers, columns: "Sequence[tuple[int, _Figures]]") -> list[int]:
    """Return the columns with more than two values, if these are two or more and all go from 0, or -1, to 1."""
    ends = [abs(each.high - 1) < _EXACT and min(abs(each.low), abs(each.low + 1)) < _EXACT for _, each in columns]
    if sum(ends) < 2:
        return []
    chosen = []
    for (place, each), end in zip(columns, ends, strict=True):
        values = numbers.column(place)
        if ((values > each.low) & (values < each.high)).any():
            chosen.append((place, end))
    return [place for place, _ in chosen] if len(chosen) > 1 and all(end for _, end in chosen) else []


@dataclass
class _Figures:
    """Statistics of a column's values, those that are not missing, from two passes over the records.

    centre: how many are not above 0, and not below. near: how many are the mean, up to rounding. squares: the sum of
    their squared distances from the mean.
    """

    count: int
    low: float
    high: float
    mean: float
    centre: tuple[int, int]
    near: int = 0
    squares: float = 0.0

    @property
    def rounding(self) -> float:
        """Largest distance to a mean that was computed otherwise."""
        return 1e-12 * (self.high - self.low) + _ROUNDING * max(abs(self.low), abs(self.high))

    def sign(self, values: Callable[[], Floats]) -> str | None:
        """Say what the column looks like; None of nothing. values: returns those that are not missing."""
        variance = self.squares / self.count
        if not self._is_odd(variance):
            return None
        present = values()
        if (np.abs(present) == 1).all():  # a design may have -1 and 1 in equal numbers
            return None
        if abs(self.mean) < _STANDARD and self._is_one(variance):
            return "have mean 0 and standard deviation 1, as from a StandardScaler, or as published scores may"
        if self._is_mirrored(present):
            return None
        if self.near >= _REPEATED and self._is_imputed(present):
            return "have their mean in many rows, as from a SimpleImputer, or as a usual value may be"
        step = _step(present) or 0.0
        if abs(self.mean) <= _EXACT * variance**0.5 and step < _CHANCE * (2 * np.pi * self.count * variance) ** 0.5:
            return "have mean 0 exactly, as from a scaler or PCA, or as differences of pairs may"
        if step > _COARSE:
            return None
        low, middle, high = np.percentile(present, (25, 50, 75))
        if abs(middle) < _EXACT and abs(high - low - 1) < _EXACT:
            return "have median 0 and quartiles 1 apart exactly, as from a RobustScaler, or by chance"
        return None

    def _is_odd(self, variance: float) -> bool:
        """Tell whether the values are worth a look."""
        return (
            abs(self.mean) < max(_STANDARD, _EXACT * variance**0.5)
            or self.near >= _REPEATED
            or (self.low < 0 < self.high and 2 * min(self.centre) >= self.count)
        )

    def _is_one(self, variance: float) -> bool:
        """Tell whether this is the variance 1, of these values or of what they are a sample of."""
        both = (variance, variance * self.count / (self.count - 1))
        return any(abs(each**0.5 - 1) < _STANDARD for each in both)

    def _is_mirrored(self, present: Floats) -> bool:
        """Tell whether the values lie alike on both sides of their mean, which no step is needed for."""
        ordered = np.sort(present) - self.mean
        return bool((np.abs(ordered + ordered[::-1]) <= 4 * self.rounding).all())

    def _is_imputed(self, present: Floats) -> bool:
        """Tell whether the mean is there many times and is no value as the others are."""
        near = np.abs(present - self.mean) <= self.rounding
        rest = present[~near]
        step = _step(rest) if len(rest) else None
        if not len(rest) or _on_grid(rest, self.mean):
            return False
        return step is None or _step(present[near][:1], step / 10) is None


def _figures(numbers: Numbers) -> list[_Figures | None]:
    """Return the figures of each column; None for one with a single value, or fewer than three."""
    n, d = len(numbers.X), len(numbers.names)
    rows = [slice(start, start + _AT_ONCE // d + 1) for start in range(0, n, _AT_ONCE // d + 1)]
    count, total, below, above = np.zeros((4, d))
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    for each in rows:
        given = numbers.rows(each)
        some, is_known = _without_gaps(given, 0.0)
        missing = len(some) - is_known
        count += is_known
        total += some.sum(axis=0)
        below += (some <= _EXACT).sum(axis=0) - missing
        above += (some >= -_EXACT).sum(axis=0) - missing
        low = np.minimum(low, _without_gaps(given, np.inf)[0].min(axis=0))
        high = np.maximum(high, _without_gaps(given, -np.inf)[0].max(axis=0))
    figures = [
        _Figures(int(c), float(a), float(b), float(t / c), (int(under), int(over)))
        if c >= _REPEATED and a < b
        else None
        for c, a, b, t, under, over in zip(count, low, high, total, below, above, strict=True)
    ]
    means = np.array([0.0 if each is None else each.mean for each in figures])
    rounding = np.array([-1.0 if each is None else each.rounding for each in figures])
    near, squares = np.zeros((2, d))
    for each in rows:
        away = numbers.rows(each) - means
        near += (np.abs(away) <= rounding).sum(axis=0)  # which NaN is not
        squares += np.square(_without_gaps(away, 0.0)[0]).sum(axis=0)
    for column, close, square in zip(figures, near, squares, strict=True):
        if column is not None:
            column.near, column.squares = int(close), float(square)
    return figures


def _without_gaps(rows: Floats, empty: float) -> tuple[Floats, NDArray[np.int64]]:
    """Return rows (n, d) with `empty` where a value is missing, and how many each column has."""
    finite = np.isfinite(rows)
    return (rows if finite.all() else np.where(finite, rows, empty)), finite.sum(axis=0)


def _step(values: Floats, least: float | None = None) -> float | None:
    """Return the largest of 1, 0.1, ... that all values are multiples of, and at least `least`; None of none."""
    for decimals in range(_DECIMALS + 1):
        step = 10.0**-decimals
        if least is not None and step < least:
            return None
        units = values / step
        if (np.abs(units - np.rint(units)) <= 1e-6).all():
            return step
    return None


def _on_grid(values: Floats, one: float) -> bool:
    """Tell whether values and one more are equally far apart or multiples of that, as whole numbers over 7 are."""
    distinct = np.unique(values)
    gaps = np.diff(distinct)
    gap = gaps[gaps > 1e-9 * (distinct[-1] - distinct[0])].min(initial=np.inf)
    steps = (np.append(distinct, one) - distinct[0]) / gap
    return bool(np.isfinite(gap) and (np.abs(steps - np.rint(steps)) <= 1e-6).all())


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"the columns {shown}" if len(names) > 1 else f"the column {shown}"
