"""`python -m research.comparison`: measure every option on the public sets; make the table and plots of the docs."""

from pathlib import Path
from typing import Annotated

import typer

from audit.pieces import ResultStore
from dpserve.commands.console import shares
from research.commands import program, run
from research.comparison import experiment, figures, tables
from research.comparison.cases import BENCHMARKS
from research.comparison.options import OPTIONS

app = program()

_EPSILONS = ",".join(f"{epsilon:g}" for epsilon in experiment.EPSILONS)
_USUAL = tuple(name for name in BENCHMARKS if name != "digits")
FIGURES, PAGE = "measured.csv", "mechanisms.md"


@app.command()
def compare(
    dataset: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(BENCHMARKS)}; repeatable. [default: all but digits]")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(OPTIONS)}; repeatable. [default: all]")
    ] = None,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the data sets' files are.")] = Path(),
    epsilons: Annotated[str, typer.Option(help="Separated by commas.")] = _EPSILONS,
    seeds: Annotated[int, typer.Option(min=1, help="Repeats, each with records and noise of its own.")] = (
        experiment.SEEDS
    ),
    pieces: Annotated[Path, typer.Option(help="Where finished pieces are kept.")] = Path("reproduction/pieces"),
    stored: Annotated[
        bool, typer.Option("--stored", help="Measure nothing: show what the finished pieces hold.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where images/ go; a mechanisms.md there gets its summary anew.")] = Path(
        "reproduction"
    ),
    table: Annotated[
        Path | None, typer.Option(help=f"The CSV file of every figure. [default: {FIGURES} in --out]")
    ] = None,
) -> None:
    """Accuracy against number of queries for every mechanism, on public sets, by public rules: docs/mechanisms.md.

    What the table holds of options that are not measured now stays in it.
    """
    try:
        asked = tuple(float(part) for part in epsilons.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"numbers separated by commas are expected, not {epsilons!r}") from None
    comparison = experiment.Comparison(tuple(dataset or _USUAL), tuple(option or OPTIONS), asked, seeds)
    store = ResultStore(pieces)
    if stored:
        cells = experiment.stored_cells(comparison, data_dir, store)
    else:
        with shares("comparison") as progress:
            cells = experiment.run(comparison, data_dir, store, progress)
    (out / "images").mkdir(parents=True, exist_ok=True)
    written = out / FIGURES if table is None else table
    older = tables.read_csv(written) if written.exists() else ()
    tables.write_csv(tables.renew_cells(older, cells), written)
    cells = tables.read_csv(written)
    described = out / PAGE
    if described.exists():
        described.write_text(tables.with_summary(described.read_text("utf-8"), cells), "utf-8")
    for name in comparison.datasets:
        figures.draw(cells, name, out / "images" / f"mechanisms-{name}.png")
    typer.echo(f"{len(cells)} cells measured. Written: {written} and plots in {out / 'images'}")


if __name__ == "__main__":
    run(app)
