"""A picture of an evaluation: calibration, ROC, and prediction sets, with intervals. All of it may be published."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.commands.console import picture
from dpserve.training.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpserve.training.evaluation import Evaluation
    from dpserve.training.roc import RocPoint

_SIDE = 4.2
"""Inches of a panel."""


def draw(path: Path, evaluation: "Evaluation") -> None:
    """Draw what the evaluation reports into a file, a panel for each part that has a picture.

    Raises ValueError where the file cannot be written.
    """
    panels = drawable(evaluation)
    with picture(path, _SIDE * len(panels), _SIDE) as drawn:
        for place, panel in enumerate(panels, start=1):
            axes = drawn.add_subplot(1, len(panels), place)
            axes.grid(alpha=0.3)
            panel(axes, evaluation)


def drawable(evaluation: "Evaluation") -> tuple[Callable[["Axes", "Evaluation"], None], ...]:
    """Return what draws each part that the evaluation reports."""
    sizes = [point.size for point in evaluation.coverage]
    return (
        *((_calibration,) if evaluation.calibration else ()),
        *((_roc,) if evaluation.roc is not None else ()),
        *((_coverage,) if evaluation.coverage else ()),
        *((_set_size,) if sizes and None not in sizes else ()),
    )


def _calibration(axes: "Axes", evaluation: "Evaluation") -> None:
    # Of a bin with few records or none the noise leaves nothing to see.
    bins = [bin_ for bin_ in evaluation.calibration if bin_.right.upper - bin_.right.lower < 1]
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    _with_intervals(axes, [(bin_.lower + bin_.upper) / 2 for bin_ in bins], [bin_.right for bin_ in bins])
    axes.set(xlabel="probability of the likeliest class", ylabel="share that is right", title="Calibration")
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _roc(axes: "Axes", evaluation: "Evaluation") -> None:
    assert evaluation.roc is not None
    points, area = evaluation.roc.points, evaluation.roc.area
    false, true = rising(points)
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    axes.plot(false, true)
    ends = [[getattr(point.true_positives, end) for point in by_threshold(points)] for end in ("lower", "upper")]
    axes.fill_between(false, ends[0], ends[1], alpha=0.2)
    axes.set(xlabel="false positives\n(the rising curve nearest to the noisy points)", ylabel="true positives")
    axes.set(xlim=(0, 1), ylim=(0, 1), title=f"ROC: area {area.lower:.3f} to {area.upper:.3f}")


def by_threshold(points: Sequence["RocPoint"]) -> list["RocPoint"]:
    """Return points of an ROC from the one where nothing is called positive to the one where everything is."""
    return sorted(points, key=lambda point: -point.threshold)


def rising(points: Sequence["RocPoint"]) -> tuple[Floats, Floats]:
    """Return the false and the true positives of the rising curve that is nearest to noisy points, by threshold.

    The true rates rise as the threshold falls, and noisy counts of them need not. The curve is isotonic regression,
    each rate's own, of what was released: it costs nothing more.
    """
    from scipy.optimize import isotonic_regression

    sorted_points = by_threshold(points)
    false = isotonic_regression([point.false_positives.estimate for point in sorted_points]).x
    true = isotonic_regression([point.true_positives.estimate for point in sorted_points]).x
    return np.clip(false, 0.0, 1.0), np.clip(true, 0.0, 1.0)


def _coverage(axes: "Axes", evaluation: "Evaluation") -> None:
    asked = [point.asked for point in evaluation.coverage]
    axes.plot([min(asked), 1], [min(asked), 1], color="grey", linestyle=":")
    _with_intervals(axes, asked, [point.reached for point in evaluation.coverage])
    axes.set(xlabel="coverage asked for", ylabel="coverage reached", title="Prediction sets")


def _set_size(axes: "Axes", evaluation: "Evaluation") -> None:
    sizes = [point.size for point in evaluation.coverage if point.size is not None]
    _with_intervals(axes, [point.asked for point in evaluation.coverage], sizes)
    axes.set(xlabel="coverage asked for", ylabel="mean number of classes", title="Size of prediction sets")


def _with_intervals(axes: "Axes", places: Sequence[float], intervals: Sequence[Interval]) -> None:
    estimates = np.array([interval.estimate for interval in intervals])
    # An estimate is drawn into its interval: noise may take it beyond what a share can be.
    lower, upper = (np.array([getattr(interval, end) for interval in intervals]) for end in ("lower", "upper"))
    middle = np.clip(estimates, lower, upper)
    axes.errorbar(places, middle, yerr=(middle - lower, upper - middle), fmt="o", capsize=3)
