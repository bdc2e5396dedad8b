"""Plots of plans. matplotlib is the optional extra `plots`, imported when a plot is drawn and not before."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accounting.budgets import Accepts, Budget
from accounting.planner import MECHANISMS, Plan, PublicSample, account_of, accuracy_by_queries

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 41
_MOST_QUERIES = 1_000_000


def plot_accuracy(path: Path, budgets: Mapping[Accepts, Budget], sample: PublicSample, plan: Plan) -> None:
    """Draw the expected accuracy of every mechanism against the number of queries that the budget pays for.

    Raises ValueError where matplotlib is missing or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("plots need matplotlib: pip install 'dpserve[plots]'") from error
    figure = Figure(figsize=(6.4, 4.0), dpi=100, layout="constrained")
    draw_accuracy(figure.add_subplot(), budgets, sample, plan)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot write the plot {path}: {error}") from error


def draw_accuracy(axes: "Axes", budgets: Mapping[Accepts, Budget], sample: PublicSample, plan: Plan) -> None:
    """Draw on these axes."""
    queries = np.unique(np.geomspace(1, _MOST_QUERIES, _POINTS).astype(np.int64))
    for mechanism in MECHANISMS:
        budget = budgets.get(account_of(mechanism))
        if budget is not None:
            axes.plot(queries, accuracy_by_queries(mechanism, budget, sample, queries), label=mechanism)
    if plan.noiseless_accuracy is not None:
        axes.axhline(plan.noiseless_accuracy, color="grey", linestyle=":", label="without noise")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("queries that the budget pays for")
    axes.set_ylabel("expected accuracy")
    epsilon = plan.budgets[0].epsilon
    axes.set_title(f"epsilon = {epsilon:.3g} at delta = {plan.delta:g}", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
