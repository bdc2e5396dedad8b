"""The comparison as CSV and as tables in Markdown. Tables are made from the CSV's cells and from nothing else."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from research.comparison.cases import BENCHMARKS
from research.comparison.experiment import SEEDS, Cell, at
from research.comparison.options import OPTIONS
from training.kinds.cases import Quality
from training.kinds.planned import QUERIES, UNLIMITED
from training.planning.options import DELTA, planned_options

COLUMNS = (*map(str, QUERIES), UNLIMITED)
_QUALITY = ("mean", "spread", "log_loss", "calibration_error", "seeds")
_HEADER = ("dataset", "option", "status", "epsilon", "delta", "queries", *_QUALITY, "figures")
_REFUSED = "refused"
NOT_MEASURED = "-"
START, END = "<!-- summary -->", "<!-- end of the summary -->"
"""Where a page takes the summary."""


def write_csv(cells: Iterable[Cell], path: Path) -> None:
    """Write one line for each cell, with accuracy/log loss/calibration error of every seed, as far as measured."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        for cell in sorted(cells, key=_order):
            figures = " ".join(map(_word, cell.figures))
            writer.writerow(
                (
                    cell.dataset,
                    cell.option,
                    OPTIONS[cell.option].status,
                    f"{cell.epsilon:g}",
                    f"{DELTA:g}",
                    cell.queries,
                    _number(cell.mean),
                    _number(cell.spread),
                    _number(cell.log_loss),
                    _number(cell.calibration_error),
                    len(cell.figures),
                    figures,
                )
            )


def read_csv(path: Path) -> tuple[Cell, ...]:
    """Read what `write_csv` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            Cell(
                row["dataset"],
                row["option"],
                float(row["epsilon"]),
                row["queries"],
                tuple(map(_read, row["figures"].split())),
            )
            for row in csv.DictReader(file)
        )


def renew_cells(older: Iterable[Cell], cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return all cells, and of two for one place the one of `cells`: what was not measured again stays."""
    places = {(cell.dataset, cell.option, cell.epsilon, cell.queries): cell for cell in (*older, *cells)}
    return tuple(places.values())


def summary_lines(cells: Iterable[Cell]) -> Iterator[dict[str, str]]:
    """Give what the planner shows of what can be trained: a line for each cell, without the figures.

    With six digits, so that what is rounded again rounds as the mean itself does.
    """
    for cell in sorted(cells, key=_order):
        if cell.option in planned_options():
            measured = {name: _number(getattr(cell, name), 6) for name in _QUALITY[:-1]}
            place = {"dataset": cell.dataset, "epsilon": f"{cell.epsilon:g}", "option": cell.option}
            yield place | {"queries": cell.queries} | measured | {"seeds": str(len(cell.figures))}


def summary(cells: Sequence[Cell]) -> str:
    """Every set at (1, DELTA): a line for each option, at 10 and at 1,000 queries where each answer is paid for."""
    datasets = [name for name in BENCHMARKS if any(cell.dataset == name for cell in cells)]
    lines = ["| option | " + " | ".join(datasets) + " |", "|---" * (1 + len(datasets)) + "|"]
    for name, option in OPTIONS.items():
        counts = ("10", "1000") if option.pays == "each answer" else (UNLIMITED,)
        words = [" / ".join(_mean(at(cells, dataset, name, 1.0, count)) for count in counts) for dataset in datasets]
        title = option.title + (" (unproven)" if option.status == "unproven" else "")
        lines.append(f"| {title} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def with_summary(text: str, cells: Sequence[Cell]) -> str:
    """Return a page of Markdown with the summary between its two marks. Raises ValueError where they are missing."""
    before, mark, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise ValueError(f"the page has no place for the summary, between {START} and {END}")
    return f"{before}{START}\n{summary(cells)}\n{END}{after}"


def _word(figure: Quality | None) -> str:
    if figure is None:
        return _REFUSED
    known = (figure.accuracy, figure.log_loss, figure.calibration_error)
    return "/".join(f"{each:.4f}" for each in known if each is not None)


def _read(word: str) -> Quality | None:
    return None if word == _REFUSED else Quality(*map(float, word.split("/")))


def _mean(cell: Cell | None) -> str:
    if cell is None:
        return NOT_MEASURED
    if cell.mean is None:
        return _REFUSED
    loss = "" if cell.queries != UNLIMITED or cell.log_loss is None else f", {cell.log_loss:.2f}"
    few = f" ({len(cell.figures)})" if len(cell.figures) < SEEDS else ""
    return f"{cell.mean:.3f}{loss}{few}"


def _number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _order(cell: Cell) -> tuple[int, int, float, int]:
    queries = COLUMNS.index(cell.queries) if cell.queries in COLUMNS else len(COLUMNS)
    return list(BENCHMARKS).index(cell.dataset), list(OPTIONS).index(cell.option), cell.epsilon, queries
