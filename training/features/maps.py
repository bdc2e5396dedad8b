"""Public feature maps phi with ||phi(x)|| <= 1 for every input, chosen without the private records.

Every coordinate of phi(x) is a whole multiple of STEP = 2^-24, and phi(x) is the question that a model is asked: equal
phi are one question (`dpserve.mechanisms.randomness`). So phi(x) is *defined* by the operations below, rounding
included, and what is computed is phi itself, with no error to bound.

Every map begins alike. A row x is clipped to its declared bounds and, except for encoders, scaled to u in [0, 1]^d,
then, for identity and fourier, scaled radially into the unit ball: v = u min(1, c / ||u||) / c for the public
`clip_norm` c. Every map ends alike: the mapped vector h with ||h|| <= 1 is scaled by sqrt(1 - beta^2) and a constant
coordinate beta (the bias) is appended, so that ||phi(x)||^2 <= (1 - beta^2) + beta^2 = 1.

- identity: h = v.
- fourier: h = (cos(Omega v), sin(Omega v)) / sqrt(k) with k = D/2 public random frequencies: ||h|| = 1, as
  cos^2 + sin^2 = 1 for each (Rahimi and Recht 2007). Omega has N(0, 1/bandwidth^2) entries. Cosines are read from a
  table of 2^16 angles.
- bins: h is w / ||w||. w has 65 coordinates for each number, two of them 1 and the others 0: one says in which 32nd of
  the declared range u lies, the other between which powers of two, down to 2^-32. Behind them it has sqrt(2) u for the
  coordinates of levels, booleans, texts and what is missing, so that a level weighs as much as a number. Last come the
  crosses that the owner declared: sqrt(2) max(a + b - 1, 0), sqrt(2) where both are 1, for each pair of a coordinate a
  of one column and b of another, where a number has 8 coordinates, of which that of the 8th of its range is 1. Behind
  them are buckets, if the owner wants them: how many pairs of fields fall into each
  (`dpserve.training.features.crosses`).
- quantiles: h is w / ||w||. For a number with k cuts w has k coordinates, 1/sqrt(k) where u has reached the cut and
  -1/sqrt(k) where it has not, and behind them u. The cuts are public, or lie where the records' noisy quantiles say,
  which were paid for (`dpserve.training.features.quantiles`).
- hog: h = b / ||b||, where b has histograms of an image's gradients, and of its colours
  (`dpserve.training.features.hog`), for a head less each block's mean. An image of one shade has h = 0.
- hog-fourier: h = (a, p, f) / ||(a, p, f)||, where a is the h of hog, p = q / ||q|| for the means q of pixels in a grid
  of at most 16 x 16 (`dpserve.training.features.pooling`), and f is the h of fourier for a in place of v.
- encoder: h = b min(1, c / ||b||) / c, where b is what a frozen public model makes of the clipped row.

Rounding. Everything is shrunk by 1 - 2^-30, more than the few roundings of a factor can add, and numbers are rounded to
multiples of STEP towards zero, which makes no vector longer: the numbers that are really used have norm <= 1.

The same bits everywhere. Only these operations occur: rounding to whole numbers, the largest of a row, scaling by
powers of two, all of which are exact; single additions, multiplications, divisions and square roots, which IEEE 754
rounds in one way; and sums of products of whole numbers below 2^53, which are exact in any order (`_into_ball`,
`_products`). So phi(x) does not depend on the processor, the library of linear algebra, the number of threads, or the
rows beside x. An encoder is the exception: what a deep network gives for x can differ in the last bits between devices
and batches. Another b may round to another phi, which is another question then, answered with other noise and charged.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter, model_validator

from dpserve.accounting.arrays import Floats, Singles
from dpserve.accounting.losses import PrivacyLoss
from dpserve.training.devices import Matrix, product
from dpserve.training.errors import BundleError
from dpserve.training.features import hog, pooling
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
from dpserve.training.features.encoder import OnnxEncoder
from dpserve.training.features.quantiles import EVEN_CUTS, FEWEST_PARTS, QuantileRelease, cuts_between
from dpserve.training.fields import Several
from dpserve.training.inputs import text_encoder
from dpserve.training.inputs.columns import (
    Columns,
    NumberColumn,
    TextColumn,
    coordinates_of,
    encodings_among,
    numbers_among,
)
from dpserve.training.regular_files import read_regular

NORM_BOUND = 1.0
"""R: no row's features are longer than this, whatever the map."""

STEP_BITS = 24
STEP = 2.0**-STEP_BITS
"""Every coordinate of phi is a whole multiple of this."""

UNIFORM_BINS, DOUBLING_BINS = 32, 33
_BINS = UNIFORM_BINS + DOUBLING_BINS
COARSE_BINS = 8
"""Equal parts of a number's range, where it is crossed with another column."""
MOST_CROSSED = 4096
"""Coordinates of all crosses together."""
KEPT_WEIGHT = math.sqrt(2)
"""The factor of coordinates without bins: a number is in two bins, and as long."""

SHRINK = 1.0 - 2.0**-30
LENGTH = 2.0**STEP_BITS * SHRINK
"""A vector of norm 1, in steps."""
_EXACT_BITS = 53
LEAST_EXPONENT = -64
"""Numbers below 2^-64 count as nothing: after division by the smallest clip norm they are far below STEP."""
_TABLE_BITS = 16
_LARGEST_DIMENSION = 2**22
_CLIP_NORMS = (2.0**-20, 2.0**20)
"""Within these no square that matters underflows or overflows when a norm is computed."""
ENCODER_FILE = "encoder.onnx"
"""In a bundle."""
UNIT_ROWS = _CLIP_NORMS[0]
"""A clip norm that draws every row to length 1."""

_Waves = Annotated[int, Field(ge=2, le=_LARGEST_DIMENSION, multiple_of=2)]
"""The number of Fourier features: a cosine and a sine of each frequency."""
_Bandwidth = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
_Seed = Annotated[int, Field(ge=0, lt=2**32)]


class FeatureMap(BaseModel):
    """The common fields of all maps; also a map's part of the certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lower: Several[float]
    """The declared lower bound of each of the d features."""
    upper: Several[float]
    """The declared upper bound of each of the d features."""
    clip_norm: float = Field(ge=_CLIP_NORMS[0], le=_CLIP_NORMS[1], allow_inf_nan=False)
    """Scaled rows longer than this are scaled down to it."""
    bias: float = Field(ge=0, lt=1)
    """The constant last coordinate."""
    columns: Columns = Field(default=(), exclude_if=lambda columns: not columns)
    """The columns that the d features encode (`dpserve.training.inputs.columns`); none where the features are
    numbers."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if not 0 < len(self.lower) == len(self.upper) < _LARGEST_DIMENSION:
            raise ValueError(
                f"there must be a lower and an upper bound for each of up to {_LARGEST_DIMENSION} features"
            )
        for low, high in zip(self.lower, self.upper, strict=True):
            if not (low < high and math.isfinite(low) and math.isfinite(high - low)):
                raise ValueError(f"bounds must be finite and in order, not {low:g}:{high:g}")
        if self.columns and coordinates_of(self.columns)[1:] != (self.lower, self.upper):
            raise ValueError("the bounds are not those of the columns' coordinates")
        if len(encodings_among(self.columns)) > 1:
            raise ValueError("all texts must be encoded by the same encoder")
        return self

    def files(self) -> dict[str, bytes]:
        """Return the public files that a bundle needs for the map, by name. Raises BundleError for one not read."""
        files: dict[str, bytes] = {}
        for sha256 in encodings_among(self.columns):
            if (encoder := text_encoder.opened(sha256)) is None:
                raise BundleError(f"the encoder of texts with the SHA-256 {sha256} was not read")
            files |= encoder.files()
        return files

    def open_files(self, folder: Path, device: str | None = None) -> None:
        """Open these files of a bundle. Raises BundleError for one that is not there or is another.

        device: where an encoder computes, "cpu" (the default) or "cuda". Raises TrainingError for one that is not
        there. A map that is no encoder computes nothing on it here: see `dpserve.training.devices`.
        """
        del device
        for encoding in encodings_among(self.columns).values():
            text_encoder.open_bundled(folder, encoding)

    @property
    def dimension(self) -> int:
        """Number of coordinates of phi(x), the bias among them."""
        return len(self.lower) + 1

    @property
    def degrees(self) -> int:
        """Number of coordinates that tell different things of a row: rules ask whether records are many beside it."""
        return self.dimension

    def possible_mean(self, noisy: Floats) -> Floats:
        """Return the point (D,) nearest to a noisy mean of rows that is known to be possible: post-processing.

        The rows may be scaled, each by a factor of its own of at most 1. A map of which nothing is known returns what
        it was given.
        """
        return noisy

    @property
    def losses(self) -> tuple[PrivacyLoss, ...]:
        """The cost of what the map knows of the records: nothing, for one that is public by itself."""
        return ()

    def public_tensors(self) -> dict[str, Floats]:
        """The random tensors of the map, drawn from its public seed."""
        return {}

    def __call__(self, X: Floats, tensors: Mapping[str, Matrix]) -> Floats:
        """Map rows within or beyond the declared bounds.

        X: (n, d). tensors: what `public_tensors` returned, on any device. Returns (n, dimension), multiples of STEP,
        with rows of norm at most 1.
        """
        phi = np.empty((len(X), self.dimension))
        length = LENGTH * math.sqrt(1 - self.bias**2)
        step = self._rows_at_once or len(X) or 1
        for start in range(0, len(X), step):
            rows = slice(start, start + step)
            np.multiply(self._hidden(self._scaled(X[rows]), tensors, length), STEP, out=phi[rows, :-1])
        phi[:, -1] = math.trunc(LENGTH * self.bias) * STEP
        return phi

    @functools.cached_property
    def _rows_at_once(self) -> int | None:
        """Number of rows mapped at once; None for all.

        A block's arrays have about 256 KiB: a processor's cache holds them, and memory for them is not mapped anew.
        Crosses take many small steps for each block, which for a dozen rows cost more than the rows do.
        """
        return max(2**15 // max(len(self.lower), self.dimension) + 1, self._least_rows)

    @property
    def _least_rows(self) -> int:
        """Number of rows that are mapped at once at least, where there are so many."""
        return 1

    def _scaled(self, X: Floats) -> Floats:
        lower, upper, width = _bounds(self.lower, self.upper)
        scaled = np.maximum(X, lower)
        np.minimum(scaled, upper, out=scaled)
        scaled -= lower
        scaled /= width
        return scaled

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        """Return h times `length`, as whole numbers."""
        raise NotImplementedError


class Identity(FeatureMap):
    """phi(x) is the scaled row itself."""

    kind: Literal["identity"] = "identity"

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        return _into_ball(u, self.clip_norm, length)


class Fourier(FeatureMap):
    """Random Fourier features: inner products approximate exp(-||v - v'||^2 / (2 bandwidth^2))."""

    kind: Literal["fourier"] = "fourier"
    random_features: _Waves
    bandwidth: _Bandwidth
    seed: _Seed

    @property
    def dimension(self) -> int:
        """D random features and the bias."""
        return self.random_features + 1

    def public_tensors(self) -> dict[str, Floats]:
        """omega: (D/2, d), in turns, rounded so that `_products` is exact."""
        return {"omega": _frequencies(self.seed, (self.random_features // 2, len(self.lower)), self.bandwidth)}

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        return _waves(_products(_into_ball(u, self.clip_norm, LENGTH), tensors["omega"]), length)


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
    each. Of a table with `columns` only numbers and times have bins: its other coordinates are coded already.

    ||h|| <= 1 as for every vector that `_into_ball` draws, whatever is in w; before it w is at least sqrt(2) long, as
    there is a number. A cross changes w by what its row alone holds, and by nothing else: hashed ones by whole numbers
    of pairs times one public factor.
    """

    kind: Literal["bins"] = "bins"
    clip_norm: float = Field(default=1.0, ge=1.0, le=1.0)
    """Every w is longer."""
    crosses: Several[tuple[int, int]] = Field(default=(), exclude_if=lambda crosses: not crosses)
    """Pairs of columns, by their places among `columns`, or of features where there are no columns."""
    cross_buckets: int = Field(default=0, ge=0, le=MOST_BUCKETS, exclude_if=lambda buckets: not buckets)
    """Number of buckets that pairs of fields are hashed to; 0 for no such crosses."""
    cross_cells: int = Field(default=0, ge=0, exclude_if=lambda cells: not cells)
    """The most cells of a pair of fields that is hashed. In all crosses whole numbers of which few are possible have
    a part each.

    0 for pairs of any number, and 16 parts of every number, 8 in `crosses`, as the first models with crosses have it.
    """

    @model_validator(mode="after")
    def _some_coordinate_is_a_number(self) -> Self:
        if not self.binned:
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
        return 256 if self.crosses or self.cross_buckets else 1

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

    @property
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
            _without_zeros(others, KEPT_WEIGHT * u[:, self.kept]),
            *self._pairs(u, ends + len(self.kept)),
            strict=True,
        )
        places, w = np.hstack(all_places), np.hstack(all_values)
        return places, _into_ball(w, self.clip_norm, length, width=self.dimension - 1)

    def _pairs(self, u: Floats, start: int) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """Yield what crosses add, from the coordinate `start` on: places and values, (n, k) each."""
        for one, other in self.crossed:
            # A pair with a 0 is 0, as no coordinate is above 1.
            (rows, a), (columns, b) = _without_zeros(*one.coarse(u)), _without_zeros(*other.coarse(u))
            pairs = start + rows[:, :, None] * other.width + columns[:, None, :]
            values = KEPT_WEIGHT * np.maximum(a[:, :, None] + b[:, None, :] - 1.0, 0.0)
            yield pairs.reshape(len(u), -1), values.reshape(len(u), -1)
            start += one.width * other.width
        if self.cross_buckets:
            places, counts = counted(buckets_of(self.fields, u, self.cross_buckets, self.cross_cells))
            yield start + places, self.pair_weight * counts.astype(np.float64)

    def sparse(self, X: Floats) -> Any:
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


class Quantiles(FeatureMap):
    """Steps at cuts of each number: a linear head on them is a sum of step functions, which noise leaves smooth.

    Two values that lie k cuts apart differ in k coordinates of a number. So what a step of training learns at one value
    it learns in part for the values near it, where bins learn each by itself: with noise that is worth more
    (research/comparison/README.md). The scaled row stands beside the steps, which hide what lies between two cuts.

    Without `released` a number has even cuts, and the map is public. With it the cuts lie at the records' noisy
    quantiles: the map is fixed given these, it costs what they did, and `ReleaseCertificate` counts that. Declared
    bounds may then be wide. Whole numbers of which few are possible have public cuts, one between each two.

    ||h|| <= 1 as for every vector that `_into_ball` draws, whatever is in w; each number's part of w has length 1.
    """

    kind: Literal["quantiles"] = "quantiles"
    clip_norm: float = Field(default=1.0, ge=1.0, le=1.0)
    """Every w is as long or longer."""
    released: QuantileRelease | None = Field(default=None, exclude_if=lambda released: released is None)
    """The noisy quantiles, where they were released."""

    @model_validator(mode="after")
    def _some_coordinate_is_a_number(self) -> Self:
        if not self.numbers:
            raise ValueError("no column is a number, a date or a time: there is nothing to cut")
        if self.released is not None and len(self.released.cuts) != len(self.counted):
            raise ValueError(f"there are cuts of {len(self.released.cuts)} numbers, and {len(self.counted)} numbers")
        return self

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """Which of the d features have cuts."""
        return numbers_among(self.columns) if self.columns else tuple(range(len(self.lower)))

    @functools.cached_property
    def _whole(self) -> tuple[tuple[float, ...] | None, ...]:
        """For each number the cuts between whole numbers, where its column declares few; None for others."""
        return tuple(
            cuts_between(column.minimum, column.maximum)
            if isinstance(column, NumberColumn) and column.kind == "integer"
            else None
            for column in self.columns
            for _ in column.numbers
        ) or (None,) * len(self.numbers)

    @functools.cached_property
    def counted(self) -> tuple[int, ...]:
        """Which of `numbers`, by their places there, a release counts: those without public cuts."""
        return tuple(place for place, cuts in enumerate(self._whole) if cuts is None)

    @functools.cached_property
    def cuts(self) -> tuple[tuple[float, ...], ...]:
        """Each number's cuts, in shares of its declared range, rising."""
        counted = dict(zip(self.counted, () if self.released is None else self.released.shares, strict=False))
        return tuple(whole or counted.get(place, EVEN_CUTS) for place, whole in enumerate(self._whole))

    @functools.cached_property
    def absent(self) -> tuple[int | None, ...]:
        """For each number which of the d features is 1 where it is missing; None where it cannot be."""
        if not self.columns:
            return (None,) * len(self.numbers)
        ends = np.cumsum([len(column.coordinates) for column in self.columns]).tolist()
        return tuple(
            end - 1 if column.marks_missing else None
            for column, end in zip(self.columns, ends, strict=True)
            for _ in column.numbers
        )

    def shares_of(self, X: Floats) -> Floats:
        """Return the numbers of rows (n, d) in shares of their declared ranges: (n, numbers)."""
        shares: Floats = self._scaled(X)[:, self.numbers]
        return shares

    @functools.cached_property
    def steps(self) -> tuple[NDArray[np.int64], Floats, Floats]:
        """For each step the feature that it is of, its cut, and its weight: (k,) each."""
        counts = [len(cuts) for cuts in self.cuts]
        weights = np.repeat([1.0 / math.sqrt(count) for count in counts], counts)
        return np.repeat(self.numbers, counts), np.concatenate(self.cuts), weights

    @property
    def losses(self) -> tuple[PrivacyLoss, ...]:
        """The cost of the noisy quantiles, where they were released."""
        return () if self.released is None else self.released.cost.losses

    @property
    def dimension(self) -> int:
        """A coordinate for each cut, the d features, and the bias."""
        return len(self.steps[0]) + len(self.lower) + 1

    def possible_mean(self, noisy: Floats) -> Floats:
        """See `FeatureMap`: what rows have at a number's cuts falls from cut to cut, and lies within its weights.

        Proof. A row's coordinate at a cut is s/sqrt(k) where the row has reached it and -s/sqrt(k) where it has not,
        with one s for the whole row, 0 <= s <= 1/sqrt(numbers), as w is at least sqrt(numbers) long. Cuts rise, so that
        the coordinates fall, and so does every mean of such rows. The nearest point of all that do so is found by
        pooling neighbours (isotonic regression) and cutting off at the bounds.
        """
        from scipy.optimize import isotonic_regression

        mean = noisy.copy()
        start = 0
        for cuts in self.cuts:
            most = 1.0 / math.sqrt(len(cuts) * len(self.cuts))
            found = isotonic_regression(mean[start : start + len(cuts)], increasing=False).x
            mean[start : start + len(cuts)] = np.clip(found, -most, most)
            start += len(cuts)
        return mean

    @property
    def degrees(self) -> int:
        """At most FEWEST_PARTS for each number, as steps near each other tell nearly the same, and the rest."""
        return sum(min(len(cuts), FEWEST_PARTS) for cuts in self.cuts) + len(self.lower) + 1

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        features, cuts, weights = self.steps
        w = np.hstack([np.where(u[:, features] >= cuts, weights, -weights), u])
        return _into_ball(w, self.clip_norm, length)


class OfImages(FeatureMap):
    """A map of images: x has an image's pixels, row by row, each with its channels, height * width * channels of them.

    Proof that ||phi(x)|| <= 1 for every x. Clipping leaves u in [0, 1]^d whatever x is, so that a subclass's numbers b
    are finite, and of at most 2^10. `_into_ball` returns length b / max(r, ||b||), rounded towards zero, the norm exact
    but for its square root and one multiplication: at most `length` (1 + 2^-50) long, which `SHRINK` makes up for. It
    uses nothing else that is known of b; r = 2^-20 only keeps zeros zero.
    """

    clip_norm: float = Field(default=1.0, ge=1.0, le=1.0)
    """Every row has the same norm already."""
    kind: str
    """Named here as it comes before the shape in what bundles have sealed."""
    image_shape: tuple[int, int, int]
    """Height, width and channels: 1 for grey, 3 for red, green and blue."""

    @model_validator(mode="after")
    def _shape_is_that_of_the_rows(self) -> Self:
        hog.check_shape(self.image_shape, len(self.lower))
        return self


class Hog(OfImages):
    """Histograms of oriented gradients of an image, and of a colour image a histogram of its colours too.

    `hog.described` gives numbers from 0 to 2^9, and `hog.centred` from -2^9 to 2^9.
    """

    kind: Literal["hog"] = "hog"
    centred: bool = Field(default=False, exclude_if=lambda centred: not centred)
    """Whether each block's numbers are less their mean, and each quarter's colours (`hog.centred`)."""

    @property
    def dimension(self) -> int:
        """32 numbers for each block of cells, 256 for the colours of a colour image, and the bias."""
        return hog.width_of(self.image_shape) + 1

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        b = hog.described(u, self.image_shape)
        return _into_ball(hog.centred(b, self.image_shape) if self.centred else b, UNIT_ROWS, length)


class HogFourier(OfImages):
    """Histograms of gradients, how light the parts of the image are, and random Fourier features of the histograms.

    A linear head on it is the sum of one on the histograms, one on means of pixels, and one that approximates the
    Gaussian kernel of the histograms' directions. Each of the three has length 1, or 0 where it has no direction: means
    half as heavy did worse on rows of Fashion-MNIST that were held back from training.
    """

    kind: Literal["hog-fourier"] = "hog-fourier"
    random_features: _Waves
    bandwidth: _Bandwidth
    seed: _Seed

    @property
    def dimension(self) -> int:
        """The histograms' numbers (see `Hog`), the means, D random features, and the bias."""
        return hog.width_of(self.image_shape) + pooling.width_of(self.image_shape) + self.random_features + 1

    def public_tensors(self) -> dict[str, Floats]:
        """omega: (D/2, numbers of the histograms), in turns, rounded so that `_products` is exact."""
        width = hog.width_of(self.image_shape)
        return {"omega": _frequencies(self.seed, (self.random_features // 2, width), self.bandwidth)}

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        directions = _into_ball(hog.described(u, self.image_shape), UNIT_ROWS, LENGTH)
        means = _into_ball(pooling.pooled(u, self.image_shape), UNIT_ROWS, LENGTH)
        waves = _waves(_products(directions, tensors["omega"]), LENGTH)
        return _into_ball(np.hstack([directions, means, waves]) * STEP, UNIT_ROWS, length)


class Encoder(FeatureMap):
    """The features of a frozen public ONNX model, scaled radially into a ball of radius `clip_norm`.

    What the proofs need of it, although nobody bounds a deep network's rounding errors:

    - Training (`sensitivity.weight_sensitivity`): neighbouring data sets have the same features for the records that
      they share, of norm at most 1. Any function of the record alone will do, continuous or not. So b(x) is *defined*
      as the single-precision numbers that the device gives for x; `OnnxEncoder.apart` sees to it that they are a
      function of x alone, whatever other records there are.
    - Answering (`sensitivity.logit_sensitivity_per_norm`): neighbouring weights meet the same phi, of a known norm.
      It depends on no private record, whatever shares its batch. It need not be the one that training would have
      computed: another device, another batch and another order of summation cost accuracy of the order of 1e-6, and
      no privacy. But phi is the question: one that differs in a step is another, with noise of its own, and charged.
    - Whatever the model gives, the norm is at most 1: numbers that are not finite count as a row of zeros.

    None of this holds if the model itself comes from the private records: that is an assumption, which the
    certificate states.
    """

    kind: Literal["encoder"] = "encoder"
    width: int = Field(ge=1, lt=_LARGEST_DIMENSION)
    model_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the ONNX file."""
    input_range: tuple[float, float] | None = None
    """The range that declared bounds are scaled to for the model; None: it gets the rows as they are, clipped."""
    _compute: Callable[[Floats], Singles] | None = PrivateAttr(default=None)
    _source: bytes | Path | None = PrivateAttr(default=None)
    """The model, or the file that it is in."""

    @model_validator(mode="after")
    def _range_is_in_order(self) -> Self:
        if self.input_range is not None and not -math.inf < self.input_range[0] < self.input_range[1] < math.inf:
            raise ValueError("the range of the encoder's inputs must be finite and in order")
        return self

    @property
    def dimension(self) -> int:
        """The model's features and the bias."""
        return self.width + 1

    @property
    def _rows_at_once(self) -> None:
        """All: how rows are put together is the model's."""
        return None

    def computed_by(self, compute: Callable[[Floats], Singles], content: bytes | None = None) -> Self:
        """Return this map with its model: from the model's inputs (n, d) to features (n, width). content: its file."""
        attached = self.model_copy()
        attached._compute, attached._source = compute, content
        return attached

    def files(self) -> dict[str, bytes]:
        """Return the model's file too."""
        content = self._source.read_bytes() if isinstance(self._source, Path) else self._source
        self._check(content)
        return super().files() | {ENCODER_FILE: content or b""}

    def open_files(self, folder: Path, device: str | None = None) -> None:
        """Open the model too, to answer: rows are computed together."""
        super().open_files(folder)
        path = folder / ENCODER_FILE
        try:
            content = read_regular(path)
        except OSError as error:
            raise BundleError(f"{folder} lacks its encoder: cannot read {path}: {error.strerror}") from error
        self._check(content)
        encoder = OnnxEncoder(content, len(self.lower), device or "cpu")
        if encoder.width != self.width:
            raise BundleError(f"the encoder gives {encoder.width} features, and the certificate says {self.width}")
        self._compute, self._source = encoder.together, path

    def _check(self, content: bytes | None) -> None:
        found = None if content is None else hashlib.sha256(content).hexdigest()
        if found != self.model_sha256:
            raise BundleError(f"the encoder has the SHA-256 {found}, and the certificate says {self.model_sha256}")

    def _scaled(self, X: Floats) -> Floats:
        lower, upper, _ = _bounds(self.lower, self.upper)
        if self.input_range is None:
            return np.clip(X, lower, upper)
        low, high = self.input_range
        return low + (high - low) * super()._scaled(X)

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        if self._compute is None:
            raise RuntimeError("an encoder computes nothing before its model is attached: see `computed_by`")
        b = self._compute(u).astype(np.float64)
        b[~np.isfinite(b).all(axis=1)] = 0.0
        return _into_ball(b, self.clip_norm, length)


AnyFeatureMap = Annotated[Identity | Bins | Quantiles | Hog | HogFourier | Fourier, Field(discriminator="kind")]
"""Those that need no file: the one list of them. A map's own fields are its options, by the same names."""

HeadFeatureMap = Annotated[AnyFeatureMap | Encoder, Field(discriminator="kind")]
"""Those that a head, or a pay-once model, may stand on."""

FEATURE_MAPS: Mapping[str, type[FeatureMap]] = {
    each.model_fields["kind"].default: each for each in get_args(get_args(AnyFeatureMap)[0])
}
"""Those that need no file, by name."""

_SHOWN: TypeAdapter[AnyFeatureMap] = TypeAdapter(AnyFeatureMap)


def map_as_shown(shown: Mapping[str, Any]) -> FeatureMap:
    """Return the map that strangers can make of what they are shown of one, which is not the cuts: even ones.

    shown: of a certificate's public part. Raises ValidationError for what is no map that needs no file.
    """
    if "cuts" not in (shown.get("released") or {"cuts": None}):
        shown = {name: value for name, value in shown.items() if name != "released"}
    return _SHOWN.validate_python(shown)


def _bounds(lower: tuple[float, ...], upper: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """Return the bounds and their differences, (d,) each: records are mapped one at a time, and this takes longer.

    Kept by which tuples they are: to hash a thousand floats takes longer than to map a row.
    """
    kept = _kept_bounds.get((id(lower), id(upper)))
    if kept is None:
        lows, highs = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
        arrays = lows, highs, highs - lows
        for array in arrays:
            array.setflags(write=False)
        if len(_kept_bounds) >= _MOST_KEPT:
            _kept_bounds.clear()
        kept = _kept_bounds[id(lower), id(upper)] = lower, upper, arrays
    return kept[2]


_MOST_KEPT = 16
_kept_bounds: dict[tuple[int, int], tuple[tuple[float, ...], tuple[float, ...], tuple[Floats, Floats, Floats]]] = {}
"""Arrays by the ids of tuples. The tuples are kept with them, so that no other tuple has their ids meanwhile."""


def default_clip_norm(features: int) -> float:
    """Half the norm of the all-ones row: a public rule, because a quantile of the records' norms would be private."""
    return math.sqrt(features) / 2


def _standard_normal(seed: int, shape: tuple[int, int]) -> Floats:
    # NumPy promises never to change this generator's stream, so that every later version can check the tensors.
    return np.random.RandomState(seed).standard_normal(shape)


def _into_ball(vectors: Floats, radius: float, length: float, width: int | None = None) -> Floats:
    """Return whole numbers (n, k): `length` x / max(radius, ||x||) for each row x of `vectors`, rounded towards zero.

    So a row is at most `length` (1 + 2^-50) long: what `SHRINK` is for. x is rounded first, to whole multiples
    m of 2^(e - b), e being the exponent of its largest coordinate, with k 4^b <= 2^53: the sum of the squares of m is
    a whole number of at most 2^53, exact in any order of summation, and its square root is rounded once.

    width: k, where coordinates that are 0 were left out.
    """
    bits = exact_bits(vectors.shape[1] if width is None else width)
    exponents = np.frexp(np.maximum(vectors.max(axis=1), -vectors.min(axis=1)))[1]
    exponents = np.maximum(exponents, LEAST_EXPONENT) - bits
    whole = vectors * np.ldexp(1.0, -exponents)[:, None]
    np.rint(whole, out=whole)
    units = np.ldexp(1.0, exponents)
    norms = np.sqrt(np.vecdot(whole, whole)) * units
    whole *= (length * units / np.maximum(radius, norms))[:, None]
    scaled: Floats = np.trunc(whole, out=whole)
    return scaled


def _without_zeros(places: NDArray[np.int64], values: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the places and values (n, k) of rows with their zeros left out, where k is less for all of them."""
    rows, which = np.nonzero(values)
    counts = np.bincount(rows, minlength=len(values))
    most = int(counts.max(initial=0))
    if 2 * most > values.shape[1]:
        return places, values
    at = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    fewer, kept = np.zeros((len(values), most), dtype=np.int64), np.zeros((len(values), most))
    fewer[rows, at], kept[rows, at] = places[rows, which], values[rows, which]
    return fewer, kept


def exact_bits(width: int) -> int:
    """Return the b of `_into_ball` for vectors of so many coordinates k: k 4^b <= 2^53."""
    return (_EXACT_BITS - width.bit_length()) // 2


def _rounded_for_products(omega: Floats) -> Floats:
    """Return `omega` (k, d) in steps of a power of two, such that `_products` is exact.

    The step is the smallest of which a row's norm has less than 2^28: with a little to spare for rounding the row.
    """
    longest = math.sqrt(float(np.square(omega).sum(axis=1).max()))
    step = math.ldexp(1.0, math.frexp(longest)[1] - (_EXACT_BITS - STEP_BITS - 1))
    rounded: Floats = np.rint(omega / step) * step
    return rounded


def _frequencies(seed: int, shape: tuple[int, int], bandwidth: float) -> Floats:
    """Return the frequencies of Fourier features, (k, d), in turns, drawn from a public seed."""
    return _rounded_for_products(_standard_normal(seed, shape) / (2 * math.pi * bandwidth))


def _waves(turns: Floats, length: float) -> Floats:
    """Return cosines and sines of `turns`, (n, k), as whole numbers (n, 2k): rows at most `length` long."""
    angles = np.rint(turns * 2.0**_TABLE_BITS).astype(np.int64)
    # sin(t) = cos(t - a quarter turn)
    places = np.hstack([angles, angles - (1 << _TABLE_BITS - 2)])
    places &= (1 << _TABLE_BITS) - 1
    waves: Floats = np.trunc(cosines().take(places) * (length / math.sqrt(turns.shape[1])))
    return waves


def _products(whole: Floats, omega: Matrix) -> Floats:
    """Return Omega v, (n, k), exactly, for v in steps of STEP, whole numbers (n, d), and `_rounded_for_products`.

    Omega's rows have norms below 2^28 of their step before they are rounded, and below 2^28 + sqrt(d)/2 < 2^29 after;
    those of v are at most 2^24 of its own. By Cauchy and Schwarz the absolute values of the products in a row's sum add
    up to less than 2^53: every partial sum, in any order, is a whole number that a double holds. STEP is a power of
    two: scaling by it rounds nothing.
    """
    return product(whole, omega.T) * STEP


@functools.cache
def cosines() -> Floats:
    """Return the cosines of 2^16 angles, a whole turn, within 2^-50: from the series of an eighth of a turn."""
    eighth = 1 << _TABLE_BITS - 3
    x = np.arange(eighth + 1) * (2 * math.pi / (1 << _TABLE_BITS))
    squared = x * x
    cosine, sine = np.ones_like(x), np.ones_like(x)
    for n in range(18, 0, -2):
        cosine = 1.0 - squared / (n * (n - 1)) * cosine
        sine = 1.0 - squared / (n * (n + 1)) * sine
    sine *= x
    quarter = np.concatenate([cosine, sine[-2::-1]])
    half = np.concatenate([quarter, -quarter[-2::-1]])
    turn = np.concatenate([half, half[-2:0:-1]])
    turn.setflags(write=False)
    return turn
