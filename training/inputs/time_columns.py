"""Columns of dates and times."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    Field,
    model_validator,
)

from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.disclosure import Declared
from dpserve.training.fields import Several
from dpserve.training.inputs.column import SHOWN, Column, ValueRefused, quoted

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
DATETIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_MIDNIGHT = re.compile(r"[T ]00:00(:00(\.0{1,6})?)?(Z|[+-]00:00)?", re.ASCII)
"""The time of day that a date has where it is written as a datetime."""
_PATTERN = re.compile(r"(?:[^%]|%[YymdHMSfz%])*")
"""A pattern of dates, for `fullmatch`: what means the same in every language."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 86_400_000_000
"""Microseconds."""

TimePart = Literal["time", "month", "weekday", "hour"]
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

    kind: Declared[Literal["date", "datetime"]]
    minimum: Declared[str]
    maximum: Declared[str]
    parts: Declared[Several[TimePart]] = Field(min_length=1)
    pattern: Declared[str | None] = Field(default=None, exclude_if=lambda value: value is None)
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
                parts.append((self.name, low / DAY, high / DAY))
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
                raise ValueRefused(f"{quoted(value)} is no {self.kind}, as {self._example} is")
            else:
                try:
                    value = datetime.fromisoformat(text)
                except ValueError:
                    raise ValueRefused(f"{quoted(value)} is no {self.kind} that there is") from None
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        if not isinstance(value, datetime):
            raise ValueRefused(f"{quoted(value)} is no {self.kind}, as {self._example} is")
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
        if not text.isascii() or len(text) > SHOWN + len(self.pattern):
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
                block[:, start] = values / DAY
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


def _part_of(micros: NDArray[np.int64], part: str) -> NDArray[np.int64]:
    """Return a part of times as an index into `PARTS`."""
    if part == "month":
        months = micros.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
        return months % 12
    if part == "hour":
        return micros // (DAY // 24) % 24
    return (micros // DAY + 3) % 7  # 1970-01-01 was a Thursday
