"""Private records from a table, read and encoded batch by batch as their public schema says."""

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError
from dpserve.training.inputs.blocks import NOT_DECLARED, BlockDeclaration
from dpserve.training.inputs.columns import (
    MISSING_TEXTS,
    Column,
    Columns,
    LevelsColumn,
    Missing,
    NumberColumn,
    TimeColumn,
    blocks_of,
    coordinates_of,
    with_missing,
)
from dpserve.training.inputs.declared import Bounds, parse_bounds
from dpserve.training.inputs.parsing import Parsed, RefusedValue, digests_of, name_digests, numbered, parse
from dpserve.training.inputs.records import Declaration, Digests, NoRecords, OnRows, Records, Units
from dpserve.training.inputs.schema import LabelColumn, TableSchema, Unlabelled
from dpserve.training.inputs.tables import Batch, Table, open_table

_MOST_SHOWN = 8
_FEWEST_KEPT = 2**12
_MOST_IN_MEMORY = 2**29

CLIP_ADVICE = Message("Bounds are public: do not widen them to fit the records; {clip} clips the records to them")
LEVEL_ADVICE = Message(
    "Levels are public: do not add what the records hold; {unknown_levels:coordinate} takes any other"
)
MISSING_ADVICE = Message(
    "{missing:COLUMN=VALUE} says what a missing value counts as, {missing:COLUMN=level} that it is its own"
)
NUMBER_ADVICE = Message(
    "{levels_column} declares levels, {text_column} free text, {date_column} dates; {ignore:COLUMN} leaves it out"
)
UNLABELLED_ADVICE = Message("{unlabelled:leave-out} leaves out the records without a label")
SIGNS_ADVICE = Message("{decimal_char:,} reads decimal commas, and {group_char:.} points between thousands")
DECIMAL_ADVICE = Message(
    "{decimal:,} reads decimal commas; with points between thousands, too, describe the columns with {schema}"
)
PATTERN_ADVICE = Message("{pattern:%d.%m.%Y} is the pattern of dates such as 31.01.2026")
_WITH_COMMA = re.compile(r"'[-+]?[0-9.]++,[0-9]++' is not a number")
"""The refusal of a number as much of Europe writes it."""
_LIKE_A_DATE = re.compile(r"'[0-9]++[./ -][0-9]++[./ -][0-9]++[^']*+' is no ")
BLOCK_ADVICE = Message("Declare its block, too, with {blocks}; {leave_out_other_blocks} leaves out records of others")
LABEL_ADVICE = Message("{classes:VALUE=NAME} gives names to numbers")


def read_with_schema(
    source: Any,
    schema: TableSchema,
    label: str,
    *,
    ignore: Sequence[str] = (),
    missing: Sequence[str] | Missing = (),
    clip: bool = False,
    unit: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    unlabelled: Unlabelled = "refuse",
    blocks: BlockDeclaration | None = None,
    progress: OnRows = lambda _, __: None,
) -> Records:
    """Read a table (`open_table`) whose columns a schema describes.

    label: the field of classes. ignore: columns to leave out, and those of the schema too. missing: what missing values
    become, where the schema says otherwise, as `dpserve.training.inputs.columns.with_missing` takes it. clip: draw
    numbers and times back to their bounds instead of refusing them. unit: the column that names each record's privacy
    unit;
    id_column: the one with a key of each record, or of its person. These are no features, as the column that names
    blocks is none. encoding, sheet: as for
    `open_table`. unlabelled: whether records without a label are refused or left out.
    Raises DataError that names every column that does not fit, with the line where it first does not and what to do.
    """
    columns, classes = schema.split(label)
    nameless = {column.name: column.missing for column in columns}
    of_unit, of_id = (nameless.get(name or "", schema.missing) for name in (unit, id_column))
    ignore = _without(ignore, label, unit, id_column, blocks)
    columns = with_missing(tuple(column for column in columns if column.name not in ignore), missing)
    table = open_table(source, encoding, sheet)
    _check_names(table, [column.name for column in columns], label, ignore, subset=schema.subset)
    declaration = Declaration(*coordinates_of(columns), classes.classes, columns, clips=clip)
    reading = _Reading(columns, classes, clip, unit, True, of_unit, id_column, of_id, unlabelled, blocks)
    return _read(table, reading, declaration, progress)


def read_numbers(
    source: Any,
    *,
    label: str,
    classes: Sequence[str],
    bounds: Sequence[str] | Bounds,
    ignore: Sequence[str] = (),
    missing: Sequence[str] | Missing = (),
    clip: bool = False,
    values: Sequence[str] | None = None,
    unit: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    decimal: str = ".",
    unlabelled: Unlabelled = "refuse",
    blocks: BlockDeclaration | None = None,
    progress: OnRows = lambda _, __: None,
) -> Records:
    """Read a table (`open_table`) in which every column but the label is a number.

    label: the column of class names, or of `values`, what each class is called in this table. ignore: columns to leave
    out. bounds: of every other column, as `parse_bounds` takes them; true and false are the numbers 1 and 0. missing:
    as for `read_with_schema`; without it a missing value is refused. clip: clip values to their bounds instead of
    refusing them. decimal: the sign before a number's fraction. unit, id_column, encoding, sheet, unlabelled,
    blocks: as for `read_with_schema`, which says what is raised.
    """
    ignore = _without(ignore, label, unit, id_column, blocks)
    table = open_table(source, encoding, sheet)
    features = [name for name in table.names if name != label and name not in ignore]
    _check_names(table, features, label, ignore, subset=False)
    lower, upper = parse_bounds(bounds, features)
    declaration = Declaration(tuple(features), lower, upper, tuple(classes), clips=clip)
    columns: Columns = tuple(
        NumberColumn(
            name=name,
            minimum=low,
            maximum=high,
            required=True,
            missing=MISSING_TEXTS if missing else ("",),
            decimal=decimal,
        )
        for name, low, high in zip(features, lower, upper, strict=True)
    )
    if missing:
        columns = with_missing(columns, missing)
        declaration = Declaration(*coordinates_of(columns), tuple(classes), columns, clips=clip)
    values = tuple(classes if values is None else values)
    if len(values) != len(classes) or len(set(values)) < len(values):
        raise DataError("each class needs one value of its own in the records")
    label_column = LabelColumn(LevelsColumn(name=label, levels=values), tuple(classes))
    reading = _Reading(
        columns, label_column, clip, unit, encoded=False, id_column=id_column, unlabelled=unlabelled, blocks=blocks
    )
    return _read(table, reading, declaration, progress)


def _without(
    ignore: Sequence[str], label: str, unit: str | None, id_column: str | None, blocks: BlockDeclaration | None
) -> tuple[str, ...]:
    """Return the columns that are no features, beside the label."""
    named = (unit, id_column, None if blocks is None else blocks.column)
    if label in named:
        raise DataError(f"the column {label!r} cannot name both the classes and the units, records or blocks")
    return tuple(dict.fromkeys([*ignore, *(name for name in named if name is not None)]))


def column_names(source: Any, encoding: str | None = None, sheet: str | None = None) -> tuple[str, ...]:
    """Return the names of a table's columns. encoding, sheet: as for `open_table`. Raises DataError."""
    return open_table(source, encoding, sheet).names


def _check_names(table: Table, columns: Sequence[str], label: str, ignore: Sequence[str], *, subset: bool) -> None:
    missing = [repr(name) for name in (*columns, label, *ignore) if name not in table.names]
    if missing:
        raise DataError(
            f"{table.name} has no column {' or '.join(_some(missing))}; its columns are {', '.join(table.names)}"
        )
    extra = [repr(name) for name in table.names if name not in (*columns, label, *ignore)]
    if extra and not subset:
        raise DataError(
            Message(
                "{} has columns that the schema does not describe: {}. Describe them, or leave them out with {ignore}, "
                "all others with {fields_match:subset}. One that names the person behind each record is {unit}, or "
                "{id}",
                table.name,
                ", ".join(_some(extra)),
            )
        )


def _some(names: Sequence[str]) -> list[str]:
    return [*names[:_MOST_SHOWN], *([f"{len(names) - _MOST_SHOWN} more"] if len(names) > _MOST_SHOWN else [])]


@dataclass(frozen=True)
class _Reading:
    """The options by which a table is read.

    encoded: whether a schema was given, for what to advise. nameless, idless: texts that are no unit's name, or no key.
    """

    columns: Columns
    label: LabelColumn
    clip: bool
    unit: str | None
    encoded: bool
    nameless: tuple[str, ...] = ()
    id_column: str | None = None
    idless: tuple[str, ...] = ()
    unlabelled: Unlabelled = "refuse"
    blocks: BlockDeclaration | None = None

    @property
    def by_blocks(self) -> bool:
        """Whether a column names each record's block."""
        return self.blocks is not None and self.blocks.column is not None

    def advice(self, column: Column | None, detail: str) -> str:
        """Return what the owner can do about a value that was refused. column: None for one that is no feature's."""
        if column is None:
            return BLOCK_ADVICE if detail.endswith(NOT_DECLARED) else ""
        if "declared bound" in detail:
            return CLIP_ADVICE
        if column is self.label.column and ("is missing" in detail or "is required" in detail):
            return UNLABELLED_ADVICE
        if column is self.label.column:
            return "" if self.encoded or "not one of" not in detail else LABEL_ADVICE
        if "value is required" in detail:
            return MISSING_ADVICE
        if isinstance(column, NumberColumn) and not column.has_own_signs and _WITH_COMMA.match(detail):
            return SIGNS_ADVICE if self.encoded else DECIMAL_ADVICE
        if isinstance(column, TimeColumn) and column.pattern is None and _LIKE_A_DATE.match(detail):
            return PATTERN_ADVICE
        if isinstance(column, LevelsColumn):
            return LEVEL_ADVICE
        return NUMBER_ADVICE if not self.encoded and "finite" not in detail else ""


def _read(table: Table, reading: _Reading, declaration: Declaration, progress: OnRows) -> Records:
    X, y = _Growing((declaration.features,), np.float64), _Growing((), np.int64)
    source, units = _Growing((16,), np.uint8), _Growing((), np.int64)
    ids, block_places = _Growing((16,), np.uint8), _Growing((), np.int64)
    unit_numbers: dict[str, int] = {}
    files: dict[str, int] = {}
    problems: dict[str, tuple[Column | None, str, str]] = {}
    for each, share in table.batches():
        batch = each if reading.unlabelled == "refuse" else _labelled(each, reading.label.column)
        batch = _in_blocks(reading, batch, block_places, problems)
        arrays: dict[str, Any] = dict(zip(batch.data.schema.names, batch.data.columns, strict=True))
        rows = batch.data.num_rows
        # Whether a column has been found wrong or not, the rest is looked at: all that is wrong is said at once.
        block = X.more(rows)
        absent: dict[str, Any] = {}
        for column, part in blocks_of(reading.columns, block):
            values = parse(column, arrays[column.name], clip=reading.clip)
            if values.plain is not None:
                arrays[column.name] = values.plain
            absent[column.name] = values.absent
            if values.refused:
                _note(problems, column, batch, values.refused)
            else:
                column.fill(values.values, values.absent, part)
        block += 0.0  # 0.0 and -0.0 are the same number
        labels, refused = _labels(reading.label.column, arrays)
        if refused:
            _note(problems, reading.label.column, batch, refused)
        else:
            y.more(rows)[:] = labels.values
        if reading.unit is not None:
            units.more(rows)[:], nameless = numbered(arrays[reading.unit], unit_numbers, reading.nameless)
            if nameless:
                _note(problems, None, batch, nameless, reading.unit)
        _add_ids(reading, arrays, ids, problems, batch)
        source.more(rows)[:] = digests_of(list(arrays), list(arrays.values()), absent)
        files[batch.part.path] = files.get(batch.part.path, 0) + rows
        progress(len(X), share)
    pa.default_memory_pool().release_unused()  # what batches were decoded into
    if problems:
        raise DataError(_refusal_of(problems, reading))
    if not len(X):
        within = " of the declared blocks" if reading.by_blocks else ""
        raise NoRecords(f"{table.name} has a header and no records{within}")
    places = block_places.whole() if reading.by_blocks else None
    whose = None if reading.unit is None else Units(reading.unit, units.whole(), name_digests(unit_numbers))
    keys = None if reading.id_column is None else ids.whole()
    counts = tuple(files.values())
    return Records(X.whole(), y.whole(), declaration, Digests(source.whole()), whose, counts, keys, places)


def _in_blocks(reading: _Reading, batch: Batch, places: "_Growing", problems: dict[str, Any]) -> Batch:
    """Return the records that are in declared blocks, and add the place of each one's; note the first that is wrong."""
    if reading.blocks is None or reading.blocks.column is None:
        return batch
    of, refused = reading.blocks.places(batch.data.column(reading.blocks.column))
    if refused:
        _note(problems, None, batch, refused, reading.blocks.column)
        return batch
    kept = of >= 0
    places.more(int(kept.sum()))[:] = of[kept]
    return batch if kept.all() else batch.only(kept)


def _labelled(batch: Batch, column: LevelsColumn) -> Batch:
    """Return the records that have a label."""
    absent = parse(column, batch.data.column(column.name)).absent
    return batch.only(~absent) if absent.any() else batch


def _add_ids(
    reading: _Reading, arrays: Mapping[str, Any], ids: "_Growing", problems: dict[str, Any], batch: Batch
) -> None:
    """Add 16 bytes of each record's key, if there is a column of them, or note the first that is none."""
    if reading.id_column is None:
        return
    unit_numbers: dict[str, int] = {}
    places, refused = numbered(arrays[reading.id_column], unit_numbers, reading.idless, what="id")
    if refused:
        _note(problems, None, batch, refused, reading.id_column)
    else:
        ids.more(len(places))[:] = name_digests(unit_numbers)[places]


def _labels(column: LevelsColumn, arrays: Mapping[str, Any]) -> tuple[Parsed, RefusedValue | None]:
    """Return the labels, and the first that is not one of the classes or missing."""
    labels = parse(column, arrays[column.name])
    refused = labels.refused
    if labels.absent.any() and (refused is None or np.argmax(labels.absent) < refused[0]):
        refused = int(np.argmax(labels.absent)), "the label is missing"
    return labels, refused


def _note(
    problems: dict[str, tuple[Column | None, str, str]],
    column: Column | None,
    batch: Batch,
    refused: tuple[int, str],
    unit: str = "",
) -> None:
    """Note what is wrong with a column, or with that of units, unless something is noted already."""
    name = unit if column is None else column.name
    if name not in problems:
        row, detail = refused
        problems[name] = column, f"{batch.part.name}, {batch.place(row)}, column {name!r}", detail


def _refusal_of(problems: dict[str, tuple[Column | None, str, str]], reading: _Reading) -> Message:
    faults = [f"{where}: {detail}" for _, where, detail in problems.values()]
    advice = dict.fromkeys(reading.advice(column, detail) for column, _, detail in problems.values())
    more = [f"and {len(faults) - _MOST_SHOWN} more columns"] if len(faults) > _MOST_SHOWN else []
    lines: list[str] = [*faults[:_MOST_SHOWN], *more, *(sentence for sentence in advice if sentence)]
    return (Message("\n") if len(faults) > 1 else Message(". ")).join(lines)


class _Growing:
    """An array that rows are added to, without a second copy of all of them.

    Beyond _MOST_IN_MEMORY bytes they lie in a file without a name, which nobody else can open and which goes with the
    process, in the folder that TMPDIR names; memory then holds what is looked at.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        """shape: of a row."""
        self._rows: NDArray[Any] = np.empty((0, *shape), dtype=dtype)
        self._used = 0
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return self._used

    @property
    def _width(self) -> int:
        return math.prod(self._rows.shape[1:])

    def more(self, rows: int) -> NDArray[Any]:
        """Return room for more rows, to be written before the next is asked for."""
        start, self._used = self._used, self._used + rows
        if self._file is None and self._used * self._rows[:0].itemsize * self._width > _MOST_IN_MEMORY:
            self._rows.resize((start, *self._rows.shape[1:]), refcheck=False)
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the mapping that `whole` returns
        if self._file is not None:
            self._rows.tofile(self._file)
            self._rows = np.empty((rows, *self._rows.shape[1:]), dtype=self._rows.dtype)
            return self._rows
        if self._used > len(self._rows):
            # A large array grows by the operating system's moving its pages: nothing is copied, so little room will do.
            room = max(self._used, len(self._rows) * 9 // 8, _FEWEST_KEPT)
            self._rows.resize((room, *self._rows.shape[1:]), refcheck=False)
        view: NDArray[Any] = self._rows[start : self._used]
        return view

    def whole(self) -> NDArray[Any]:
        """Return all rows, and no more room."""
        if self._file is not None:
            self._rows.tofile(self._file)
            self._file.flush()
            return np.memmap(self._file, self._rows.dtype, "r+", shape=(self._used, *self._rows.shape[1:]))
        self._rows.resize((self._used, *self._rows.shape[1:]), refcheck=False)
        return self._rows
