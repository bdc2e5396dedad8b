"""Plots of plans and of explanations.

matplotlib is the optional extra `plots`, imported when a plot is drawn and not before.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accounting.analyses import ALL, side_by_side
from accounting.budgets import Accepts, Budget
from accounting.losses import Cost
from accounting.planner import MECHANISMS, Plan, PublicSample, account_of, accuracy_by_queries

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 41
_STEPS = 25
_MOST_QUERIES = 1_000_000


def plot_accuracy(path: Path, budgets: Mapping[Accepts, Budget], sample: PublicSample, plan: Plan) -> None:
    """Draw the expected accuracy of every mechanism against the number of queries that the budget pays for.

    Raises ValueError where the file cannot be written.
    """
    with _figure(path) as axes:
        draw_accuracy(axes, budgets, sample, plan)


def plot_analyses(path: Path, releases: Mapping[Cost, int], delta: float) -> None:
    """Draw the epsilon of every analysis as the releases are made, in even proportion, from few to all of them.

    Raises ValueError where the file cannot be written.
    """
    shares = np.geomspace(1 / max(1, *releases.values(), 1), 1, _STEPS)
    counts = [{cost: max(1, round(times * share)) for cost, times in releases.items()} for share in shares]
    with _figure(path) as axes:
        totals = [sum(made.values()) for made in counts]
        found = [side_by_side(made, delta) for made in counts]
        # zCDP and RDP often agree: a dashed line lets the other be seen.
        for name in ALL:
            # None, where an analysis does not apply, becomes a gap.
            axes.plot(
                totals,
                np.array([one[name].epsilon for one in found], dtype=np.float64),
                "--" if name == "rdp" else "-",
                label=name,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("releases")
        axes.set_ylabel(f"epsilon at delta = {delta:g}")
        axes.set_title("losses of one release: " + " and ".join(map(str, releases)), fontsize="medium")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")


@contextmanager
def _figure(path: Path) -> Iterator["Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=100, layout="constrained")
    yield figure.add_subplot()
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
