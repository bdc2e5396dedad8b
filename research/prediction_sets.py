"""`python -m research.prediction_sets`: coverage and size of prediction sets beside ordinary conformal prediction.

`measure` writes a line for each split, as CSV. A split draws the records to train on and the rows to ask about anew,
holds records back, trains on the others, and releases prediction sets, as `dpserve.training.fit` does. Beside each
stands ordinary split conformal prediction on the same held-back records, which has no privacy, and the accuracy of a
model that all records trained. `table` prints means over splits: coverage, over splits, has at least the mean that was
asked for, so that a mean below it by more than `_CHANCE` of its own deviations would be a fault.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import typer

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.budgets import Budget
from dpserve.audit.reports import ReportTable
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.training.fit import Request, fit
from dpserve.training.holding_back import held_of, own_probabilities
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_named
from dpserve.training.pay_once.model import ReleasedModel
from dpserve.training.pay_once.prediction_sets import counts_of, one_in, record_parts, release_sets
from dpserve.training.planning.options import DELTA
from research.commands import program, run
from research.data import location, mnist
from research.data.labelled import LabelledSet
from research.data.tables import TABLES, read
from research.printing import print_tables

app = program()

LEVELS = (500, 800, 900, 950, 990)
KEY = ("set", "kind", "n", "epsilon", "split")
HEADER = (
    *KEY,
    "asked",
    "reached",
    "ordinary_reached",
    "by_class_least_reached",
    "size",
    "ordinary_size",
    "accuracy",
    "accuracy_of_all",
)
_MOST_ASKED = 10_000
_CHANCE = 4.8
"""Deviations of a normal law, below which it is with a probability of 8e-7."""

BENCHMARKS: dict[str, Callable[[Path], LabelledSet]] = {"mnist": mnist.read, "location": location.read}
"""Sets of numbers from 0 to 1."""

NAMES = (*TABLES, *BENCHMARKS)


@app.command()
def measure(
    dataset: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(NAMES)}; repeatable.")] = None,
    kinds: Annotated[str, typer.Option(help="Names of pay-once models, separated by commas.")] = "class-sums",
    records: Annotated[str, typer.Option(help="Numbers of records, separated by commas.")] = "500,2000,8000",
    epsilons: Annotated[str, typer.Option(help="Separated by commas, at delta = 1e-5.")] = "0.5,1,4",
    splits: Annotated[int, typer.Option(min=1)] = 20,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the packages are.")] = Path(),
    out: Annotated[Path, typer.Option(help="The CSV; what it holds already is not measured again.")] = Path(
        "build/prediction_sets.csv"
    ),
) -> None:
    """Train, hold back and ask, and write the lines of every split as soon as they are known."""
    done = set()
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            done = {tuple(row[name] for name in KEY) for row in csv.DictReader(file)}
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(",".join(HEADER) + "\n", "utf-8")
    for name in dataset or ("letter", "magic"):
        X, y, declaration = _read(name, data_dir)
        for kind, n, epsilon, split in product(
            kinds.split(","), map(int, records.split(",")), map(float, epsilons.split(",")), range(splits)
        ):
            key = (name, kind, str(n), f"{epsilon:g}", str(split))
            if key in done or n >= len(y):
                continue
            order = np.random.default_rng(split).permutation(len(y))
            rows, asked = order[:n], order[n : n + _MOST_ASKED]
            source = tuple(row.to_bytes(8, "little") for row in rows.tolist())
            private = Records(X[rows], y[rows], declaration, source)
            with out.open("a", newline="", encoding="utf-8") as file:
                lines = _measured(private, X[asked], y[asked], kind, epsilon)
                csv.writer(file, lineterminator="\n").writerows([*key, *line] for line in lines)


@app.command()
def table(measured: Annotated[Path, typer.Argument(help="The CSV that `measure` wrote.")]) -> None:
    """Print coverage, set size and accuracy: means over splits."""
    lines = pd.read_csv(measured)
    rows, below = [], []
    for (name, kind, n, epsilon, asked), part in lines.groupby(["set", "kind", "n", "epsilon", "asked"]):
        reached, lost = part["reached"], 100 * (part["accuracy_of_all"] - part["accuracy"])
        deviation = reached.std() / len(part) ** 0.5
        if reached.mean() + _CHANCE * deviation < asked:
            below.append(f"{name}, {kind}, {n} records, epsilon {epsilon:g}, {asked:g}: {reached.mean():.4f}")
        rows.append(
            (
                f"{name}, {kind}",
                str(n),
                f"{epsilon:g}",
                f"{asked:g}",
                str(len(part)),
                f"{reached.mean():.3f}",
                f"{part['ordinary_reached'].mean():.3f}",
                f"{part['size'].mean():.2f}",
                f"{part['ordinary_size'].mean():.2f}",
                f"{part['accuracy_of_all'].mean():.3f}",
                f"{lost.mean():+.2f} +- {lost.std() / len(part) ** 0.5:.2f}",
                f"{100 * part['accuracy_of_all'].std():.2f}",
            )
        )
    columns = (
        "set, kind",
        "records",
        "epsilon",
        "asked",
        "splits",
        "reached",
        "ordinary",
        "size",
        "ordinary size",
        "accuracy of all",
        "lost, %",
        "a split's spread, %",
    )
    fault = f"below what was asked by more than chance: {'; '.join(below) or 'none'}"
    print_tables([ReportTable("Prediction sets", columns, tuple(rows))], after=[fault])


def _read(name: str, folder: Path) -> tuple[Floats, Integers, Declaration]:
    """Return rows, classes and the declaration of a set."""
    if name in TABLES:
        columns = read(name, folder)
        return columns.X, columns.y, columns.declared()
    benchmark = BENCHMARKS[name](folder)
    width, classes = benchmark.X.shape[1], tuple(map(str, range(benchmark.classes)))
    names = tuple(f"x{place}" for place in range(width))
    return benchmark.X.astype(np.float64), benchmark.y, Declaration(names, (0.0,) * width, (1.0,) * width, classes)


@dataclass(frozen=True, eq=False)
class _Asked:
    """Answers (n, C) to the rows that are asked about, their classes (n,), and whether the likeliest is right."""

    answers: Floats
    y: Integers

    @property
    def accuracy(self) -> float:
        return float((self.answers.argmax(axis=1) == self.y).mean())

    def reached(self, least: Floats) -> Floats:
        """Return the share of each class whose sets hold it, (C,), and of all in front."""
        inside = self.answers[np.arange(len(self.y)), self.y] >= least[self.y]
        by_class = [inside[self.y == label].mean() for label in np.unique(self.y)]
        return np.array([inside.mean(), *by_class])

    def size(self, least: Floats) -> float:
        return float((self.answers >= least).sum(axis=1).mean())


def _measured(records: Records, X: Floats, y: Integers, kind: str, epsilon: float) -> list[list[str]]:
    whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
    mu, classes = mu_for(whole), len(records.declaration.classes)
    part = one_in(len(records), mu)
    mask = held_of(records, part, SystemRandomness())
    training, held = records.taken(~mask), records.taken(mask)
    model, of_all = (_trained(each, kind, whole) for each in (training, records))
    asked, by_all = _Asked(model.values(X), y), _Asked(of_all.values(X), y)
    own = own_probabilities(model, held)
    sets, by_class = (
        release_sets(counts_of(own, held.y, record_parts(None, len(held)), groups), mu, part, SystemRandomness())
        for groups in (1, classes)
    )
    lines = []
    for level in LEVELS:
        least, ordinary = sets.least(level, classes), np.full(classes, _ordinary(own, level / 1000))
        figures = (
            asked.reached(least)[0],
            asked.reached(ordinary)[0],
            asked.reached(by_class.least(level, classes))[1:].min(),
            asked.size(least),
            asked.size(ordinary),
            asked.accuracy,
            by_all.accuracy,
        )
        lines.append([f"{level / 1000:g}", *(f"{figure:.4f}" for figure in figures)])
    return lines


def _trained(records: Records, kind: str, whole: int) -> ReleasedModel:
    request = Request(
        name="measured",
        lineage="measured",
        kind=kind_named(kind).options(),
        price=whole,
        n=len(records),
        prediction_sets="off",
    )
    with TemporaryDirectory() as folder:
        fit(records, request, Path(folder) / "model", state=Path(folder))
        model: ReleasedModel = load_model(Path(folder) / "model")
    return model


def _ordinary(own: Floats, coverage: float) -> float:
    """Return the least probability in a set of ordinary split conformal prediction; 0 where all classes are."""
    rank = int(np.ceil((len(own) + 1) * coverage))
    return float(np.sort(own)[::-1][rank - 1]) if rank <= len(own) else 0.0


if __name__ == "__main__":
    run(app)
