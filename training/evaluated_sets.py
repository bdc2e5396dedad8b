"""Coverage and mean size of prediction sets on held-out records, from noisy counts."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.disclosure import Disclosed, Released
from dpserve.training.intervals import Interval, ratio_interval

LEVELS = (800, 900, 950, 990)
"""The coverages that are evaluated, in thousandths."""

CELLS = len(LEVELS) + 1
"""A record is counted in the cell of the first of LEVELS whose set holds its class, or in the last for none."""


class CoverageAt(Disclosed, BaseModel):
    """Prediction sets of one coverage. reached: the share of held-out records whose sets hold their class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked: Annotated[float, Released("evaluation")]
    reached: Annotated[Interval, Released("evaluation")]
    reached_by_class: Annotated[tuple[Interval, ...], Released("evaluation")] = ()
    """For the records of each class, where sets are by class."""
    size: Annotated[Interval | None, Released("evaluation")] = None
    """The mean number of classes in a set."""


def first_covered(probabilities: Floats, label: int, least: Floats) -> int:
    """Return the cell of a record. least: (LEVELS, C), the least probability of each class in a set; falling."""
    return int((least[:, label] > np.nan_to_num(probabilities[label], nan=0.0)).sum())


def size_term(probabilities: Floats, least: Floats, weight: int) -> Integers:
    """Return the sizes of a record's sets, (LEVELS,), whole, together at most `weight` long in L2.

    Each from the middle of [0, C] in units of half of C, times the weight over the root of their number, rounded
    towards zero.
    """
    sizes = (np.nan_to_num(probabilities, nan=0.0) >= least).sum(axis=1)
    each = math.isqrt(weight * weight // len(LEVELS))
    classes = len(probabilities)
    return np.array([math.trunc(each * (2 * int(size) - classes) / classes) for size in sizes], dtype=np.int64)


def coverages(
    counts: Floats,
    noise: float,
    sizes: Floats | None,
    sizes_noise: float,
    records: float,
    records_noise: float,
    classes: int,
) -> tuple[CoverageAt, ...]:
    """Return the figures. counts: (groups, CELLS), each with noise of this deviation; groups: one, or a class each.

    sizes: (LEVELS,), the noisy sums of `size_term` in units of its weight; None where sizes are not reported. records:
    their noisy number, of this noise.
    """
    figures = []
    for place, level in enumerate(LEVELS):
        by_class = tuple(_reached(row, place, noise) for row in counts) if len(counts) > 1 else ()
        size = None
        if sizes is not None:
            root = math.sqrt(len(LEVELS))
            ratio = ratio_interval(
                float(sizes[place]) * root, records, (sizes_noise * root) ** 2, records_noise**2, 0.0, (-1.0, 1.0)
            )
            size = Interval(
                **{
                    name: classes / 2 * (1 + value)
                    for name, value in ratio.model_dump().items()
                    if name != "standard_error"
                },
                standard_error=classes / 2 * ratio.standard_error,
            )
        together = _reached(counts.sum(axis=0), place, noise * math.sqrt(len(counts)))
        figures.append(CoverageAt(asked=level / 1000, reached=together, reached_by_class=by_class, size=size))
    return tuple(figures)


def _reached(row: Sequence[float] | Floats, place: int, noise: float) -> Interval:
    """Return the share of the counts in a cell or in one before it."""
    inside, total = float(sum(row[: place + 1])), float(sum(row))
    of_inside = (place + 1) * noise**2
    return ratio_interval(inside, total, of_inside, CELLS * noise**2, of_inside, (0.0, 1.0))
