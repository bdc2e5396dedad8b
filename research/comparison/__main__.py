"""`python -m research.comparison`: how good each kind of model is on each public set at each epsilon, beside rivals.

`measure` trains what a set of the CSV lacks, as `dpserve train` would by the public rules, and writes each figure as
soon as it is known. `table` prints what was measured: the tables of the README here.
`first-answers` says from how many answers on a pay-once model is better than a metered head.
"""

from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from dpserve.training.kinds.cases import Heads
from research.commands import program, run
from research.comparison import tables
from research.comparison.cases import SETS, case_of
from research.comparison.first_answers import first_answers
from research.comparison.options import OPTIONS, measured
from research.comparison.results import MEASURED, Cell, read_cells, write_cells

app = program()
app.command()(first_answers)


class Shown(StrEnum):
    """A table: of single cells, of every set at epsilon 1, of the rule beside the best by hand, of rivals, or of the
    rule beside both on tables that no rule has seen."""

    CELLS = "cells"
    SUMMARY = "summary"
    RULE = "rule"
    RIVALS = "rivals"
    UNSEEN = "unseen"


_EPSILONS = Annotated[str, typer.Option(help="Separated by commas, at delta = 1e-5.")]
_DATASETS = Annotated[list[str] | None, typer.Option(help="A set, as of the README's tables; repeatable.")]
_OPTIONS = Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(OPTIONS)}; repeatable.")]
_CSV = Annotated[Path, typer.Option(help="The CSV of all figures.")]


@app.command()
def measure(
    dataset: _DATASETS = None,
    option: _OPTIONS = None,
    epsilons: _EPSILONS = "1",
    seeds: Annotated[int, typer.Option(min=1, help="Repeats, each with noise of its own.")] = 5,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the data sets' files are.")] = Path(),
    python: Annotated[Path | None, typer.Option(help="The interpreter that has the rivals.")] = None,
    out: _CSV = MEASURED,
) -> None:
    """Train and ask; what the CSV holds already is not measured again."""
    cells = read_cells(out) if out.exists() else {}
    for name in dataset or ["digits"]:
        for seed in range(seeds):
            heads: Heads | None = None
            for chosen, epsilon in product(option or ["dpsgd"], map(float, epsilons.split(","))):
                known = [cell for cell in cells.values() if cell.place[:3] == (name, chosen, epsilon)]
                if known and all(len(cell.figures) > seed for cell in known):
                    continue
                heads = heads or Heads(case_of(name, seed, data_dir))
                for queries, figure in measured(heads, chosen, epsilon, python).items():
                    place = (name, chosen, epsilon, queries)
                    before = cells[place].figures[:seed] if place in cells else ()
                    cells[place] = Cell(*place, (*before, figure))
                write_cells(cells.values(), out)


@app.command()
def table(
    shown: Annotated[Shown, typer.Argument(help="Which one.")] = Shown.CELLS,
    dataset: _DATASETS = None,
    option: _OPTIONS = None,
    epsilons: _EPSILONS = "1",
    csv: _CSV = MEASURED,
) -> None:
    """Print a table in Markdown."""
    cells = read_cells(csv)
    match shown:
        case Shown.SUMMARY:
            lines = tables.summary(cells)
        case Shown.RULE:
            lines = tables.beside_best(cells)
        case Shown.RIVALS:
            lines = tables.beside_rivals(cells)
        case Shown.UNSEEN:
            lines = tables.unseen_tables(cells)
        case Shown.CELLS:
            wanted = tuple(map(float, epsilons.split(",")))
            lines = tables.of_cells(cells, dataset or list(SETS), option or list(OPTIONS), wanted)
    for line in lines:
        typer.echo(line)


if __name__ == "__main__":
    run(app)
