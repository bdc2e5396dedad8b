"""How `dpserve plan` shows a comparison of mechanisms: a table, a recommendation, tiers, and the command to go on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from accounting.budgets import Budget
from accounting.picorho import PICORHO_PER_RHO, to_rho
from accounting.planner import Expectation, PublicSample, expectation
from mechanisms.gaussian_vector import mu_for
from training.feature_maps import NORM_BOUND
from training.planning import rules
from training.planning.measured import FAR, Nearest
from training.planning.options import OPTIONS
from training.planning.recommendation import LARGEST_PRICE, PlannedTier, Recommendation, training_options
from training.recipe import DEFAULT_TOLERANCE
from training.sensitivity import usual_margin, weight_sensitivity


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
class Whence:
    """Where accuracies come from. note: a line to print under them; origin: in JSON."""

    origin: str
    note: str

    @classmethod
    def simulated(cls, source: str, rows: int, *, declared_public: bool) -> "Whence":
        """From a simulation on rows."""
        whose = (
            "declared public"
            if declared_public
            else "private: no guarantee covers these figures, so keep them to yourself"
        )
        origin = f"{rows} rows of {source}, {whose}"
        return cls(origin, f"Accuracy on {origin}.")

    @classmethod
    def measured(cls, similar: Nearest) -> "Whence":
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
    whence: Whence
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
    return words


def as_dict(shown: Comparison) -> dict[str, object]:
    """Return it for JSON."""
    budget, found = shown.budget, shown.found
    return {
        "delta": budget.delta,
        "rho": budget.picorho / PICORHO_PER_RHO,
        "asked_queries": shown.question.queries,
        "accuracy_from": shown.whence.origin,
        "recommended": found.option,
        "reason": found.reason,
        "command": shown.command,
        "expectation": None if shown.expectation is None else shown.expectation.model_dump(),
        "estimates": [
            {
                "option": each.option,
                "title": OPTIONS[each.option].title,
                "accuracy": each.mean,
                "spread": each.spread,
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
    table = Table("option", "the budget pays for", "accuracy", "spread", "seeds")
    for each in sorted(found.estimates, key=lambda each: -(each.mean or 0.0)):
        option = OPTIONS[each.option]
        table.add_row(
            option.title,
            option.pays,
            "unavailable" if each.mean is None else f"{each.mean:.3f}",
            "" if each.spread is None else f"{each.spread:.3f}",
            "" if each.seeds is None or each.mean is None else str(each.seeds),
        )
    known = {each.option for each in found.estimates}
    for name in (name for name in OPTIONS if name not in known):
        table.add_row(OPTIONS[name].title, OPTIONS[name].pays, "not measured", "", "")
    console.print(table, highlight=False)
    console.print(shown.whence.note, highlight=False)
    if shown.expectation is not None:
        console.print(shown.expectation.words("answers from released weights"), highlight=False)
    console.print(f"Recommended: {found.reason}.", highlight=False)
    console.print(f"Next: {shown.command}", highlight=False, soft_wrap=True)
    if shown.tiers:
        _print_tiers(console, shown.tiers)
    else:
        console.print(
            "Released weights can also be had in tiers, --tier NAME=PRICE from the coarsest to the finest: clients who "
            "put theirs together know no more than the finest tells, so the lineage pays for that one alone.",
            highlight=False,
        )


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
        f"However many clients hold whichever of these tiers, they know together what the finest tells: the lineage "
        f"pays rho = {to_rho(tiers[-1].whole):.6g}, and a client that moves to a finer tier the difference. As "
        f"releases of their own they would cost it {to_rho(apart):.6g}.",
        highlight=False,
    )
    console.print(f"In tiers: {_command('weights', training_options(tiers))}", highlight=False, soft_wrap=True)


def _command(release: str | None, made: Mapping[str, object]) -> str:
    words = ["dpserve train --data FILE --lineage NAME --out MODEL"]
    if release is not None:
        words.append(f"--release {release}")
    for option, value in made.items():
        words += [f"--{option.replace('_', '-')} {each}" for each in (value if isinstance(value, list) else [value])]
    words.append("--clip-norm 1e-6")
    return " ".join(words)
