"""Numbers cut at public places, or at the records' noisy quantiles."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.disclosure import Declared
from dpserve.accounting.losses import PrivacyLoss
from dpserve.accounting.messages import Message
from dpserve.training.devices import Matrix
from dpserve.training.errors import TrainingError
from dpserve.training.features.cut_rows import CutLayout, CutRows
from dpserve.training.features.feature_map import FeatureMap
from dpserve.training.features.quantiles import (
    CELLS,
    EVEN_CUTS,
    FEWEST_PARTS,
    QuantileRelease,
    cuts_between,
    makes_cells,
)
from dpserve.training.features.whole_steps import LENGTH, into_ball
from dpserve.training.inputs.columns import NumberColumn, numbers_among


class Quantiles(FeatureMap):
    """Steps at cuts of each number: a linear head on them is a sum of step functions, which noise leaves smooth.

    Two values that lie k cuts apart differ in k coordinates of a number. So what a step of training learns at one value
    it learns in part for the values near it, where bins learn each by itself: with noise that is worth more
    (research/comparison/README.md). The scaled row stands beside the steps, which hide what lies between two cuts.

    Without `released` a number has even cuts, and the map is public. With it the cuts lie at the records' noisy
    quantiles: the map is fixed given these, it costs what they did, and `ReleaseCertificate` counts that. Declared
    bounds may then be wide. Whole numbers of which few are possible have public cuts, one between each two.

    ||h|| <= 1 as for every vector that `into_ball` draws, whatever is in w; each number's part of w has length 1.
    """

    has_compact_rows: ClassVar[bool] = True

    kind: Declared[Literal["quantiles"]] = "quantiles"
    clip_norm: Declared[float] = Field(default=1.0, ge=1.0, le=1.0)
    """Every w is as long or longer."""
    released: Declared[QuantileRelease | None] = Field(default=None, exclude_if=lambda released: released is None)
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

    def check_ranges(self, names: Sequence[str]) -> None:
        """Raise TrainingError for a number whose bounds make no histogram, before anything is counted."""
        for place in self.counted:
            number = self.numbers[place]
            low, high = self.lower[number], self.upper[number]
            if not makes_cells(low, high):
                raise TrainingError(
                    Message(
                        "the bounds of {!r} make no histogram, so no quantiles: from {!r} to {!r} there are "
                        "fewer numbers than the {:,} cells that records are counted in. Declare it in another "
                        "unit, or take bins, or {quantile_share:0} for even cuts",
                        names[number],
                        low,
                        high,
                        CELLS,
                    )
                )

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

    @functools.cached_property
    def declared(self) -> "Quantiles":
        """The map with even cuts, of which there are as many as there may be."""
        return self if self.released is None else Quantiles.model_validate(self.model_dump(exclude={"released"}))

    @functools.cached_property
    def dimension(self) -> int:
        """A coordinate for each cut, the d features, and the bias."""
        return len(self.steps[0]) + len(self.lower) + 1

    def possible_mean(self, noisy: Floats) -> Floats:
        """See `FeatureMap`: what rows have at a number's cuts falls from cut to cut, and lies within its weights.

        Proof. A row's coordinate at a cut is s/sqrt(k) where the row has reached it and -s/sqrt(k) where it has not,
        with one s for the whole row, 0 <= s <= 1/sqrt(numbers), as w is at least sqrt(numbers) long. Cuts rise, so that
        the coordinates fall, and so does every mean of such rows. The nearest point of all that do so is found by
        isotonic regression (`_falling`) and cutting off at the bounds.
        """
        mean = noisy.copy()
        start = 0
        for cuts in self.cuts:
            most = 1.0 / math.sqrt(len(cuts) * len(self.cuts))
            mean[start : start + len(cuts)] = np.clip(_falling(mean[start : start + len(cuts)]), -most, most)
            start += len(cuts)
        return mean

    @property
    def degrees(self) -> int:
        """At most FEWEST_PARTS for each number, as steps near each other tell nearly the same, and the rest."""
        return sum(min(len(cuts), FEWEST_PARTS) for cuts in self.cuts) + len(self.lower) + 1

    @functools.cached_property
    def _layout(self) -> CutLayout:
        return CutLayout(tuple(map(len, self.cuts)), len(self.lower) + 1)

    @functools.cached_property
    def _cells(self) -> tuple[Mask, NDArray[np.uint8]]:
        """Whether each number's cuts lie between cells of its range; the cuts that a value in each cell has reached.

        A cut that does is a whole number of cells, and a share times their number, a power of two, is exact.
        """
        on_cells = np.zeros(len(self.numbers), dtype=bool)
        code_of = np.zeros((len(self.numbers), CELLS), dtype=np.uint8)
        for place, cuts in enumerate(self.cuts):
            at = np.array(cuts) * CELLS
            on_cells[place] = (at == np.rint(at)).all()
            code_of[place] = np.searchsorted(at, np.arange(CELLS), side="right")
        return on_cells, code_of.ravel()

    def compact(self, X: Floats) -> CutRows:
        """Return phi(x) of rows (n, d): the numbers of `_hidden`, each once."""
        layout, u = self._layout, self._scaled(X)
        codes = np.empty((len(X), len(self.numbers)), dtype=np.uint8)
        on_cells, code_of = self._cells
        cells = np.minimum((u[:, self.numbers] * CELLS).astype(np.int32), CELLS - 1)
        cells += np.arange(len(self.numbers), dtype=np.int32) * CELLS
        np.take(code_of, cells, out=codes)
        for place in np.flatnonzero(~on_cells):
            codes[:, place] = np.searchsorted(self.cuts[place], u[:, self.numbers[place]], side="right")
        weights = np.array([1.0 / math.sqrt(count) for count in layout.distinct])
        often: Floats = np.append(np.bincount(layout.which, layout.counts), np.ones(u.shape[1])).astype(np.float64)
        held = np.hstack([np.broadcast_to(weights, (len(u), len(weights))), u])
        length = LENGTH * math.sqrt(1 - self.bias**2)
        heights, behind = np.hsplit(into_ball(held, self.clip_norm, length, self.dimension - 1, often), [len(weights)])
        beside = np.empty((len(X), layout.others), dtype=np.float32)
        beside[:, :-1] = behind
        beside[:, -1] = math.trunc(LENGTH * self.bias)
        return CutRows(layout, codes, heights.astype(np.float32), beside)

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        features, cuts, weights = self.steps
        w = np.hstack([np.where(u[:, features] >= cuts, weights, -weights), u])
        return into_ball(w, self.clip_norm, length)


def _falling(values: Floats) -> Floats:
    """Return the point (k,) nearest to `values` whose coordinates do not rise.

    Coordinate i is the least, over a <= i, of the largest, over b >= i, mean of the values from a to b (Robertson,
    Wright and Dykstra 1988, Theorem 1.4.4): k is at most 31.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    counts = places[None, :] + 1 - places[:, None]
    means = np.where(counts > 0, (sums[None, 1:] - sums[:-1, None]) / np.maximum(counts, 1), -np.inf)
    largest = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    fallen: Floats = np.minimum.accumulate(largest, axis=0).diagonal()
    return fallen
