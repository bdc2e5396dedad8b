"""The measured lines: one for each table, option, epsilon and seed."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MEASURED = Path(__file__).with_name("measured.csv")
APART = Path(__file__).with_name("held_out.csv")
"""The tables that the planner does not know, a line for each."""
_KEY = ("set", "option", "epsilon", "seed")
FIGURES = ("accuracy", "log_loss", "calibration_error", "interval", "undecided", "set_size")
HEADER = (*_KEY, *FIGURES, "cpu_seconds")


@dataclass(frozen=True)
class Line:
    """An option's figures on a table for one seed. figures: by name; None for one that is not known."""

    table: str
    option: str
    epsilon: str
    seed: int
    figures: Mapping[str, float | None]


def read_lines(path: Path) -> tuple[Line, ...]:
    """Read what was measured."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            Line(
                row["set"],
                row["option"],
                row["epsilon"],
                int(row["seed"]),
                {name: float(row[name]) if row[name] else None for name in FIGURES},
            )
            for row in csv.DictReader(file)
        )


def done_already(path: Path) -> set[tuple[str, ...]]:
    """Return the keys of the lines that a file has; write its header where it is not there."""
    if not path.exists():
        path.write_text(",".join(HEADER) + "\n", "utf-8")
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[name] for name in _KEY) for row in csv.DictReader(file)}
