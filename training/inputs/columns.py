"""Columns as people have them, and the public encoding that turns a row by name into numbers.

A column has a block of coordinates. Which, and within which bounds, follows from what its owner declared, and from
nothing else: no record has a say in it. A row is encoded by that row alone, value by value, with operations that IEEE
754 rounds in one way, so that it has the same bits alone or among others, wherever it is computed.

- number, integer: the number itself, in its own units, within its declared bounds.
- boolean: 0 or 1.
- levels: one coordinate for each declared level, of which the value's own is 1; one more for levels that were not
  declared, where those are accepted.
- date, datetime: its declared parts. `time` is in days since 1970-01-01 within the declared bounds; `month`, `weekday`
  (Monday first) and `hour` have one coordinate for each, of which one is 1. Times with an offset are taken to UTC.
- text: how often its n-grams occur, each in the coordinate that a public hash (BLAKE2b, no key) gives it, over the
  Euclidean norm of these counts. With an encoder, the direction of its vector alone
  (`dpserve.training.inputs.text_encoder`): k numbers where they are positive, and k more, without their sign, where
  they are negative.
- a last coordinate, unless a value is required: 1 if the value is missing, when the block's others are at their lower
  bounds. A declared value may take the place of what is missing (`if_missing`): then there is no such coordinate.

The bound. A feature map takes coordinates from their bounds to [0, 1] first (`dpserve.training.features`): u. In a
block a number adds at most 1 to ||u||^2, each group of levels and of parts exactly 1, a text at most 1 up to rounding,
and a missing value 1 in place of all of these. So ||u||^2 is at most the sum of the columns'
`groups` for every row that is encoded. Only rules of thumb use it (`usual_norm`). No proof of privacy does: a feature
map scales *every* row of numbers, encoded or not, into the unit ball.

All of it is one-hot, affine and bins, except for a text's.
"""

import hashlib
import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError
from dpserve.training.fields import Several
from dpserve.training.inputs import text_encoder
from dpserve.training.inputs.text_encoder import TextEncoding

LONGEST_NUMBER = 1_077
"""Characters of a number's text: the smallest double, written out in full with its sign, has as many."""
NUMBER = re.compile(
    rf"(?!.{{{LONGEST_NUMBER + 1}}})"
    r"(?:[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?|[-+]?(?:nan|infinity|inf))",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
"""A number's text, for `fullmatch`. It reads each character once, and never takes back what a repetition has read."""
GROUPED = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
"""A number's text with a decimal point, and perhaps a comma between groups of three digits, for `fullmatch`."""
BOOLEANS = {"true": "1", "false": "0"}
"""The numbers that these words are, in columns of numbers and in labels."""

LONGEST_TEXT = 100_000
"""Characters of a text, where its column declares no other limit."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
DATETIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_MIDNIGHT = re.compile(r"[T ]00:00(:00(\.0{1,6})?)?(Z|[+-]00:00)?", re.ASCII)
"""The time of day that a date has where it is written as a datetime."""
_PATTERN = re.compile(r"(?:[^%]|%[YymdHMSfz%])*")
"""A pattern of dates, for `fullmatch`: what means the same in every language."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000_000
"""Microseconds."""
_WORD = re.compile(r"[^\x00-\x20!-/:-@\[-`{-\x7f]+")
_ASCII_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
"""Other letters stay as they are: what is their lower case depends on the version of Unicode."""
_LONGEST_KEPT_GRAM = 64
"""Characters of an n-gram whose coordinate is kept."""
_SHOWN = 60
_NAMED = 12
DELIMITERS = ",;\t|\x01^"
"""CSV delimiters: a file's is the one that its header has most of."""


MISSING_VALUES = "; null stands for a missing value"
"""Advice for a row that lacks columns."""
NUL = "holds a NUL character, which is no text"


class ValueRefused(ValueError):
    """A value does not fit its column. Says in words what it is: "'old' is not a number". Private, as the value is."""


class RowRefused(DataError):
    """A row by name does not fit the columns."""

    def __init__(self, what: str, row: int) -> None:
        """row: its index."""
        super().__init__(what)
        self.row = row


class Column(BaseModel):
    """The common fields of all columns; also a column's part of the certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    required: bool = False
    """Whether a missing value is refused."""
    missing: Several[str] = ("",)
    """The texts that stand for a missing value, as null does."""
    if_missing: bool | float | str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The public value that a missing one counts as; None: a missing value has a coordinate of its own."""

    @model_validator(mode="after")
    def _value_for_missing_fits(self) -> Self:
        if self.if_missing is not None:
            if self.required:
                raise ValueError("a value is required, so that none stands for a missing one: leave ifMissing out")
            try:
                values = np.array([self.parse(self.if_missing)])
            except ValueRefused as error:
                raise ValueError(f"ifMissing: {error}") from None
            beyond = self.outside(values)
            if beyond is not None and (beyond[0] | beyond[1]).any():
                raise ValueError(f"ifMissing: {self.if_missing} {bound_broken(self, beyond, 0)}")
        return self

    @property
    def marks_missing(self) -> bool:
        """Whether a missing value has a coordinate of its own, the last."""
        return not self.required and self.if_missing is None

    @property
    def substitute(self) -> Any:
        """The value that a missing one counts as, as `encode` takes it; None without one."""
        return None if self.if_missing is None else self.parse(self.if_missing)

    @property
    def coordinates(self) -> tuple[tuple[str, float, float], ...]:
        """The name, the lower and the upper bound of each coordinate."""
        absent = ((f"{self.name} is missing", 0.0, 1.0),) if self.marks_missing else ()
        return (*self.present(), *absent)

    @abstractmethod
    def present(self) -> tuple[tuple[str, float, float], ...]:
        """Return the coordinates of a value that is not missing."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Which of the coordinates are numbers or times within declared bounds; the others are 0, 1 or shares."""
        return ()

    @property
    def fields(self) -> tuple[tuple[int, ...], ...]:
        """The coordinates of each thing that a value says: a number, perhaps, and others of which at most one is 1."""
        return (tuple(range(len(self.coordinates))),)

    @property
    def groups(self) -> int:
        """The largest ||u||^2 of the block: see the module."""
        return 1

    @property
    def usual(self) -> float:
        """About how large ||u||^2 of the block is: 1/4 for a number halfway between its bounds. A public rule."""
        return float(self.groups)

    @property
    @abstractmethod
    def example(self) -> str | float | bool:
        """A value that fits, made of what is declared."""

    @abstractmethod
    def value_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a value that is not missing."""

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a value; null where it may be missing."""
        value = self.value_schema()
        null = {"type": "null"} | ({} if self.if_missing is None else {"description": f"counts as {self.if_missing}"})
        return value if self.required else {"anyOf": [value, null]}

    def is_missing(self, value: object) -> bool:
        """Whether a value stands for none: null, no number (NaN), or a text that is declared to."""
        if isinstance(value, str):
            return value.strip() in self.missing
        return value is None or value != value

    @abstractmethod
    def parse(self, value: Any) -> Any:
        """Return a value that is not missing as `encode` takes it. Raises ValueRefused."""

    @abstractmethod
    def encode(self, values: Any, absent: Mask, block: Floats) -> None:
        """Write the coordinates of values (n,), as `parse` returns them, into `block` (n, k).

        absent: (n,), where there is none, whatever `values` has there. The last coordinate is written already.
        """

    def outside(self, values: Any) -> tuple[Mask, Mask] | None:
        """Return which values (n,) lie below and above the declared bounds, or None for a column that has none."""
        del values
        return None

    def clipped(self, values: Any) -> Any:
        """Return the values clipped to their bounds."""
        return values

    def fill(self, values: Any, absent: Mask, block: Floats) -> None:
        """Write the whole block, the coordinate of what is missing included."""
        if self.if_missing is not None and absent.any():
            values, absent = np.where(absent, self.substitute, values), np.zeros_like(absent)
        if self.marks_missing:
            block[:, -1] = absent
        self.encode(values, absent, block[:, : len(self.present())])


class NumberColumn(Column):
    """A number within public bounds."""

    kind: Literal["number", "integer"] = "number"
    minimum: float = Field(allow_inf_nan=False)
    maximum: float = Field(allow_inf_nan=False)
    decimal: str = Field(default=".", pattern=r"^[^0-9eE+\-]$", exclude_if=lambda value: value == ".")
    """The sign between a text's whole number and its fraction."""
    group: str = Field(default="", pattern=r"^[^0-9eE+\-]?$", exclude_if=lambda value: value == "")
    """The sign between groups of three digits of a text; none by default."""

    @model_validator(mode="after")
    def _signs_differ(self) -> Self:
        if self.decimal == self.group:
            raise ValueError(f"decimalChar and groupChar must differ, and both are {self.decimal!r}")
        return self

    @property
    def has_own_signs(self) -> bool:
        """Whether texts are written otherwise than in Python."""
        return self.decimal != "." or bool(self.group)

    def plain(self, text: str) -> str:
        """Return a number's text with a decimal point and without groups. Raises ValueRefused for another text.

        Groups have three digits each, so that no text has two readings.
        """
        if not self.has_own_signs or text in BOOLEANS:
            return text
        usual_signs: dict[str, str | int | None] = {",": "?", ".": "?", self.decimal: "."}
        usual_signs |= {self.group: ","} if self.group else {}
        usual = text.translate(str.maketrans(usual_signs))
        if len(text) > LONGEST_NUMBER or not GROUPED.fullmatch(usual):
            signs = f"{self.decimal!r} before its fraction" + f" and {self.group!r} between groups" * bool(self.group)
            raise ValueRefused(f"{_quoted(text)} is not a number with {signs}")
        return usual.replace(",", "")

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if not (self.minimum < self.maximum and math.isfinite(self.maximum - self.minimum)):
            raise ValueError(f"the bounds must be finite and in order, not {self.minimum:g}:{self.maximum:g}")
        return self

    def present(self) -> tuple[tuple[str, float, float], ...]:
        """Return the number's coordinate."""
        return ((self.name, self.minimum, self.maximum),)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its own."""
        return (0,)

    @property
    def usual(self) -> float:
        """A quarter."""
        return 0.25

    @property
    def example(self) -> float:
        """The lower bound."""
        return self.minimum

    def value_schema(self) -> dict[str, Any]:
        """Return a number's, with the bounds."""
        return {"type": self.kind, "minimum": self.minimum, "maximum": self.maximum}

    def parse(self, value: Any) -> float:
        """Return the number that a number, a boolean or a text is; true and false are 1 and 0."""
        if isinstance(value, str):
            text = self.plain(BOOLEANS.get(value.strip().lower(), value.strip()))
            if not NUMBER.fullmatch(text):
                raise ValueRefused(f"{_quoted(value)} is not a number")
            number = float(text)
        else:
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise ValueRefused(f"{_quoted(value)} is not a number") from None
        if not math.isfinite(number):
            raise ValueRefused(f"{number:g} is not a finite number")
        if self.kind == "integer" and number != math.floor(number):
            raise ValueRefused(f"{number:g} is not an integer")
        return number

    def encode(self, values: Floats, absent: Mask, block: Floats) -> None:
        """Write the numbers."""
        block[:, 0] = np.where(absent, self.minimum, values)

    def outside(self, values: Floats) -> tuple[Mask, Mask]:
        """Compare with the bounds."""
        return values < self.minimum, values > self.maximum

    def clipped(self, values: Floats) -> Floats:
        """Draw back to the bounds."""
        clipped: Floats = np.clip(values, self.minimum, self.maximum)
        return clipped


class BooleanColumn(Column):
    """True or false."""

    kind: Literal["boolean"] = "boolean"
    true: Several[str] = ("true", "True", "TRUE", "1")
    false: Several[str] = ("false", "False", "FALSE", "0")

    def present(self) -> tuple[tuple[str, float, float], ...]:
        """Return its coordinate."""
        return ((self.name, 0.0, 1.0),)

    @property
    def usual(self) -> float:
        """As a number's."""
        return 0.25

    @property
    def example(self) -> bool:
        """True."""
        return True

    def value_schema(self) -> dict[str, Any]:
        """Return a boolean's."""
        return {"type": "boolean"}

    def parse(self, value: Any) -> float:
        """Return 1 for true and 0 for false."""
        if isinstance(value, str):
            text = value.strip()
            if text in self.true:
                return 1.0
            if text in self.false:
                return 0.0
        elif value == 0 or value == 1:
            return float(value)
        raise ValueRefused(f"{_quoted(value)} is not one of {', '.join((*self.true, *self.false))}")

    def encode(self, values: Floats, absent: Mask, block: Floats) -> None:
        """Write 0 or 1."""
        block[:, 0] = np.where(absent, 0.0, values)


class LevelsColumn(Column):
    """One of declared levels."""

    kind: Literal["levels"] = "levels"
    levels: Several[str] = Field(min_length=1, max_length=2**16)
    unknown: Literal["refuse", "coordinate"] = "refuse"
    """The treatment of other levels: they share a coordinate, or are refused."""

    @model_validator(mode="after")
    def _levels_differ(self) -> Self:
        if len(set(self.levels)) < len(self.levels):
            raise ValueError("a level is named twice")
        return self

    def present(self) -> tuple[tuple[str, float, float], ...]:
        """Return the levels' coordinates, and that of others."""
        others = ((f"{self.name} is another", 0.0, 1.0),) if self.unknown == "coordinate" else ()
        return (*((f"{self.name}={level}", 0.0, 1.0) for level in self.levels), *others)

    @property
    def example(self) -> str:
        """The first level."""
        return self.levels[0]

    def value_schema(self) -> dict[str, Any]:
        """Return the list of levels, or any text where others have a coordinate."""
        return {"enum": list(self.levels)} if self.unknown == "refuse" else {"type": "string"}

    def parse(self, value: Any) -> int:
        """Return the level's index. A number is the level that is written as a number equal to it."""
        index = self._index_of.get(value.strip() if isinstance(value, str) else str(value))
        if index is None and (number := number_in(str(value))) is not None:
            index = self._index_of.get(number)
        if index is not None:
            return index
        if "\0" in str(value):
            raise ValueRefused(NUL)
        if self.unknown == "coordinate":
            return len(self.levels)
        shown = ", ".join(self.levels[:12]) + (", ..." if len(self.levels) > 12 else "")
        raise ValueRefused(f"{_quoted(value)} is not one of {shown}")

    @cached_property
    def _index_of(self) -> dict[str | float, int]:
        index_of: dict[str | float, int] = {level: index for index, level in enumerate(self.levels)}
        for index, level in enumerate(self.levels):
            if (number := number_in(level)) is not None:
                index_of.setdefault(number, index)
        return index_of

    def encode(self, values: NDArray[np.int64], absent: Mask, block: Floats) -> None:
        """Write 1 at each value's level."""
        block[:] = 0.0
        rows = np.flatnonzero(~absent)
        block[rows, values[rows]] = 1.0


Part = Literal["time", "month", "weekday", "hour"]
PARTS: Mapping[str, tuple[str, ...]] = {
    "month": (
        *("January", "February", "March", "April", "May", "June"),
        *("July", "August", "September", "October", "November", "December"),
    ),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "hour": tuple(f"{hour:02}h" for hour in range(24)),
}


class TimeColumn(Column):
    """A date, or a date with a time of day."""

    kind: Literal["date", "datetime"]
    minimum: str
    maximum: str
    parts: Several[Part] = Field(min_length=1)
    pattern: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The form of a text, as `datetime.strptime` has it; None for ISO 8601."""

    @model_validator(mode="after")
    def _pattern_is_complete(self) -> Self:
        if self.pattern is None:
            return self
        marks = set(re.findall(r"%(.)", self.pattern.replace("%%", "")))
        if not _PATTERN.fullmatch(self.pattern) or not {"m", "d"} <= marks or not marks & {"Y", "y"}:
            raise ValueError(
                f"the format {self.pattern!r} needs %d, %m and %Y or %y, and takes %H, %M, %S, %f and %z besides: "
                "names of months and days depend on the language"
            )
        head, hyphen, _ = self.pattern.partition("-")
        plain = re.fullmatch(r"(?:%[YymdHMSfz])+", head) and head not in ("%d", "%m", "%y", "%H", "%M", "%S")
        if hyphen and plain and not self.pattern.startswith("%Y-%m-%d"):
            raise ValueError(f"the format {self.pattern!r} can be mistaken for ISO 8601, which is read as well")
        if self.kind == "date" and marks & {"H", "M", "S", "f", "z"}:
            raise ValueError(f"the format {self.pattern!r} has a time of day: the type of that is datetime")
        return self

    @model_validator(mode="after")
    def _bounds_and_parts_are_possible(self) -> Self:
        low, high = self._bounds
        if not low < high:
            raise ValueError(f"the bounds must be in order, not {self.minimum} to {self.maximum}")
        if len(set(self.parts)) < len(self.parts):
            raise ValueError("a part is named twice")
        if self.kind == "date" and "hour" in self.parts:
            raise ValueError("a date has no hour")
        return self

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        return self.parse(self.minimum), self.parse(self.maximum)

    def present(self) -> tuple[tuple[str, float, float], ...]:
        """Return the parts' coordinates."""
        parts: list[tuple[str, float, float]] = []
        for part in self.parts:
            if part == "time":
                low, high = self._bounds
                parts.append((self.name, low / _DAY, high / _DAY))
            else:
                parts += [(f"{self.name} in {name}", 0.0, 1.0) for name in PARTS[part]]
        return tuple(parts)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The time's."""
        if "time" not in self.parts:
            return ()
        before = self.parts[: self.parts.index("time")]
        return (sum(len(PARTS[part]) for part in before),)

    @property
    def fields(self) -> tuple[tuple[int, ...], ...]:
        """Each part by itself; a missing value goes with the first."""
        fields: list[tuple[int, ...]] = []
        start = 0
        for part in self.parts:
            width = 1 if part == "time" else len(PARTS[part])
            fields.append(tuple(range(start, start + width)))
            start += width
        if self.marks_missing:
            fields[0] = (*fields[0], start)
        return tuple(fields)

    @property
    def groups(self) -> int:
        """Each part adds at most 1."""
        return len(self.parts)

    @property
    def usual(self) -> float:
        """A quarter for the time."""
        return sum(0.25 if part == "time" else 1.0 for part in self.parts)

    @property
    def example(self) -> str:
        """The first time."""
        return self.minimum

    def value_schema(self) -> dict[str, Any]:
        """Return a text's, with its form and the bounds in words."""
        form = "date" if self.kind == "date" else "date-time"
        described = f"{self.minimum} to {self.maximum}"
        if self.pattern is not None:
            return {"type": "string", "description": f"{described}, as {self._example}"}
        return {"type": "string", "format": form, "description": described}

    def parse(self, value: Any) -> int:
        """Return microseconds since 1970-01-01 of a date, a datetime, or a text.

        A text is as ISO 8601 has it, or follows the pattern: no text has two readings.
        """
        if isinstance(value, str):
            text = value.strip()
            if self.pattern is not None and (found := self._by_pattern(text)) is not None:
                value = found
            elif not (_DATE.fullmatch(text) or self._takes_time(text)):
                raise ValueRefused(f"{_quoted(value)} is no {self.kind}, as {self._example} is")
            else:
                try:
                    value = datetime.fromisoformat(text)
                except ValueError:
                    raise ValueRefused(f"{_quoted(value)} is no {self.kind} that there is") from None
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        if not isinstance(value, datetime):
            raise ValueRefused(f"{_quoted(value)} is no {self.kind}, as {self._example} is")
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    def is_missing(self, value: object) -> bool:
        """Also NaT, which pandas writes for a time that is missing."""
        return super().is_missing(value) or (isinstance(value, str) and value.strip() == "NaT")

    def _takes_time(self, text: str) -> bool:
        """Tell whether a text is a datetime that the column takes: a date has one at midnight, as pandas writes it."""
        return bool(DATETIME.fullmatch(text) and (self.kind == "datetime" or _MIDNIGHT.fullmatch(text[10:])))

    def _by_pattern(self, text: str) -> datetime | None:
        assert self.pattern is not None
        if not text.isascii() or len(text) > _SHOWN + len(self.pattern):
            return None
        try:
            return datetime.strptime(text, self.pattern)
        except ValueError:
            return None

    @property
    def _example(self) -> str:
        if self.pattern is not None:
            return datetime(2026, 1, 31, 23, 59, tzinfo=UTC).strftime(self.pattern)
        return "2026-01-31" if self.kind == "date" else "2026-01-31T23:59:00"

    def encode(self, values: NDArray[np.int64], absent: Mask, block: Floats) -> None:
        """Write the parts."""
        values = np.where(absent, self._bounds[0], values)
        present, start = np.flatnonzero(~absent), 0
        for part in self.parts:
            if part == "time":
                block[:, start] = values / _DAY
                start += 1
                continue
            width = len(PARTS[part])
            block[:, start : start + width] = 0.0
            block[present, start + _part_of(values[present], part)] = 1.0
            start += width

    def outside(self, values: NDArray[np.int64]) -> tuple[Mask, Mask]:
        """Compare with the bounds."""
        return values < self._bounds[0], values > self._bounds[1]

    def clipped(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw back to the bounds."""
        clipped: NDArray[np.int64] = np.clip(values, *self._bounds)
        return clipped


_NOT_BESIDE_AN_ENCODER = frozenset({"buckets", "of", "lengths"})
"""Fields of a text that its encoder takes the place of."""


class TextColumn(Column):
    """Free text."""

    kind: Literal["text"] = "text"
    buckets: int = Field(default=1024, ge=2, le=2**18)
    """Number of coordinates that the n-grams share."""
    of: Literal["words", "characters"] = "words"
    lengths: tuple[int, int] = (1, 2)
    """The shortest and the longest n-gram, in words or characters."""
    longest: int = Field(default=LONGEST_TEXT, ge=1, le=2**24)
    """A longer text, in characters, is refused."""
    encoder: TextEncoding | None = Field(default=None, exclude_if=lambda encoder: encoder is None)
    """The public encoder that takes the place of n-grams."""

    @model_validator(mode="after")
    def _is_encoded_in_one_way(self) -> Self:
        if self.encoder is not None and self.model_fields_set & _NOT_BESIDE_AN_ENCODER:
            raise ValueError("an encoder takes the place of n-grams: leave buckets, of and lengths out")
        return self

    @model_serializer(mode="wrap")
    def _what_is_used(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialised(self)
        unused = _NOT_BESIDE_AN_ENCODER if self.encoder is not None else ()
        return {name: value for name, value in fields.items() if name not in unused}

    @model_validator(mode="after")
    def _has_no_value_for_missing(self) -> Self:
        if self.if_missing is not None:
            raise ValueError("ifMissing belongs to other columns: a text that is missing has a coordinate of its own")
        return self

    @model_validator(mode="after")
    def _lengths_are_in_order(self) -> Self:
        if not 1 <= self.lengths[0] <= self.lengths[1] <= 16:
            raise ValueError(f"the n-grams' lengths must lie between 1 and 16 and be in order, not {self.lengths}")
        return self

    def present(self) -> tuple[tuple[str, float, float], ...]:
        """Return the coordinates that the n-grams share, or those of an encoder."""
        counts = {"#": self.buckets} if self.encoder is None else dict.fromkeys("+-", self.encoder.width)
        return tuple(
            (f"{self.name}{kind}{index}", 0.0, 1.0) for kind, count in counts.items() for index in range(count)
        )

    @property
    def fields(self) -> tuple[tuple[int, ...], ...]:
        """None."""
        return ()

    @property
    def example(self) -> str:
        """A word."""
        return "text"

    def value_schema(self) -> dict[str, Any]:
        """Return a text's."""
        return {"type": "string"}

    def parse(self, value: Any) -> str:
        """Return a text that is not too long."""
        if not isinstance(value, str):
            raise ValueRefused(f"{_quoted(value)} is not a text")
        if len(value) > self.longest:
            raise ValueRefused(f"a text of {len(value):,} characters is longer than {self.longest:,}")
        if "\0" in value:
            raise ValueRefused(NUL)
        return value

    def encode(self, values: Sequence[str], absent: Mask, block: Floats) -> None:
        """Write the counts over their norm: sums of whole numbers below 2^53, one square root and one division.

        A count c is at most the root of the sum S of squares, and both roundings are monotone: c / sqrt(S) <= 1.
        """
        block[:] = 0.0
        if self.encoder is not None:
            self._encode_directions(values, absent, block)
            return
        for row in np.flatnonzero(~absent).tolist():
            counts = Counter(_bucket(gram, self.buckets) for gram in self._grams(_words_in(values[row])))
            if counts:
                norm = math.sqrt(sum(count * count for count in counts.values()))
                for place, count in counts.items():
                    block[row, place] = count / norm

    def _encode_directions(self, values: Sequence[str], absent: Mask, block: Floats) -> None:
        assert self.encoder is not None
        if (found := text_encoder.opened(self.encoder.sha256)) is None:
            raise DataError(
                f"the column {self.name!r} needs the public encoder {self.encoder.name} with the SHA-256 "
                f"{self.encoder.sha256}: read its folder with training.inputs.text_encoder.read_text_encoder"
            )
        rows = np.flatnonzero(~absent)
        block[rows] = _apart(found.directions([values[row] for row in rows.tolist()]))

    def _grams(self, words: Sequence[str]) -> Iterator[str]:
        units: Sequence[str] = words if self.of == "words" else f" {' '.join(words)} " if words else ""
        joint = " " if self.of == "words" else ""
        for length in range(self.lengths[0], self.lengths[1] + 1):
            for start in range(len(units) - length + 1):
                yield joint.join(units[start : start + length])


def _words_in(text: str) -> list[str]:
    """Return the words of a text: what stands between spaces and ASCII's punctuation, with ASCII's letters small."""
    return _WORD.findall(text.translate(_ASCII_LOWER))


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
            detail = error.errors()[0]["msg"].removeprefix("Value error, ").removeprefix("ifMissing: ")
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


def encode_rows(columns: Sequence[Column], rows: Sequence[Mapping[str, object]], *, clip: bool = False) -> Floats:
    """Return rows by name, as JSON gives them, encoded: (n, d).

    A value is a number, a boolean, a text or null; numbers and dates may also be texts, as a CSV file has them. Every
    row has every column and no other. clip: draw numbers and times back to their bounds instead of refusing them.
    Raises RowRefused with all that does not fit in the first row that does not.
    """
    X, unencoded = checked_rows(columns, rows, clip=clip)
    for texts in unencoded:
        texts.encode(0, len(rows))
    return X


@dataclass(frozen=True, eq=False)
class UnencodedTexts:
    """Texts that fit their column, whose coordinates a deep network has yet to compute into `block` (n, k)."""

    column: TextColumn
    values: Sequence[str]
    absent: Mask
    block: Floats

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
    X = np.empty((len(rows), sum(len(column.coordinates) for column in columns)))
    for column, block in blocks_of(columns, X):
        # Behind a row that does not fit nothing is looked at any more.
        count = first + (first < len(rows) and column.name in rows[first])
        fault = _fill(column, [row[column.name] for row in rows[:count]], block[:count], unencoded, clip)
        if fault is not None:
            wrong = wrong if fault[0] == first else []
            first = fault[0]
            wrong.append(f"column {column.name!r}: {fault[1]}")
    if wrong:
        raise RowRefused(in_row(first, wrong), first)
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
        return index, f"{_quoted(given[index])} {bound_broken(column, beyond, index)}"
    if refused is None and parsed:
        if isinstance(column, TextColumn) and column.encoder is not None:
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
    return f"column{'' if one else 's'} {', '.join(map(_quoted, names[:_NAMED]))}{more} {'is' if one else 'are'}"


def in_row(row: int, wrong: Sequence[str]) -> str:
    """Say all that is wrong with a row: at most twelve sentences of it."""
    more = f"; and {len(wrong) - _NAMED} more columns" if len(wrong) > _NAMED else ""
    return f"row {row}, {'; '.join(wrong[:_NAMED])}{more}"


def placeholder(column: Column) -> Any:
    """Return what stands among parsed values where one is missing; it is never looked at."""
    return "" if isinstance(column, TextColumn) else 0.0 if isinstance(column, NumberColumn | BooleanColumn) else 0


def bound_broken(column: Column, beyond: tuple[Mask, Mask], index: int) -> str:
    """Say which declared bound a value lies beyond. beyond: what `outside` returned."""
    low, high = getattr(column, "minimum", ""), getattr(column, "maximum", "")
    side, bound = ("below", low) if beyond[0][index] else ("above", high)
    return f"is {side} the declared bound {bound if isinstance(bound, str) else format(bound, 'g')}"


def _part_of(micros: NDArray[np.int64], part: str) -> NDArray[np.int64]:
    """Return a part of times as an index into `PARTS`."""
    if part == "month":
        months = micros.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
        return months % 12
    if part == "hour":
        return micros // (_DAY // 24) % 24
    return (micros // _DAY + 3) % 7  # 1970-01-01 was a Thursday


def _apart(directions: Floats) -> Floats:
    """Return what is positive of each number (..., k), and behind it what is negative, without its sign."""
    apart: Floats = np.maximum(np.concatenate([directions, -directions], axis=-1), 0.0) + 0.0
    return apart


def _bucket(gram: str, buckets: int) -> int:
    # What is kept must not grow with the texts that clients send.
    return (_kept_bucket if len(gram) <= _LONGEST_KEPT_GRAM else _hashed_bucket)(gram, buckets)


def _hashed_bucket(gram: str, buckets: int) -> int:
    digest = hashlib.blake2b(gram.encode("utf-8", "surrogatepass"), digest_size=8, person=b"dpserve text").digest()
    return int.from_bytes(digest, "little") % buckets


_kept_bucket = lru_cache(maxsize=2**16)(_hashed_bucket)


def number_in(text: str) -> float | None:
    """Return the number that a text is, true and false among them; None of another."""
    if len(text) > LONGEST_NUMBER:
        return None
    try:
        return None if "_" in text else float(BOOLEANS.get(text.strip().lower(), text))
    except ValueError:
        return None


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
