"""The pictures that are drawn from measurements: accuracy by epsilon on a public set."""

from pathlib import Path
from statistics import stdev

from matplotlib.figure import Figure

from dpserve.training.kinds.planned import UNLIMITED
from research.comparison.results import MEASURED, read_cells

DATASET, TITLE = "mnist-10k-hog", "MNIST, 10,000 images, 10 classes"
COMMONEST = 0.1135
"""The share of the commonest class among the rows asked."""
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SHOWN = (
    ("dpsgd", UNLIMITED, "paid for once, unlimited answers: DP-SGD"),
    ("per-query", "10", "each of 10 answers paid for"),
    ("per-query", "1000", "each of 1,000 answers paid for"),
)
"""Options, numbers of answers, and what they are called."""


def draw_accuracy(path: Path) -> None:
    """Draw accuracy by epsilon for a model that is paid for once and for answers that are paid for one by one."""
    known = read_cells(MEASURED)
    figure = Figure(figsize=(7.2, 3.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for option, queries, label in SHOWN:
        points = [
            (epsilon, cell.mean, stdev(each.accuracy for each in cell.known) if len(cell.known) > 1 else 0.0)
            for epsilon in EPSILONS
            if (cell := known.get((DATASET, option, epsilon, queries))) and cell.mean is not None
        ]
        epsilons, means, spreads = zip(*points, strict=True)
        axes.errorbar(epsilons, means, yerr=spreads, marker="o", capsize=2, label=label)
    axes.axhline(COMMONEST, color="grey", linestyle=":", label="the commonest class alone")
    axes.set(xscale="log", ylim=(0, 1.02), xlabel="epsilon at delta = 1e-5, of all answers together")
    axes.set_xticks(EPSILONS, [f"{each:g}" for each in EPSILONS])
    axes.minorticks_off()
    axes.set(ylabel="test accuracy", title=TITLE)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="center right")
    figure.savefig(path, metadata={"Software": None})
