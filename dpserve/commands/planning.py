"""`dpserve plan`: what a budget buys, before training and after it.

No private record is read: a recommendation follows from declared numbers, or from models trained on rows that the
owner declares public. Of a trained model there are prices alone: its exact answers are private, whoever's rows they are
about.
"""

import asyncio
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill

import typer
from rich.console import Console

from dpserve.accounting.budgets import Accepts, Budget
from dpserve.accounting.ledger import Account, LedgerError
from dpserve.accounting.picorho import PICORHO_PER_RHO
from dpserve.audit.reports import check_files
from dpserve.commands import options
from dpserve.commands.console import narrow_console, shares
from dpserve.commands.console import whole as folding
from dpserve.commands.planning_plot import plot_options, points_about
from dpserve.commands.retraining import WIDTH, as_lines, asks_retraining, plan_retraining, price_flags, read_by
from dpserve.mechanisms.gaussian_vector import LARGEST_PRICE, mu_for
from dpserve.plan_options import PlanOptions
from dpserve.prices import flags_of_budget
from dpserve.training.errors import ErrorList, WrongOption
from dpserve.training.feature_choice import features_of_rule
from dpserve.training.features.hog import Shape
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.inputs.schema import facts_of
from dpserve.training.kinds.cases import Estimate
from dpserve.training.kinds.kind import declared_count
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_of
from dpserve.training.options import Options, option
from dpserve.training.planning.answers import USUAL_QUERIES, AnswerPlan
from dpserve.training.planning.answers import plan as plan_answers
from dpserve.training.planning.options import kind_of_option, option_named
from dpserve.training.planning.recommendation import LEAST_SIGNAL, Recommendation, recommend
from dpserve.wording import flags_of

_OPTION_WIDTH = 18
_OVERHEAD = 1.02
"""More noise on the grid than so many times what was planned is said."""


def plan(
    *,
    bundle: Path | None = option(
        None, "The bundle's folder; none before training.", argument=True, complete=options.bundle_names
    ),
    budget: options.BudgetOptions,
    given: PlanOptions,
    plot: Path | None = option(
        None,
        "With --public: draw each option's accuracy against the budget into FILE.png, which simulates five times as "
        "long.",
    ),
    everything: bool = option(False, "Show each option with its figures, and the prices of single answers.", "--all"),
    as_json: bool = options.JSON,
) -> None:
    """Say what a budget buys: what to run, what it gives and what it costs.

    Before training, --n and --classes, or --public rows, choose the kind of model and its features. A bundle each of
    whose answers is paid for has prices of a row, for as many rows as --queries says.
    """
    check_files(plot)
    if asks_retraining(given, bundle, plot):
        plan_retraining(given, budget, as_json=as_json)
        return
    wrong = ErrorList()
    budgets = wrong.attempt(budget.budgets) or {}
    if bundle is None and given.public is None:
        wrong.errors += given.lacking()
    wrong.check()
    if bundle is None:
        _plan_before_training(budgets, budget, given, plot, everything=everything, as_json=as_json)
        return
    if plot is not None or given.model_fields_set - {"queries"}:
        raise typer.BadParameter("a bundle has its own numbers: give it with --queries alone, or leave it out")
    found = _answers_of(bundle, budgets, given.queries)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    console = narrow_console()
    _print_budgets(console, found)
    _print_answers(console, found)


def _answers_of(bundle: Path, budgets: Mapping[Accepts, Budget], queries: int | None) -> AnswerPlan:
    """Return the prices of a bundle's answers. Raises TrainingError for a kind that no noise is planned for."""
    model = load_model(bundle)
    return plan_answers(
        budgets,
        classes=len(model.certificate.classes),
        queries=USUAL_QUERIES if queries is None else queries,
        sensitivity=kind_of(model).planned_sensitivity(model.certificate),
    )


def _print_budgets(console: Console, plan: AnswerPlan) -> None:
    for budget in plan.budgets:
        held = f"epsilon = {budget.epsilon:.4g}"
        if budget.rho is None:
            held += ", pure: a stronger promise than with a delta" if plan.delta > budget.delta else ", pure"
        else:
            held = f"rho = {budget.rho:.6g}, {held} at delta = {plan.delta:g}"
        console.print(f"A budget that accepts {budget.accepts!r} charges: {held}.", highlight=False)


def _print_answers(console: Console, plan: AnswerPlan) -> None:
    """Print what each mechanism's answers may cost."""
    if plan.sensitivity is not None:
        console.print(f"L2 sensitivity of a row's logits: {plan.sensitivity:.4g}", highlight=False)
    table = folding("mechanism", "--accepts", "noise multiplier")
    table.add_column(f"price of a row, of {plan.queries:,}", overflow="fold", no_wrap=True)
    for answer in plan.options:
        noise = "-" if answer.noise_multiplier is None else f"{answer.noise_multiplier:.4g}"
        table.add_row(answer.mechanism, answer.accepts, noise, answer.price)
    console.print(table, highlight=False)
    for name, why in plan.unavailable.items():
        console.print(f"{name} is unavailable: {why}.", highlight=False)
    if not plan.options:
        console.print("No mechanism can do that within the budget.")
    drawn = [
        answer.noise / answer.noise_multiplier for answer in plan.options if answer.noise and answer.noise_multiplier
    ]
    if plan.sensitivity is not None and max(drawn, default=0.0) > _OVERHEAD * plan.sensitivity:
        console.print(
            "With so much noise, what is drawn on the grid is more than planned, up to twice as much; the price holds."
        )


@dataclass(frozen=True)
class _Rows:
    """Public numbers of the records. known: rows to simulate on; declared: the columns; count: of records, about."""

    known: Records | None
    declared: Declaration | None
    count: int
    classes: tuple[str, ...]
    shape: Shape | None

    @classmethod
    def of(cls, given: PlanOptions) -> "_Rows":
        """Return what the options say. Raises TrainingError."""
        known = given.rows()
        declared = known.declaration if known is not None else given.declaration()
        classes = given.declared_classes()[0] if declared is None else declared.classes
        count = declared_count(len(known) if known is not None and given.count is None else given.count)
        return cls(known, declared, count, classes, given.shape_of_rows(declared))

    def recommended(self, given: PlanOptions, whole: int, delta: float | None) -> Recommendation:
        """Return what is recommended for a budget in picorho. delta: as `words_at` takes it."""
        with shares("simulating") as progress:
            return recommend(
                len(self.classes),
                self.declared,
                self.known,
                n=given.count,
                whole=whole,
                queries=given.queries,
                image_shape=self.shape,
                progress=progress,
                delta=delta,
            )

    def note(self, given: PlanOptions) -> str:
        """Say what the recommendation comes from."""
        if self.known is not None:
            return f"Accuracy on {len(self.known)} rows of {given.public}, declared public."
        words = "No rows were given: --public FILE simulates on rows like yours, and says what to expect."
        if self.declared is None and self.shape is None:
            words += (
                " Yours are taken to be a table of up to 32 numbers; of other rows give --schema, of images "
                "--image-shape."
            )
        return words


@dataclass(frozen=True)
class Comparison:
    """All that is shown. note: what it comes from; command: trains the recommended option; gives, costs: in words.

    answers: what each of the queries may cost, paid for one by one, where their number was given.
    """

    budget: Budget
    queries: int | None
    found: Recommendation
    note: str
    command: str
    gives: str
    costs: str
    answers: AnswerPlan | None


def _plan_before_training(
    budgets: Mapping[Accepts, Budget],
    asked: options.BudgetOptions,
    given: PlanOptions,
    plot: Path | None,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """Recommend a kind of model and print why: by simulation where there are rows, or by rule."""
    budget = budgets.get("gaussian")
    if budget is None:
        raise WrongOption("delta", "must be above 0: pay-once models have Gaussian noise, which has no pure epsilon")
    if given.queries is not None and given.queries < 1:
        raise ValueError(f"the number of queries must be at least 1, not {given.queries}")
    if plot is not None and given.public is None:
        raise WrongOption("plot", "needs --public rows to draw an accuracy on")
    whole, rows = budget.limit, _Rows.of(given)
    shares_of, delta = given.shares(rows.classes), None if budget.shown_in == "rho" else budget.delta
    found = rows.recommended(given, whole, delta)
    if plot is not None:
        names = [estimate.option for estimate in sorted(found.estimates, key=_log_loss)]
        plot_options(
            plot, budget, found.option, names, points_about(budget, lambda whole: rows.recommended(given, whole, delta))
        )
    classes = len(rows.classes)
    answers = None if given.queries is None else plan_answers(budgets, classes=classes, queries=given.queries)
    kind, price = found.training_options(rows.count, whole, given.queries)
    shown = Comparison(
        budget,
        given.queries,
        found,
        rows.note(given),
        _command(found, rows, given, kind, _price_flags(asked, price, whole)),
        " ".join(_gives(found, rows, given, shares_of, mu_for(min(whole, LARGEST_PRICE)))),
        _costs(budget, found, given, price),
        answers,
    )
    if as_json:
        typer.echo(json.dumps(as_dict(shown), indent=2))
    else:
        print_comparison(narrow_console(), shown, everything=everything)


def _gives(
    choice: Recommendation, rows: _Rows, given: PlanOptions, shares_of: Mapping[str, float], mu: float
) -> Iterator[str]:
    """Yield sentences on what the model is worth. mu: of what all answers cost."""
    option, expected = choice.chosen, next((each for each in choice.estimates if each.option == choice.option), None)
    many = "any number of answers" if option.pays == "once" else f"{given.queries:,} answers"
    yield f"{option.title}: {many}."
    if expected is not None and expected.mean is not None and choice.constant is not None and rows.known is not None:
        spread = "" if expected.spread is None else f" ± {expected.spread:.2f}"
        yield (
            f"On {len(rows.known):,} public rows it was right on {expected.mean:.2f}{spread} of those held out; always "
            f"naming the commonest class on {choice.constant.accuracy:.2f}."
        )
    else:
        yield "No accuracy is promised: --public FILE measures it on rows like yours."
    if rows.declared is None and rows.shape is None:
        yield "Your rows are taken to be a table of up to 32 numbers."
    for name, share in shares_of.items():
        few = mu * share * rows.count < LEAST_SIGNAL
        enough = LEAST_SIGNAL / (mu * share)
        yield f"Of class {name} are about {share * rows.count:,.0f} of {rows.count:,} records" + (
            f", few beside this noise: take {enough:,.0f} records, or a larger budget." if few else "."
        )
    if shares_of:
        left = (1 - sum(shares_of.values())) / max(len(rows.classes) - len(shares_of), 1)
        yield (
            f"Always naming the commonest class is right on {max(left, *shares_of.values()):.2f} or more: judge by the "
            "area below the ROC curve, which 'dpserve evaluate' has."
        )


def _costs(budget: Budget, choice: Recommendation, given: PlanOptions, price: int) -> str:
    """Return what the model costs, and what its lineage has left."""
    at = f"at delta {budget.delta:g}".replace("e-0", "e-")
    if choice.chosen.pays != "once":
        together = budget.epsilon_at(price * (given.queries or 1))
        return f"epsilon {together:.3g} {at} for all these answers, each as it is asked."
    cost = f"epsilon {budget.epsilon_at(price):.3g} {at}, once."
    name = given.lineage
    if name is None:
        return cost
    account = _account(name)
    if account is None:
        return f"{cost} The lineage {name} has no budget yet: 'dpserve serve' opens it."
    held, spent = account.budget, account.spent
    takes, left = held.words_of_cost(spent, price)
    has = f"Of the lineage {name} {held.shown_in} = {left} is left"
    if account.remaining < price:
        return f"{cost} {has}, which does not pay for it: this {takes}."
    _, after = held.words_of_cost(spent + price, 0)
    return f"{cost} {has}; this {takes}, and leaves {after}."


def _account(lineage: str) -> Account | None:
    """Return the account of a lineage that has one for all its records; None where the ledger cannot say."""

    async def asked(location: str) -> Account | None:
        async with options.open_ledger(location, None) as ledger:
            accounts = await ledger.all_blocks(lineage)
            return accounts[0] if len(accounts) == 1 and not accounts[0].name else None

    location = options.ledger_location(None)
    if "://" not in location and not Path(location).exists():
        return None  # and looking makes none
    with suppress(LedgerError, OSError, ValueError):
        return asyncio.run(asked(location))
    return None


def _price_flags(budget: options.BudgetOptions, price: int, whole: int) -> str:
    """Return the flags of a price: as the budget was given, where it is all of that. price, whole: in picorho."""
    epsilon, delta = budget.epsilon, budget.delta
    if epsilon is None or delta is None or price != whole:
        return price_flags(price)
    return flags_of_budget(epsilon, delta)


def _command(recommendation: Recommendation, rows: _Rows, given: PlanOptions, kind: Options, price: str) -> str:
    """Return the command that trains what is recommended: its kind by name where a rule would choose another.

    price: the flags of what it costs.
    """
    option = recommendation.chosen
    made = kind_of_option(option)
    words, more = ["dpserve train"], []
    if rows.known is not None or made.answers != "once":
        words = [f"dpserve train {made.name}"]
        more = [*flags_of(kind), *flags_of(features_of_rule(option.features, rows.declared, given.image_shape))]
    elif given.image_shape is not None:
        more = [f"--image-shape {','.join(map(str, given.image_shape))}"]
    words += read_by(given)
    by_file = facts_of(given.schema_file)
    words += (
        [f"--lineage {given.lineage or 'NAME'}"] if by_file.lineage is None or given.lineage != by_file.lineage else []
    )
    if made.answers == "once":
        words += [price] + ([f"--n {rows.count}"] if rows.count != by_file.n else [])
    return " ".join([*words, *more, "--out model"])


def as_dict(shown: Comparison) -> dict[str, object]:
    """Return it for JSON."""
    budget, found = shown.budget, shown.found
    return {
        "delta": budget.delta,
        "rho": budget.limit / PICORHO_PER_RHO,
        "asked_queries": shown.queries,
        "from": shown.note,
        "recommended": found.option,
        "why_not_the_first": found.order or None,
        "reason": found.reason,
        "warnings": found.warnings,
        "command": shown.command,
        "gives": shown.gives,
        "costs": shown.costs,
        "estimates": [
            {"title": option_named(estimate.option).title, "has_intervals": estimate.interval is not None}
            | {"accuracy" if name == "mean" else name: value for name, value in asdict(estimate).items()}
            for estimate in found.estimates
        ],
        "answers": None if shown.answers is None else shown.answers.model_dump(mode="json"),
    }


def print_comparison(console: Console, shown: Comparison, *, everything: bool) -> None:
    """Print what to run, what it gives and what it costs; and with `everything` how it was chosen."""
    console.print(as_lines(shown.command, "Run:   "), highlight=False, soft_wrap=True)
    for title, words in (("Gives", shown.gives), ("Costs", shown.costs)):
        typer.echo(fill(words, WIDTH, initial_indent=f"{title}: ", subsequent_indent=" " * 7, break_on_hyphens=False))
    for warning in shown.found.warnings:
        console.print(f"Warning: {warning}.", highlight=False)
    if everything:
        _print_options(console, shown)


def _print_options(console: Console, shown: Comparison) -> None:
    """Print each option with its figures, why one of them is recommended, and the prices of single answers."""
    budget, found = shown.budget, shown.found
    console.print(
        f"\nThe budget is mu = {math.sqrt(2 * budget.limit / PICORHO_PER_RHO):.4g} for all answers together, epsilon = "
        f"{budget.epsilon_at(budget.limit):.4g} at delta = {budget.delta:g}.",
        highlight=False,
    )
    if found.estimates:
        table = folding("option", "accuracy", "log loss", "interval", "undecided", "set at\n0.9")
        table.columns[0].min_width = _OPTION_WIDTH
        for estimate in sorted(found.estimates, key=_log_loss):
            option = option_named(estimate.option)
            table.add_row(option.title, *_figures(estimate))
        console.print(table, highlight=False)
    console.print(shown.note, highlight=False)
    console.print(f"Recommended: {found.reason}.", highlight=False)
    if found.order:
        console.print(f"Why not the first of the table: {found.order}.", highlight=False)
    if shown.answers is not None:
        console.print("Answers that are paid for one by one, by a head:", highlight=False)
        _print_answers(console, shown.answers)


def _log_loss(estimate: Estimate) -> float:
    """Return what options are sorted by: those of unknown log loss last."""
    return math.inf if estimate.log_loss is None else estimate.log_loss


def _figures(estimate: Estimate) -> Sequence[str]:
    """Return what the table shows of an option.

    That is accuracy, log loss, intervals, the share of undecided answers, and the size of prediction sets.
    """
    if estimate.mean is None:
        return "-", "-", "-", "-", "-"
    spread = "" if estimate.spread is None else f" ± {estimate.spread:.2f}"
    rest = (
        (estimate.log_loss, ".3f"),
        (estimate.interval, ".2f"),
        (estimate.undecided, ".0%"),
        (estimate.set_size, ".2f"),
    )
    return (f"{estimate.mean:.3f}{spread}", *("-" if value is None else format(value, form) for value, form in rest))
