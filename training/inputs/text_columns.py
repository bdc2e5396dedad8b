"""Columns of free text."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.disclosure import Declared
from dpserve.training.errors import DataError
from dpserve.training.inputs import text_encoder
from dpserve.training.inputs.column import NUL, Column, ValueRefused, json_bytes, quoted
from dpserve.training.inputs.text_encoder import TextEncoding

LONGEST_TEXT = 100_000
"""Characters of a text, where its column declares no other limit."""

_WORD = re.compile(r"[^\x00-\x20!-/:-@\[-`{-\x7f]+")
_ASCII_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
"""Other letters stay as they are: what is their lower case depends on the version of Unicode."""
_ESCAPED = len(r"\ud83d\ude00")
"""Bytes of an escaped character in JSON, where it is two halves."""
"""Characters of an n-gram whose coordinate is kept."""
_NOT_BESIDE_AN_ENCODER = frozenset({"buckets", "of", "lengths"})
"""Fields of a text that its encoder takes the place of."""


class TextColumn(Column):
    """Free text."""

    kind: Declared[Literal["text"]] = "text"
    buckets: Declared[int] = Field(default=1024, ge=2, le=2**18)
    """Number of coordinates that the n-grams share."""
    of: Declared[Literal["words", "characters"]] = "words"
    lengths: Declared[tuple[int, int]] = (1, 2)
    """The shortest and the longest n-gram, in words or characters."""
    longest: Declared[int] = Field(default=LONGEST_TEXT, ge=1, le=2**24)
    """A longer text, in characters, is refused."""
    encoder: Declared[TextEncoding | None] = Field(default=None, exclude_if=lambda encoder: encoder is None)
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
            raise ValueError("a text that is missing has a coordinate of its own, and no value counts as one")
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

    @property
    def most_bytes(self) -> int:
        """As many as the longest text takes, each of its characters escaped."""
        return max(super().most_bytes, _ESCAPED * self.longest + json_bytes(""))

    def value_schema(self) -> dict[str, Any]:
        """Return a text's."""
        return {"type": "string"}

    def parse(self, value: Any) -> str:
        """Return a text that is not too long; a whole number is its digits, as in a file without types."""
        if type(value) is int:
            value = str(value)
        if not isinstance(value, str):
            raise ValueRefused(f"{quoted(value)} is not a text")
        if len(value) > self.longest:
            raise ValueRefused(f"a text of {len(value):,} characters is longer than {self.longest:,}")
        if "\0" in value:
            raise ValueRefused(NUL)
        return value

    def characters(self, texts: Sequence[str]) -> int:
        """Return how much there is to do for texts: how many characters are looked at, those of n-grams once each."""
        if self.encoder is not None:
            return self.encoder.characters(texts)
        return sum(map(len, texts)) * (self.lengths[1] - self.lengths[0] + 1)

    def encode(self, values: Sequence[str], absent: Mask, block: Floats) -> None:
        """Write the counts over their norm: sums of whole numbers below 2^53, one square root and one division.

        A count c is at most the root of the sum S of squares, and both roundings are monotone: c / sqrt(S) <= 1.
        """
        block[:] = 0.0
        if self.encoder is not None:
            self._encode_directions(values, absent, block)
            return
        for row in np.flatnonzero(~absent).tolist():
            counts = Counter[int]()
            for gram, times in Counter(self._grams(_words_in(values[row]))).items():
                counts[_bucket(gram, self.buckets)] += times
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


def _apart(directions: Floats) -> Floats:
    """Return what is positive of each number (..., k), and behind it what is negative, without its sign."""
    apart: Floats = np.maximum(np.concatenate([directions, -directions], axis=-1), 0.0) + 0.0
    return apart


def _bucket(gram: str, buckets: int) -> int:
    # Nothing is kept from one text to the next: the time of a request would tell what others have asked.
    digest = hashlib.blake2b(gram.encode("utf-8", "surrogatepass"), digest_size=8, person=b"dpserve text").digest()
    return int.from_bytes(digest, "little") % buckets
