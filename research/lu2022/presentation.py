"""Results beside the paper's figures: as values for machines, as CSV, as a plot and as text."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from dpserve.training.errors import extra
from dpserve.training.kinds.published import bounds
from research.lu2022 import printed
from research.lu2022.measures import leakage_bound
from research.lu2022.results import Accuracies, Curve, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Comparison:
    """One figure of ours beside the paper's. spread: the standard deviation over repeats; None for closed forms."""

    quantity: str
    ours: float
    spread: float | None
    printed: float | None

    @property
    def relative_error(self) -> float | None:
        """ours / printed - 1, where something is printed."""
        return None if self.printed is None or self.printed == 0 else self.ours / self.printed - 1

    @property
    def same_digits(self) -> bool | None:
        """Whether ours rounds to the printed figure: the paper gives four decimals, of Delta omega two digits."""
        return None if self.printed is None else round(self.ours, 4) == self.printed

    @property
    def spreads_off(self) -> float | None:
        """Distance of ours from the printed figure, in spreads; None where nothing is printed or spread."""
        if self.printed is None or not self.spread:
            return None
        return (self.ours - self.printed) / self.spread

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "quantity": self.quantity,
            "ours": self.ours,
            "spread": self.spread,
            "printed": self.printed,
            "relative_error": self.relative_error,
            "same_digits": self.same_digits,
            "spreads_off": self.spreads_off,
        }


def closed_form(row: printed.Row) -> tuple[Comparison, ...]:
    """Table VI's row and Table V's stability column, which need no data."""
    ours = bounds.claimed_sensitivities(row.topology, row.n, l2_regulariser=printed.L2_REGULARISER)
    return (
        Comparison("rho", ours.lipschitz, None, row.rho),
        Comparison("Delta omega", ours.weight, None, row.weight),
        Comparison("Delta z", ours.neuron, None, row.neuron),
        Comparison("Delta p", ours.probability, None, row.probability),
        Comparison("exp(2 Delta z) - 1", bounds.untruncated_probability(ours.neuron), None, row.untruncated),
        Comparison("OARO stability", ours.oaro, None, row.oaro),
    )


def measured(results: Results) -> tuple[Comparison, ...]:
    """Table V's row: training and test accuracy and their gap for each training loss."""
    row = results.plan.printed_row
    return tuple(
        comparison
        for accuracies in results.accuracies
        for comparison in _table_v(
            accuracies,
            *(
                (row.cross_entropy, row.gaps[0])
                if accuracies.objective == "cross-entropy"
                else (row.convexified, row.gaps[1])
            ),
        )
    )


def leakage(results: Results) -> tuple[Comparison, ...]:
    """Table V's last-but-one column: Priv_Leak of the network without noise. Empty where it was not attacked."""
    if not results.leakage:
        return ()
    paper = results.plan.printed_row.privacy_leakage
    return (Comparison("Priv_Leak", fmean(results.leakage), spread(results.leakage), paper),)


def _table_v(accuracies: Accuracies, theirs: tuple[float, float], gap: float) -> Iterator[Comparison]:
    gaps = [train - test for train, test in zip(accuracies.train, accuracies.test, strict=True)]
    figures = {"train": (accuracies.train, theirs[0]), "test": (accuracies.test, theirs[1])}
    figures["gap"] = (tuple(gaps), gap)
    for what, (ours, paper) in figures.items():
        yield Comparison(f"{accuracies.objective}: {what}", fmean(ours), spread(ours), paper)


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation over repeats, or None for a single one."""
    return stdev(values) if len(values) > 1 else None


def points(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The points of the Acc_Loss figure. Figures 3 to 13 print no numbers to stand beside them."""
    return [
        {
            "mechanism": curve.name,
            "status": curve.status,
            "epsilon": epsilon,
            "accuracy_loss": fmean(losses),
            "spread": spread(losses),
        }
        | _leakage_at(curve, epsilon)
        for curve in curves
        for epsilon, losses in sorted(curve.losses.items())
    ]


def _leakage_at(curve: Curve, epsilon: float) -> dict[str, Any]:
    leaked = curve.leakage.get(epsilon)
    return {} if leaked is None else {"privacy_leakage": fmean(leaked), "leakage_spread": spread(leaked)}


def as_dict(results: Results) -> dict[str, Any]:
    """Everything, for JSON."""
    plan = results.plan
    return {
        "dataset": plan.dataset,
        "source": results.source,
        "seed": plan.seed,
        "repeats": plan.repeats,
        "n": plan.records,
        "epochs": plan.epochs,
        "alpha": plan.risk_factor,
        "reading": plan.reading,
        "table_v": [comparison.as_dict() for comparison in (*measured(results), *leakage(results))],
        "table_vi": [comparison.as_dict() for comparison in closed_form(plan.printed_row)],
        "accuracy_loss": points(results.curves),
    }


def search_as_dict(best: float, found: Sequence[Accuracies]) -> dict[str, Any]:
    """The alpha search, for JSON."""
    searched = [
        {"alpha": a.alpha, "train": fmean(a.train), "test": fmean(a.test), "spread": [spread(a.train), spread(a.test)]}
        for a in found
    ]
    return {"closest_to_cross_entropy": best, "searched": searched}


def write_csv(results: Results, directory: Path) -> tuple[Path, Path]:
    """Write `DATASET-tables.csv` and `DATASET-accuracy-loss.csv`."""
    plan = results.plan
    directory.mkdir(parents=True, exist_ok=True)
    tables = directory / f"{plan.dataset}-tables.csv"
    figure = directory / f"{plan.dataset}-accuracy-loss.csv"
    comparisons = (*measured(results), *leakage(results), *closed_form(plan.printed_row))
    _write_rows(tables, [comparison.as_dict() for comparison in comparisons])
    _write_rows(figure, points(results.curves))
    return tables, figure


def _write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def write_plot(results: Results, path: Path) -> None:
    """The Acc_Loss figure as PNG, and beside it Priv_Leak's where it was attacked: mean and one spread.

    Raises MissingExtra without matplotlib.
    """
    with extra("plots", "the plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    panels = 2 if results.leakage else 1
    figure = Figure(figsize=(5 + 4.5 * panels, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    first, *second = figure.subplots(1, panels, squeeze=False)[0]
    _draw(first, [(curve, curve.losses) for curve in results.curves])
    first.set_ylabel("Acc_Loss (Eq. 31)")
    for axes in second:
        _draw(axes, [(curve, curve.leakage) for curve in results.curves])
        _draw_leakage_bounds(axes, results)
        axes.set_ylabel("Priv_Leak (Eq. 32)")
    for axes in (first, *second):
        axes.set_xlabel("epsilon of one release (as claimed where unproven; mu for Gaussian noise)", fontsize="small")
    figure.suptitle(f"{results.plan.dataset}: mean and one standard deviation")
    handles, labels = first.get_legend_handles_labels()
    for axes in second:
        more, named = axes.get_legend_handles_labels()
        fresh = [place for place, name in enumerate(named) if name not in labels]
        handles, labels = [*handles, *(more[p] for p in fresh)], [*labels, *(named[p] for p in fresh)]
    figure.legend(handles, labels, fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _draw(axes: "Axes", shown: Sequence[tuple[Curve, dict[float, tuple[float, ...]]]]) -> None:
    from matplotlib import colormaps

    axes.set_prop_cycle(color=colormaps["tab20"](range(20)))
    for curve, found in shown:
        if not found:
            continue
        epsilons = sorted(found)
        means = [fmean(found[epsilon]) for epsilon in epsilons]
        errors = [spread(found[epsilon]) or 0.0 for epsilon in epsilons]
        style = "--" if curve.status == "unproven" else "-"
        label = f"{curve.name} ({curve.status}, {len(found[epsilons[0]])} repeats)"
        axes.errorbar(epsilons, means, yerr=errors, linestyle=style, marker="o", markersize=4, capsize=2, label=label)
    axes.set_xscale("log")
    axes.grid(visible=True, alpha=0.3)


def _draw_leakage_bounds(axes: "Axes", results: Results) -> None:
    baseline = fmean(results.leakage)
    epsilons = sorted(results.plan.epsilons)
    drawn = [epsilons[0] * (epsilons[-1] / epsilons[0]) ** (step / 200) for step in range(201)]
    axes.plot(drawn, [leakage_bound(e, baseline) for e in drawn], color="grey", linestyle=":", label="e^epsilon - 1")
    axes.axhline(baseline, color="black", linewidth=1, label=f"without noise ({baseline:.3f})")


def number(value: float | None, digits: int = 4) -> str:
    """A figure as the paper prints it."""
    if value is None:
        return ""
    return f"{value:.{digits}f}" if math.isfinite(value) else str(value)
