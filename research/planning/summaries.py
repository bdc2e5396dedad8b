"""The planner's files: what was measured of the tables that it may know, and of the sets of `research.comparison`."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from research.comparison import tables
from research.data.tables import KNOWN_SETS, Table
from research.planning.alike import Alike
from research.planning.measurements import Line
from training.kinds.planned import UNLIMITED
from training.planning.measured import SETS, PublicSet

COMPARED = Path(tables.__file__).with_name("measured.csv")
_SETS = ("dataset", "title", "n", "classes", "commonest", "entropy", "modality", "table")
_PLACE = ("dataset", "epsilon", "option", "queries")
_FIGURES = ("mean", "spread", "log_loss", "calibration_error", "undecided", "set_size", "seeds")


@dataclass(frozen=True)
class Cell:
    """All seeds of an option on a table at an epsilon."""

    lines: Sequence[Line]

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure, or None where it is not known for every seed."""
        values = [value for line in self.lines if (value := line.figures[name]) is not None]
        return fmean(values) if values and len(values) == len(self.lines) else None

    @property
    def spread(self) -> float | None:
        """The standard deviation of the accuracy."""
        values = [value for line in self.lines if (value := line.figures["accuracy"]) is not None]
        return stdev(values) if len(values) > 1 else None


def cells_of(lines: Iterable[Line], alike: Alike) -> dict[tuple[str, str, str], Cell]:
    """Return the cells by table, option and epsilon, without those that could not be had.

    An option has the lines of all options that are the same on the table.
    """
    found: dict[tuple[str, str, str], list[Line]] = {}
    keys = set()
    for line in lines:
        if line.figures["log_loss"] is not None:
            keys.add((line.table, line.option, line.epsilon))
            found.setdefault((line.table, _first(line.table, line.option, alike), line.epsilon), []).append(line)
    return {
        (name, option, epsilon): Cell(found[name, _first(name, option, alike), epsilon])
        for name, option, epsilon in keys
    }


def _first(table: str, option: str, alike: Alike) -> str:
    return alike.get((table, option), option)


def described(table: Table) -> PublicSet:
    """Return what the planner knows of a table: by the fixed split, whose held-out rows are asked about."""
    records, _, asked = table.split(0, held_back=False)
    shares = np.bincount(records.y, minlength=len(table.classes)) / len(records)
    given = np.maximum(shares[asked], 1 / len(records))
    commonest = float((asked == shares.argmax()).mean())
    title = f"{table.name}, {len(records):,} records, {len(table.classes)} classes"
    entropy = float(-np.log(given).mean())
    return PublicSet(title, len(records), len(table.classes), commonest, entropy, "table", table.name)


def write_sets(sets: Mapping[str, PublicSet], path: Path) -> None:
    """Write sets, a line for each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_SETS)
        for name, each in sets.items():
            chances = (f"{each.commonest:.4f}", f"{each.entropy:.4f}")
            writer.writerow((name, each.title, each.n, each.classes, *chances, each.modality or "", each.table))


def write_summary(lines: Iterable[Line], alike: Alike, path: Path, compared: Path = COMPARED) -> None:
    """Write the planner's measurements, of known tables and parts alone."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, (*_PLACE, *_FIGURES), lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(row for row in tables.summary_lines(tables.read_csv(compared)) if row["dataset"] in SETS)
        writer.writerows(_table_lines((line for line in lines if line.table in KNOWN_SETS), alike))


def _table_lines(lines: Iterable[Line], alike: Alike) -> Iterator[dict[str, str]]:
    cells = cells_of(lines, alike)
    order = KNOWN_SETS
    for (table, option, epsilon), cell in sorted(
        cells.items(), key=lambda each: (order.index(each[0][0]), *each[0][1:])
    ):
        figures = {
            "mean": cell.mean("accuracy"),
            "spread": cell.spread,
            "log_loss": cell.mean("log_loss"),
            "calibration_error": cell.mean("calibration_error"),
            "undecided": cell.mean("undecided"),
            "set_size": cell.mean("set_size"),
        }
        place = {"dataset": table, "epsilon": epsilon, "option": option, "queries": UNLIMITED}
        written = {name: "" if value is None else f"{value:.4f}" for name, value in figures.items()}
        yield place | written | {"seeds": str(len(cell.lines))}
