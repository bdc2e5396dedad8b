"""`dpserve plan`: what a budget buys, before training and after it.

No private record is read: an accuracy comes from a distribution of margins that the owner gives, from heads trained on
rows that the owner declares public, or from what was measured on public sets. A metered bundle's exact answers are
private, whoever's rows they are about: an accuracy of theirs, or a price chosen by it, tells neighbouring sets apart.
So they are scored only where an option says that this is outside the guarantee.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from accounting.budgets import Accepts, Budget
from accounting.picorho import PICORHO_PER_RHO, to_rho
from audit.reports import check_files
from dpserve.commands import options
from dpserve.commands.command import option
from dpserve.commands.console import shares, stdout_console
from dpserve.commands.console import whole as folding
from dpserve.commands.planning_plot import plot_accuracy, plot_options, points_about
from dpserve.commands.retraining import asks_retraining, plan_retraining
from dpserve.commands.tables import IMAGE_SHAPE, READING, SCHEMA, FileOptions, check_public, schema_alone
from training.errors import TrainingError, WrongOption
from training.feature_choice import FeatureChoice, shape_of
from training.features import rules
from training.features.hog import Shape
from training.features.maps import NORM_BOUND, UNIT_ROWS, Quantiles
from training.fitting.sensitivity import Convexity
from training.inputs.declared import parse_classes
from training.inputs.records import Declaration, Records
from training.inputs.schema import Schema, declaration_of
from training.kinds.cases import Estimate
from training.kinds.loading import load_model
from training.kinds.options import fields_of
from training.kinds.registry import release_names
from training.kinds.shared_options import PRICE_FORM, tier_prices
from training.planning.answers import NO_BETTER, Plan, PublicSample
from training.planning.answers import plan as plan_budget
from training.planning.heads import PlannedHead, sample_of
from training.planning.measured import HELD, LEAST_SETS, Expected, Similar
from training.planning.options import kind_of_option, option_named
from training.planning.recommendation import Recommendation, by_rule, by_simulation, numbers_to_cut, without_figures
from training.planning.tiers import PlannedTier, planned_tiers, simulated_tiers, tier_options, tiered_option

BEFORE = "Before training"
RETRAINING = "Train again as records come"
OUTSIDE = "--simulate-outside-the-guarantee"
"""The option that simulates on private records: its name says what comes of it."""
EXACT = "--score-outside-the-guarantee"
"""The option that scores a metered bundle's exact answers: its name says what comes of it."""

_OVERHEAD = 1.02
"""More noise on the grid than so many times what was planned is said."""


class PlanOptions(FileOptions):
    """Options for the plan, and for the source of its accuracies."""

    queries: int | None = option(None, "How many rows the budget has to pay for.", default_text="1000")
    accuracy: float | None = option(None, "Or the accuracy that answers must have: how many rows then?")
    public: str | None = option(
        None,
        "A table or FILE.npz of labelled rows that you declare public, of which none was trained on; or 'digits', the "
        "digits held out of training. Before training: simulates on them.",
    )
    class_names: str | None = option(None, "The classes, separated by commas, or VALUE=NAME of each.", panel=READING)
    bounds: list[str] | None = option(None, "Before training: LOW:HIGH or NAME=LOW:HIGH, as for train.", panel=READING)
    clip: bool = option(False, "Before training: clip values beyond the bounds, as for train.", panel=READING)
    n: int | None = option(None, "How many records, or privacy units, about.", "--n", panel=BEFORE)
    unit: str | None = option(
        None, "The column that identifies the person behind each record: --n counts these.", panel=BEFORE
    )
    classes: int | None = option(None, "C, how many classes.", panel=BEFORE)
    lam: float | None = option(None, "Lambda: plan noise on each answer of a head.", panel=BEFORE)
    alpha: float | None = option(None, "With --lam: of the convexified objective, and --least-records.", panel=BEFORE)
    least_records: int | None = option(None, "n_min of the convexified objective.", panel=BEFORE, ge=2)
    norm: float = option(NORM_BOUND, "R, the bound of the features' norm.", panel=BEFORE)
    outside: str | None = option(
        None,
        "Simulate on private records, in place of --public: what it prints tells about them and is covered by no "
        "guarantee and no budget.",
        OUTSIDE,
        panel=BEFORE,
        metavar="FILE",
    )
    exact: bool = option(
        False,
        "With a bundle and --public: score the bundle's exact answers. What it prints, and a price or a mechanism "
        "chosen by it, tells about the private records and is covered by no guarantee and no budget.",
        EXACT,
    )
    schema_file: Path | None = SCHEMA(panel=BEFORE)
    image_shape: str | None = IMAGE_SHAPE(panel=BEFORE)
    tier: list[str] | None = option(
        None,
        "NAME=PRICE, a precision of released weights, repeatable from the coarsest to the finest: PRICE as for train. "
        "Says what the tiers cost.",
        panel=BEFORE,
    )
    retrain: str | None = option(
        None,
        "How often to train again as records come by block: year, quarter, month, week, for as many blocks as a year "
        "has, or their number.",
        panel=RETRAINING,
    )
    block_budget: str | None = option(
        None, f"What all models may tell of the records of one block: {PRICE_FORM}.", panel=RETRAINING
    )
    window: int | None = option(
        None, "How many of the last blocks each retraining is on.", panel=RETRAINING, default_text="all", ge=1
    )
    margins: str | None = option(
        None,
        "MEAN:SD of the true class's logit over the others, normally distributed: your own guess.",
        panel=BEFORE,
    )

    def declared_schema(self) -> Schema | None:
        """Return the schema, if there is one. Raises WrongOption beside what it takes the place of."""
        return schema_alone(self.schema_file, class_names=self.class_names, bounds=self.bounds, classes=self.classes)

    def shape_of_rows(self, declared: Declaration | None) -> Shape | None:
        """Return the shape of rows that are images; None for others. declared: the columns, where they are known."""
        if self.image_shape is None:
            return None
        sides = fields_of(FeatureChoice)["image_shape"].value_of(self.image_shape)
        return shape_of(sides, None if declared is None else declared.features)

    def convexity(self) -> Convexity | None:
        """Return the choices of the convexified objective; None for the sum of losses. Raises WrongOption."""
        if (self.alpha is None) != (self.least_records is None):
            raise WrongOption("alpha", "and --least-records go together")
        if self.alpha is not None and self.lam is None:
            raise WrongOption("alpha", "goes with --lam and --classes")
        return None if self.alpha is None or self.least_records is None else Convexity(self.alpha, self.least_records)

    def rows(self, schema: Schema | None) -> Records | None:
        """Read the rows to simulate on before training, public or private; None for none."""
        if self.public and self.outside:
            raise WrongOption(OUTSIDE[2:], "takes the place of --public: give one of them")
        source = self.public or self.outside
        if not source:
            return None
        names, values = parse_classes(self.class_names) if self.class_names else ((), ())
        if source != "digits" and not names and schema is None:
            raise TrainingError(
                "declare the class names of the rows with --class-names a,b,..., or give their --schema"
            )
        found = self.read(
            source,
            classes=names,
            values=values,
            bounds=self.bounds or (),
            clip=self.clip,
            schema=schema,
            unit=self._unit_among(source, schema),
        )
        if self.public and source != "digits":
            check_public(found, source)
        return found

    def _unit_among(self, source: str, schema: Schema | None) -> str | None:
        """Return the column of units if the rows have one: public rows may lack it, as each counts for one unit."""
        if self.unit is None or source == "digits" or source.lower().endswith(".npz"):
            return None
        # Only who reads a table should wait for Arrow.
        from training.inputs.table_records import column_names

        encoding = self.encoding or (None if schema is None else schema.encoding)
        return self.unit if self.unit in column_names(source, encoding, self.sheet) else None


def plan(
    *,
    bundle: Path | None = option(
        None, "The bundle's folder; none before training.", argument=True, complete=options.bundle_names
    ),
    budget: options.BudgetOptions,
    given: PlanOptions,
    plot: Path | None = option(
        None,
        "Draw accuracy into FILE.png: against the budget, of each option, which simulates five times as long; for a "
        "head against the number of queries.",
    ),
    as_json: bool = options.JSON,
) -> None:
    """Say what a budget buys: which mechanism to take, or, for a head, the price of an answer and its accuracy.

    Before training, --n and --classes, or --public rows, choose between noise on each answer and pay-once models.
    On a bundle, or with --lam and --classes, it is about noise on each answer of a certified head.
    """
    check_files(plot)
    if asks_retraining(given, bundle, plot, budget):
        plan_retraining(given, _source, as_json=as_json)
        return
    budgets = budget.budgets()
    _check_exact(given, bundle)
    if bundle is None and given.lam is None and given.margins is None and given.accuracy is None:
        _plan_before_training(budgets, given, plot, as_json=as_json)
        return
    before = (given.outside, given.bounds, given.clip, given.tier, given.schema_file, given.image_shape)
    if any(before) or (given.class_names and not (bundle and given.public)):
        raise typer.BadParameter("chooses a mechanism before training: leave the bundle and --lam out")
    head = _plan_bundle(bundle, given) if bundle is not None else _plan_numbers(given)
    if given.margins is not None:
        if given.public is not None:
            raise WrongOption("margins", "take the place of --public: give one of them")
        head = replace(head, sample=head.with_margins(given.margins))
    halfway = None
    if given.public is None and given.margins is None and head.classes > 1:  # or else planning refuses it
        halfway = PublicSample.halfway(head.classes, head.margin, head.sensitivity)
    if plot is not None and head.sample is None:
        raise WrongOption("plot", "needs --public, --margins or --n to draw an accuracy from")
    found = plan_budget(
        budgets,
        classes=head.classes,
        queries=given.queries,
        accuracy=given.accuracy,
        sensitivity=head.sensitivity,
        sample=head.sample,
        halfway=halfway,
    )
    found = found.model_copy(update={"price_of_alpha": head.price_of_alpha})
    if plot is not None and head.sample is not None:
        plot_accuracy(plot, budgets, head.sample, found)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _print_plan(stdout_console(), found)


def _check_exact(given: PlanOptions, bundle: Path | None) -> None:
    """Raise WrongOption where exact answers are asked for, and there are none or no rows to score them on."""
    if given.exact and not (bundle and given.public):
        raise WrongOption(EXACT[2:], "goes with a bundle and --public rows, which its exact answers are scored on")


def _plan_bundle(bundle: Path, given: PlanOptions) -> PlannedHead:
    if given.n is not None or given.lam is not None or given.classes is not None:
        raise typer.BadParameter("a bundle has its own: leave --n, --lam and --classes out")
    for name in ("alpha", "least_records"):
        if getattr(given, name) is not None:
            raise WrongOption(name, "is the bundle's own: leave it out")
    head = load_model(bundle)
    planned = PlannedHead.of(head)
    if not given.public:
        return planned
    if not given.exact:
        raise WrongOption(
            "public",
            "would score the bundle's exact answers, which tell about single private records, as would a price chosen "
            "by them, which everybody sees. Leave the bundle out to simulate on these rows, or give --margins; or add "
            f"{EXACT}",
        )
    X, y, records = given.read_held_out(head.certificate, given.public, given.class_names)
    if records is not None:
        check_public(records, given.public)
    return replace(planned, sample=sample_of(head, X, y, given.public))


def _plan_numbers(given: PlanOptions) -> PlannedHead:
    if given.lam is None or given.classes is None:
        raise typer.BadParameter("name a bundle, or give --lam and --classes to plan before training")
    if given.public is not None:
        raise WrongOption("public", "needs a bundle, whose answers it scores")
    return PlannedHead.of_numbers(given.n, given.lam, given.norm, given.classes, given.convexity())


def _print_sensitivity(console: Console, plan: Plan) -> None:
    if plan.sensitivity is not None:
        console.print(f"L2 sensitivity of a row's logits: {plan.sensitivity:.4g}", highlight=False)
    if plan.price_of_alpha is not None:
        console.print(
            f"Price of alpha: {plan.price_of_alpha:.4g} times the sensitivity, and the noise, of the plain sum of "
            "losses with the same Lambda.",
            highlight=False,
        )


def _print_budgets(console: Console, plan: Plan) -> None:
    for budget in plan.budgets:
        held = f"epsilon = {budget.epsilon:.4g}"
        if budget.rho is None:
            held += ", pure: a stronger promise than with a delta" if plan.delta > budget.delta else ", pure"
        else:
            held = f"rho = {budget.rho:.6g}, {held} at delta = {plan.delta:g}"
        console.print(f"A budget that accepts {budget.accepts!r} charges: {held}.", highlight=False)


def _print_plan(console: Console, plan: Plan) -> None:
    _print_budgets(console, plan)
    _print_sensitivity(console, plan)
    table = folding("mechanism", "--accepts", "noise multiplier", "queries", "accuracy")
    table.add_column("price of a row", overflow="fold", no_wrap=True)
    for each in plan.options:
        table.add_row(
            each.mechanism,
            each.accepts,
            "-" if each.noise_multiplier is None else f"{each.noise_multiplier:.4g}",
            f"{each.queries:,}",
            "-" if each.accuracy is None else f"{each.accuracy:.4f}",
            each.price,
        )
    console.print(table, highlight=False)
    for name, why in plan.unavailable.items():
        console.print(f"{name} is unavailable: {why}.", highlight=False)
    if not plan.options:
        console.print("No mechanism can do that within the budget.")
    if plan.accuracy_from is None:
        console.print("No accuracy is given: it takes --public rows, --margins, or --n before training.")
    else:
        console.print(
            f"Accuracy on {plan.accuracy_from}; without noise it would be {plan.noiseless_accuracy:.4f}.",
            highlight=False,
        )
    if plan.outside_the_guarantee:
        console.print(
            "No guarantee covers these figures, and no budget pays for them: keep them to yourself. A price or a "
            "mechanism chosen by them tells about single private records, and everybody sees both of a served model.",
        )
    for line in _worth(plan):
        console.print(line, highlight=False)
    drawn = [each.noise / each.noise_multiplier for each in plan.options if each.noise and each.noise_multiplier]
    if plan.sensitivity is not None and max(drawn, default=0.0) > _OVERHEAD * plan.sensitivity:
        console.print(
            "With so much noise, what is drawn on the grid is more than planned, up to twice as much; the price holds."
        )


def _worth(plan: Plan) -> list[str]:
    """Say what answers are worth, where no rows were given, and where they are worth nothing."""
    if plan.commonest_class is not None:
        best = max((option.accuracy or 0.0 for option in plan.options), default=0.0)
        if best > plan.commonest_class:
            return []
        return [f"Such answers are {NO_BETTER}, which is right on {plan.commonest_class:.4f} of these rows. {_INSTEAD}"]
    expected = plan.expectation
    if expected is None:
        return []
    said = expected.words(f"answers of {plan.options[0].mechanism!r}")
    return [said, _INSTEAD] if expected.no_better_than_the_commonest_class else [said]


_INSTEAD = (
    "Plan for fewer queries or more records, raise Lambda or the budget, or make a model that is paid for once: "
    "'dpserve plan' with --n and --classes alone compares them."
)


@dataclass(frozen=True)
class _Rows:
    """Public numbers of the records. known: rows to simulate on; declared: the columns; count: of records, about."""

    known: Records | None
    declared: Declaration | None
    count: int
    classes: int
    modality: rules.Modality | None
    shape: Shape | None

    @classmethod
    def of(cls, given: PlanOptions) -> "_Rows":
        """Return what the options say. Raises typer.BadParameter where they say too little."""
        schema = given.declared_schema()
        known = given.rows(schema)
        declared = known.declaration if known is not None else declaration_of(schema, given.label) if schema else None
        count = given.n or (None if known is None else len(known))
        classes = given.classes if declared is None else len(declared.classes)
        if count is None or classes is None:
            raise typer.BadParameter(
                "name a bundle; or give --lam and --classes to plan the noise on a head's answers; or --n and "
                f"--classes, --n and --schema, --public FILE or {OUTSIDE} FILE, to choose a mechanism"
            )
        # Most records are rows of a table with few numbers, or with a schema.
        modality: rules.Modality | None = "table" if declared is None else rules.modality_of(declared)
        shape = given.shape_of_rows(declared)
        if shape is not None:
            modality = rules.modality_of(declared, shape) if declared else "images"
        return cls(known, declared, count, classes, modality, shape)

    def recommended(self, given: PlanOptions, whole: int) -> tuple[Recommendation, Similar | None]:
        """Return what is recommended for a budget in picorho, and the similar sets where nothing was simulated."""
        if self.known is None:
            return by_rule(self.count, self.classes, whole, given.queries, self.modality, self._numbers, given.unit)
        with shares("simulating") as progress:
            found = by_simulation(
                self.known,
                n=given.n,
                whole=whole,
                queries=given.queries,
                image_shape=self.shape,
                unit=given.unit,
                progress=progress,
            )
        return found, None

    def without_figures(self, recommendation: Recommendation, given: PlanOptions, whole: int) -> Mapping[str, bool]:
        """Return the options that can be had beside those with figures, by name: whether answers have intervals."""
        return without_figures(
            recommendation, self.count, self.classes, whole, self.modality, self._numbers, given.unit
        )

    @property
    def _numbers(self) -> int:
        return 1 if self.declared is None else numbers_to_cut(self.declared)


def _plan_before_training(
    budgets: Mapping[Accepts, Budget], given: PlanOptions, plot: Path | None, *, as_json: bool
) -> None:
    """Compare the options, recommend one and print why: by simulation where there are rows, or by what was measured."""
    budget = budgets.get("gaussian")
    if budget is None:
        raise WrongOption("delta", "must be above 0: pay-once models have Gaussian noise, which has no pure epsilon")
    if given.queries is not None and given.queries < 1:
        raise ValueError(f"the number of queries must be at least 1, not {given.queries}")
    given.convexity()
    whole, rows = budget.limit, _Rows.of(given)
    tiers = planned_tiers(tier_prices(given.tier), whole) if given.tier else ()
    found, similar = rows.recommended(given, whole)
    if rows.known is not None and tiers:
        tiers = simulated_tiers(tiers, rows.known, given.n, tiered_option(found.estimates).features)
    origin, note = _origin(given, rows, similar)
    if plot is not None:
        names = [each.option for each in sorted(found.estimates, key=_log_loss)]
        points = points_about(budget, lambda whole: rows.recommended(given, whole)[0])
        plot_options(plot, budget, found.option, names, points, outside=given.outside is not None)
    data = [f"--schema {given.schema_file}"] if given.schema_file else []
    data += [f"--label {given.label}"] if given.label != "label" else []
    data += [f"--unit {given.unit}"] if given.unit is not None else []
    made = found.training_options(rows.count, whole, given.queries, rows.modality)
    command = _command(found, made, data, given.image_shape, rows=rows.declared)
    tiers_command = (
        _command(Recommendation(tiered_option().name, ""), tier_options(tiers), data, given.image_shape)
        if tiers
        else None
    )
    others = {} if similar is None else rows.without_figures(found, given, whole)
    shown = Comparison(budget, given.queries, found, origin, note, command, tiers, tiers_command, others)
    if as_json:
        typer.echo(json.dumps(as_dict(shown), indent=2))
    else:
        print_comparison(stdout_console(), shown)


def _origin(given: PlanOptions, rows: "_Rows", similar: Similar | None) -> tuple[str, str]:
    """Return where the accuracies come from, and a sentence of what they are worth."""
    if similar is not None:
        return f"measured on {similar.words}", _note(
            similar, declared=rows.declared is not None or rows.shape is not None
        )
    origin = _source(given, len(rows.known or ()))
    return origin, f"Accuracy on {origin}."


def _source(given: PlanOptions, count: int) -> str:
    """Say where so many rows come from."""
    whose = (
        "declared public" if given.public else "private: no guarantee covers these figures, so keep them to yourself"
    )
    return f"{count} rows of {given.public or given.outside}, {whose}"


def _note(similar: Similar, *, declared: bool) -> str:
    """Say what the figures are worth. declared: whether it is known what the rows are."""
    rows = (
        ""
        if declared
        else " It is taken to be a table of up to 32 numbers; of other rows give --schema, of images --image-shape."
    )
    if not similar.predictable:
        return (
            f"What yours will reach is not predictable from what was measured: on {similar.words}, "
            f"and a range takes {LEAST_SETS}. --public FILE simulates on rows like yours.{rows}"
        )
    held, of_all = HELD
    return (
        f"Lowest to highest, as measured on {similar.words}. Of tables that were kept apart to try this {held} of "
        f"{of_all} figures lay in such ranges; yours may not be like them: --public FILE simulates on rows like "
        f"yours. The signal says by how many deviations of the noise the records of a class stand out.{rows}"
    )


def _command(
    recommendation: Recommendation,
    made: Mapping[str, object],
    data: Sequence[str],
    image: str | None,
    rows: Declaration | None = None,
) -> str:
    """Return the command that trains what is recommended.

    data: how the records are read; image: their shape; rows: what is declared of them, as far as it is known.
    """
    option = recommendation.chosen
    fields = kind_of_option(option).fields
    words = ["dpserve train --data FILE", *data, "--lineage NAME --out MODEL"]
    words += [f"--image-shape {image}"] if image else []
    words += [f"--release {option.release}"] if option.release in release_names() else []
    for name, value in made.items():
        words += [f"--{name.replace('_', '-')} {each}" for each in fields[name].words_of(value)]
    if option.features == "fourier":
        words.append(f"--features fourier --random-features {rules.RANDOM_FEATURES} --bandwidth {rules.BANDWIDTH:g}")
        words.append(f"--clip-norm {UNIT_ROWS:.7g}")
    if option.features == "crosses":
        words.append(f"--features bins --cross-buckets {rules.CROSS_BUCKETS}")
    if option.features == "hog-fourier":
        words.append(f"--features hog-fourier --random-features {rules.IMAGES_RANDOM_FEATURES}")
        words.append(f"--bandwidth {rules.IMAGES_BANDWIDTH:g}")
    if option.features == "unit":
        words.append(f"--features identity --clip-norm {UNIT_ROWS:.7g}")
    cut = rows is None or isinstance(rules.feature_map(option.features, rows), Quantiles)
    if option.features in ("quantiles", "even") and cut:
        words.append("--features quantiles" + " --quantile-share 0" * (option.features == "even"))
    return " ".join(words)


@dataclass(frozen=True)
class Comparison:
    """All that is shown. origin, note: where accuracies come from; command: trains the recommended option.

    others: options that can be had too, by name, and whether their answers have intervals; no figure of them is known.
    """

    budget: Budget
    queries: int | None
    found: Recommendation
    origin: str
    note: str
    command: str
    tiers: tuple[PlannedTier, ...]
    tiers_command: str | None
    others: Mapping[str, bool]


def as_dict(shown: Comparison) -> dict[str, object]:
    """Return it for JSON."""
    budget, found = shown.budget, shown.found
    return {
        "delta": budget.delta,
        "rho": budget.limit / PICORHO_PER_RHO,
        "asked_queries": shown.queries,
        "accuracy_from": shown.origin,
        "recommended": found.option,
        "why_not_the_first": found.order or None,
        "reason": found.reason,
        "warnings": found.warnings,
        "command": shown.command,
        "estimates": [
            {
                "title": option_named(each.option).title,
                "has_intervals": _has_intervals(each),
            }
            | {"accuracy" if name == "mean" else name: value for name, value in asdict(each).items()}
            for each in found.estimates
        ],
        "without_figures": [
            {"option": name, "title": option_named(name).title, "has_intervals": has_intervals}
            for name, has_intervals in shown.others.items()
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
        "tiers_command": shown.tiers_command,
    }


def print_comparison(console: Console, shown: Comparison) -> None:
    """Print it."""
    budget, found = shown.budget, shown.found
    console.print(
        f"The budget is mu = {math.sqrt(2 * budget.limit / PICORHO_PER_RHO):.4g} for all answers together, epsilon = "
        f"{budget.epsilon_at(budget.limit):.4g} at delta = {budget.delta:g}.",
        highlight=False,
    )
    table = Table("option", "paid for", "accuracy", "log loss", "intervals", "undecided", "set at 0.9")
    for each in sorted(found.estimates, key=_log_loss):
        option = option_named(each.option)
        table.add_row(option.title, option.pays, *_figures(each))
    for name, has_intervals in shown.others.items():
        option = option_named(name)
        intervals = "yes" if has_intervals else "none"
        table.add_row(option.title, option.pays, "not predictable", "", intervals, "", "")
    console.print(table, highlight=False)
    console.print(shown.note, highlight=False)
    console.print(f"Recommended: {found.reason}.", highlight=False)
    if found.order:
        console.print(f"Why not the first of the table: {found.order}.", highlight=False)
    for warning in found.warnings:
        console.print(f"Warning: {warning}.", highlight=False)
    console.print(f"Next: {shown.command}", highlight=False, soft_wrap=True)
    if shown.tiers:
        _print_tiers(console, shown.tiers)
        console.print(f"In tiers: {shown.tiers_command}", highlight=False, soft_wrap=True)
    else:
        console.print(
            "Released weights can also have tiers, --tier NAME=PRICE from the coarsest to the finest: clients who "
            "put theirs together know no more than the finest tells, so the lineage pays for that one alone.",
            highlight=False,
        )


def _has_intervals(each: Estimate | Expected) -> bool:
    return each.has_intervals if isinstance(each, Expected) else each.interval is not None


def _log_loss(each: Estimate | Expected) -> float:
    """Return what options are sorted by: those of unknown log loss last."""
    if isinstance(each, Expected):
        return math.inf if each.log_loss is None else (each.log_loss.lowest + each.log_loss.highest) / 2
    return math.inf if each.log_loss is None else each.log_loss


def _figures(each: Estimate | Expected) -> tuple[str, str, str, str, str]:
    """Return what the table shows of an option.

    That is accuracy, log loss, intervals, the share of undecided answers, and the size of prediction sets.
    """
    share = "not known" if each.undecided is None else f"{each.undecided:.0%}"
    if isinstance(each, Expected):
        right, loss = each.accuracy, each.log_loss
        losses = "" if loss is None else f"{loss.lowest:.2f} to {loss.highest:.2f}"
        intervals = "yes" if each.has_intervals else "none"
        size = each.set_size
        sizes = "not known" if size is None else f"{size.lowest:.1f} to {size.highest:.1f}"
        return f"{right.lowest:.2f} to {right.highest:.2f}", losses, intervals, share, sizes
    if each.mean is None:
        return "unavailable", "", "", "", ""
    spread = "" if each.spread is None else f" ± {each.spread:.3f}"
    loss_words = "" if each.log_loss is None else f"{each.log_loss:.3f}"
    width = "none" if each.interval is None else f"{each.interval:.2f} wide"
    size_words = "not known" if each.set_size is None else f"{each.set_size:.2f}"
    return f"{each.mean:.3f}{spread}", loss_words, width, share, size_words


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
