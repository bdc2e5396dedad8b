"""Columns of numbers, of booleans and of levels."""

import math
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
from dpserve.training.inputs.column import (
    BOOLEANS,
    GROUPED,
    LONGEST_NUMBER,
    NUL,
    NUMBER,
    Column,
    ValueRefused,
    json_bytes,
    number_in,
    quoted,
)


class NumberColumn(Column):
    """A number within public bounds."""

    kind: Declared[Literal["number", "integer"]] = "number"
    minimum: Declared[float] = Field(allow_inf_nan=False)
    maximum: Declared[float] = Field(allow_inf_nan=False)
    decimal: Declared[str] = Field(default=".", pattern=r"^[^0-9eE+\-]$", exclude_if=lambda value: value == ".")
    """The sign between a text's whole number and its fraction."""
    group: Declared[str] = Field(default="", pattern=r"^[^0-9eE+\-]?$", exclude_if=lambda value: value == "")
    """The sign between groups of three digits of a text; none by default."""

    @model_validator(mode="after")
    def _signs_differ(self) -> Self:
        if self.decimal == self.group:
            raise ValueError(
                f"the sign before the fraction and the one between thousands must differ, and both are {self.decimal!r}"
            )
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
            raise ValueRefused(f"{quoted(text)} is not a number with {signs}")
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
            text = value.strip()
            if len(text) > LONGEST_NUMBER or not NUMBER.fullmatch(text := self.plain(BOOLEANS.get(text.lower(), text))):
                raise ValueRefused(f"{quoted(value)} is not a number")
            number = float(text)
        else:
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise ValueRefused(f"{quoted(value)} is not a number") from None
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

    kind: Declared[Literal["boolean"]] = "boolean"
    true: Declared[Several[str]] = ("true", "True", "TRUE", "1")
    false: Declared[Several[str]] = ("false", "False", "FALSE", "0")

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
        raise ValueRefused(f"{quoted(value)} is not one of {', '.join((*self.true, *self.false))}")

    def encode(self, values: Floats, absent: Mask, block: Floats) -> None:
        """Write 0 or 1."""
        block[:, 0] = np.where(absent, 0.0, values)


class LevelsColumn(Column):
    """One of declared levels."""

    kind: Declared[Literal["levels"]] = "levels"
    levels: Declared[Several[str]] = Field(min_length=1, max_length=2**16)
    unknown: Declared[Literal["refuse", "coordinate"]] = "refuse"
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

    @property
    def most_bytes(self) -> int:
        """As many as the longest level takes."""
        return max(super().most_bytes, *map(json_bytes, self.levels))

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
        raise ValueRefused(f"{quoted(value)} is not one of {shown}")

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
