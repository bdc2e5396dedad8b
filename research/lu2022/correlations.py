"""Figure 2 and Finding 1: rank and linear correlations of Table V's printed columns, computed again.

The OARO stability follows from the shape of the data set alone (features, classes, records): it looks at no trained
model. The paper takes the nine sets whose test accuracy is above 0.5; with all eleven the correlation with leakage is
no longer significant at 5 %.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import scipy.stats

from dpserve.audit.reports import ReportTable
from research.lu2022 import printed
from research.lu2022.printed import Row

LEAST_TEST_ACCURACY = 0.5
"""Section 5.4.2's condition, on the network trained with the convexified loss."""

PANELS: dict[str, tuple[str, str, Callable[[Row], float], Callable[[Row], float]]] = {
    "2a": ("OARO stability", "accuracy gap", lambda row: row.oaro, lambda row: row.gaps[1]),
    "2b": ("OARO stability", "privacy leakage", lambda row: row.oaro, lambda row: row.privacy_leakage),
    "2c": ("privacy leakage", "accuracy gap", lambda row: row.privacy_leakage, lambda row: row.gaps[1]),
}
"""Each panel's two columns, by name and as a function of a row."""

COEFFICIENTS: dict[str, Callable[[Sequence[float], Sequence[float]], tuple[float, float]]] = {
    "Pearson": scipy.stats.pearsonr,
    "Spearman": scipy.stats.spearmanr,
    "Kendall": scipy.stats.kendalltau,
}


@dataclass(frozen=True)
class Correlation:
    """A coefficient of one panel. printed: the paper's coefficient and p-value; None where it prints none."""

    panel: str
    coefficient: str
    sets: int
    value: float
    p_value: float
    printed: tuple[float, float] | None

    @property
    def is_printed_to_the_digit(self) -> bool | None:
        """Whether both figures round to the printed ones; None where none are printed."""
        return None if self.printed is None else (round(self.value, 4), round(self.p_value, 4)) == self.printed


def correlations() -> tuple[Correlation, ...]:
    """Return all coefficients of the three panels: over the paper's nine sets, then over all eleven."""
    return (*_panel_correlations(LEAST_TEST_ACCURACY), *_panel_correlations(0.0))


def _panel_correlations(least_test_accuracy: float) -> Iterator[Correlation]:
    rows = [row for row in printed.ROWS.values() if row.convexified[1] > least_test_accuracy]
    for panel, (_, _, first, second) in PANELS.items():
        columns = [first(row) for row in rows], [second(row) for row in rows]
        for name, correlate in COEFFICIENTS.items():
            value, p_value = correlate(*columns)
            paper = printed.FIGURE_2[panel, name] if least_test_accuracy else None
            yield Correlation(panel, name, len(rows), float(value), float(p_value), paper)


def tables() -> tuple[ReportTable, ...]:
    """Return the points of Figure 2, and its correlations beside the printed ones."""
    names = ("data set", "OARO stability", "accuracy gap", "privacy leakage", "in the paper's nine")
    points = [
        (
            row.dataset,
            f"{row.oaro:.4f}",
            f"{row.gaps[1]:.4f}",
            f"{row.privacy_leakage:.4f}",
            "yes" if row.convexified[1] > LEAST_TEST_ACCURACY else "no",
        )
        for row in printed.ROWS.values()
    ]
    columns = ("sets", "panel", "coefficient", "value", "printed", "p-value", "p-value, printed", "same digits", "of")
    rows = [
        (
            str(one.sets),
            one.panel,
            one.coefficient,
            f"{one.value:.4f}",
            "" if one.printed is None else f"{one.printed[0]:.4f}",
            _p_value(one.p_value),
            "" if one.printed is None else f"{one.printed[1]:.4f}",
            {True: "yes", False: "no", None: ""}[one.is_printed_to_the_digit],
            " and ".join(PANELS[one.panel][:2]),
        )
        for one in correlations()
    ]
    return (
        ReportTable("Figure 2: its points, as Table V prints them", names, tuple(points)),
        ReportTable("Figure 2: its correlations", columns, tuple(rows), _NOTE),
    )


def _p_value(value: float) -> str:
    """Return it with four decimals, as the paper has it; where these are zeros, with one significant digit."""
    return f"{value:.4f}" if value == 0 or round(value, 4) else f"{value:.0e}"


_NOTE = (
    "The paper leaves out the sets with a test accuracy of at most 0.5, CIFAR-10 and CIFAR-100, and prints no figures "
    "with them. The OARO stability is a function of features, classes and records; no trained model enters it."
)
