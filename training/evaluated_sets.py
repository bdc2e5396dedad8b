"""Coverage and mean size of prediction sets on held-out records, from noisy counts."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import ConfigDict

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.disclosure import DisclosedModel, Released
from dpserve.training.intervals import CONFIDENCE, Interval, ratio_interval

MOST_CLASSES_APART = 10
"""Up to so many classes records are counted by class even where sets are for all: sums over classes have more noise."""

LEVELS = (800, 900, 950, 990)
"""The coverages that are evaluated, in thousandths."""

CELLS = len(LEVELS) + 1
"""A record is counted in the cell of the first of LEVELS whose set holds its class, or in the last for none."""


class CoverageAt(DisclosedModel):
    """Prediction sets of one coverage. reached: the share of held-out records whose sets hold their class."""

    model_config = ConfigDict(extra="forbid")

    asked: Annotated[float, Released("evaluation")]
    reached: Annotated[Interval, Released("evaluation")]
    reached_by_class: Annotated[tuple[Interval, ...], Released("evaluation")] = ()
    """For the records of each class, where they are counted by class: `groups_of`."""
    worst_class: Annotated[Interval | None, Released("evaluation")] = None
    """The least of all classes, whichever has it: its interval holds that with the confidence of all others."""
    size: Annotated[Interval | None, Released("evaluation")] = None
    """The mean number of classes in a set."""


def groups_of(classes: int, by: str | None) -> int:
    """Return into how many groups records are counted: a class each, or one. by: how the model's sets count."""
    return classes if by == "class" or classes <= MOST_CLASSES_APART else 1


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
        worst, size = None, None
        if by_class:
            worst = _least([_reached(row, place, noise, (1 - CONFIDENCE) / len(counts)) for row in counts])
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
        figures.append(
            CoverageAt(asked=level / 1000, reached=together, reached_by_class=by_class, worst_class=worst, size=size)
        )
    return tuple(figures)


def _least(shares: Sequence[Interval]) -> Interval:
    """Return the least of some shares, each interval of which misses its share with chance (1 - CONFIDENCE)/number.

    So all hold at once with CONFIDENCE (Bonferroni), and then the least share lies between the least of the lower ends
    and the least of the upper ones. The estimate is the least one, which noise draws below the true least.
    """
    least = min(shares, key=lambda share: share.estimate)
    ends = {"lower": min(share.lower for share in shares), "upper": min(share.upper for share in shares)}
    return least.model_copy(update=ends | {"estimate": min(least.estimate, ends["upper"])})


def _reached(row: Sequence[float] | Floats, place: int, noise: float, error: float = 1 - CONFIDENCE) -> Interval:
    """Return the share of the counts in a cell or in one before it; the interval misses it with chance `error`."""
    inside, total = float(sum(row[: place + 1])), float(sum(row))
    of_inside = (place + 1) * noise**2
    return ratio_interval(inside, total, of_inside, CELLS * noise**2, of_inside, (0.0, 1.0), error)
