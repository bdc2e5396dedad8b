"""Crosses of pairs of fields, hashed to a public number of buckets.

A field is one thing that a row says: a number, by the 16th of its declared range that it lies in, or itself, where it
is a whole number of which few are possible; one of a column's levels; a month, a weekday or an hour of a date; that
something is missing. Each field of a row has one part, and each pair of fields the pair of their parts, its cell, which
a fixed public function sends to a bucket. Pairs of fields with many cells are left out: noise hides what each cell has.
A row's crosses are the numbers of its pairs in each bucket: whole numbers, from that row alone. Two pairs may share a
bucket: the model tells them apart by what else it knows of them (Weinberger, Dasgupta, Langford, Smola and Attenberg
2009).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.training.features.quantiles import cuts_between
from dpserve.training.inputs.columns import Column, NumberColumn

PARTS_OF_NUMBER = 16
"""Equal parts of a number's range, where pairs are hashed."""
MOST_CELLS = 512
"""Cells of a pair of fields, where pairs are hashed. With 12 months and 31 days 372, so that days have cells of their
own, on which the flights that were held back to choose this differ most."""
MOST_BUCKETS = 2**14
MOST_FIELDS = 181
"""Their pairs, to which a row's time and memory are proportional, are then no more than `MOST_BUCKETS`."""

_PARTS_BITS = 32

_EVEN = tuple(part / PARTS_OF_NUMBER for part in range(1, PARTS_OF_NUMBER))


@dataclass(frozen=True)
class Field:
    """Which of the d features a field has: a number's place, or None, and those of which one at most is 1.

    edges: between a number's parts, in shares of its declared range, rising.
    """

    number: int | None
    others: tuple[int, ...]
    edges: tuple[float, ...] = _EVEN

    @property
    def parts(self) -> int:
        """Number of parts: a number's, for others one in which none is 1; and one for each of the others."""
        return (len(self.edges) + 1 if self.number is not None else 1) + len(self.others)

    def part(self, u: Floats) -> NDArray[np.int64]:
        """Return the part (n,) of scaled rows u (n, d): the first of the largest others, where it is 1/2 or more."""
        if self.number is None:
            found = np.zeros(len(u), dtype=np.int64)
        else:
            found = np.searchsorted(self.edges, u[:, self.number], side="right").astype(np.int64)
        if self.others:
            others = u[:, self.others]
            first = self.parts - len(self.others)
            found = np.where(others.max(axis=1) >= 0.5, first + others.argmax(axis=1), found)
        return found


def fields_of(columns: Sequence[Column], features: int, *, whole: bool = False) -> tuple[Field, ...]:
    """Return the fields of a table's columns, or of so many numbers where there are none. Texts have none.

    whole: whether whole numbers of which few are possible have a part each.
    """
    if not columns:
        return tuple(Field(feature, ()) for feature in range(features))
    fields, start = [], 0
    for column in columns:
        numbers, edges = set(column.numbers), (whole_parts(column) if whole else None) or _EVEN
        for places in column.fields:
            number = next((start + place for place in places if place in numbers), None)
            fields.append(Field(number, tuple(start + place for place in places if place not in numbers), edges))
        start += len(column.coordinates)
    return tuple(fields)


def whole_parts(column: Column) -> tuple[float, ...] | None:
    """Return the edges between the values of a column of whole numbers, where few are possible; None for others."""
    if isinstance(column, NumberColumn) and column.kind == "integer":
        return cuts_between(column.minimum, column.maximum)
    return None


def pairs_of(fields: Sequence[Field], most: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of fields, as places of the one and of the other: (pairs,) each.

    most: of pairs of parts, their cells; pairs of fields with more are left out. 0 for any number.
    """
    one, other = np.triu_indices(len(fields), 1)
    if most:
        parts = np.array([field.parts for field in fields])
        few = parts[one] * parts[other] <= most
        one, other = one[few], other[few]
    return one, other


def buckets_of(fields: Sequence[Field], u: Floats, buckets: int, most: int = 0) -> NDArray[np.int64]:
    """Return the bucket of each pair of fields of scaled rows u (n, d): (n, pairs). most: as `pairs_of` has it."""
    starts = np.cumsum([0, *(field.parts for field in fields)])
    parts = np.stack([field.part(u) + start for field, start in zip(fields, starts, strict=False)], axis=1)
    one, other = pairs_of(fields, most)
    return bucket(parts[:, one], parts[:, other], buckets)


def bucket(one: NDArray[np.int64], other: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
    """Return the buckets of pairs of parts, which are counted over all fields.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014), whose operations on whole numbers of 64 bits are the same
    everywhere.
    """
    mixed = (one.astype(np.uint64) << np.uint64(_PARTS_BITS)) + other.astype(np.uint64)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(buckets)).astype(np.int64)


def counted(places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of rows (n, k) sorted, and how often each occurs, at the last of its equals; 0 at the others.

    So every place that counts is there once, in a matrix that has the form of what was given.
    """
    ordered = np.sort(places, axis=1)
    index = np.arange(ordered.shape[1])
    new = np.ones(ordered.shape, dtype=np.bool_)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=new[:, 1:])
    first = np.maximum.accumulate(np.where(new, index, 0), axis=1)
    last = np.ones(ordered.shape, dtype=np.bool_)
    last[:, :-1] = new[:, 1:]
    return ordered, np.where(last, index - first + 1, 0)
