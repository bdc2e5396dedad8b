"""`python -m research.rivals`: the planner's choice beside DP-EBM, diffprivlib and Opacus under the same budget.

`measure` trains all of them on the same records, told the same bounds, levels and classes, and asks about the same
rows. The rivals run in an interpreter of their own (`requirements.txt`). `table` prints what was measured.
"""

from pathlib import Path
from typing import Annotated

import typer

from research.commands import program, run
from research.rivals import experiment

app = program()


@app.command()
def measure(
    python: Annotated[Path, typer.Option(help="The interpreter that has the rivals.")],
    dataset: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(experiment.SETS)}, or another.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="[default: 5 below 6,000 rows, else 3]")] = None,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the packages are.")] = Path(),
    out: Annotated[
        Path, typer.Option(help="The CSV; what it holds already is not measured again.")
    ] = experiment.MEASURED,
) -> None:
    """Train and ask, write a line for each model as soon as it is known, and print the table."""
    experiment.measure(tuple(dataset or experiment.SETS), data_dir, python, out, seeds)
    table(out)


@app.command()
def table(
    measured: Annotated[Path, typer.Option(help="What `measure` wrote.")] = experiment.MEASURED,
) -> None:
    """Print accuracy and log loss of each, the means over seeds; the least log loss of a line is bold."""
    typer.echo(f"| set (records, seeds) | epsilon | {' | '.join(experiment.TRAINED)} |")
    typer.echo("|---" * (2 + len(experiment.TRAINED)) + "|")
    found = experiment.reached(experiment.read_lines(measured))
    first = 0
    for (name, epsilon), here in found.items():
        least = min(here, key=lambda trained: here[trained].log_loss)
        first += least == experiment.OURS
        cells = []
        for trained in experiment.TRAINED:
            if trained not in here:
                cells.append("not offered" if trained == "dp-ebm" else "")
                continue
            words = f"{here[trained].accuracy:.3f}/{here[trained].log_loss:.3f}"
            cells.append(f"**{words}**" if trained == least else words)
        any_of = next(iter(here.values()))
        typer.echo(f"| {name} ({any_of.n:,}, {any_of.seeds}) | {epsilon:g} | {' | '.join(cells)} |")
    typer.echo(f"\ndpserve has the least log loss in {first} of {len(found)} lines.")


if __name__ == "__main__":
    run(app)
