"""Choosing a mechanism before training: for `dpserve plan` and `dpserve train --budget`."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import typer
from numpy.typing import NDArray

from accounting.budgets import Budget
from dpserve.commands.comparing import (
    Comparison,
    Question,
    Whence,
    as_dict,
    command_for,
    expectation_of_weights,
    print_comparison,
)
from dpserve.commands.console import shares, stdout_console
from dpserve.commands.options import state_folder
from dpserve.commands.releases import Training, tier_prices
from dpserve.commands.row_files import RowFile
from mechanisms.gaussian_vector import whole_picorho
from training.data.classes import values_of
from training.data.records import Records
from training.errors import TrainingError
from training.feature_maps import Fourier, Identity
from training.lineage import KnownRecords
from training.planning import rules
from training.planning.recommendation import (
    SEEDS,
    PlannedTier,
    Recommendation,
    by_simulation,
    of_kind,
    planned_tiers,
    simulated_tiers,
    training_options,
)
from training.planning.rule import by_rule

OUTSIDE = "--simulate-outside-the-guarantee"
"""The option that simulates on private records: its name says what comes of it."""


OWN_CHOICES = {"dpsgd": ("hidden",), "weights": ("tier",)}
"""What an owner may say beside --release KIND --budget: no rule says how wide a network should be, or who buys what."""


def simulated(records: Records, n: int | None, whole: int, queries: int | None) -> Recommendation:
    """Simulate on rows, with a bar on the terminal. n, whole, queries: see `by_simulation`."""
    classes = len(records.declaration.classes)
    with shares("simulating") as progress:
        return by_simulation(
            scaled_rows(records), records.y, classes=classes, n=n, whole=whole, queries=queries, progress=progress
        )


def rows_in_both(rows: Records, private: Records) -> int:
    """Return how many of the rows are, in their columns and label, private records."""
    known = {row.tobytes() + label.tobytes() for row, label in zip(private.X, private.y, strict=True)}
    return sum(row.tobytes() + label.tobytes() in known for row, label in zip(rows.X, rows.y, strict=True))


def scaled_rows(records: Records) -> NDArray[np.float64]:
    """Return the rows (m, d), each column from its declared bounds into [0, 1]."""
    lower, upper = np.asarray(records.declaration.lower), np.asarray(records.declaration.upper)
    X: NDArray[np.float64] = (records.X - lower) / (upper - lower)
    return X


def like(
    records: Records, source: str, label: str, classes: str | None, ignore: list[str], where: str | None
) -> RowFile:
    """Return a file of public rows, to be read by the declaration of the private ones. classes: as `train` takes."""
    declaration = records.declaration
    bounds = zip(declaration.feature_names, declaration.lower, declaration.upper, strict=True)
    texts = tuple(f"{name}={low!r}:{high!r}" for name, low, high in bounds)
    values = values_of(declaration.classes, classes)
    return RowFile(source, "--public", label, declaration.classes, values, texts, tuple(ignore), where)


def followed(
    training: Training, release: str | None, budget: str, queries: int | None, public: RowFile | None
) -> tuple[str | None, Training]:
    """Return the release and the training that the planner recommends for a budget, and print why.

    release: the kind, if the owner chose it: its options are then set for the budget. budget: a price for all answers
    together. Raises BadParameter for options that are chosen here as well, and TrainingError for public rows that are
    the private records themselves.
    """
    own = ("records_declared", "tolerance", *OWN_CHOICES.get(release or "", ()))
    given = [f"--{name.replace('_', '-')}" for name in training.options if name not in own]
    if release is None and not isinstance(training.feature_map, Identity):
        given.append("--features")
    if given:
        raise typer.BadParameter(
            f"chooses {'the options' if release else 'the mechanism and its options'}: leave {given[0]} out",
            param_hint="--budget",
        )
    n = training.needed("records_declared", "about how many records there are, as a number that may be public")
    whole = whole_picorho(budget)
    if release is not None:
        if public is not None:
            raise typer.BadParameter("chooses the mechanism: leave --release out", param_hint="--public")
        found = of_kind(release, "fourier" if isinstance(training.feature_map, Fourier) else "identity", queries)
    elif public is not None:
        rows, known = public.read(), KnownRecords(state_folder())
        same = len(known.digests(rows) & known.digests(training.records))
        if shared := max(rows_in_both(rows, training.records), same):
            raise TrainingError(
                f"{public.source} holds private records, {shared:,} of its rows: what a "
                "simulation on them tells is not covered by any budget. Put rows that are public into a file of their "
                "own"
            )
        found = simulated(rows, n, whole, queries)
    else:
        found, _ = by_rule(n, len(training.records.declaration.classes), whole, queries)
    stdout_console().print(f"Chosen: {found.reason}.", highlight=False)
    options = found.training_options(n, whole, queries)
    if "hidden" in training.options:
        options["hidden"] = training.options["hidden"]
    if "tier" in training.options:
        options = dict(training_options(planned_tiers(tier_prices(training.options["tier"]), whole)))
    option = found.chosen
    if option.release in (None, "weights", "objective") and "tolerance" in training.options:
        options["tolerance"] = training.options["tolerance"]
    feature_map = rules.feature_map(option.features, training.records.declaration)
    return option.release, replace(training, feature_map=feature_map, options=options)


def choose(
    budget: Budget,
    question: Question,
    *,
    public: RowFile | None,
    private: RowFile | None,
    tiers: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Compare the options, recommend one and print why: by simulation where there are rows, and by rule otherwise.

    tiers: NAME=PRICE, precisions of released weights to plan beside it, the coarsest first.
    """
    if public is not None and private is not None:
        raise typer.BadParameter("takes the place of --public: give one of them", param_hint=OUTSIDE)
    n, whole = question.n, budget.picorho
    ladder = planned_tiers(tier_prices(tiers), whole) if tiers else ()
    file, expected = public or private, None
    if file is not None:
        if file.source != "digits" and not file.classes:
            raise TrainingError("declare the class names of the rows with --class-names a,b,...")
        records = file.read()
        found = simulated(records, n, whole, question.queries)
        if ladder:
            ladder = _simulated_tiers(ladder, found, records, n)
        n = n or len(records)
        whence = Whence.simulated(file.source, len(records), declared_public=public is not None)
    elif n is not None and question.classes is not None:
        found, similar = by_rule(n, question.classes, whole, question.queries)
        whence = Whence.measured(similar)
        expected = expectation_of_weights(n, question.classes, whole)
    else:
        raise typer.BadParameter(
            "name a bundle; or give --lam and --classes to plan the noise on a head's answers; or --n and --classes, "
            f"or --public FILE or {OUTSIDE} FILE, to choose a mechanism"
        )
    shown = Comparison(
        budget, question, found, whence, command_for(found, n, whole, question.queries), ladder, expected
    )
    if as_json:
        typer.echo(json.dumps(as_dict(shown), indent=2))
    else:
        print_comparison(stdout_console(), shown)


def _simulated_tiers(
    ladder: tuple[PlannedTier, ...], found: Recommendation, records: Records, n: int | None
) -> tuple[PlannedTier, ...]:
    """Simulate tiers on the features on which released weights did better."""
    figures = {each.option: each.mean or 0.0 for each in found.estimates}
    fourier = figures.get("weights-fourier", 0.0) > figures.get("weights", 0.0)
    return simulated_tiers(
        ladder,
        scaled_rows(records),
        records.y,
        classes=len(records.declaration.classes),
        n=n,
        features="fourier" if fourier else "identity",
        seeds=SEEDS,
    )
