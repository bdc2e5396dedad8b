"""The picture of a plan: accuracy by budget, of each option that was simulated."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpserve.accounting.budgets import Budget
from dpserve.commands.console import picture
from dpserve.training.errors import TrainingError
from dpserve.training.planning.options import option_named
from dpserve.training.planning.recommendation import Recommendation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT, _COLUMNS = 2.9, 2.5, 4
"""Inches of a panel, and how many panels lie side by side."""

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The budgets of a picture: the planned epsilon, times each."""


@dataclass(frozen=True)
class Point:
    """A plan at an epsilon, with what each option reaches there."""

    epsilon: float
    found: Recommendation


def points_about(budget: Budget, recommended: Callable[[int], Recommendation]) -> tuple[Point, ...]:
    """Return the plans at FACTORS times the budget's epsilon, without those at which nothing can be trained.

    recommended: plans for a budget in picorho.
    """
    found, planned = [], budget.epsilon_at(budget.limit)
    for epsilon in (planned * factor for factor in FACTORS):
        try:
            whole = Budget.from_epsilon_delta(epsilon, budget.delta, "gaussian").limit
            found.append(Point(epsilon, recommended(whole)))
        except (ValueError, TrainingError):  # too little for a release, or more than is computed
            continue
    return tuple(found)


def plot_options(path: Path, budget: Budget, chosen: str, names: Sequence[str], points: Sequence[Point]) -> None:
    """Draw each option's accuracy against epsilon, with its spread, in a panel of its own.

    chosen: the recommended option. names: of the options, in their order. Raises ValueError where there is nothing to
    draw or the file cannot be written.
    """
    curves = {name: curve for name in names if len(curve := _curve(name, points))}
    if not curves:
        raise ValueError("there is no accuracy to draw: these budgets pay for nothing")
    columns = min(len(curves), _COLUMNS)
    rows = math.ceil(len(curves) / columns)
    planned = budget.epsilon_at(budget.limit)
    with picture(path, _WIDTH * columns, _HEIGHT * rows) as drawn:
        for place, (name, curve) in enumerate(curves.items(), start=1):
            axes = drawn.add_subplot(rows, columns, place)
            _panel(axes, curve, planned)
            axes.set_title("\n".join(option_named(name).title.split(", ", 1)), fontsize="small")
            if name == chosen:
                axes.title.set_fontweight("bold")
        words = f"epsilon of the budget at delta = {budget.delta:g}; dashed: yours; grey: the commonest class"
        drawn.supxlabel(words, fontsize="small")
        drawn.supylabel("accuracy", fontsize="small")


def _curve(name: str, points: Sequence[Point]) -> np.ndarray:
    """Return rows of an option's epsilon, lowest, mean and highest accuracy, and the commonest class's (k, 5)."""
    rows = []
    for point in points:
        constant = point.found.constant
        for estimate in point.found.estimates:
            if estimate.option == name and estimate.mean is not None and constant is not None:
                spread = estimate.spread or 0.0
                rows.append(
                    (point.epsilon, estimate.mean - spread, estimate.mean, estimate.mean + spread, constant.accuracy)
                )
    return np.array(rows)


def _panel(axes: "Axes", curve: np.ndarray, planned: float) -> None:
    epsilon, lowest, middle, highest, commonest = curve.T
    axes.plot(epsilon, commonest, color="grey", linewidth=1)
    axes.fill_between(epsilon, lowest, highest, alpha=0.3)
    axes.plot(epsilon, middle, marker="o", markersize=3)
    axes.axvline(planned, color="black", linestyle="--", linewidth=0.8)
    axes.set(xscale="log", ylim=(0, 1.02), xlim=(planned * FACTORS[0] / 1.2, planned * FACTORS[-1] * 1.2))
    ticks = [planned * factor for factor in FACTORS]
    axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.3)
