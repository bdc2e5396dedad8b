"""Accuracy against number of queries, one picture for each data set. matplotlib is the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from research.comparison.cases import BENCHMARKS
from research.comparison.experiment import Cell, at
from research.comparison.options import OPTIONS
from training.errors import extra
from training.kinds.planned import QUERIES
from training.planning.options import DELTA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = (1.0, 4.0)
"""The epsilons of the two panels."""

_STYLES = {"proven": "-", "unproven": "--", "not private": ":"}


def draw(cells: Sequence[Cell], dataset: str, path: Path) -> None:
    """Draw a data set's measured options into a PNG. Raises MissingExtra without matplotlib."""
    with extra("plots", "the plot"):
        from matplotlib import colormaps
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(9.6, 3.8), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(SHOWN), sharey=True)
    for axes, epsilon in zip(panels, SHOWN, strict=True):
        axes.set_prop_cycle(color=colormaps["tab20"](range(20)))
        _draw_panel(axes, cells, dataset, epsilon)
    panels[0].set_ylabel("test accuracy")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize="small", loc="outside right upper")
    figure.suptitle(BENCHMARKS[dataset].title, fontsize="medium")
    figure.savefig(path, metadata={"Software": None})


def _draw_panel(axes: "Axes", cells: Sequence[Cell], dataset: str, epsilon: float) -> None:
    for name, option in OPTIONS.items():
        found = [(count, at(cells, dataset, name, epsilon, str(count))) for count in QUERIES]
        points = [(count, cell.mean, cell.spread or 0.0) for count, cell in found if cell and cell.mean is not None]
        # A colour is taken whether there are points or not, so that an option looks alike in every picture.
        counts, means, spreads = zip(*points, strict=True) if points else ((), (), ())
        axes.errorbar(
            counts,
            means,
            yerr=spreads,
            linestyle=_STYLES[option.status],
            marker="o" if option.pays == "each answer" else None,
            markersize=3,
            capsize=2,
            linewidth=1.2,
            label=option.title if points else None,
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_xlabel("queries that the budget pays for")
    axes.set_title(f"epsilon = {epsilon:g}, delta = {DELTA:g}", fontsize="small")
    axes.grid(visible=True, alpha=0.3)
