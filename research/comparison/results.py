"""The one CSV of what was measured: a line for each set, option, epsilon and number of queries, with every seed."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dpserve.training.kinds.cases import Quality, mean_of

MEASURED = Path(__file__).with_name("measured.csv")
_HEADER = ("set", "option", "epsilon", "queries", "figures")
_REFUSED = "refused"

Place = tuple[str, str, float, str]
"""A set, an option, an epsilon, and a number of queries or `UNLIMITED`."""


@dataclass(frozen=True)
class Cell:
    """The quality of one option on one set at one epsilon and number of queries: one figure for each seed.

    A figure is None where the mechanism refuses.
    """

    dataset: str
    option: str
    epsilon: float
    queries: str
    figures: tuple[Quality | None, ...]

    @property
    def place(self) -> Place:
        """The set, the option, the epsilon and the number of queries."""
        return self.dataset, self.option, self.epsilon, self.queries

    @property
    def known(self) -> tuple[Quality, ...]:
        """The figures that there are."""
        return tuple(figure for figure in self.figures if figure is not None)

    @property
    def mean(self) -> float | None:
        """The accuracy, over the seeds; None where the mechanism refuses."""
        return fmean(each.accuracy for each in self.known) if self.known else None

    @property
    def log_loss(self) -> float | None:
        """Over the seeds; None where it was not measured."""
        return mean_of([each.log_loss for each in self.known])

    @property
    def reached(self) -> str:
        """Accuracy and log loss."""
        loss = "" if self.log_loss is None else f"/{self.log_loss:.3f}"
        return _REFUSED if self.mean is None else f"{self.mean:.3f}{loss}"


Cells = Mapping[Place, Cell]


def read_cells(path: Path) -> dict[Place, Cell]:
    """Read what `write_cells` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        cells = [
            Cell(
                row["set"],
                row["option"],
                float(row["epsilon"]),
                row["queries"],
                tuple(map(_read, row["figures"].split())),
            )
            for row in csv.DictReader(file)
        ]
    return {cell.place: cell for cell in cells}


def write_cells(cells: Iterable[Cell], path: Path) -> None:
    """Write one line for each cell, with accuracy/log loss/calibration error of every seed, as far as measured."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        for cell in cells:
            words = " ".join(map(_word, cell.figures))
            writer.writerow((cell.dataset, cell.option, f"{cell.epsilon:g}", cell.queries, words))


def _word(figure: Quality | None) -> str:
    if figure is None:
        return _REFUSED
    known = (figure.accuracy, figure.log_loss, figure.calibration_error)
    return "/".join(f"{each:.4f}" for each in known if each is not None)


def _read(word: str) -> Quality | None:
    return None if word == _REFUSED else Quality(*map(float, word.split("/")))
