"""The list of columns, and rows by name as their numbers; `dpserve.training.inputs.column` has the encoding."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import (
    Field,
    TypeAdapter,
    ValidationError,
)

from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.faults_in_words import in_words
from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError
from dpserve.training.fields import Several
from dpserve.training.inputs.column import NUMBER, NUMBER_BYTES, Column, ValueRefused, bound_broken, json_bytes, quoted
from dpserve.training.inputs.plain_columns import BooleanColumn, LevelsColumn, NumberColumn
from dpserve.training.inputs.text_columns import TextColumn
from dpserve.training.inputs.text_encoder import TextEncoding
from dpserve.training.inputs.time_columns import TimeColumn

__all__ = ["BooleanColumn", "Column", "LevelsColumn", "NumberColumn", "TextColumn", "TimeColumn"]

CHARACTERS_AT_ONCE = 4096
"""Characters of texts whose n-grams are counted at a time: some milliseconds."""

_NAMED = 12
DELIMITERS = ",;\t|\x01^"
"""CSV delimiters: a file's is the one that its header has most of."""


MISSING_VALUES = "; null stands for a missing value"
"""Advice for a row that lacks columns."""


class RowRefused(DataError):
    """A row by name does not fit the columns."""

    def __init__(self, what: str, row: int, column: int | None = None) -> None:
        """row: its index; column: that of the first column that does not fit, or is missing."""
        super().__init__(what)
        self.row, self.column = row, column


MISSING_TEXTS = ("", "NA", "N/A", "NaN", "nan", "null", "None")
"""The texts that stand for a missing value in a table of numbers, where no schema says which."""
OWN_LEVEL = "level"
"""Declares that a missing value has a coordinate of its own."""


Missing = Mapping[str | None, str | float]
"""The public value that a missing one counts as, or `OWN_LEVEL`, by column; under None, of every column not named."""


def with_missing(columns: "Columns", given: Sequence[str] | Missing) -> "Columns":
    """Return columns with what the owner declares for missing values.

    given: values by column, or a person's words for them: `COLUMN=VALUE`, a public value that a missing one counts as,
    or `COLUMN=level`, a coordinate of its own; without `COLUMN=`, for every column that is not named. Raises DataError
    for what does not fit.
    """
    names = [column.name for column in columns]
    declared = given if isinstance(given, Mapping) else _read_missing(given, names)
    unknown = [name for name in declared if name is not None and name not in names]
    if unknown:
        raise DataError(Message("{missing}: there is no column {!r}; the columns are {}", unknown[0], _some_of(names)))
    made: list[AnyColumn] = []
    for column in columns:
        value = declared.get(column.name, declared.get(None))
        if value is None:
            made.append(column)
            continue
        number = not isinstance(value, str) or (isinstance(column, NumberColumn) and NUMBER.fullmatch(value.strip()))
        substitute = {} if value == OWN_LEVEL else {"if_missing": float(value) if number else value}
        try:
            described = column.model_dump(exclude={"if_missing"}) | {"required": False} | substitute
            made.append(type(column).model_validate(described))
        except ValidationError as error:
            detail = in_words(error.errors()[0]).removeprefix("for a missing value: ")
            raise DataError(Message("{missing:{}={}}: {}", column.name, value, detail)) from None
    return tuple(made)


def _read_missing(texts: Sequence[str], names: Sequence[str]) -> Missing:
    declared: dict[str | None, str | float] = {}
    for text in texts:
        owners = [name for name in names if text.startswith(f"{name}=")]
        if not owners and "=" in text:
            raise DataError(Message("{missing} {}: there is no such column; the columns are {}", text, _some_of(names)))
        name = max(owners, key=len, default=None)
        if name in declared:
            raise DataError(Message("{missing} is given twice for {}: leave one of them out", name or "every column"))
        declared[name] = text if name is None else text.removeprefix(f"{name}=")
    return declared


def _some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


AnyColumn = Annotated[
    NumberColumn | BooleanColumn | LevelsColumn | TimeColumn | TextColumn, Field(discriminator="kind")
]
"""The part of a schema that a feature map keeps."""

Columns = Several[AnyColumn]

SomeColumn = TypeVar("SomeColumn", bound=Column)


def columns_from(described: Any) -> Columns:
    """Return the columns that a public certificate describes in JSON. Raises ValueError for what describes none."""
    return TypeAdapter(Columns).validate_python([*described])


def coordinates_of(columns: Sequence[Column]) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Return the name, the lower and the upper bound of every coordinate, in the order of the columns."""
    each = [coordinate for column in columns for coordinate in column.coordinates]
    return tuple(name for name, _, _ in each), tuple(low for _, low, _ in each), tuple(high for _, _, high in each)


def numbers_among(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return which of the coordinates are numbers or times within declared bounds."""
    rows_of_numbers: list[int] = []
    start = 0
    for column in columns:
        rows_of_numbers += [start + index for index in column.numbers]
        start += len(column.coordinates)
    return tuple(rows_of_numbers)


def encodings_among(columns: Sequence[Column]) -> dict[str, TextEncoding]:
    """Return the encodings of texts by public encoders, by their digests."""
    each = [column.encoder for column in columns if isinstance(column, TextColumn) and column.encoder]
    return {encoding.sha256: encoding for encoding in each}


def usual_norm(columns: Sequence[Column]) -> float:
    """Return about how long an encoded row is: where to clip, by a public rule."""
    return math.sqrt(sum(column.usual for column in columns))


def blocks_of(columns: Sequence[SomeColumn], X: Floats) -> Iterator[tuple[SomeColumn, Floats]]:
    """Yield each column with its coordinates in X (n, d), to be written."""
    start = 0
    for column in columns:
        width = len(column.coordinates)
        yield column, X[:, start : start + width]
        start += width


def bytes_by_name(columns: Sequence[Column], names: Sequence[str]) -> int:
    """Return how many bytes a row by name takes in JSON at most, as clients write it: of numbers, without columns."""
    values = sum(column.most_bytes for column in columns) if columns else len(names) * NUMBER_BYTES
    return sum(map(json_bytes, names)) + values + len("{}, ")


def encode_rows(columns: Sequence[Column], rows: Sequence[Mapping[str, object]], *, clip: bool = False) -> Floats:
    """Return rows by name, as JSON gives them, encoded: (n, d).

    A value is a number, a boolean, a text or null; numbers and dates may also be texts, as a CSV file has them. Every
    row has every column and no other. clip: clip numbers and times to their bounds instead of refusing them.
    Raises RowRefused with all that does not fit in the first row that does not.
    """
    X, unencoded = checked_rows(columns, rows, clip=clip)
    for texts in unencoded:
        texts.encode(0, len(rows))
    return X


@dataclass(frozen=True, eq=False)
class UnencodedTexts:
    """Texts that fit their column, whose coordinates are yet to be computed into `block` (n, k).

    They are for a deep network, or so long that counting their n-grams takes a while.
    """

    column: TextColumn
    values: Sequence[str]
    absent: Mask
    block: Floats

    @property
    def deep(self) -> bool:
        """Whether a deep network computes them."""
        return self.column.encoder is not None

    def characters(self, start: int, stop: int) -> int:
        """Return how much there is to do for some rows, as `TextColumn.characters` counts it."""
        return self.column.characters(self.values[start:stop])

    def encode(self, start: int, stop: int) -> None:
        """Compute those of some rows."""
        self.column.fill(self.values[start:stop], self.absent[start:stop], self.block[start:stop])


def checked_rows(
    columns: Sequence[Column], rows: Sequence[Mapping[str, object]], *, clip: bool = False
) -> tuple[Floats, tuple[UnencodedTexts, ...]]:
    """Return rows as `encode_rows` does, once what takes its time is encoded, too: until then that is zeros."""
    unencoded: list[UnencodedTexts] = []
    names = [column.name for column in columns]
    column_names = set(names)
    first = next((index for index, row in enumerate(rows) if row.keys() != column_names), len(rows))
    wrong = [] if first == len(rows) else wrong_names(names, rows[first], MISSING_VALUES)
    places = [] if first == len(rows) else [place for place, name in enumerate(names) if name not in rows[first]]
    X = np.empty((len(rows), sum(len(column.coordinates) for column in columns)))
    for place, (column, block) in enumerate(blocks_of(columns, X)):
        # Behind a row that does not fit nothing is looked at any more.
        count = first + (first < len(rows) and column.name in rows[first])
        fault = _fill(column, [row[column.name] for row in rows[:count]], block[:count], unencoded, clip)
        if fault is not None:
            if fault[0] != first:
                wrong, places = [], []
            first = fault[0]
            places.append(place)
            wrong.append(f"column {column.name!r}: {fault[1]}")
    if wrong:
        raise RowRefused(in_row(first, wrong), first, min(places, default=None))
    X += 0.0  # 0.0 and -0.0 are the same
    return X, tuple(unencoded)


def _fill(
    column: Column, given: Sequence[object], block: Floats, unencoded: list[UnencodedTexts], clip: bool
) -> tuple[int, str] | None:
    """Write a block, or return the first of the values that does not fit, and why. unencoded: what is left is added."""
    parsed: list[Any] = []
    absent = np.zeros(len(given), dtype=np.bool_)
    refused = None
    for index, value in enumerate(given):
        absent[index] = column.is_missing(value)
        try:
            if absent[index] and column.required:
                raise ValueRefused("a value is required")
            parsed.append(placeholder(column) if absent[index] else column.parse(value))
        except ValueRefused as error:
            refused = index, str(error)
            break
    values = parsed if isinstance(column, TextColumn) else np.array(parsed)
    if clip and parsed:
        values = column.clipped(values)
    beyond = column.outside(values) if parsed else None
    if beyond is not None and (outer := (beyond[0] | beyond[1]) & ~absent[: len(parsed)]).any():
        index = int(np.argmax(outer))
        return index, f"{quoted(given[index])} {bound_broken(column, beyond, index)}"
    if refused is None and parsed:
        if isinstance(column, TextColumn) and (
            column.encoder is not None or column.characters(parsed) > CHARACTERS_AT_ONCE
        ):
            block[:] = 0.0
            unencoded.append(UnencodedTexts(column, parsed, absent, block))
        else:
            column.fill(values, absent, block)
    return refused


def wrong_names(names: Sequence[str], row: Mapping[str, object], advice: str = "") -> list[str]:
    """Say which of the columns `names` a row lacks, with advice, and which others it has."""
    missing = [name for name in names if name not in row]
    column_names = set(names)
    unknown = [name for name in row if name not in column_names]
    faults = [f"{listed(missing)} missing{advice}"] if missing else []
    return (
        [
            *faults,
            f"{listed(unknown)} unknown; the model takes {', '.join(names[:_NAMED])}{', ...' * (len(names) > _NAMED)}",
        ]
        if unknown
        else faults
    )


def listed(names: Sequence[str]) -> str:
    """Return names as the subject of a sentence: at most twelve of them."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    one = len(names) == 1
    return f"column{'' if one else 's'} {', '.join(map(quoted, names[:_NAMED]))}{more} {'is' if one else 'are'}"


def in_row(row: int, wrong: Sequence[str]) -> str:
    """Say all that is wrong with a row: at most twelve sentences of it."""
    more = f"; and {len(wrong) - _NAMED} more columns" if len(wrong) > _NAMED else ""
    return f"row {row}, {'; '.join(wrong[:_NAMED])}{more}"


def placeholder(column: Column) -> Any:
    """Return what stands among parsed values where one is missing; it is never looked at."""
    return "" if isinstance(column, TextColumn) else 0.0 if isinstance(column, NumberColumn | BooleanColumn) else 0
