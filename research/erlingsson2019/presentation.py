"""A region of privacy, as a report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpserve.audit.reports import Picture, Report, ReportTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Point:
    """The results at one noise multiplier. lower, upper: epsilons at delta, by the name of attack or analysis.

    The lower ones hold together, so that the largest of them is a bound, too; each point's are its own. notes: further
    figures by name, as an accuracy. convicted: whether a claim was refuted with the confidence asked for; lower bounds
    shown have less.
    """

    noise_multiplier: float
    lower: Mapping[str, float]
    upper: Mapping[str, float]
    notes: Mapping[str, float]
    convicted: bool

    @property
    def best_lower(self) -> float:
        """The largest lower bound."""
        return max(self.lower.values())

    @property
    def best_upper(self) -> float:
        """The least upper bound."""
        return min(self.upper.values())


def region_report(title: str, points: Sequence[Point], delta: float, setting: Mapping[str, Any], *notes: str) -> Report:
    """Return the report of a region: bounds by noise multiplier, and a drawing. Raises ValueError for no points."""
    if not points:
        raise ValueError("a region needs at least one noise multiplier")
    convicted = [point.noise_multiplier for point in points if point.convicted]
    gap = max(point.best_lower / point.best_upper for point in points if point.best_upper > 0)

    def table(name: str, of: Callable[[Point], Mapping[str, float]]) -> ReportTable:
        names = tuple(dict.fromkeys(name for point in points for name in of(point)))
        rows = [(f"{point.noise_multiplier:g}", *(of(point).get(name) for name in names)) for point in points]
        return ReportTable.from_rows(name, ("noise multiplier", *names), rows)

    def draw(axes: "Axes") -> None:
        ordered = sorted(points, key=lambda point: point.noise_multiplier)
        noise = [point.noise_multiplier for point in ordered]
        lower = np.array([max(point.best_lower, 1e-3) for point in ordered])
        upper = np.array([max(point.best_upper, 1e-3) for point in ordered])
        for name in dict.fromkeys(name for point in ordered for name in point.upper):
            axes.plot(noise, [point.upper.get(name, np.nan) for point in ordered], "--", alpha=0.6, label=name)
        axes.plot(noise, upper, "o-", color="black", label="best upper bound")
        axes.plot(noise, lower, "s-", color="tab:red", label="best lower bound")
        axes.fill_between(noise, lower, upper, alpha=0.2, color="grey")
        axes.set(xscale="log", yscale="log")

    tables = [
        table(f"Lower bounds of epsilon at delta = {delta:g}", lambda point: point.lower),
        table(f"Upper bounds of epsilon at delta = {delta:g}", lambda point: point.upper),
    ]
    if any(point.notes for point in points):
        tables.append(table("Besides", lambda point: point.notes))
    labels = "noise multiplier", f"epsilon at delta = {delta:g}"
    return Report(
        title=title,
        finding=f"at noise multiplier {', '.join(f'{one:g}' for one in convicted)}"
        if convicted
        else f"the best lower bound reaches {gap:.0%} of the best upper bound at most",
        convicted=bool(convicted),
        content={"setting": dict(setting), "delta": delta, "points": [asdict(point) for point in points]},
        tables=tuple(tables),
        picture=Picture.with_axes(labels, draw, (6.4, 4.4)),
        notes=(*notes, "The true epsilon lies between the best lower and the best upper bound."),
    )
