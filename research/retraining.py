"""`python -m research.retraining`: records that come by month, and ways to follow them with one budget for each month.

A public set is split into months of equal size, by a fixed draw, and every month's records have the same budget. Rows
held out are asked after each month. The ways:

- `all`: DP-SGD trained again each month on all records so far. The first month's are in every model: each costs the
  budget over the number of months.
- `window`: the same on the last months alone, as many as `--window`: each costs the budget over that.
- `alone`: DP-SGD on the new month alone: it costs the new month's whole budget.

In all of them a record loses its budget and no more. Figures are the mean accuracy over seeds.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import typer

from dpserve.accounting.arrays import Integers
from dpserve.accounting.budgets import Budget
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.features.maps import FeatureMap
from dpserve.training.fitting.network import Network
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.cases import Case, Heads
from dpserve.training.kinds.dpsgd.choices import choices_for
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.planning.options import DELTA
from research.commands import program, run
from research.comparison.cases import BENCHMARKS, Drawn

app = program()

WAYS = ("all", "window", "alone")


@app.command()
def compare(
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(BENCHMARKS)}.")] = "adult-bins",
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the data set's files are.")] = Path(),
    epsilons: Annotated[str, typer.Option(help="A month's budgets, separated by commas, at delta = 1e-5.")] = "1,4",
    months: Annotated[int, typer.Option(min=2)] = 12,
    window: Annotated[int, typer.Option(min=1, help="The months that `window` trains on.")] = 3,
    seeds: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Print a table for each budget: a line for each month, a column for each way."""
    drawn = Drawn.read(dataset, data_dir)
    for epsilon in map(float, epsilons.split(",")):
        whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
        figures = [followed(drawn.case(seed), whole, months, window) for seed in range(seeds)]
        constant = fmean(drawn.case(seed).constant.accuracy for seed in range(seeds))
        typer.echo(
            f"{dataset}, epsilon {epsilon:g} for a month's records, {seeds} seeds; "
            f"the constant predictor: {constant:.3f}"
        )
        typer.echo("  ".join(("month", *(f"{way:>7}" for way in WAYS))))
        for month in range(months):
            means = (fmean(each[way][month] for each in figures) for way in WAYS)
            typer.echo("  ".join((f"{month + 1:>5}", *(f"{mean:7.3f}" for mean in means))))


def followed(case: Case, whole: int, months: int, window: int) -> Mapping[str, list[float]]:
    """Return the accuracy of each way after each month. whole: a month's budget, in picorho."""
    parts = split(len(case.y), months, case.seed)
    feature_map = Heads(case).feature_map("even")
    return {
        way: [case.accuracy(model.values(case.asked)) for model in models]
        for way, models in ways(case, parts, feature_map, whole, window).items()
    }


def split(n: int, months: int, seed: int) -> list[Integers]:
    """Return the rows of each month: n rows in a fixed order, in parts whose sizes differ by one at most."""
    order = np.random.default_rng((seed, 12)).permutation(n)
    return [np.sort(part) for part in np.array_split(order, months)]


def ways(
    case: Case, parts: list[Integers], feature_map: FeatureMap, whole: int, window: int
) -> Mapping[str, Iterator[Any]]:
    """Return the models of each way, month after month."""
    months = len(parts)

    def together(first: int, last: int) -> Records:
        return taken(case, np.concatenate(parts[max(0, first) : last + 1]))

    def again(width: int) -> Iterator[Any]:
        for month in range(months):
            words = SeededRandomness(case.seed, ("again", str(width), str(month)))
            yield descended(together(month - width + 1, month), feature_map, whole // width, words)

    def alone() -> Iterator[Any]:
        for month in range(months):
            words = SeededRandomness(case.seed, ("alone", str(month)))
            yield descended(together(month, month), feature_map, whole, words)

    return {"all": again(months), "window": again(window), "alone": alone()}


def descended(records: Records, feature_map: FeatureMap, price: int, words: Any) -> Any:
    """Return a model of DP-SGD, by the rules that `train` has. price: in picorho."""
    n = len(records)
    size = Network((feature_map.dimension, len(records.declaration.classes))).size
    choices = choices_for(n, mu_for(price), size)
    recipe = DpSgdRecipe("month", feature_map, choices, price)
    return train_dpsgd(records, recipe, "months", words)


def taken(case: Case, rows: Integers) -> Records:
    """Return some of a case's records."""
    declaration = case.records.declaration
    return Records(case.X[rows], case.y[rows], declaration, (case.split.encode(),))


if __name__ == "__main__":
    run(app)
