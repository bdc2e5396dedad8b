"""Which option an owner should take, with the training options for it: by a simulation, or by a public rule.

A simulation runs the options themselves on given rows, which are public. It ranks them by log loss, and takes the
rule's option unless another did better by a standard error of the difference. Without rows the rule decides, by
declared numbers alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

import numpy as np

from dpserve.accounting import picorho, sampling_error
from dpserve.accounting.budgets import READ_AT, words_at
from dpserve.accounting.disclosure import Declared, Disclosed
from dpserve.accounting.messages import Message
from dpserve.accounting.picorho import PICORHO_PER_RHO, to_rho
from dpserve.mechanisms.gaussian_vector import LARGEST_PRICE, LEAST_PRICE, mu_for
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.errors import TrainingError
from dpserve.training.features import rules
from dpserve.training.features.hog import Shape
from dpserve.training.features.maps import FeatureMap, Quantiles
from dpserve.training.features.quantiles import price_of_counts
from dpserve.training.features.rules import Modality
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.inputs.sums import MOST_RECORDS, check_count
from dpserve.training.kinds.cases import MOST_ASKED, Case, Estimate, Heads, Quality, mean_of, numbers_declared
from dpserve.training.kinds.planned import CUT, PlannedOption, PlanTerms, Trial
from dpserve.training.options import Options
from dpserve.training.planning.options import default_option, kind_of_option, option_named, planned_options
from dpserve.training.planning.ranking import HELD_OUT, Ranking

MOST_ROWS, MOST_TABLE_ROWS = 20_000, 100_000
"""A simulation takes no more rows, the latter of tables: figures of most options would change by less than their
spread. What crosses learn grows with the rows for longer: on flights they are clearly the best from 50,000 on."""

_LARGEST_FEATURES = 2**25
"""Numbers that the cuts of all rows may be, beyond MOST_ROWS: 256 MiB."""

SEEDS = 5
"""Number of splits of the rows, and of draws of noise, in a simulation."""

_LEAST_ROWS = 50
_CLOSE = 0.005
_CLOSE_LOSS = 0.01
_WIDE = 0.9
LEAST_SIGNAL = 16.0
"""The least mu n / C at which anything was measured: of Location at epsilon 0.5 (`research/comparison`)."""

NO_BETTER = "no better than always naming the commonest class"
NO_INTERVALS = "its answers come without intervals, because how far the noise moved them is not known"


def warnings_of(expected: Estimate, constant: Quality) -> tuple[str, ...]:
    """Say in words what makes an option's answers worth little.

    constant: what it is worth to answer every row with the shares of the classes.
    """
    said = []
    if expected.mean is not None and expected.mean <= constant.accuracy + _CLOSE:
        said.append(
            f"accuracy {expected.mean:.3f} is {NO_BETTER}, which is right on {constant.accuracy:.3f} of the rows: "
            "raise the budget, or train on more records"
        )
    loss, of_shares = expected.log_loss, constant.log_loss
    if loss is not None and of_shares is not None and loss >= of_shares - _CLOSE_LOSS:
        said.append(
            f"its probabilities, of log loss {loss:.3f}, tell no more than the shares of the classes do, of log loss "
            f"{of_shares:.3f}"
        )
    if expected.interval is not None and expected.interval >= _WIDE:
        said.append(
            f"the noise leaves the likeliest class's probability an interval {expected.interval:.2f} wide on average, "
            "which covers nearly everything: read its answers as classes, or not at all"
        )
    return tuple(said)


@dataclass(frozen=True)
class Recommendation(Disclosed):
    """An option, why in one sentence, what every option was expected to reach, and what the owner is warned of.

    estimates, constant: of a simulation: each option's, and what it is worth to answer every row with the shares of the
    classes. order: why the option is not the one of the least log loss among the estimates; empty where it is.
    """

    option: Declared[str]
    reason: Declared[str]
    estimates: Declared[tuple[Estimate, ...]] = ()
    warnings: Declared[tuple[str, ...]] = ()
    constant: Declared[Quality | None] = None
    order: Declared[str] = ""

    @property
    def chosen(self) -> PlannedOption:
        """The chosen option."""
        return option_named(self.option)

    def training_options(self, n: int, whole: int, queries: int | None) -> tuple[Options, int]:
        """Return the kind's options for it, and the price of the model, or of each answer, in picorho.

        n: declared; whole: the budget in picorho; queries: None, no end.

        No release takes more than LARGEST_RELEASE_RHO of the budget. Raises ValueError for noise on each answer
        without a number of queries, or for more of them than the budget pays for.
        """
        share = min(whole, LARGEST_PRICE)
        if self.chosen.pays == "each answer":
            if queries is None:
                raise ValueError("no budget pays for unlimited answers one by one")
            _check_answers(whole, queries)
            share = whole // queries
        return kind_of_option(self.chosen).settings(self.chosen, PlanTerms(n, share)), share


def _check_answers(whole: int, queries: int) -> None:
    """Raise ValueError unless each of so many answers gets a price that noise can be drawn at."""
    least = picorho.charge(Fraction(sampling_error.LEAST_ROW_RHO))
    try:
        sampling_error.check_row_rho(whole // queries / PICORHO_PER_RHO)
    except ValueError as error:
        most = f"; it pays for at most {whole // least:,} answers" if whole // queries < least else ""
        raise ValueError(f"{queries:,} answers cannot share {to_rho(whole):g} rho: {error}{most}") from error


def _suits(option: PlannedOption, modality: Modality | None) -> bool:
    return option.suits is None or modality in option.suits


def recommend(
    classes: int,
    declared: Declaration | None,
    public: Records | None = None,
    *,
    n: int | None,
    whole: int,
    queries: int | None = None,
    image_shape: Shape | None = None,
    own_features: bool = False,
    progress: Callable[[str, float], None] = lambda _, __: None,
    delta: float | None = READ_AT,
) -> Recommendation:
    """Return what a simulation on public rows shows best, where there are some; otherwise the rule's option.

    declared: the columns; None where they are not known, and taken to be few numbers, or an image's. Others: as for
    `recommend_by_simulation` and `recommend_by_rule`, which say what is raised. n is needed where there are no rows.
    """
    if public is not None:
        return recommend_by_simulation(
            public, n=n, whole=whole, queries=queries, image_shape=image_shape, progress=progress
        )
    modality: Modality | None = "table" if image_shape is None else "images"
    numbers = 1
    if declared is not None:
        modality, numbers = rules.modality_of(declared, image_shape), numbers_to_cut(declared)
    return recommend_by_rule(n or 0, classes, whole, modality, numbers, own_features=own_features, delta=delta)


def recommend_by_simulation(
    records: Records,
    *,
    n: int | None,
    whole: int,
    queries: int | None,
    image_shape: Shape | None = None,
    seeds: int = SEEDS,
    options: tuple[str, ...] | None = None,
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> Recommendation:
    """Train every option on four fifths of the rows, ask about the others, and return the one that did best.

    n: how many records there will be, if not as many as rows. Of fewer as many rows are trained on. Of more the noise
    is that of n records, as a budget of mu n / m on m gives it, which understates what more records teach. Where n
    counts privacy units, each has the weight of one record, and is simulated by one row. queries: None for unlimited
    answers. image_shape: of rows that are images. Raises TrainingError for too few rows.
    """
    if len(records) < _LEAST_ROWS:
        raise TrainingError(f"a simulation needs at least {_LEAST_ROWS} rows, and there are {len(records)}")
    classes = len(records.declaration.classes)
    check_declared(len(records) if n is None else n, classes)
    modality = rules.modality_of(records.declaration, image_shape)
    if options is None:
        options = tuple(name for name, option in planned_options().items() if _suits(option, modality))
    options = _countable(options, records.declaration, n, whole, queries)
    figures: dict[str, list[Quality]] = {name: [] for name in options}
    constants: list[Quality] = []
    for seed in range(seeds):
        case = case_of(records, seed, image_shape, n)
        heads = Heads(case)
        constants.append(case.constant)
        scaled = budget_for(whole, n, len(case.y))
        distinct = list(_distinct(options, heads))
        figures = {name: figures[name] for name in distinct}
        for done, name in enumerate(distinct):
            progress(option_named(name).title, (seed + done / len(distinct)) / seeds)
            trial = Trial(heads, scaled, "simulation", () if queries is None else (queries,))
            figure = _quality(name, trial)
            if figure is not None:
                figures[name].append(figure)
    constant = Quality(
        fmean(quality.accuracy for quality in constants), mean_of([quality.log_loss for quality in constants])
    )
    known = {name: found for name, found in figures.items() if len(found) == seeds}
    ranked = Ranking(known, default_option(modality, classes))
    estimates = tuple(Estimate.over(name, found, seeds) for name, found in figures.items())
    return _expected(estimates, ranked, queries, constant)


def _countable(
    options: tuple[str, ...], declared: Declaration, n: int | None, whole: int, queries: int | None
) -> tuple[str, ...]:
    """Return the options that can be had of so many records: a simulation is on fewer, and would not tell.

    Raises TrainingError where none is left.
    """
    if n is None or n <= MOST_RECORDS:
        return options
    classes, numbers = len(declared.classes), numbers_to_cut(declared)
    once = [name for name in options if option_named(name).pays == "once"]
    refused = {name: why for name in once if (why := refusal(name, n, classes, whole, numbers)) is not None}
    left = tuple(name for name in options if name not in refused)
    if not left or (queries is None and len(refused) == len(once)):
        raise TrainingError(_nothing_left(list(refused.values())))
    return left


def _distinct(options: tuple[str, ...], heads: Heads) -> Iterator[str]:
    """Leave out options that would be the same as one before: images and narrow tables have one map for all."""
    seen: list[tuple[str | None, object, FeatureMap, bool]] = []
    for name in options:
        option = option_named(name)
        chosen = heads.feature_map(option.features, head=kind_of_option(option).centred_images)
        buys = option.features == "quantiles" and isinstance(chosen, Quantiles) and bool(chosen.counted)
        made = (option.release, option.settings, chosen, buys)
        if made not in seen:
            seen.append(made)
            yield name


def _quality(name: str, trial: Trial) -> Quality | None:
    if option_named(name).pays == "each answer" and not trial.queries:
        return None
    try:
        (found,) = option_named(name).qualities(trial).values()
    except (ValueError, TrainingError):
        # What this budget cannot buy on these rows: too little for a release, or no noise on the grid.
        return None
    return found


def _expected(
    estimates: tuple[Estimate, ...], ranked: Ranking, queries: int | None, constant: Quality
) -> Recommendation:
    if not ranked.figures:
        raise TrainingError("this budget pays for none of the mechanisms; raise it")
    chosen = next(estimate for estimate in estimates if estimate.option == ranked.chosen)
    option = option_named(chosen.option)
    asked = "unlimited answers" if queries is None else f"{queries:,} queries"
    others = [estimate for estimate in estimates if option_named(estimate.option).release != option.release]
    known = [estimate for estimate in others if estimate.mean is not None and estimate.log_loss is not None]
    beside = ""
    if known:
        second = min(known, key=lambda estimate: estimate.log_loss or 0.0)
        beside = f", beside {second.mean:.3f} and {second.log_loss:.3f} from {option_named(second.option).title}"
    once = "; it is paid for once, however many are asked" if option.pays == "once" else ""
    lack = kind_of_option(option).limitation("intervals") or NO_INTERVALS
    unknown = f"; {lack}" if chosen.interval is None else ""
    loss = "" if chosen.log_loss is None else f", with log loss {chosen.log_loss:.3f}"
    chance = f"{constant.accuracy:.3f} by the commonest class"
    reason = f"{option.title}: {chosen.mean:.3f} is expected for {asked} ({chance}){loss}{beside}{once}{unknown}"
    warnings = warnings_of(chosen, constant)
    if (close := ranked.undecided) is not None:
        apart, error = ranked.difference(close, chosen.option)
        warnings = (
            *warnings,
            f"these rows are too few to rank {option.title} and {option_named(close).title}: their log losses differ "
            f"by {abs(apart):.3f}, with a standard error of {error:.3f}",
        )
    return Recommendation(chosen.option, reason, estimates, warnings, constant, ranked.order)


def case_of(records: Records, seed: int, image_shape: Shape | None = None, n: int | None = None) -> Case:
    """Return what a simulation trains on and asks about: four fifths of the rows, at most n, and the others."""
    X, y, declared = records.X, records.y, records.declaration
    order = np.random.default_rng(derived_seed(seed, "simulation")).permutation(len(y))[
        : most_rows(declared, image_shape)
    ]
    held_out = min(max(len(order) // HELD_OUT, 1), MOST_ASKED)
    asked, kept = order[:held_out], order[held_out:][:n]
    name, classes = f"simulation-{seed}", len(declared.classes)
    return Case("simulation", seed, X[kept], y[kept], X[asked], y[asked], classes, name, declared, image_shape)


def most_rows(declared: Declaration, image_shape: Shape | None = None) -> int:
    """Return how many rows a simulation takes at most: more of tables, as far as their features fit."""
    if rules.modality_of(declared, image_shape) not in CUT:
        return MOST_ROWS
    width = rules.feature_map("quantiles", declared).dimension
    return min(max(MOST_ROWS, _LARGEST_FEATURES // width), MOST_TABLE_ROWS)


def budget_for(whole: int, n: int | None, records: int) -> int:
    """Return the budget under which so many records have the noise that n have under `whole`, in picorho.

    As far as a release may cost so much. n: None for as many as there are.
    """
    factor = 1.0 if n is None else n / records
    return min(int(whole * factor**2), LARGEST_PRICE)


def check_declared(n: int, classes: int) -> None:
    """Raise ValueError for numbers of records and classes that nobody has."""
    if n < 1 or classes < 2:
        raise ValueError(f"there must be at least 1 record and 2 classes, not {n} and {classes}")


def recommend_by_rule(
    n: int,
    classes: int,
    whole: int,
    modality: Modality | None = None,
    numbers: int = 1,
    *,
    own_features: bool = False,
    delta: float | None = READ_AT,
) -> Recommendation:
    """Return the rule's option, by declared numbers alone (`default_option`).

    n, classes: declared; n counts privacy units where there are such. whole: the budget in picorho, which is said as
    `words_at` says it with this delta. numbers: of a record, where they are known. own_features: whether on features of
    the owner's: then it is DP-SGD, for any number of classes. An option that cannot be had for these numbers gives way
    to the next, and the reason says why. Raises ValueError for nonsense and for a budget that buys no release.

    How many answers there shall be plays no part: on every set and at every budget that was measured the best release
    that is paid for once did better than noise on each of ten answers.
    """
    check_declared(n, classes)
    if whole < LEAST_PRICE:
        raise ValueError(
            f"no pay-once model can be trained for {words_at(whole, delta)}: it costs at least "
            f"{words_at(LEAST_PRICE, delta)}. Raise the budget, or pay for each answer"
        )
    preferred = default_option(modality, 2 if own_features else classes)
    options = planned_options().items()
    fallbacks = sorted((option.fallback, name) for name, option in options if option.fallback is not None)
    refused: list[str] = []
    for option in (preferred, *(() if own_features else (name for _, name in fallbacks))):
        why_not = refusal(option, n, classes, whole, numbers)
        if why_not is None:
            return _explained(option, n, classes, whole, preferred, refused, delta)
        refused.append(why_not)
    raise ValueError(_nothing_left(refused))


def _explained(
    option: str, n: int, classes: int, whole: int, preferred: str, refused: Sequence[str], delta: float | None
) -> Recommendation:
    plan = PlanTerms(n, min(whole, LARGEST_PRICE))
    signal = mu_for(plan.share) * n / classes
    chosen = option_named(option)
    parts = [
        f"{chosen.title}, by rule; n = {n:,} and C = {classes:,}, a signal mu n / C of "
        + (f"{signal:,.0f}" if signal >= 100 else f"{signal:.3g}")
    ]
    if refused:
        parts.append(f"{option_named(preferred).title} would come first, but {refused[0]}")
    if whole > LARGEST_PRICE:
        parts.append(
            f"a release may cost at most {words_at(LARGEST_PRICE, delta)}, so it takes that of the "
            f"{words_at(whole, delta)}"
        )
    parts.append("paid for once, for any number of queries")
    if (lack := kind_of_option(chosen).planned_without_intervals(chosen, plan, classes)) is not None:
        parts.append(lack)
    warnings: tuple[str, ...] = ()
    if signal < LEAST_SIGNAL:
        warnings = (
            f"the signal is {signal:.2g}, less than on any set that was measured: expect answers {NO_BETTER}, unless a "
            "simulation on public rows shows more",
        )
    return Recommendation(option, "; ".join(parts), warnings=warnings)


def _nothing_left(refused: Sequence[str]) -> Message:
    """Say that no pay-once model can be had, why, and what is left. refused: why each cannot."""
    return Message(
        "no pay-once model can be trained: {}. What is left is noise on each answer of a head, by {kind:head}",
        "; ".join(dict.fromkeys(refused)),
    )


def numbers_to_cut(declared: Declaration) -> int:
    """Return how many numbers of a record quantiles would be bought for, at least 1."""
    feature_map = rules.feature_map("quantiles", declared)
    return max(len(feature_map.counted), 1) if isinstance(feature_map, Quantiles) else 1


def refusal(option: str, n: int, classes: int, whole: int, features: int = 1) -> str | None:
    """Return why an option that is paid for once cannot be had, or None if it can.

    n, classes: declared. whole: in picorho, of which no more than LARGEST_PRICE is spent. features: how many numbers
    a record has; the fewest where it is not known.
    """
    try:
        sampling_error.check_release_rho(Fraction(min(whole, LARGEST_PRICE), picorho.PICORHO_PER_RHO))
        _check(option, n, classes, min(whole, LARGEST_PRICE), features)
    except (ValueError, TrainingError) as error:
        return str(error)
    return None


def _check(option: str, n: int, classes: int, whole: int, features: int) -> None:
    declaration, chosen = numbers_declared(features, classes), option_named(option)
    feature_map = rules.feature_map(chosen.features, declaration)
    if chosen.features == "quantiles":
        check_count(n)
        whole -= price_of_counts(whole, features)
    kind_of_option(chosen).check_planned(chosen, n, whole, declaration, feature_map)
