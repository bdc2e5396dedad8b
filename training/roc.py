"""The ROC curve of a class against the rest from noisy counts, and the area below it.

How sure the model is of the class is rounded to CELLS cells of log-odds. A record is counted in a cell, among those of
the class or the others, by the prefix sums of `dpserve.mechanisms.prefix_sums`: true and false positives are such sums.
For one threshold the intervals of its shares hold with CONFIDENCE, exactly (Fieller 1954). (Sun and others 2022, DPAUC,
arXiv 2208.12294, have noise on each count of positives and negatives at every threshold; here it is drawn once for all
of them.)
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import fmean
from typing import Annotated

import numpy as np
from pydantic import ConfigDict

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.disclosure import DisclosedModel, Released
from dpserve.mechanisms import grid
from dpserve.mechanisms.prefix_sums import WHOLE, coefficients, inverse_coefficients
from dpserve.training.intervals import CONFIDENCE, Interval, ratio_interval
from dpserve.training.pay_once.scores import Cells

SURE = Cells(highest=156, step=5, many=64)
CELLS = len(SURE)
"""Cells of the class's probability, falling: log-odds from 9.75 to -9.94 in steps of 5/16."""

SIZE = 2 * CELLS
"""Numbers that are released for a curve: prefix sums of the rest, and of the class."""


class RocPoint(DisclosedModel):
    """A point of the curve: whoever is as likely as `threshold` or likelier counts as of the class."""

    model_config = ConfigDict(extra="forbid")

    threshold: Annotated[float, Released("evaluation")]
    false_positives: Annotated[Interval, Released("evaluation")]
    """The share of the rest that is counted as the class."""
    true_positives: Annotated[Interval, Released("evaluation")]
    """The share of the class that is."""


class Roc(DisclosedModel):
    """The ROC curve, and the area below it for probabilities that are rounded to cells."""

    model_config = ConfigDict(extra="forbid")

    area: Annotated[Interval, Released("evaluation")]
    points: Annotated[tuple[RocPoint, ...], Released("evaluation")]


class Areas(DisclosedModel):
    """The areas below the curves of each class against the rest, and their mean: all of them hold together."""

    model_config = ConfigDict(extra="forbid")

    by_class: Annotated[tuple[Interval, ...], Released("evaluation")]
    mean: Annotated[Interval, Released("evaluation")]


def curves_of(classes: int) -> int:
    """Return how many curves there are: of two classes that of the second, of more one of each."""
    return 1 if classes == 2 else classes


def weight_of_curve(weight: int, classes: int) -> int:
    """Return the most length of a record's term in each curve, so that it is at most `weight` in all of them."""
    return math.isqrt(weight**2 // curves_of(classes))


def norm_up() -> Fraction:
    """Return the L2 norm of a record's own numbers before they are scaled, or slightly more, in whole records."""
    return grid.square_root(sum(coefficient * coefficient for coefficient in coefficients(CELLS))) / WHOLE


def term(probabilities: Floats, label: int, weight: int) -> Integers:
    """Return the numbers of a record, (curves * SIZE,), whole, at most `weight` long in L2.

    In each curve its column of M (`PrefixSums`), divided by the longest one's length and rounded down: no entry is
    below 0, and the column of a later cell has fewer of the same entries. So each of K curves has at most the length
    `weight_of_curve`, whose square is at most weight^2 / K, and they have other coordinates.
    """
    curves = curves_of(len(probabilities))
    numbers = np.zeros((curves, 2, CELLS), dtype=np.int64)
    cells = SURE.of(np.nan_to_num(probabilities[-curves:], nan=0.0))
    scaled = Fraction(weight_of_curve(weight, len(probabilities))) / (norm_up() * WHOLE)
    column = [math.floor(coefficient * scaled) for coefficient in coefficients(CELLS)]
    for place, cell in enumerate(map(int, cells)):
        is_of_class = label == len(probabilities) - curves + place
        numbers[place, int(is_of_class), cell:] = column[: CELLS - cell]
    return numbers.ravel()


def areas(counts: Floats, noise: float) -> Areas:
    """Return the areas of several curves from noisy numbers (curves * SIZE,), as `curve` takes those of one.

    Each fails with an equal part of 1 - CONFIDENCE, so that all hold together, and with them their mean.
    """
    parts = counts.reshape(-1, SIZE)
    found = tuple(curve(part, noise, (1 - CONFIDENCE) / len(parts)).area for part in parts)
    ends = {name: fmean(getattr(area, name) for area in found) for name in Interval.model_fields}
    return Areas(by_class=found, mean=Interval(**ends))


def curve(counts: Floats, noise: float, error: float = 1 - CONFIDENCE) -> Roc:
    """Return the curve from noisy numbers (SIZE,) in units of a whole `term`, each with noise of this deviation.

    The area. Let f and t be the shares of false and true positives from the first threshold to the last, rising from 0
    to 1, and f^, t^ what is estimated, made rising by a running maximum and drawn to [0, 1]: that takes neither further
    from f or t than the furthest point was. The area is sum (t_j + t_(j-1))/2 (f_j - f_(j-1)), linear in each. If all
    of f^ are within d of f, and of t^ within e of t, the areas differ by at most e V(f^) + d V(t) = d + e, V being the
    total variation: summation by parts. The d and e of all points hold together except with probability `error`, shared
    among the points' intervals (Bonferroni).
    """
    # A step of 2^-28 of rounding for a record is far below the noise.
    numbers = counts.reshape(2, CELLS) * float(norm_up())
    deviation, inverse = noise * float(norm_up()), inverse_coefficients(CELLS)
    sums = np.array([np.convolve(counts, inverse)[:CELLS] for counts in numbers])
    shared = error / (2 * (CELLS - 1))
    intervals = [[_share(row, cell, deviation, inverse, 1 - CONFIDENCE) for cell in range(CELLS - 1)] for row in sums]
    wide = [[_share(row, cell, deviation, inverse, shared) for cell in range(CELLS - 1)] for row in sums]
    points = tuple(
        RocPoint(threshold=SURE.least_in(cell), false_positives=false, true_positives=true)
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
