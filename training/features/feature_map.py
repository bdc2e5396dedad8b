"""The base of public feature maps phi with ||phi(x)|| <= 1 for every input, chosen without the private records.

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
rounds in one way; and sums of products of whole numbers below 2^53, which are exact in any order
(`dpserve.training.features.whole_steps`). So phi(x) does not depend on the processor, the library of linear algebra,
the number of threads, or the rows beside x. An encoder is the exception: what a deep network gives for x can differ in
the last bits between devices and batches. Another b may round to another phi, which is another question then, answered
with other noise and charged.
"""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Declared, DisclosedModel
from dpserve.accounting.losses import PrivacyLoss
from dpserve.training.devices import Matrix
from dpserve.training.errors import BundleError
from dpserve.training.features.whole_steps import CLIP_NORMS, LARGEST_DIMENSION, LENGTH, STEP
from dpserve.training.fields import Several
from dpserve.training.inputs import text_encoder
from dpserve.training.inputs.columns import Columns, coordinates_of, encodings_among

NORM_BOUND = 1.0
"""R: no row's features are longer than this, whatever the map."""


class FeatureMap(DisclosedModel):
    """The common fields of all maps; also a map's part of the certificate."""

    model_config = ConfigDict(extra="forbid")

    lower: Declared[Several[float]]
    """The declared lower bound of each of the d features."""
    upper: Declared[Several[float]]
    """The declared upper bound of each of the d features."""
    clip_norm: Declared[float] = Field(ge=CLIP_NORMS[0], le=CLIP_NORMS[1], allow_inf_nan=False)
    """Scaled rows longer than this are scaled down to it."""
    bias: Declared[float] = Field(ge=0, lt=1)
    """The constant last coordinate."""
    columns: Declared[Columns] = Field(default=(), exclude_if=lambda columns: not columns)
    """The columns that the d features encode (`dpserve.training.inputs.columns`); none where the features are
    numbers."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if not 0 < len(self.lower) == len(self.upper) < LARGEST_DIMENSION:
            raise ValueError(f"there must be a lower and an upper bound for each of up to {LARGEST_DIMENSION} features")
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

    @functools.cached_property
    def dimension(self) -> int:
        """Number of coordinates of phi(x), the bias among them."""
        return len(self.lower) + 1

    @property
    def declared(self) -> "FeatureMap":
        """The map as it follows from what was declared alone: with as many coordinates, or more.

        Rules, and what strangers are shown, read this one: the coordinates of a map that was made of the records tell
        what was released of them, and so about how many there are.
        """
        return self

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

    has_compact_rows: ClassVar[bool] = False
    """Whether `compact` gives rows by what they hold, in less than all of their coordinates."""

    def compact(self, X: Floats) -> Any:
        """Return phi(x) of rows (n, d) by what they hold: a `scipy.sparse.csr_array`, or `cut_rows.CutRows`."""
        raise NotImplementedError

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
        lower, upper, width = bounds_of(self.lower, self.upper)
        scaled = np.maximum(X, lower)
        np.minimum(scaled, upper, out=scaled)
        scaled -= lower
        scaled /= width
        return scaled

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        """Return h times `length`, as whole numbers."""
        raise NotImplementedError


def bounds_of(lower: tuple[float, ...], upper: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """Return the bounds and their differences, (d,) each, or (1,) where they are the same for all features.

    One number for all spares NumPy a copy of (d,) for each row, which takes longer than most operations on the row.
    The arrays are kept, as records are mapped one at a time: by which tuples they are, since to hash a thousand floats
    takes longer than to map a row.
    """
    kept = _kept_bounds.get((id(lower), id(upper)))
    if kept is None:
        lows, highs = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
        each = lows, highs, highs - lows
        arrays = each if any((array != array[0]).any() for array in each) else (lows[:1], highs[:1], each[2][:1])
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
