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

import json
import re
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    model_validator,
)

from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.disclosure import Declared, DisclosedModel
from dpserve.training.fields import Several

LONGEST_NUMBER = 1_077
"""Characters of a number's text: the smallest double, written out in full with its sign, has as many."""
NUMBER_BYTES = len("-1.2345678901234567e-308, ")
"""Bytes of a number in JSON in full precision, with what stands between it and the next."""
_USUAL_BYTES = 64
"""Bytes of a short value in JSON, as a time with its offset."""
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

SHOWN = 60
"""Characters of a value in a message."""

NUL = "holds a NUL character, which is no text"


class ValueRefused(ValueError):
    """A value does not fit its column. Says in words what it is: "'old' is not a number". Private, as the value is."""


class Column(DisclosedModel):
    """The common fields of all columns; also a column's part of the certificate."""

    model_config = ConfigDict(extra="forbid")

    name: Declared[str] = Field(min_length=1)
    required: Declared[bool] = False
    """Whether a missing value is refused."""
    missing: Declared[Several[str]] = ("",)
    """The texts that stand for a missing value, as null does."""
    if_missing: Declared[bool | float | str | None] = Field(default=None, exclude_if=lambda value: value is None)
    """The public value that a missing one counts as; None: a missing value has a coordinate of its own."""

    @model_validator(mode="after")
    def _value_for_missing_fits(self) -> Self:
        if self.if_missing is not None:
            if self.required:
                raise ValueError("a value is required, so that none counts as a missing one")
            try:
                values = np.array([self.parse(self.if_missing)])
            except ValueRefused as error:
                raise ValueError(f"for a missing value: {error}") from None
            beyond = self.outside(values)
            if beyond is not None and (beyond[0] | beyond[1]).any():
                raise ValueError(f"for a missing value: {self.if_missing} {bound_broken(self, beyond, 0)}")
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

    @property
    def most_bytes(self) -> int:
        """Bytes that a value takes in JSON at most, as clients write it."""
        return max(_USUAL_BYTES, *map(json_bytes, self.missing))

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


def bound_broken(column: Column, beyond: tuple[Mask, Mask], index: int) -> str:
    """Say which declared bound a value lies beyond. beyond: what `outside` returned."""
    low, high = getattr(column, "minimum", ""), getattr(column, "maximum", "")
    side, bound = ("below", low) if beyond[0][index] else ("above", high)
    return f"is {side} the declared bound {bound if isinstance(bound, str) else format(bound, 'g')}"


def json_bytes(text: str) -> int:
    """Return how many bytes a text takes in JSON, escaped, with what stands before the next."""
    return len(json.dumps(text)) + 2


def number_in(text: str) -> float | None:
    """Return the number that a text is, true and false among them; None of another."""
    if len(text) > LONGEST_NUMBER:
        return None
    try:
        return None if "_" in text else float(BOOLEANS.get(text.strip().lower(), text))
    except ValueError:
        return None


def quoted(value: object) -> str:
    """Return what was given as Python writes it, shortened."""
    text = repr(value[:SHOWN] if isinstance(value, str) else value)  # no copy of a text of megabytes
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
