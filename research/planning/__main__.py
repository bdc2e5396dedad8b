"""`python -m research.planning`: measure what can be planned on tables from packages, and what the planner loses.

`measure` trains every option on every table, as the planner's simulation does, and writes a line for each seed.
`summary` makes the planner's measurements of the tables that it may know. `regret` asks the planner about the tables
that it does not know, by their public numbers alone, and says how far what it took lies above the best option by hand.
`grid` measures what `--budget` chooses over sets, sizes and budgets, and says where log loss rises with the budget.
"""

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from accounting.budgets import Budget
from research.commands import program, run
from research.data.tables import ALL_SETS, HELD_OUT, KNOWN_SETS, Table, read
from research.planning import grid as grids
from research.planning import summaries
from research.planning.alike import ALIKE, alike_options, read_alike, write_alike
from research.planning.measurements import APART, FIGURES, MEASURED, done_already, read_lines
from research.planning.regrets import regrets
from training.errors import TrainingError
from training.kinds.cases import MOST_ASKED, Case, Heads, Quality
from training.kinds.planned import Trial
from training.planning.measured import MEASURED as PLANNERS
from training.planning.measured import SETS, SETS_FILE, read_sets
from training.planning.options import DELTA, option_named

app = program()

TRIED = (
    "dpsgd-quantiles",
    "dpsgd-even",
    "dpsgd-unit",
    "dpsgd",
    "class-sums-quantiles",
    "weights-quantiles",
)
FEW, SOME = 2_000, 10_000
SEEDS = (5, 3, 1)
"""Seeds of tables below FEW rows, below SOME, and of larger ones."""


def seeds_of(table: Table) -> int:
    """Return how many seeds a table is measured with: the more, the fewer rows it has."""
    rows = len(table.y) if table.most is None else table.most
    return SEEDS[0] if rows < FEW else SEEDS[1] if rows < SOME else SEEDS[2]


def case_of(name: str, table: Table, seed: int) -> Case:
    """Return the records that a seed trains on, and the fixed fifth of the rows that it asks about."""
    records, X, y = table.split(seed, held_back=False)
    asked = slice(0, MOST_ASKED)
    declared = records.declaration
    return Case(name, seed, records.X, records.y, X[asked], y[asked], len(table.classes), name, declared)


@app.command()
def measure(
    dataset: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(ALL_SETS)}; repeatable.")] = None,
    option: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(TRIED)}, or another; repeatable.")] = None,
    epsilons: Annotated[str, typer.Option(help="Separated by commas, at delta = 1e-5.")] = "1,4",
    seeds: Annotated[int | None, typer.Option(min=1, help="[default: 5, 3 or 1, by the rows]")] = None,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the packages are.")] = Path(),
    out: Annotated[Path, typer.Option(help="The CSV; what it holds already is not measured again.")] = MEASURED,
) -> None:
    """Train and ask, and write a line for every seed as soon as it is known."""
    done = done_already(out)
    for name in dataset or ALL_SETS:
        table = read(name, data_dir)
        for seed in range(seeds or seeds_of(table)):
            heads: Heads | None = None
            for chosen in option or TRIED:
                for epsilon in map(float, epsilons.split(",")):
                    key = (name, chosen, f"{epsilon:g}", str(seed))
                    if key in done:
                        continue
                    heads = heads or Heads(case_of(name, table, seed))
                    line = (*key, *_measured(heads, chosen, epsilon))
                    with out.open("a", newline="", encoding="utf-8") as file:
                        csv.writer(file, lineterminator="\n").writerow(line)


def _measured(heads: Heads, option: str, epsilon: float) -> Sequence[str]:
    trial = Trial(heads, Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit, f"{epsilon:g}", ())
    started = time.process_time()
    found: Quality | None
    try:
        (found,) = option_named(option).qualities(trial).values()
    except (ValueError, TrainingError):
        found = None
    seconds = f"{time.process_time() - started:.1f}"
    if found is None:
        return (*[""] * len(FIGURES), seconds)
    known = (getattr(found, name) for name in FIGURES)
    return (*("" if each is None else f"{each:.4f}" for each in known), seconds)


@app.command()
def summary(
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the packages are.")] = Path(),
    measured: Annotated[Path, typer.Option(help="What `measure` wrote.")] = MEASURED,
    out: Annotated[Path, typer.Option(help="The planner's measurements.")] = PLANNERS,
    sets: Annotated[Path, typer.Option(help="The planner's sets.")] = SETS_FILE,
    same: Annotated[Path, typer.Option(help="The options that are one on a table.")] = ALIKE,
) -> None:
    """Write the planner's files, of what was measured of the tables that it may know."""
    described, alike = {}, {}
    for name in ALL_SETS:
        table = read(name, data_dir)
        described[name], alike[name] = summaries.described(table), alike_options(table, TRIED)
    others = {name: each for name, each in SETS.items() if name not in ALL_SETS}
    summaries.write_sets(others | {name: described[name] for name in KNOWN_SETS}, sets)
    summaries.write_sets({name: described[name] for name in HELD_OUT}, APART)
    write_alike(alike, same)
    summaries.write_summary(read_lines(measured), read_alike(same), out)


@app.command()
def regret(
    measured: Annotated[Path, typer.Option(help="What `measure` wrote.")] = MEASURED,
    known: Annotated[bool, typer.Option("--known", help="Of the tables that the planner knows, instead.")] = False,
) -> None:
    """Print the planner's regret in log loss on tables that it does not know, and how often its ranges held."""
    sets = {name: SETS[name] for name in KNOWN_SETS} if known else read_sets(APART)
    found = regrets(read_lines(measured), sets, read_alike(ALIKE))
    typer.echo("| table (records, classes) | epsilon | taken | accuracy/log loss | quoted | best by hand | regret |")
    typer.echo("|---|---|---|---|---|---|---|")
    for each in found:
        quoted = "not predictable" if each.quoted is None else f"{each.quoted[0]:.2f} to {each.quoted[1]:.2f}"
        title = f"{each.table} ({sets[each.table].n:,}, {sets[each.table].classes})"
        best = f"{each.best} {each.best_log_loss:.3f}"
        reached = f"{each.accuracy:.3f}/{each.log_loss:.3f}"
        row = (title, f"{each.epsilon:g}", each.chosen, reached, quoted, best, f"{each.regret:.3f}")
        typer.echo("| " + " | ".join(row) + " |")
    by_hand = [each.regret for each in found]
    inside = [each.inside for each in found if each.inside is not None]
    typer.echo(
        f"\nMean regret {sum(by_hand) / len(by_hand):.4f}, largest {max(by_hand):.4f}, above .03: "
        f"{sum(each > 0.03 for each in by_hand)} of {len(by_hand)}. Ranges held {sum(inside)} of {len(inside)} times; "
        f"{len(found) - len(inside)} were not predictable."
    )


@app.command()
def grid(
    dataset: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(grids.SETS)}, or another.")] = None,
    taken: Annotated[list[str] | None, typer.Option(help=f"{grids.PLANNED} or {grids.CLASS_SUMS}; repeatable.")] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=0, help="How many; 0 prints what is known.")] = grids.SEEDS,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the packages are.")] = Path(),
    out: Annotated[Path, typer.Option(help="The CSV; what it holds already is not measured again.")] = grids.GRID,
) -> None:
    """Train what the planner takes at growing budgets, and print each step at which log loss rises."""
    sets = tuple(dataset or grids.SETS)
    extent = grids.Extent(
        sets, tuple(taken or (grids.PLANNED, grids.CLASS_SUMS)), seeds=tuple(range(first_seed, first_seed + seeds))
    )
    if extent.seeds:
        grids.measure(extent, data_dir, out)
    lines = grids.read_grid(out)
    found = grids.steps_of(lines)
    for line in (*grids.table_of(lines), "", *grids.words_of(found)):
        typer.echo(line)


if __name__ == "__main__":
    run(app)
