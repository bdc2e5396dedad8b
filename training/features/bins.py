"""Bins of numbers, crosses of columns, and hashed pairs of them."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Declared
from dpserve.training.devices import Matrix
from dpserve.training.features.crosses import (
    MOST_BUCKETS,
    MOST_FIELDS,
    buckets_of,
    counted,
    fields_of,
    pairs_of,
    whole_parts,
)
from dpserve.training.features.crosses import Field as CrossedField
from dpserve.training.features.feature_map import FeatureMap
from dpserve.training.features.whole_steps import (
    LENGTH,
    STEP,
    into_ball,
    without_zeros,
)
from dpserve.training.fields import Several
from dpserve.training.inputs.columns import TextColumn, numbers_among

UNIFORM_BINS, DOUBLING_BINS = 32, 33
_BINS = UNIFORM_BINS + DOUBLING_BINS
COARSE_BINS = 8
"""Equal parts of a number's range, where it is crossed with another column."""
MOST_CROSSED = 4096
"""Coordinates of all crosses together."""
KEPT_WEIGHT = math.sqrt(2)
"""The factor of coordinates without bins: a number is in two bins, and as long."""


@dataclass(frozen=True)
class Block:
    """Which of the d features a column has: numbers within bounds, and others, which are 0, 1 or shares.

    edges: between the parts of a number, in shares of its declared range, rising.
    """

    numbers: tuple[int, ...]
    others: tuple[int, ...]
    edges: tuple[float, ...] = tuple(part / COARSE_BINS for part in range(1, COARSE_BINS))

    @property
    def parts(self) -> int:
        """Number of parts of a number."""
        return len(self.edges) + 1

    @property
    def width(self) -> int:
        """Number of coordinates of the column in a cross."""
        return len(self.numbers) * self.parts + len(self.others)

    def coarse(self, u: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Return which of these coordinates may differ from 0, (n, k), and what they are, of scaled rows u (n, d)."""
        bins = np.searchsorted(self.edges, u[:, self.numbers], side="right").astype(np.int64)
        bins += np.arange(len(self.numbers)) * self.parts
        others = np.arange(len(self.others)) + len(self.numbers) * self.parts
        places = np.hstack([bins, np.broadcast_to(others, (len(u), len(self.others)))])
        return places, np.hstack([np.ones(bins.shape), u[:, self.others]])


class Bins(FeatureMap):
    """One-hot bins of each number: a linear head on them is a sum of step functions, one for each number.

    The bins are public: `UNIFORM_BINS` equal parts of the declared range, and `DOUBLING_BINS` which double in width
    from the lower bound on, for features whose values crowd there (counts, sums of money). A number lies in one of
    each. Of a table with `columns` only numbers and times have bins: its other coordinates are coded already. Where
    there are none, columns have crosses.

    ||h|| <= 1 as for every vector that `into_ball` draws, whatever is in w; before it w is at least sqrt(2) long, where
    there is a number or pairs are hashed. A cross changes w by what its row alone holds, and by nothing else: hashed
    ones by whole numbers of pairs times one public factor.
    """

    has_compact_rows: ClassVar[bool] = True

    kind: Declared[Literal["bins"]] = "bins"
    clip_norm: Declared[float] = Field(default=1.0, ge=1.0, le=1.0)
    """Every w is longer, but one without a number whose levels are all unknown."""
    crosses: Declared[Several[tuple[int, int]]] = Field(default=(), exclude_if=lambda crosses: not crosses)
    """Pairs of columns, by their places among `columns`, or of features where there are no columns."""
    cross_buckets: Declared[int] = Field(default=0, ge=0, le=MOST_BUCKETS, exclude_if=lambda buckets: not buckets)
    """Number of buckets that pairs of fields are hashed to; 0 for no such crosses."""
    cross_cells: Declared[int] = Field(default=0, ge=0, exclude_if=lambda cells: not cells)
    """The most cells of a pair of fields that is hashed. In all crosses whole numbers of which few are possible have
    a part each.

    0 for pairs of any number, and 16 parts of every number, 8 in `crosses`, as the first models with crosses have it.
    """

    @model_validator(mode="after")
    def _there_is_something_to_describe(self) -> Self:
        if not (self.binned or self.crosses or self.cross_buckets):
            raise ValueError("no column is a number, a date or a time: there is nothing to put into bins")
        return self

    @model_validator(mode="after")
    def _crosses_are_possible(self) -> Self:
        seen: set[frozenset[int]] = set()
        for pair in self.crosses:
            for place in pair:
                if not 0 <= place < len(self._blocks):
                    raise ValueError(f"a cross names column {place}, and there are {len(self._blocks)}")
                if self.columns and isinstance(self.columns[place], TextColumn):
                    raise ValueError(f"{self.columns[place].name!r} is a text, which has no levels to cross")
            if pair[0] == pair[1]:
                raise ValueError("a column cannot be crossed with itself")
            if frozenset(pair) in seen:
                raise ValueError("two columns are crossed twice")
            seen.add(frozenset(pair))
        if self._crossed > MOST_CROSSED:
            raise ValueError(
                f"the crosses have {self._crossed:,} coordinates, and may have {MOST_CROSSED:,}: cross fewer columns, "
                "or columns with fewer levels"
            )
        return self

    @model_validator(mode="after")
    def _fields_are_possible(self) -> Self:
        if self.cross_buckets and not 2 <= len(self.fields) <= MOST_FIELDS:
            raise ValueError(
                f"pairs are hashed of 2 to {MOST_FIELDS} fields, and these columns have {len(self.fields)}"
            )
        if self.cross_buckets and not len(self.paired[0]):
            raise ValueError(
                f"every two of these columns have more than {self.cross_cells} pairs of parts: cross columns with "
                "fewer levels"
            )
        return self

    @functools.cached_property
    def fields(self) -> tuple[CrossedField, ...]:
        """The fields whose pairs are hashed."""
        return fields_of(self.columns, len(self.lower), whole=bool(self.cross_cells))

    @functools.cached_property
    def paired(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pairs of fields that are hashed, by their places: (pairs,) each."""
        return pairs_of(self.fields, self.cross_cells)

    @functools.cached_property
    def pair_weight(self) -> float:
        """The part of each hashed pair in w: squared, those of a row are twice what bins and levels are.

        The weight was chosen between half and eight times as much, on rows of flights, credit_data and letter that were
        held back from training.
        """
        return math.sqrt(4 * len(self.fields) / len(self.paired[0]))

    @property
    def _least_rows(self) -> int:
        """See `FeatureMap`."""
        if not self.cross_buckets:
            return 256 if self.crosses else 1
        return min(256, 2**19 // len(self.paired[0]))

    @functools.cached_property
    def _blocks(self) -> tuple[Block, ...]:
        if not self.columns:
            return tuple(Block((feature,), ()) for feature in range(len(self.lower)))
        found, start = [], 0
        for column in self.columns:
            numbers = tuple(start + index for index in column.numbers)
            end = start + len(column.coordinates)
            others = tuple(place for place in range(start, end) if place not in numbers)
            edges = whole_parts(column) if self.cross_cells else None
            found.append(Block(numbers, others) if edges is None else Block(numbers, others, edges))
            start = end
        return tuple(found)

    @property
    def crossed(self) -> tuple[tuple[Block, Block], ...]:
        """The features of each pair of columns that is crossed."""
        return tuple((self._blocks[one], self._blocks[other]) for one, other in self.crosses)

    @functools.cached_property
    def _crossed(self) -> int:
        return sum(one.width * other.width for one, other in self.crossed)

    @functools.cached_property
    def binned(self) -> tuple[int, ...]:
        """Which of the d features have bins."""
        return numbers_among(self.columns) if self.columns else tuple(range(len(self.lower)))

    @functools.cached_property
    def kept(self) -> tuple[int, ...]:
        """Which of the d features have none."""
        return tuple(sorted(set(range(len(self.lower))) - set(self.binned)))

    @functools.cached_property
    def dimension(self) -> int:
        """65 bins for each number, the other coordinates, the crosses, the buckets, and the bias."""
        return len(self.binned) * _BINS + len(self.kept) + self._crossed + self.cross_buckets + 1

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        places, values = self._filled(u, length)
        rows, which = np.nonzero(values)
        hidden = np.zeros((len(u), self.dimension - 1))
        hidden[rows, places[rows, which]] = values[rows, which]
        return hidden

    def _filled(self, u: Floats, length: float) -> tuple[NDArray[np.int64], Floats]:
        """Return which coordinates of h may differ from 0, (n, k), and h times `length` there, as whole numbers.

        A coordinate that is not 0 is there once. k is that of the rows' fullest.
        """
        numbers, ends = u[:, self.binned], len(self.binned) * _BINS
        uniform = np.minimum((numbers * UNIFORM_BINS).astype(np.int64), UNIFORM_BINS - 1)
        # u = m 2^e with 1/2 <= m < 1; of zero NumPy says e = 0.
        doubling = np.where(numbers > 0, np.clip(-np.frexp(numbers)[1], 0, DOUBLING_BINS - 1), DOUBLING_BINS - 1)
        starts = np.arange(0, ends, _BINS)
        others = np.broadcast_to(np.arange(ends, ends + len(self.kept)), (len(u), len(self.kept)))
        all_places, all_values = zip(
            (np.hstack([starts + uniform, starts + UNIFORM_BINS + doubling]), np.ones((len(u), 2 * len(self.binned)))),
            without_zeros(others, KEPT_WEIGHT * u[:, self.kept]),
            *self._pairs(u, ends + len(self.kept)),
            strict=True,
        )
        places, w = np.hstack(all_places), np.hstack(all_values)
        return places, into_ball(w, self.clip_norm, length, width=self.dimension - 1)

    def _pairs(self, u: Floats, start: int) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """Yield what crosses add, from the coordinate `start` on: places and values, (n, k) each."""
        for one, other in self.crossed:
            # A pair with a 0 is 0, as no coordinate is above 1.
            (rows, a), (columns, b) = without_zeros(*one.coarse(u)), without_zeros(*other.coarse(u))
            pairs = start + rows[:, :, None] * other.width + columns[:, None, :]
            values = KEPT_WEIGHT * np.maximum(a[:, :, None] + b[:, None, :] - 1.0, 0.0)
            shape = len(u), rows.shape[1] * columns.shape[1]
            yield pairs.reshape(shape), values.reshape(shape)
            start += one.width * other.width
        if self.cross_buckets:
            places, counts = counted(buckets_of(self.fields, u, self.cross_buckets, self.cross_cells))
            yield start + places, self.pair_weight * counts.astype(np.float64)

    def compact(self, X: Floats) -> Any:
        """Return phi(x) of rows (n, d) as a `scipy.sparse.csr_array` (n, dimension), without its zeros."""
        from scipy import sparse

        places, values = self._filled(self._scaled(X), LENGTH * math.sqrt(1 - self.bias**2))
        if self.bias:
            last = np.full((len(X), 1), self.dimension - 1)
            places, values = np.hstack([places, last]), np.hstack([values, 0 * last + math.trunc(LENGTH * self.bias)])
        there = values != 0
        ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        parts = values[there] * STEP, places[there].astype(np.int32), ends.astype(np.int32)
        return sparse.csr_array(parts, (len(X), self.dimension))
