"""Choosing a mechanism before training: for `dpserve plan` and `dpserve train --budget`."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from accounting.budgets import Budget
from accounting.picorho import PICORHO_PER_RHO
from dpserve.commands.options import state_folder
from dpserve.commands.releases import Training
from mechanisms.gaussian_vector import whole_picorho
from training.comparison import rules
from training.comparison.options import OPTIONS
from training.comparison.recommendation import Recommendation, by_rule, by_simulation
from training.data.csv_file import read_csv
from training.data.digits import load_digits
from training.data.npz_file import read_npz
from training.data.records import Records
from training.errors import TrainingError
from training.lineage import lineage_of, owner_key
from training.reproduction.progress import progress_bar

OUTSIDE = "--simulate-outside-the-guarantee"
"""The option that simulates on private records: its name says what comes of it."""


@dataclass(frozen=True)
class RowFile:
    """A file of labelled rows and how to read it, as `dpserve train` would."""

    source: str
    label: str
    classes: tuple[str, ...]
    bounds: tuple[str, ...]
    ignore: tuple[str, ...] = ()
    where: str | None = None

    def read(self) -> Records:
        """Read it. Raises TrainingError for rows that do not fit."""
        if self.source == "digits":
            return load_digits().train
        if not self.classes:
            raise TrainingError("declare the class names of the rows with --class-names a,b,...")
        path = Path(self.source)
        match path.suffix.lower():
            case ".csv":
                return read_csv(path, label=self.label, classes=self.classes, bounds=self.bounds, ignore=self.ignore)
            case ".npz":
                return read_npz(path, classes=self.classes, bounds=self.bounds, where=self.where)
        raise TrainingError(f"rows come from 'digits', a .csv or an .npz file, not {self.source!r}")


def simulated(records: Records, n: int | None, whole: int, queries: int | None) -> Recommendation:
    """Simulate on rows, with a bar on the terminal. n, whole, queries: see `by_simulation`."""
    declaration = records.declaration
    lower, upper = np.asarray(declaration.lower), np.asarray(declaration.upper)
    X = (records.X - lower) / (upper - lower)
    with progress_bar() as progress:
        return by_simulation(
            X, records.y, classes=len(declaration.classes), n=n, whole=whole, queries=queries, progress=progress
        )


def like(records: Records, source: str, label: str, ignore: list[str], where: str | None) -> RowFile:
    """Return a file of public rows, to be read by the declaration of the private ones."""
    declaration = records.declaration
    bounds = zip(declaration.feature_names, declaration.lower, declaration.upper, strict=True)
    texts = tuple(f"{name}={low!r}:{high!r}" for name, low, high in bounds)
    return RowFile(source, label, declaration.classes, texts, tuple(ignore), where)


def followed(
    training: Training, release: str | None, budget: str, queries: int | None, public: RowFile | None
) -> tuple[str | None, Training]:
    """Return the release and the training that the planner recommends for a budget, and print why.

    budget: a price for all answers together. Raises BadParameter for options that choose a mechanism as well, and
    TrainingError for public rows that are the private records themselves.
    """
    given = [name for name in training.options if name not in ("records_declared", "tolerance")]
    if release is not None or given:
        first = "release" if release is not None else given[0].replace("_", "-")
        raise typer.BadParameter(
            f"chooses the mechanism and its options: leave --{first} out",
            param_hint="--budget",
        )
    n = training.needed("records_declared", "about how many records there are, as a number that may be public")
    whole = whole_picorho(budget)
    if public is not None:
        rows, key = public.read(), owner_key(state_folder() / "lineage.key")
        if lineage_of(rows, key) == lineage_of(training.records, key):
            raise TrainingError(
                f"{public.source} holds the private records themselves: what a simulation on them tells is not covered "
                "by any budget. Put rows that are public into a file of their own"
            )
        found = simulated(rows, n, whole, queries)
    else:
        found = by_rule(n, len(training.records.declaration.classes), whole)
    Console().print(f"Chosen: {found.reason}.", highlight=False)
    options = found.training_options(n, whole, queries)
    choice, declaration = found.choice, training.records.declaration
    if choice.release in (None, "weights", "objective") and "tolerance" in training.options:
        options["tolerance"] = training.options["tolerance"]
    feature_map = rules.identity(declaration) if choice.features == "identity" else rules.fourier(declaration)
    return choice.release, replace(training, feature_map=feature_map, options=options)


@dataclass(frozen=True)
class Question:
    """What an owner says of the records, in public numbers. n, classes: how many; queries: None for no end."""

    n: int | None
    classes: int | None
    queries: int | None

    def __post_init__(self) -> None:
        """Refuse nonsense before anything is trained."""
        if self.queries is not None and self.queries < 1:
            raise ValueError(f"the number of queries must be at least 1, not {self.queries}")


def choose(
    budget: Budget, question: Question, *, public: RowFile | None, private: RowFile | None, as_json: bool
) -> None:
    """Recommend an option and print why: by simulation where there are rows, and by rule otherwise."""
    if public is not None and private is not None:
        raise typer.BadParameter("takes the place of --public: give one of them", param_hint=OUTSIDE)
    n, whole, origin = question.n, budget.picorho, None
    file = public or private
    if file is not None:
        records = file.read()
        found = simulated(records, n, whole, question.queries)
        n = n or len(records)
        origin = f"{len(records)} rows of {file.source}, " + (
            "declared public" if public else "private: no guarantee covers these figures, so keep them to yourself"
        )
    elif n is not None and question.classes is not None:
        found = by_rule(n, question.classes, whole)
    else:
        raise typer.BadParameter(
            "name a bundle; or give --lam and --classes to plan the noise on a head's answers; or --n and --classes, "
            f"or --public FILE or {OUTSIDE} FILE, to choose a mechanism"
        )
    command = _command(found, n, whole, question.queries)
    if as_json:
        typer.echo(json.dumps(_as_dict(budget, question, found, origin, command), indent=2))
    else:
        _print(Console(), budget, found, origin, command)


def _as_dict(
    budget: Budget, question: Question, found: Recommendation, origin: str | None, command: str
) -> dict[str, object]:
    return {
        "delta": budget.delta,
        "rho": budget.picorho / PICORHO_PER_RHO,
        "asked_queries": question.queries,
        "accuracy_from": origin,
        "recommended": found.option,
        "reason": found.reason,
        "command": command,
        "estimates": [
            {"option": each.option, "title": OPTIONS[each.option].title, "accuracy": each.mean, "spread": each.spread}
            for each in found.estimates
        ],
    }


def _command(found: Recommendation, n: int, whole: int, queries: int | None) -> str:
    words = ["dpserve train --data FILE --out MODEL"]
    if found.choice.release is not None:
        words.append(f"--release {found.choice.release}")
    for option, value in found.training_options(n, whole, queries).items():
        words += [f"--{option.replace('_', '-')} {each}" for each in (value if isinstance(value, list) else [value])]
    words.append("--clip-norm 1e-6")
    if found.choice.features == "fourier":
        words.append("--features fourier --random-features 2000 --bandwidth 0.5")
    return " ".join(words)


def _print(console: Console, budget: Budget, found: Recommendation, origin: str | None, command: str) -> None:
    epsilon = budget.epsilon_at(budget.picorho)
    console.print(
        f"The budget is mu = {math.sqrt(2 * budget.picorho / PICORHO_PER_RHO):.4g} for all answers together, epsilon = "
        f"{epsilon:.4g} at delta = {budget.delta:g}.",
        highlight=False,
    )
    if found.estimates:
        table = Table("option", "the budget pays for", "accuracy", "spread")
        for each in sorted(found.estimates, key=lambda each: -(each.mean or 0.0)):
            table.add_row(
                OPTIONS[each.option].title,
                OPTIONS[each.option].pays,
                "not to be had" if each.mean is None else f"{each.mean:.3f}",
                "" if each.spread is None else f"{each.spread:.3f}",
            )
        console.print(table, highlight=False)
    console.print(
        f"Accuracy on {origin}."
        if origin
        else "No accuracy is given, as there are no rows: this is a rule from public numbers, and docs/mechanisms.md "
        "has the tables that it comes from. --public FILE simulates on rows like yours.",
        highlight=False,
    )
    console.print(f"Recommended: {found.reason}.", highlight=False)
    console.print(f"Next: {command}", highlight=False, soft_wrap=True)
