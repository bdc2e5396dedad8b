"""The ROC curve of a model of two classes from noisy counts, and the area below it.

How sure the model is of the second class is rounded to CELLS cells of log-odds. A record is counted in a cell of its
class, by the prefix sums of `dpserve.mechanisms.prefix_sums`: true and false positives are such sums. For one threshold
the intervals of its shares hold with CONFIDENCE, exactly (Fieller 1954). (Sun and others 2022, DPAUC, arXiv 2208.12294,
have noise on each count of positives and negatives at every threshold; here it is drawn once for all of them.)
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.disclosure import Disclosed, Released
from dpserve.mechanisms import grid
from dpserve.mechanisms.prefix_sums import WHOLE, coefficients, inverse_coefficients
from dpserve.training.intervals import CONFIDENCE, Interval, ratio_interval
from dpserve.training.pay_once.scores import CELLS as FINE_CELLS
from dpserve.training.pay_once.scores import EDGES, cells_of

_TOGETHER = 5
CELLS = math.ceil(FINE_CELLS / _TOGETHER)
"""Cells of the second class's probability, falling: log-odds from 10 to -10 in steps of 5/16."""

SIZE = 2 * CELLS
"""Numbers that are released: prefix sums of each class."""


class RocPoint(Disclosed, BaseModel):
    """A point of the curve: whoever is as likely as `threshold` or likelier counts as of the second class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: Annotated[float, Released("evaluation")]
    false_positives: Annotated[Interval, Released("evaluation")]
    """The share of the first class that is counted as the second."""
    true_positives: Annotated[Interval, Released("evaluation")]
    """The share of the second class that is."""


class Roc(Disclosed, BaseModel):
    """The ROC curve, and the area below it for probabilities that are rounded to cells."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    area: Annotated[Interval, Released("evaluation")]
    points: Annotated[tuple[RocPoint, ...], Released("evaluation")]


def norm_up() -> Fraction:
    """Return the L2 norm of a record's own numbers before they are scaled, or slightly more, in whole records."""
    return grid.square_root(sum(coefficient * coefficient for coefficient in coefficients(CELLS))) / WHOLE


def term(probabilities: Floats, label: int, weight: int) -> Integers:
    """Return the numbers of a record, (SIZE,), whole, at most `weight` long in L2.

    Its column of M (`PrefixSums`), divided by the longest one's length and rounded down: no entry is below 0, and the
    column of a later cell has fewer of the same entries.
    """
    numbers = np.zeros((2, CELLS), dtype=np.int64)
    probability = np.nan_to_num(probabilities[1:2], nan=0.0)
    cell = int(cells_of(probability)[0]) // _TOGETHER
    scaled = Fraction(weight) / (norm_up() * WHOLE)
    numbers[label, cell:] = [math.floor(coefficient * scaled) for coefficient in coefficients(CELLS)[: CELLS - cell]]
    return numbers.ravel()


def curve(counts: Floats, noise: float) -> Roc:
    """Return the curve from noisy numbers (SIZE,) in units of a whole `term`, each with noise of this deviation.

    The area. Let f and t be the shares of false and true positives from the first threshold to the last, rising from 0
    to 1, and f^, t^ what is estimated, made rising by a running maximum and drawn to [0, 1]: that takes neither further
    from f or t than the furthest point was. The area is sum (t_j + t_(j-1))/2 (f_j - f_(j-1)), linear in each. If all
    of f^ are within d of f, and of t^ within e of t, the areas differ by at most e V(f^) + d V(t) = d + e, V being the
    total variation: summation by parts. The d and e of all points hold together except with probability 1 - CONFIDENCE,
    shared among the points' intervals (Bonferroni).
    """
    # A step of 2^-28 of rounding for a record is far below the noise.
    numbers = counts.reshape(2, CELLS) * float(norm_up())
    deviation, inverse = noise * float(norm_up()), inverse_coefficients(CELLS)
    sums = np.array([np.convolve(counts, inverse)[:CELLS] for counts in numbers])
    shared = (1 - CONFIDENCE) / (2 * (CELLS - 1))
    intervals = [[_share(row, cell, deviation, inverse, 1 - CONFIDENCE) for cell in range(CELLS - 1)] for row in sums]
    wide = [[_share(row, cell, deviation, inverse, shared) for cell in range(CELLS - 1)] for row in sums]
    points = tuple(
        RocPoint(threshold=float(EDGES[(cell + 1) * _TOGETHER - 1]), false_positives=false, true_positives=true)
        for cell, (false, true) in enumerate(zip(*intervals, strict=True))
    )
    return Roc(area=_area(wide), points=points)


def _share(sums: Floats, cell: int, deviation: float, inverse: Floats, error: float) -> Interval:
    """Return the share of the records of a class in a cell or before it. sums: (CELLS,), of the class."""
    last, part = inverse[::-1], inverse[cell::-1]
    variance, of_last = deviation**2 * float(part @ part), deviation**2 * float(last @ last)
    together = deviation**2 * float(part @ last[: cell + 1])
    return ratio_interval(float(sums[cell]), float(sums[-1]), variance, of_last, together, (0.0, 1.0), error)


def _area(intervals: Sequence[Sequence[Interval]]) -> Interval:
    false, true = (
        np.concatenate([[0.0], np.maximum.accumulate([cell.estimate for cell in row]), [1.0]]) for row in intervals
    )
    area = float(((true[1:] + true[:-1]) / 2) @ np.diff(false))
    off = sum(max(max(cell.upper - cell.estimate, cell.estimate - cell.lower) for cell in row) for row in intervals)
    errors = [max(cell.standard_error for cell in row) for row in intervals]
    return Interval(
        estimate=area,
        standard_error=min(math.hypot(*errors), 0.5),
        lower=max(area - off, 0.0),
        upper=min(area + off, 1.0),
    )
