"""Private records, and what their owner declares about them without looking at them.

Bounds and class names are public: they go into the certificate and are never computed from the records, because
a minimum, a maximum or a list of the classes that occur would each say something about single records.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError
from dpserve.training.fields import MOST_CLASSES
from dpserve.training.inputs.column import BOOLEANS
from dpserve.training.inputs.columns import Columns
from dpserve.training.inputs.sums import Sums, of_rows

OnRows = Callable[[int, float], None]
"""Takes how many records have been read, and which share of all that is, as far as is known."""

_MOST_SHOWN = 8
_SOME = 2**14


class NoRecords(DataError):
    """A table has columns and no records."""


@dataclass(frozen=True)
class Declaration:
    """The public facts about records: feature names, bounds of each feature, and class names.

    lower, upper: d numbers each, in the features' own units, lower < upper. classes: from two names to MOST_CLASSES.
    """

    feature_names: tuple[str, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    classes: tuple[str, ...]
    columns: Columns = ()
    """The columns that the features encode, where features are no columns themselves: see
    `dpserve.training.inputs.columns`."""
    clips: bool = False
    """Whether values beyond the bounds are clipped to them, instead of refused."""
    blocks: tuple[str, ...] = ()
    """The blocks that the records are in, in order; none where the lineage has none
    (`dpserve.training.inputs.blocks`)."""
    block_budget: str = ""
    """The budget with which each of them opens, as its owner writes it."""

    def __post_init__(self) -> None:
        """Refuse a declaration that contradicts itself."""
        if not len(self.feature_names) == len(self.lower) == len(self.upper) > 0:
            raise DataError("a declaration needs one name, one lower and one upper bound for each feature")
        for name, low, high in zip(self.feature_names, self.lower, self.upper, strict=True):
            if not (np.isfinite(low) and np.isfinite(high) and low < high and np.isfinite(high - low)):
                raise DataError(f"the bounds of feature {name!r} must be finite and in order, not {low:g}:{high:g}")
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise DataError("declare at least two classes, each once")
        if len(self.classes) > MOST_CLASSES:
            raise DataError(f"there may be {MOST_CLASSES:,} classes, and {len(self.classes):,} are declared")

    @property
    def features(self) -> int:
        """Number of features of a record."""
        return len(self.feature_names)


@dataclass(frozen=True, eq=False)
class Units:
    """The privacy unit of each record, where neighbouring data sets differ by all records of one unit.

    column: its name, public. of: (n,), for each record the index of its unit. names: 16 bytes of each unit (u, 16), the
    same wherever it is named.
    """

    column: str
    of: NDArray[np.int64]
    names: NDArray[np.uint8] | None = None

    def weights(self) -> Floats:
        """Return 1/n_u for each record (n,), n_u being how many records its unit has, so that a unit's add up to <= 1.

        1/n is rounded by at most u = 2^-53 of itself, and so is its product with 1 - 2u: n times that is at most
        (1 + u)^2 (1 - 2u) = 1 - 3u^2 - 2u^3 < 1. A unit's only record has the weight 1.
        """
        return self.shares(np.bincount(self.of))[self.of]

    @staticmethod
    def shares(counts: NDArray[np.int64]) -> Floats:
        """Return the weight of a record of units with so many records: see `weights`."""
        shares: Floats = np.where(counts == 1, 1.0, 1.0 / np.maximum(counts, 1) * (1 - 2.0**-52))
        return shares


class Digests(Sequence[bytes]):
    """16 bytes of each record, in an array (n, 16)."""

    def __init__(self, octets: NDArray[np.uint8]) -> None:
        """octets: (n, 16)."""
        self.octets = octets

    def __len__(self) -> int:
        """Number of digests."""
        return len(self.octets)

    def __iter__(self) -> Iterator[bytes]:
        """Yield them; faster than one by one."""
        for start in range(0, len(self), _SOME):
            some = self.octets[start : start + _SOME].tobytes()
            yield from (some[at : at + 16] for at in range(0, len(some), 16))

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> "Digests": ...

    def __getitem__(self, index: int | slice) -> "bytes | Digests":
        """Return one, or some."""
        return Digests(self.octets[index]) if isinstance(index, slice) else self.octets[index].tobytes()


@dataclass(frozen=True, eq=False)
class Records:
    """n records that fit their declaration. X: (n, d) float64 within the bounds; y: (n,) int64 class indices.

    source: the canonical bytes of every row of the file or set they come from, or a digest of them, whether it, or each
    of its columns, is used or not: what makes two trainings ones on the same records. units: whose each record is; None
    where every record is a unit of its own.
    """

    X: Floats
    y: NDArray[np.int64]
    declaration: Declaration
    source: Sequence[bytes]
    units: Units | None = None
    files: tuple[int, ...] | None = None
    """Number of records in each file that they were read from; None for one file."""
    ids: NDArray[np.uint8] | None = None
    """16 bytes of each record's key (n, 16), if it has one: its own, or its person's."""
    block_places: NDArray[np.int64] | None = None
    """The block of each record (n,), its place in `declaration.blocks`; None where all are in one, or none has any."""

    def __len__(self) -> int:
        """Number of records: private."""
        return len(self.y)

    @property
    def unit(self) -> str | None:
        """The column of privacy units, if there is one."""
        return None if self.units is None else self.units.column

    @property
    def weights(self) -> Floats | None:
        """The weight of each record (n,), or None for 1 each."""
        return None if self.units is None else self.units.weights()

    def taken(self, mask: Mask | NDArray[np.int64]) -> "Records":
        """Return the records of a mask (n,), or of places in their order, with their units, to train on or to score.

        Their source is that of all.
        """
        places = None if self.block_places is None else self.block_places[mask]
        units = self._units_of(mask)
        return replace(self, X=self.X[mask], y=self.y[mask], units=units, files=None, ids=None, block_places=places)

    def summed(self, mask: Mask) -> "SummedRecords":
        """Return the same of a mask (n,) to train on alone: their rows stay where they are, and are not copied."""
        units = self._units_of(mask)
        weights, of = (None, None) if units is None else (units.weights(), units.of)
        sums = of_rows(self.X, self.y[mask], weights, of, places=np.flatnonzero(mask))
        return SummedRecords(self.declaration, sums, self.source, units)

    def _units_of(self, mask: Mask | NDArray[np.int64]) -> Units | None:
        """Return the units of some of the records, numbered anew."""
        if self.units is None:
            return None
        kept, of = np.unique(self.units.of[mask], return_inverse=True)
        return Units(self.units.column, of, None if self.units.names is None else self.units.names[kept])

    def in_order(self, names: Sequence[str]) -> Floats:
        """Return the features (n, d) in the order of these names, as a model asks for them."""
        places = {name: place for place, name in enumerate(self.declaration.feature_names)}
        return np.ascontiguousarray(self.X[:, [places[name] for name in names]])

    @cached_property
    def sums(self) -> Sums:
        """The sums over the records, which are all that training sees."""
        return of_rows(self.X, self.y, self.weights, None if self.units is None else self.units.of, self.files)


@dataclass(frozen=True, eq=False)
class SummedRecords:
    """Records as training sees them: by sums over them alone, wherever their rows are. The fields are `Records`'."""

    declaration: Declaration
    sums: Sums
    source: Sequence[bytes]
    units: Units | None = None
    ids: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        """Number of records: private."""
        return sum(self.sums.lengths)

    @property
    def unit(self) -> str | None:
        """The column of privacy units, if there is one."""
        return None if self.units is None else self.units.column


AnyRecords = Records | SummedRecords
"""Records as training takes them."""


def check_records(
    X: Floats,
    labels: Sequence[object] | NDArray[np.generic],
    declaration: Declaration,
    *,
    source: Sequence[bytes],
    clip: bool = False,
    values: Sequence[str] | None = None,
    file_name: str = "",
    row_name: Callable[[int], str] = lambda index: f"row {index}",
) -> Records:
    """Return the records, or raise DataError naming every column that breaks the declaration, and where it first does.

    X: (n, d) float64. labels: n values, each equal (as text, or as a number) to one declared class, or to one of
    `values`, what each class is called here. source: see `Records`. clip: clip finite values to their bounds
    instead of refusing them. file_name: where the records come from. row_name: how it counts its rows, given a 0-based
    index.
    """
    values = declaration.classes if values is None else values
    if len(values) != len(declaration.classes) or len(set(values)) < len(values):
        raise DataError("each class needs one value of its own in the records")
    where = f"{file_name}, " if file_name else ""
    if X.ndim != 2 or X.shape[1] != declaration.features:
        raise DataError(f"the records have shape {X.shape}, and {declaration.features} features are declared")
    if len(labels) != len(X):
        raise DataError(f"there are {len(X)} records but {len(labels)} labels")
    if len(X) == 0:
        raise DataError("there are no records")
    lower, upper = np.asarray(declaration.lower), np.asarray(declaration.upper)
    if clip:
        X = np.where(np.isfinite(X), np.clip(X, lower, upper), X)
    bad = _outside(X, lower, upper, declaration.feature_names, row_name)
    if bad:
        raise DataError(Message("{}{}", where, bad))
    indices = _class_indices(labels, tuple(values), lambda index: where + row_name(index))
    return Records(X, indices, declaration, tuple(source))


def check_declared(records: Records) -> None:
    """Raise DataError for a value of the records that is no number within its declared bounds.

    Whoever reads a table refuses such a value there. Records that are made otherwise are not taken at their word: every
    sensitivity rests on the bounds.
    """
    declaration = records.declaration
    lower, upper = np.asarray(declaration.lower), np.asarray(declaration.upper)
    for start in range(0, len(records), _SOME):
        rows = records.X[start : start + _SOME]
        broken = _outside(rows, lower, upper, declaration.feature_names, partial(_row_from, start))
        if broken is not None:
            raise DataError(broken)


def _row_from(start: int, row: int) -> str:
    return f"record {start + row}"


def _outside(
    X: Floats, lower: Floats, upper: Floats, names: Sequence[str], row_name: Callable[[int], str]
) -> str | None:
    """Say of every column with a value that is not finite or beyond its bounds where the first one is; None of none."""
    broken = ~((lower <= X) & (upper >= X))
    faults, finite = [], True
    for column in map(int, np.flatnonzero(broken.any(axis=0))):
        row = int(np.argmax(broken[:, column]))
        value, low, high = X[row, column], lower[column], upper[column]
        fault = f"is below the declared bound {low:g}" if value < low else f"is above the declared bound {high:g}"
        if not np.isfinite(value):
            fault, finite = "is not a finite number", False
        faults.append(f"{row_name(row)}, column {names[column]!r}: {value:g} {fault}")
    if not faults:
        return None
    more = f"; and {len(faults) - _MOST_SHOWN} more columns" if len(faults) > _MOST_SHOWN else ""
    shown = "; ".join(faults[:_MOST_SHOWN]) + more
    if not finite:
        return shown
    return Message(
        "{}. Bounds are public: do not widen them to fit the records; {clip} clips the records to them", shown
    )


def _class_indices(
    labels: Sequence[object] | NDArray[np.generic], classes: tuple[str, ...], row_name: Callable[[int], str]
) -> NDArray[np.int64]:
    index_of: dict[object, int] = {name: index for index, name in enumerate(classes)}
    for index, name in enumerate(classes):
        number = _as_number(name)
        if number is not None:
            index_of.setdefault(number, index)
    indices = np.empty(len(labels), dtype=np.int64)
    for row, label in enumerate(labels):
        text = str(label).strip()
        place = index_of.get(text)
        if place is None and (number := _as_number(text)) is not None:
            place = index_of.get(number)
        if place is None:
            shown = ", ".join(classes[:12]) + (", ..." if len(classes) > 12 else "")
            advice = (
                Message("; {classes:VALUE=NAME} gives names to numbers")
                if _as_number(text) is not None and not any(isinstance(class_name, float) for class_name in index_of)
                else ""
            )
            raise DataError(
                Message("{}: label {!r} is not one of the declared classes {}{}", row_name(row), text, shown, advice)
            )
        indices[row] = place
    return indices


def _as_number(text: str) -> float | None:
    try:
        return None if "_" in text else float(BOOLEANS.get(text.lower(), text))
    except ValueError:
        return None
