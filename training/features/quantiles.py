"""Noisy quantiles of each number: what is released of the records for a feature map, and what it costs.

A number's declared range is divided into `CELLS` equal cells, and records are counted at `LEVELS` levels: in BRANCH,
BRANCH^2, ... and CELLS parts. All counts of all numbers get Gaussian noise at once (`QuantileRelease.vector`;
`dpserve.training.fitting.histograms` counts the records). Cuts are made of the noisy counts: post-processing. The cuts
are kept, and the counts are not.

Half of the cuts are at quantiles, and half are even between the ends of the bulk of the records: where records are rare
a number may tell much, and with quantiles alone all of a tail is one part (`_cuts`).

Whole numbers of which there are few are cut between each two by their declaration alone: nothing is released of them.

Counts at several levels and not of cells alone, because a quantile's rank is a sum of many cells: with noise of
standard deviation s on each cell alone the middle rank would be off by 90 s. With seven levels, whose noise is
sqrt(7) s, it is a sum of at most three counts of each, off by at most 12 s. So there can be cells enough for bounds a
hundred times too wide.
"""

import math
import struct
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Declared, DisclosedModel, Released
from dpserve.accounting.losses import Cost
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.gaussian_vector import LARGEST_SIZE, GaussianVector, least_price, mu_for
from dpserve.training.fields import Several

BRANCH, LEVELS = 4, 7
CELLS = BRANCH**LEVELS
"""Cells of a number's declared range: a power of two, so that u CELLS is exact."""
COUNTS = sum(BRANCH**level for level in range(1, LEVELS + 1))
"""Counts of each number."""

QUANTILE_SHARE = 0.05
"""The share of a price that buys quantiles. Found on rows held back from training: half of it did as well, twice as
much a little worse."""

MOST_PARTS, FEWEST_PARTS = 32, 8
RECORDS_OF_A_PART = 50
"""Records, times mu, for which a number is cut into one part more. Found on rows held back from training."""

_EVEN = 0.5
"""The share of a number's cuts that are even. Found on rows held back from training, as `TAIL` was."""
TAIL = 0.005
"""The share of the records beyond either end of the bulk."""

EVEN_CUTS = tuple(part / MOST_PARTS for part in range(1, MOST_PARTS))
"""The cuts of a number of which nothing was released, in shares of its range."""


class QuantileRelease(DisclosedModel):
    """The noisy quantiles of all numbers, as a feature map and so a certificate has them."""

    model_config = ConfigDict(extra="forbid")

    mu: Declared[float] = Field(gt=0, allow_inf_nan=False)
    """The cost of the noisy counts: mu-GDP."""
    cells: Declared[Literal[16384]] = 16384
    """Equal parts of a number's declared range."""
    levels: Declared[Literal[7]] = 7
    """Levels at which they were counted."""
    law: Declared[Literal["Gaussian on whole steps"]] = "Gaussian on whole steps"
    """The law of the noise (`dpserve.mechanisms.gaussian_vector`)."""
    cuts: Annotated[Several[Several[int]], Released("quantiles")]
    """For each number the cells that cuts lie before, rising: computed from the noisy counts alone."""

    @model_validator(mode="after")
    def _cuts_are_in_order(self) -> "QuantileRelease":
        for cuts in self.cuts:
            inner = (0, *cuts, self.cells)
            if len(inner) < 3 or any(a >= b for a, b in pairwise(inner)):
                raise ValueError(f"the cuts of a number must rise between 0 and {self.cells}, and be one at least")
        return self

    @property
    def vector(self) -> GaussianVector:
        """The mechanism that releases the counts of d numbers: N(0, sigma^2) on each of d COUNTS of them.

        The sensitivity is sqrt(d LEVELS). Proof. Let neighbouring data sets differ by one record. The cell of each of
        its numbers is a function of the record and of declared bounds (`dpserve.training.fitting.histograms.cells_of`),
        and a value that is missing is in none. So of each number it adds 1 to at most one count of each level, and 0 to
        all
        others: at most d LEVELS counts move, by 1 each, and no count moves for another reason. In L2 that is at most
        sqrt(d LEVELS).

        Privacy units. Let them differ by all n records of one unit, each with a weight of at most 1/n
        (`dpserve.training.inputs.records.Units`), rounded down. In one level of one number the unit adds numbers that
        are at least 0 and whose sum is at most 1: their L2 norm is at most their sum. Over d LEVELS such groups that is
        sqrt(d LEVELS) again. (Counting every record fully would take n times the noise.)

        Rounding. Counts are whole steps of 2^-28, at most 2^24 records' sums of them below 2^53: exact as doubles, in
        any order. 2^-40 covers the square root.
        """
        return vector_for(self.mu, len(self.cuts))

    @property
    def cost(self) -> Cost:
        """mu-GDP, once, whatever is trained on the features.

        The cuts are computed from the noisy counts: post-processing. Given them the feature map is one fixed function,
        the same for both of two neighbouring data sets, and a row's features depend on that row alone. So what is
        proved of training on any feature map holds for this one: its releases are private given the counts, whichever
        counts came out, and compose adaptively with them (Dong, Roth and Su 2022, Corollary 3.3; zCDP: Bun and Steinke
        2016, Lemma 2.3). The cost of all is the sum.
        """
        return self.vector.cost

    @property
    def shares(self) -> tuple[tuple[float, ...], ...]:
        """The cuts in shares of the declared range: exact, as CELLS is a power of two."""
        return tuple(tuple(cut / self.cells for cut in cuts) for cuts in self.cuts)


def makes_cells(minimum: float, maximum: float) -> bool:
    """Return whether a declared range has a double for each cell at least: else cells could not be told apart.

    The bits of doubles of one sign, read as whole numbers, count them in order (IEEE 754).
    """
    low, high = (_place(bound) for bound in (minimum, maximum))
    return bool(high - low >= CELLS)


def _place(bound: float) -> int:
    bits = int.from_bytes(struct.pack(">d", abs(bound)))
    return -bits if bound < 0 else bits


def vector_for(mu: float, numbers: int) -> GaussianVector:
    """Return the mechanism for the counts of so many numbers: see `QuantileRelease.vector`. Raises ValueError."""
    if numbers * COUNTS > LARGEST_SIZE:
        raise ValueError(f"{numbers:,} numbers have more counts than a release may: at most {LARGEST_SIZE // COUNTS:,}")
    return GaussianVector(mu, numbers * COUNTS, math.sqrt(numbers * LEVELS) * (1 + 2.0**-40))


def price_of_counts(whole: int, numbers: int, share: float = QUANTILE_SHARE) -> int:
    """Return what the counts of so many numbers take of a price in picorho: a share, or what they cost at least.

    Raises ValueError for too many numbers, and where they would take more than half.
    """
    part = max(math.floor(whole * share), least_price(min(numbers * COUNTS, LARGEST_SIZE)))
    if part > whole / 2:
        raise ValueError(f"quantiles of {numbers} numbers cost at least {to_rho(part):.4g} rho, and take at most half")
    vector_for(mu_for(part), numbers)
    return part


def levels_of(counts: Floats) -> Floats:
    """Return all levels' counts (d, COUNTS) of cells' counts (d, CELLS): BRANCH parts first, cells last."""
    parts = [counts.reshape(len(counts), BRANCH**level, -1).sum(axis=2) for level in range(1, LEVELS + 1)]
    levels: Floats = np.hstack(parts)
    return levels


def cuts_of(noisy: Floats, mu: float) -> tuple[tuple[int, ...], ...]:
    """Return the cuts of each number from the noisy counts (d, COUNTS), and mu, that of all the model may cost.

    A number is cut into a part for each RECORDS_OF_A_PART / mu records, the records that have it being counted by the
    noisy counts, but at least FEWEST_PARTS and at most MOST_PARTS. A cell with more than a part's share is one alone.
    """
    return tuple(_cuts(np.cumsum(masses), mu) for masses in _consistent(noisy))


def _consistent(noisy: Floats) -> Floats:
    """Return masses of the cells (d, CELLS), at least 0, that all noisy counts say together.

    From the cells up a count is averaged with the sum of its parts, with the weights of least squares (Hay, Rastogi,
    Miklau and Suciu 2010); from the top down the parts of each are moved to what it has: the nearest point at least 0.
    """
    ends = np.cumsum([BRANCH**level for level in range(1, LEVELS + 1)])
    levels = np.split(noisy, ends[:-1], axis=1)
    known, variance = levels[-1], 1.0
    averaged = [known]
    for level in reversed(levels[:-1]):
        of_parts = BRANCH * variance
        share = of_parts / (1 + of_parts)
        known = share * level + (1 - share) * known.reshape(*level.shape, BRANCH).sum(axis=2)
        variance = share
        averaged.insert(0, known)
    masses = np.maximum(averaged[0].sum(axis=1, keepdims=True), 0.0)
    for level in averaged:
        parts = level.reshape(*masses.shape, BRANCH)
        masses = _with_sum(parts, masses).reshape(level.shape)
    cells: Floats = masses
    return cells


def _with_sum(parts: Floats, total: Floats) -> Floats:
    """Return the point nearest to parts (..., k) whose coordinates are at least 0 and add up to `total`, (...)."""
    falling = -np.sort(-parts, axis=-1)
    excess = (np.cumsum(falling, axis=-1) - total[..., None]) / np.arange(1, parts.shape[-1] + 1)
    last = np.maximum((falling > excess).sum(axis=-1, keepdims=True), 1) - 1
    moved: Floats = np.maximum(parts - np.take_along_axis(excess, last, axis=-1), 0.0)
    return moved


def _cuts(ranks: NDArray[np.float64], mu: float) -> tuple[int, ...]:
    """Return the cuts of one number. ranks: (CELLS,), how many records lie in a cell or below it.

    They divide equally a measure that is half the records' shares, and half even over the cells between the quantiles
    TAIL and 1 - TAIL: beyond there is nearly nothing where declared bounds are wide.
    """
    total = float(ranks[-1])
    parts = int(min(max(total * mu / RECORDS_OF_A_PART, FEWEST_PARTS), MOST_PARTS))
    first, last = np.searchsorted(ranks, (total * TAIL, total * (1 - TAIL)))
    even = np.clip((np.arange(1, CELLS + 1) - first) / (last + 1 - first), 0.0, 1.0)
    measure = _EVEN * even + (1 - _EVEN) * (ranks / total if total > 0 else even)
    wanted = np.arange(1, parts) / parts
    cells = np.minimum(np.searchsorted(measure, wanted), CELLS - 1)
    before = np.where(cells > 0, measure[np.maximum(cells - 1, 0)], 0.0)
    nearer = np.where(wanted - before <= measure[cells] - wanted, cells, cells + 1)
    cuts = np.unique(nearer[(nearer > 0) & (nearer < CELLS)])
    return tuple(cuts.tolist()) or (CELLS // 2,)


def cuts_between(minimum: float, maximum: float) -> tuple[float, ...] | None:
    """Return the cuts between whole numbers within these bounds, in shares of the range; None for too many or one."""
    low, high = math.ceil(minimum), math.floor(maximum)
    if not 1 <= high - low < MOST_PARTS:
        return None
    return tuple((value + 0.5 - minimum) / (maximum - minimum) for value in range(low, high))
