"""Choosing a mechanism before training, for `dpserve plan` and `dpserve train --budget`; and how it is shown."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from accounting.budgets import Budget
from accounting.picorho import PICORHO_PER_RHO, to_rho
from accounting.planner import Expectation, PublicSample, expectation
from dpserve.commands.console import shares, stdout_console
from dpserve.commands.planning import OUTSIDE
from dpserve.commands.releases import Training, tier_prices
from mechanisms.gaussian_vector import mu_for, whole_picorho
from training.data.records import Records
from training.feature_maps import NORM_BOUND, UNIT_ROWS, Fourier, Hog
from training.planning import rules
from training.planning.measured import FAR, Nearest
from training.planning.options import OPTIONS
from training.planning.recommendation import (
    LARGEST_PRICE,
    SEEDS,
    PlannedTier,
    Recommendation,
    by_simulation,
    of_images,
    of_kind,
    planned_tiers,
    simulated_tiers,
    training_options,
)
from training.planning.rule import by_rule
from training.recipe import DEFAULT_TOLERANCE
from training.sensitivity import usual_margin, weight_sensitivity

OWN_CHOICES = {"dpsgd": ("hidden",), "weights": ("tier",)}
"""What an owner may set in addition to --release KIND --budget. No rule sets a network's width or the tiers."""


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


@dataclass(frozen=True)
class AccuracySource:
    """Where accuracies come from. note: a line to print under them; origin: in JSON."""

    origin: str
    note: str

    @classmethod
    def simulated(cls, source: str, rows: int, *, declared_public: bool) -> "AccuracySource":
        """From a simulation on rows."""
        whose = (
            "declared public"
            if declared_public
            else "private: no guarantee covers these figures, so keep them to yourself"
        )
        origin = f"{rows} rows of {source}, {whose}"
        return cls(origin, f"Accuracy on {origin}.")

    @classmethod
    def measured(cls, similar: Nearest) -> "AccuracySource":
        """From the comparison's own tables."""
        return cls(
            f"measured on {similar.words}",
            f"Accuracy as measured on {similar.words}: of the public sets of docs/mechanisms.md the most like yours in "
            f"classes and mu n / C{_apart(similar)}. It says which options to expect more of, and not what yours will "
            "reach: --public FILE simulates on rows like yours.",
        )


def _apart(similar: Nearest) -> str:
    return f", though {similar.apart:.0f} times apart: nothing nearer was measured" if similar.apart > FAR else ""


@dataclass(frozen=True)
class Comparison:
    """All that is shown. command: trains the recommended option. expectation: of released weights, without rows."""

    budget: Budget
    question: Question
    found: Recommendation
    accuracy_from: AccuracySource
    command: str
    tiers: tuple[PlannedTier, ...] = ()
    expectation: Expectation | None = None


def expectation_of_weights(n: int, classes: int, whole: int) -> Expectation:
    """Return what released weights are worth on rows of which a head is halfway sure. Lambda cancels."""
    rho = to_rho(min(whole, LARGEST_PRICE))
    lam = rules.strong_convexity(mu_for(min(whole, LARGEST_PRICE)))
    sensitivity = weight_sensitivity(lam, DEFAULT_TOLERANCE, NORM_BOUND) * NORM_BOUND
    rows = PublicSample.halfway(classes, usual_margin(n, lam, NORM_BOUND, classes), sensitivity)
    return expectation("gaussian", rho, rows)


def command_for(found: Recommendation, n: int, whole: int, queries: int | None) -> str:
    """Return the command that trains what is recommended."""
    made = found.training_options(n, whole, queries)
    words = _command(found.chosen.release, made)
    if found.chosen.features == "fourier":
        words += f" --features fourier --random-features {rules.RANDOM_FEATURES} --bandwidth {rules.BANDWIDTH:g}"
        words += f" --clip-norm {UNIT_ROWS:.7g}"
    return words


def as_dict(shown: Comparison) -> dict[str, object]:
    """Return it for JSON."""
    budget, found = shown.budget, shown.found
    return {
        "delta": budget.delta,
        "rho": budget.picorho / PICORHO_PER_RHO,
        "asked_queries": shown.question.queries,
        "accuracy_from": shown.accuracy_from.origin,
        "recommended": found.option,
        "reason": found.reason,
        "warnings": found.warnings,
        "command": shown.command,
        "expectation": None if shown.expectation is None else shown.expectation.model_dump(),
        "estimates": [
            {
                "option": each.option,
                "title": OPTIONS[each.option].title,
                "accuracy": each.mean,
                "spread": each.spread,
                "log_loss": each.log_loss,
                "calibration_error": each.calibration_error,
                "interval": each.interval,
                "seeds": each.seeds,
            }
            for each in found.estimates
        ],
        "tiers": [
            {
                "name": each.name,
                "rho": to_rho(each.whole),
                "beyond_rho": to_rho(each.beyond),
                "accuracy": each.accuracy,
                "spread": each.spread,
            }
            for each in shown.tiers
        ],
        "tiers_command": _command("weights", training_options(shown.tiers)) if shown.tiers else None,
    }


def print_comparison(console: Console, shown: Comparison) -> None:
    """Print it."""
    budget, found = shown.budget, shown.found
    console.print(
        f"The budget is mu = {math.sqrt(2 * budget.picorho / PICORHO_PER_RHO):.4g} for all answers together, epsilon = "
        f"{budget.epsilon_at(budget.picorho):.4g} at delta = {budget.delta:g}.",
        highlight=False,
    )
    table = Table("option", "the budget pays for", "accuracy", "spread", "log loss", "seeds")
    for each in sorted(found.estimates, key=lambda each: -(each.mean or 0.0)):
        option = OPTIONS[each.option]
        table.add_row(
            option.title,
            option.pays,
            "unavailable" if each.mean is None else f"{each.mean:.3f}",
            "" if each.spread is None else f"{each.spread:.3f}",
            "" if each.log_loss is None else f"{each.log_loss:.3f}",
            "" if each.seeds is None or each.mean is None else str(each.seeds),
        )
    known = {each.option for each in found.estimates}
    for name in (name for name in OPTIONS if name not in known):
        table.add_row(OPTIONS[name].title, OPTIONS[name].pays, "not measured", "", "", "")
    console.print(table, highlight=False)
    console.print(shown.accuracy_from.note, highlight=False)
    if shown.expectation is not None:
        console.print(shown.expectation.words("answers from released weights"), highlight=False)
    console.print(f"Recommended: {found.reason}.", highlight=False)
    print_warnings(console, found)
    console.print(f"Next: {shown.command}", highlight=False, soft_wrap=True)
    if shown.tiers:
        _print_tiers(console, shown.tiers)
    else:
        console.print(
            "Released weights can also have tiers, --tier NAME=PRICE from the coarsest to the finest: clients who "
            "put theirs together know no more than the finest tells, so the lineage pays for that one alone.",
            highlight=False,
        )


def print_warnings(console: Console, found: Recommendation) -> None:
    """Print what makes the recommended answers worth little."""
    for warning in found.warnings:
        console.print(f"Warning: {warning}.", highlight=False)


def _print_tiers(console: Console, tiers: tuple[PlannedTier, ...]) -> None:
    table = Table("tier", "rho in all", "beyond the one before", "accuracy", "spread")
    for each in tiers:
        table.add_row(
            each.name,
            f"{to_rho(each.whole):.6g}",
            f"{to_rho(each.beyond):.6g}",
            "" if each.accuracy is None else f"{each.accuracy:.3f}",
            "" if each.spread is None else f"{each.spread:.3f}",
        )
    console.print(table, highlight=False)
    apart = sum(each.whole for each in tiers)
    console.print(
        f"Clients who put their tiers together learn what the finest tells, so the lineage pays rho = "
        f"{to_rho(tiers[-1].whole):.6g} however many they are, and a client that moves to a finer tier pays the "
        f"difference. As separate models they would cost it {to_rho(apart):.6g}.",
        highlight=False,
    )
    console.print(f"In tiers: {_command('weights', training_options(tiers))}", highlight=False, soft_wrap=True)


def _command(release: str | None, made: Mapping[str, object]) -> str:
    words = ["dpserve train --data FILE --lineage NAME --out MODEL"]
    if release is not None:
        words.append(f"--release {release}")
    for option, value in made.items():
        words += [f"--{option.replace('_', '-')} {each}" for each in (value if isinstance(value, list) else [value])]
    return " ".join(words)


def simulated(records: Records, n: int | None, whole: int, queries: int | None) -> Recommendation:
    """Simulate on rows, with a bar on the terminal. n, whole, queries: see `by_simulation`."""
    classes = len(records.declaration.classes)
    with shares("simulating") as progress:
        return by_simulation(
            scaled_rows(records), records.y, classes=classes, n=n, whole=whole, queries=queries, progress=progress
        )


def scaled_rows(records: Records) -> NDArray[np.float64]:
    """Return the rows (m, d), each column from its declared bounds into [0, 1]."""
    lower, upper = np.asarray(records.declaration.lower), np.asarray(records.declaration.upper)
    X: NDArray[np.float64] = (records.X - lower) / (upper - lower)
    return X


def followed(
    training: Training, release: str | None, budget: str, queries: int | None, public: Records | None
) -> tuple[str | None, Training]:
    """Return the release and the training that the planner recommends for a budget, and print why.

    release: the kind, if the owner chose it: its options are then set for the budget. budget: a price for all answers
    together. public: rows to simulate on. Raises BadParameter for options that are chosen here as well.
    """
    own = ("records_declared", "tolerance", *OWN_CHOICES.get(release or "", ()))
    given = [f"--{name.replace('_', '-')}" for name in training.options if name not in own]
    if given:
        raise typer.BadParameter(
            f"chooses {'the options' if release else 'the mechanism and its options'}: leave {given[0]} out",
            param_hint="--budget",
        )
    n = training.needed("records_declared", "about how many records there are, as a number that may be public")
    whole = whole_picorho(budget)
    images = training.feature_map.image_shape if isinstance(training.feature_map, Hog) else None
    if images is not None and public is not None:
        raise typer.BadParameter(
            "simulates options without --image-shape: leave one of the two out", param_hint="--public"
        )
    if images is not None and release is None:
        found = of_images()
    elif release is not None:
        found = of_kind(release, "fourier" if isinstance(training.feature_map, Fourier) else "identity", queries)
    elif public is not None:
        found = simulated(public, n, whole, queries)
    else:
        found, _ = by_rule(n, len(training.records.declaration.classes), whole, queries)
    stdout_console().print(f"Chosen: {found.reason}.", highlight=False)
    print_warnings(stdout_console(), found)
    options = found.training_options(n, whole, queries)
    if "hidden" in training.options:
        options["hidden"] = training.options["hidden"]
    if "tier" in training.options:
        options = dict(training_options(planned_tiers(tier_prices(training.options["tier"]), whole)))
    option = found.chosen
    if option.release in (None, "weights", "objective") and "tolerance" in training.options:
        options["tolerance"] = training.options["tolerance"]
    if images is not None and option.release == "dpsgd":
        options["steps"] = rules.STEPS_ON_IMAGES
    feature_map = rules.feature_map(option.features, training.records.declaration, images)
    return option.release, replace(training, feature_map=feature_map, options=options)


def choose(
    budget: Budget,
    question: Question,
    *,
    rows: Records | None,
    accuracy_from: AccuracySource | None,
    tiers: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Compare the options, recommend one and print why: by simulation where there are rows, and by rule otherwise.

    rows, accuracy_from: to simulate on, and their source. tiers: NAME=PRICE, precisions of released weights to plan
    as well, the coarsest first.
    """
    n, whole, expected = question.n, budget.picorho, None
    ladder = planned_tiers(tier_prices(tiers), whole) if tiers else ()
    if rows is not None and accuracy_from is not None:
        found = simulated(rows, n, whole, question.queries)
        if ladder:
            ladder = _simulated_tiers(ladder, found, rows, n)
        n = n or len(rows)
    elif n is not None and question.classes is not None:
        found, similar = by_rule(n, question.classes, whole, question.queries)
        accuracy_from = AccuracySource.measured(similar)
        expected = expectation_of_weights(n, question.classes, whole)
    else:
        raise typer.BadParameter(
            "name a bundle; or give --lam and --classes to plan the noise on a head's answers; or --n and --classes, "
            f"or --public FILE or {OUTSIDE} FILE, to choose a mechanism"
        )
    shown = Comparison(
        budget, question, found, accuracy_from, command_for(found, n, whole, question.queries), ladder, expected
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
