"""`dpserve plan`: what a budget buys, before training and after it.

No private record is read: an accuracy comes from rows that the owner declares public, from a distribution of
margins that the owner gives, or, before training, from the largest margin that any head can have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console

from accounting.budgets import Accepts, Budget
from accounting.planner import MECHANISMS, NO_BETTER, Plan, PublicSample, account_of, accuracy_by_queries
from accounting.planner import plan as plan_budget
from audit.reports import check_files
from dpserve.commands import options
from dpserve.commands.command import option
from dpserve.commands.console import figure, stdout_console, whole
from dpserve.commands.rows import READING, FileOptions, public_sample
from mechanisms.mechanism import priced
from training.bundle import load_bundle
from training.data.classes import parse_classes
from training.data.records import Records
from training.errors import TrainingError
from training.feature_maps import NORM_BOUND
from training.recipe import DEFAULT_TOLERANCE
from training.sensitivity import largest_margin, usual_margin, weight_sensitivity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEFORE = "Before training"
OUTSIDE = "--simulate-outside-the-guarantee"
"""The option that simulates on private records: its name says what comes of it."""

_POINTS = 41
_MOST_QUERIES = 1_000_000
_MARGIN_POINTS = 201
_OVERHEAD_FROM = 580
"""Times 1/sqrt(C): the noise multiplier from which `mechanisms.gaussian` adds more than 1 % of noise."""


class PlanOptions(FileOptions):
    """What is planned, and what an accuracy comes from."""

    queries: int | None = option(None, "How many rows the budget has to pay for.", default_text="1000")
    accuracy: float | None = option(None, "Or the accuracy that answers must have: how many rows then?")
    public: str | None = option(
        None,
        "A table or FILE.npz of labelled rows that you declare public, of which none was trained on; or 'digits', the "
        "digits held out of training. Bounds and classes are the bundle's.",
    )
    class_names: str | None = option(None, "The classes, separated by commas, or VALUE=NAME of each.", panel=READING)
    bounds: list[str] | None = option(None, "Before training: LOW:HIGH or NAME=LOW:HIGH, as for train.", panel=READING)
    n: int | None = option(None, "How many records, about.", "--n", panel=BEFORE)
    classes: int | None = option(None, "C, how many classes.", panel=BEFORE)
    lam: float | None = option(None, "Lambda: plan noise on each answer of a head.", panel=BEFORE)
    norm: float = option(NORM_BOUND, "R, the bound of the features' norm.", panel=BEFORE)
    outside: str | None = option(
        None,
        "Simulate on private records, in place of --public: what it prints tells about them and is covered by no "
        "guarantee and no budget.",
        OUTSIDE,
        panel=BEFORE,
        metavar="FILE",
    )
    tier: list[str] | None = option(
        None,
        "NAME=PRICE, a precision of released weights, repeatable from the coarsest to the finest: PRICE as for train. "
        "Says what the tiers cost.",
        panel=BEFORE,
    )
    margins: str | None = option(
        None,
        "MEAN:SD of the true class's logit over the others, normally distributed: your own guess.",
        panel=BEFORE,
    )

    def rows(self) -> Records | None:
        """Read the rows to simulate on before training, public or private; None for none."""
        if self.public and self.outside:
            raise typer.BadParameter("takes the place of --public: give one of them", param_hint=OUTSIDE)
        source = self.public or self.outside
        if not source:
            return None
        names, values = parse_classes(self.class_names) if self.class_names else ((), ())
        if source != "digits" and not names:
            raise TrainingError("declare the class names of the rows with --class-names a,b,...")
        flag = "--public" if self.public else OUTSIDE
        return self.read(source, flag, classes=names, values=values, bounds=self.bounds or ())


def plan(
    *,
    bundle: Annotated[
        Path | None,
        typer.Argument(help="The bundle's folder; none before training.", autocompletion=options.bundle_names),
    ] = None,
    budget: options.BudgetOptions,
    given: PlanOptions,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw accuracy against number of queries into FILE.png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say what a budget buys: which mechanism to take, or, for a head, the price of an answer and its accuracy.

    Before training, --n and --classes, or --public rows, choose between noise on each answer and pay-once models.
    On a bundle, or with --lam and --classes, it is about noise on each answer of a certified head.
    """
    check_files(plot)
    budgets = budget.budgets()
    if bundle is None and given.lam is None and given.margins is None and given.accuracy is None:
        from dpserve.commands.choosing import AccuracySource, Question, choose

        question, rows = Question(given.n, given.classes, given.queries), given.rows()
        source = given.public or given.outside or ""
        accuracy_from = (
            None if rows is None else AccuracySource.simulated(source, len(rows), declared_public=bool(given.public))
        )
        choose(
            budgets["gaussian"],
            question,
            rows=rows,
            accuracy_from=accuracy_from,
            tiers=given.tier or (),
            as_json=as_json,
        )
        return
    if given.outside or given.bounds or given.tier or (given.class_names and not (bundle and given.public)):
        raise typer.BadParameter("chooses a mechanism before training: leave the bundle and --lam out")
    scored = _of_bundle(bundle, given) if bundle is not None else _of_numbers(given)
    if given.margins is not None:
        if given.public is not None:
            raise typer.BadParameter("take the place of --public: give one of them", param_hint="--margins")
        scored = replace(scored, sample=_normal_margins(given.margins, scored.classes, scored.sensitivity))
    halfway = None
    if given.public is None and given.margins is None and scored.classes > 1:  # or else planning refuses it
        halfway = PublicSample.halfway(scored.classes, scored.margin, scored.sensitivity)
    if plot is not None and scored.sample is None:
        raise typer.BadParameter("needs --public, --margins or --n to draw an accuracy from", param_hint="--plot")
    found = plan_budget(
        budgets,
        classes=scored.classes,
        queries=given.queries,
        accuracy=given.accuracy,
        sensitivity=scored.sensitivity,
        sample=scored.sample,
        halfway=halfway,
    )
    if plot is not None and scored.sample is not None:
        plot_accuracy(plot, budgets, scored.sample, found)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _print_plan(stdout_console(), found)


@dataclass(frozen=True)
class _Scored:
    """A head as planning sees it. sensitivity: L2, of a typical row's logits; sample: what accuracy comes from.

    margin: see `usual_margin`.
    """

    classes: int
    sensitivity: float
    sample: PublicSample | None
    margin: float


def _of_bundle(bundle: Path, given: PlanOptions) -> _Scored:
    if given.n is not None or given.lam is not None or given.classes is not None:
        raise typer.BadParameter("a bundle has its own: leave --n, --lam and --classes out")
    head = load_bundle(bundle)
    return _Scored(
        len(head.certificate.classes),
        head.certificate.weight_sensitivity * NORM_BOUND,
        public_sample(head, given.public, given.class_names, given) if given.public else None,
        usual_margin(None, head.certificate.strong_convexity, NORM_BOUND, len(head.certificate.classes)),
    )


def _of_numbers(given: PlanOptions) -> _Scored:
    n, lam, norm, classes = given.n, given.lam, given.norm, given.classes
    if lam is None or classes is None:
        raise typer.BadParameter("name a bundle, or give --lam and --classes to plan before training")
    if given.public is not None:
        raise typer.BadParameter("needs a bundle, whose answers it scores", param_hint="--public")
    sensitivity = weight_sensitivity(lam, DEFAULT_TOLERANCE, norm)
    # A number of records that means nothing is refused there.
    sample = _ceiling(n, lam, norm, classes, sensitivity) if n is not None and given.margins is None else None
    return _Scored(classes, sensitivity, sample, usual_margin(n, lam, norm, classes))


def _ceiling(n: int, lam: float, norm: float, classes: int, sensitivity: float) -> PublicSample:
    margin = largest_margin(n, lam, DEFAULT_TOLERANCE, norm, classes)
    return PublicSample.of_margins(
        np.array([margin]),
        classes,
        sensitivity,
        f"rows of the largest margin that {n} records allow, {margin:.4g}: an upper end, not an expectation",
    )


def _normal_margins(text: str, classes: int, sensitivity: float) -> PublicSample:
    mean, _, deviation = text.partition(":")
    try:
        margins = NormalDist(float(mean), float(deviation))
        points = np.array([margins.inv_cdf((i + 0.5) / _MARGIN_POINTS) for i in range(_MARGIN_POINTS)])
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"margins are written MEAN:SD with a finite mean and SD > 0, not {text!r}") from error
    if not np.isfinite(points).all():
        raise ValueError(f"margins are written MEAN:SD with a finite mean and SD > 0, not {text!r}")
    origin = f"margins given as normal with mean {margins.mean:g} and standard deviation {margins.stdev:g}"
    return PublicSample.of_margins(points, classes, sensitivity, origin)


def _print_plan(console: Console, found: Plan) -> None:
    for budget in found.budgets:
        console.print(
            f"A budget that accepts {budget.accepts!r} charges: rho = {budget.rho:.6g}, epsilon = "
            f"{budget.epsilon:.4g} at delta = {found.delta:g}.",
            highlight=False,
        )
    if found.sensitivity is not None:
        console.print(f"L2 sensitivity of a row's logits: {found.sensitivity:.4g}", highlight=False)
    table = whole("mechanism", "noise multiplier", "queries", "accuracy")
    prices = [_served_at(each.mechanism, each.price, found.classes) for each in found.options]
    to_paste = all(" " not in each for each in prices)
    table.add_column("price of a row", overflow="fold", no_wrap=to_paste)
    for each, price in zip(found.options, prices, strict=True):
        table.add_row(
            each.mechanism,
            "-" if each.noise_multiplier is None else f"{each.noise_multiplier:.4g}",
            f"{each.queries:,}",
            "-" if each.accuracy is None else f"{each.accuracy:.4f}",
            price,
        )
    console.print(table, highlight=False)
    if not found.options:
        console.print("No mechanism can do that within the budget.")
    if found.accuracy_from is None:
        console.print("No accuracy is given: it takes --public rows, --margins, or --n before training.")
    else:
        console.print(
            f"Accuracy on {found.accuracy_from}; without noise it would be {found.noiseless_accuracy:.4f}.",
            highlight=False,
        )
    for line in _worth(found):
        console.print(line, highlight=False)
    if any((option.noise_multiplier or 0) > _OVERHEAD_FROM / found.classes**0.5 for option in found.options):
        console.print(
            f"From a noise multiplier of about {_OVERHEAD_FROM / found.classes**0.5:.0f} the noise as drawn is larger "
            "than planned, up to twice as large; the price holds all the same."
        )


def _worth(found: Plan) -> list[str]:
    """Say what answers are worth, where no rows were given, and where they are worth nothing."""
    if found.commonest_class is not None:
        best = max((option.accuracy or 0.0 for option in found.options), default=0.0)
        if best > found.commonest_class:
            return []
        return [f"{NO_BETTER}, which is right on {found.commonest_class:.4f} of these rows. {_INSTEAD}"]
    expected = found.expectation
    if expected is None:
        return []
    said = expected.words(f"answers of {found.options[0].mechanism!r}")
    return [said, _INSTEAD] if expected.no_better_than_the_commonest_class else [said]


_INSTEAD = (
    "Plan for fewer queries or more records, raise Lambda or the budget, or make a model that is paid for once: "
    "'dpserve plan' with --n and --classes alone compares them."
)


def _served_at(mechanism: str, price: str, classes: int) -> str:
    """Return the price for `dpserve serve`, or why it would be refused: asked of the mechanism itself."""
    try:
        priced(mechanism, price, classes)
    except ValueError as error:
        return f"unavailable: {error}"
    return price


def plot_accuracy(path: Path, budgets: Mapping[Accepts, Budget], sample: PublicSample, plan: Plan) -> None:
    """Draw the expected accuracy of every mechanism against the number of queries that the budget pays for.

    Raises ValueError where the file cannot be written.
    """
    with figure(path) as axes:
        draw_accuracy(axes, budgets, sample, plan)


def draw_accuracy(axes: "Axes", budgets: Mapping[Accepts, Budget], sample: PublicSample, plan: Plan) -> None:
    """Draw on these axes."""
    queries = np.unique(np.geomspace(1, _MOST_QUERIES, _POINTS).astype(np.int64))
    for mechanism in MECHANISMS:
        budget = budgets.get(account_of(mechanism))
        if budget is not None:
            axes.plot(queries, accuracy_by_queries(mechanism, budget, sample, queries), label=mechanism)
    if plan.noiseless_accuracy is not None:
        axes.axhline(plan.noiseless_accuracy, color="grey", linestyle=":", label="without noise")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("queries that the budget pays for")
    axes.set_ylabel("expected accuracy")
    epsilon = plan.budgets[0].epsilon
    axes.set_title(f"epsilon = {epsilon:.3g} at delta = {plan.delta:g}", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
