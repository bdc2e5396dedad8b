"""Which option an owner should take, with the training options for it: by a simulation, or by what was measured.

A simulation runs the options themselves on given rows. On rows that are public it costs nothing; on private records it
tells about them, and no guarantee covers what it tells. Without rows the public sets like the records decide. Either
way options are ranked by their log loss, and the default of the rows' modality is taken unless another did better: on
rows by a standard error of the difference, on public sets by two over the sets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import fmean
from typing import Any

import numpy as np

from accounting import picorho, sampling_error
from accounting.messages import Message, OptionName
from accounting.picorho import PICORHO_PER_RHO, to_rho
from mechanisms.gaussian_vector import LARGEST_PRICE, LEAST_PRICE, mu_for
from mechanisms.seeded import derived_seed
from training.errors import TrainingError
from training.features import rules
from training.features.hog import Shape
from training.features.maps import FeatureMap, Quantiles
from training.features.quantiles import price_of_counts
from training.features.rules import Modality
from training.inputs.records import Declaration, Records
from training.inputs.sums import MOST_RECORDS, check_count
from training.kinds.cases import MOST_ASKED, Case, Estimate, Heads, Quality, mean_of, numbers_declared
from training.kinds.planned import Plan, PlannedOption, Trial
from training.planning.answers import NO_BETTER
from training.planning.measured import CLEARLY, FAR, LEAST_MEASURED, Expected, Similar, similar_sets
from training.planning.options import default_option, kind_of_option, option_named, planned_options
from training.planning.ranking import HELD_OUT, Ranking

MOST_ROWS, MOST_TABLE_ROWS = 20_000, 100_000
"""A simulation takes no more rows, the latter of tables: figures of most options would change by less than their
spread. What crosses learn grows with the rows for longer: on flights they are clearly the best from 50,000 on."""

_LARGEST_FEATURES = 2**25
"""Numbers that the cuts of all rows may be, beyond MOST_ROWS: 256 MiB."""

SEEDS = 5
"""Number of splits of the rows, and of draws of noise, in a simulation."""

_LEAST_ROWS = 50
_CLOSE = 0.005
_HALF = 0.5
_CLOSE_LOSS = 0.01
_WIDE = 0.9
_FAR_FROM_MEASURED = 2.0

OF_TEXTS = (
    "of texts only 20 newsgroups were measured: at epsilon = 1 DP-SGD had 0.412 right on hashed words, 0.608 on word "
    "vectors and 0.735 by an encoder, and class sums 0.270 on hashed words"
)


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
class Recommendation:
    """An option, why in one sentence, what every option was expected to reach, and what the owner is warned of.

    constant: what it is worth to answer every simulated row with the shares of the classes. order: why it is not the
    option of the least log loss among the estimates; empty where it is.
    """

    option: str
    reason: str
    estimates: tuple[Estimate | Expected, ...] = ()
    warnings: tuple[str, ...] = ()
    constant: Quality | None = None
    order: str = ""

    @property
    def chosen(self) -> PlannedOption:
        """The chosen option."""
        return option_named(self.option)

    def training_options(
        self, n: int, whole: int, queries: int | None, modality: Modality | None = None
    ) -> dict[str, Any]:
        """Return `dpserve train`'s options for it. n: declared; whole: the budget in picorho; queries: None, no end.

        modality: of the rows.
        No release takes more than LARGEST_RELEASE_RHO of the budget. Raises ValueError for noise on each answer
        without a number of queries, or for more of them than the budget pays for.
        """
        share = min(whole, LARGEST_PRICE)
        if self.chosen.pays == "each answer":
            if queries is None:
                raise ValueError("no budget pays for unlimited answers one by one")
            _check_answers(whole, queries)
            share = whole // queries
        return kind_of_option(self.chosen).settings(self.chosen, Plan(n, share, modality))


def _check_answers(whole: int, queries: int) -> None:
    """Raise ValueError unless each of so many answers gets a price that noise can be drawn at."""
    least = picorho.charge(Fraction(sampling_error.LEAST_ROW_RHO))
    try:
        sampling_error.check_row_rho(whole // queries / PICORHO_PER_RHO)
    except ValueError as error:
        most = f"; it pays for at most {whole // least:,} answers" if whole // queries < least else ""
        raise ValueError(f"{queries:,} answers cannot share {to_rho(whole):g} rho: {error}{most}") from error


def of_kind(release: str, modality: Modality | None = None, *, fourier: bool = False) -> Recommendation:
    """Return a kind of release that the owner chose, whose options then follow from public numbers as a choice's do.

    fourier: whether on random features. Raises ValueError for a kind that there is no rule for on rows of this
    modality.
    """
    wanted = [
        each
        for each in planned_options().values()
        if each.release and (each.features == "fourier" if fourier else _suits(each, modality))
    ]
    wanted = [each for each in wanted if fourier or each.features != "fourier"]
    option = next((each for each in wanted if each.release == release), None)
    if option is None:
        kinds = ", ".join(sorted({str(each.release) for each in wanted}))
        features = "Fourier" if fourier else "such"
        raise ValueError(f"on {features} features there are rules for {kinds}, and none for {release!r}")
    reason = f"{option.title}, as you asked, set by rules from public numbers; paid once, for any number of queries"
    return Recommendation(option.name, reason)


def _suits(option: PlannedOption, modality: Modality | None) -> bool:
    return option.suits is None or modality in option.suits


def _protects(option: PlannedOption, unit: str | None) -> bool:
    """Return whether an option protects what is to be: units by a column, or single records."""
    return unit is None or option.release is None or "units" not in kind_of_option(option).lacks


def by_simulation(
    records: Records,
    *,
    n: int | None,
    whole: int,
    queries: int | None,
    image_shape: Shape | None = None,
    unit: str | None = None,
    seeds: int = SEEDS,
    options: tuple[str, ...] | None = None,
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> Recommendation:
    """Train every option on four fifths of the rows, ask about the others, and return the one that did best.

    n: how many records there will be, if not as many as rows. Of fewer as many rows are trained on. Of more the noise
    is that of n records, as a budget of mu n / m on m gives it, which understates what more records teach. queries:
    None for unlimited answers. image_shape: of rows that are images. unit: the column of privacy units, where they are
    what n counts: each has the weight of one record, and is simulated by one row. Raises TrainingError for too few
    rows.
    """
    if len(records) < _LEAST_ROWS:
        raise TrainingError(f"a simulation needs at least {_LEAST_ROWS} rows, and there are {len(records)}")
    check_declared(len(records) if n is None else n, len(records.declaration.classes))
    modality = rules.modality_of(records.declaration, image_shape)
    if options is None:
        options = tuple(
            name for name, each in planned_options().items() if _suits(each, modality) and _protects(each, unit)
        )
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
    constant = Quality(fmean(each.accuracy for each in constants), mean_of([each.log_loss for each in constants]))
    ranked = Ranking({name: found for name, found in figures.items() if len(found) == seeds}, modality)
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
    chosen = next(each for each in estimates if each.option == ranked.chosen)
    option = option_named(chosen.option)
    asked = "unlimited answers" if queries is None else f"{queries:,} queries"
    others = [each for each in estimates if option_named(each.option).release != option.release]
    known = [each for each in others if each.mean is not None and each.log_loss is not None]
    beside = ""
    if known:
        second = min(known, key=lambda each: each.log_loss or 0.0)
        beside = f", beside {second.mean:.3f} and {second.log_loss:.3f} from {option_named(second.option).title}"
    once = "; it is paid for once, however many are asked" if option.pays == "once" else ""
    lack = kind_of_option(option).lacks.get("intervals", NO_INTERVALS)
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
    if rules.modality_of(declared, image_shape) != "table":
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


def by_rule(
    n: int,
    classes: int,
    whole: int,
    queries: int | None = None,
    modality: Modality | None = None,
    numbers: int = 1,
    unit: str | None = None,
) -> tuple[Recommendation, Similar]:
    """Return the default for rows of a modality, or what did clearly better on similar public sets, and these sets.

    n, classes: declared, public numbers; n counts privacy units where there are such. whole: the budget in picorho.
    queries: None for no end. It plays no part in the choice: on every set and at every budget the best release that is
    paid for once did better than noise on each of ten answers. numbers: of a record, where they are known. An option
    that cannot be had for these numbers gives way to the next, and the reason says why. unit: the column of privacy
    units, where they are what n counts; kinds that cannot protect them are left out.

    The signal, mu n / C, says by how many deviations of the noise the records of a class stand out when they agree.

    Raises ValueError for nonsense and for a budget that buys no release.
    """
    check_declared(n, classes)
    if whole < LEAST_PRICE:
        raise ValueError(
            f"no pay-once model can be trained for {to_rho(whole):g} rho: it costs at least {to_rho(LEAST_PRICE):.4g}. "
            "Raise the budget, or plan noise on each answer, with "
            + OptionName("lam")
            + " and "
            + OptionName("classes")
        )
    similar = similar_sets(n, classes, min(whole, LARGEST_PRICE), queries, modality)

    def suitable(name: str) -> bool:
        option = option_named(name)
        return option.pays == "once" and _suits(option, modality) and _protects(option, unit)

    preferred = similar.best(suitable, default_option(modality))
    fallbacks = sorted(
        (each.fallback, name)
        for name, each in planned_options().items()
        if each.fallback is not None and _protects(each, unit)
    )
    refused: list[str] = []
    for option in (preferred, *(name for _, name in fallbacks)):
        why_not = refusal(option, n, classes, whole, numbers)
        if why_not is None:
            found = _explained(option, similar, n, classes, whole, queries, preferred, tuple(refused), unit)
            if option == preferred:
                found = replace(found, order=_order_of_sets(option, similar, suitable, default_option(modality), unit))
            return (replace(found, reason=f"{found.reason}; {OF_TEXTS}") if modality == "text" else found), similar
        refused.append(why_not)
    raise ValueError(_nothing_left(refused))


def _nothing_left(refused: Sequence[str]) -> Message:
    """Say that no pay-once model can be had, why, and what is left. refused: why each cannot."""
    return (
        f"no pay-once model can be trained: {'; '.join(dict.fromkeys(refused))}. What is left is noise on each answer "
        "of a head: plan it with " + OptionName("lam") + " and " + OptionName("classes")
    )


def without_figures(
    recommendation: Recommendation,
    n: int,
    classes: int,
    whole: int,
    modality: Modality | None = None,
    numbers: int = 1,
    unit: str | None = None,
) -> dict[str, bool]:
    """Return the options that can be had beside those with figures, by name: whether answers would have intervals.

    recommendation: as `by_rule` returns it for the same numbers. Images have Fourier features beside gradients alone.
    """
    known = {each.option for each in recommendation.estimates}
    return {
        name: not _without_intervals(name, n, classes, whole)
        for name, option in planned_options().items()
        if name not in known and _suits(option, modality) and _protects(option, unit)
        if modality != "images" or option.features != "fourier"
        if option.pays == "each answer" or refusal(name, n, classes, whole, numbers) is None
    }


def _order_of_sets(
    option: str, similar: Similar, suitable: Callable[[str], bool], default: str, unit: str | None
) -> str:
    """Say why the option of the least log loss, by the middle of its range on public sets, is not taken."""
    middles = {
        each.option: (each.log_loss.lowest + each.log_loss.highest) / 2
        for each in similar.expected
        if each.log_loss is not None and _protects(option_named(each.option), unit)
    }
    least = min(middles, key=lambda name: middles[name], default=option)
    if least == option or middles.get(option) == middles[least]:
        return ""
    first, chosen = f"{option_named(least).title} has the lowest range of log loss, but", option_named(option).title
    if not suitable(least):
        return f"{first} is an option for other rows than yours"
    if option == default:
        return (
            f"{first} on the same sets its log loss was not clearly less than that of {chosen}, by {CLEARLY:g} and two "
            "standard errors on average, so the default for such rows is recommended"
        )
    return (
        f"{first} on average over the sets where both were measured {chosen} gained more on "
        f"{option_named(default).title}, the default for such rows"
    )


def on_own_features(n: int, classes: int, whole: int, unit: str | None = None) -> Recommendation:
    """Return what is taken on features that the owner chose, an encoder's or crosses, by what `by_rule` takes.

    It is the default where no set speaks for another, and none does: of such features none was measured on sets enough.
    Raises ValueError as `by_rule` does.
    """
    check_declared(n, classes)
    option = default_option(None)
    if (why_not := refusal(option, n, classes, whole)) is not None:
        raise ValueError(_nothing_left([why_not]))
    wanted = mu_for(min(whole, LARGEST_PRICE)) * n / classes
    return _explained(option, Similar(wanted, (), wanted), n, classes, whole, None, option, (), unit)


def _explained(
    option: str,
    similar: Similar,
    n: int,
    classes: int,
    whole: int,
    queries: int | None,
    preferred: str,
    refused: tuple[str, ...],
    unit: str | None,
) -> Recommendation:
    counted = f"{n:,} records" if unit is None else f"{n:,} units by {unit}"
    parts = [
        f"{option_named(option).title}: {_what_is_known(option, similar)}; you have {counted} in {classes} classes, a "
        f"signal mu n / C of {_rounded(similar.signal)}{_how_far(similar)}"
    ]
    if refused:
        parts.append(f"{option_named(preferred).title} would come first, but {refused[0]}")
    if whole > LARGEST_PRICE:
        parts.append(largest_price_words(whole))
    if queries is not None and queries < LEAST_MEASURED:
        parts.append(_few_answers())
    parts.append("paid for once, for any number of queries")
    if (lack := _without_intervals(option, n, classes, whole)) is not None:
        parts.append(lack)
    expected = tuple(
        replace(each, has_intervals=False, undecided=None)
        if _without_intervals(each.option, n, classes, whole)
        else each
        for each in similar.expected
        if _protects(option_named(each.option), unit)
    )
    return Recommendation(option, "; ".join(parts), expected, _warnings(option, similar))


def _without_intervals(name: str, n: int, classes: int, whole: int) -> str | None:
    option = option_named(name)
    plan = Plan(n, min(whole, LARGEST_PRICE))
    return kind_of_option(option).planned_without_intervals(option, plan, classes)


def _rounded(signal: float) -> str:
    return f"{signal:,.0f}" if signal >= 100 else f"{signal:.3g}"


def _how_far(similar: Similar) -> str:
    """Say how far the signal lies from all that was measured, where that is twice or more."""
    signals = [place.signal for place in similar.places] or [similar.nearest_signal]
    below, above = min(signals) / similar.signal, similar.signal / max(signals)
    if below >= _FAR_FROM_MEASURED:
        return f", {below:.2g} times less than on any of them: expect less"
    if above >= _FAR_FROM_MEASURED:
        return f", {above:.2g} times more than on any of them"
    return ""


def _what_is_known(option: str, similar: Similar) -> str:
    """Say in which range an option's figures lay on similar sets, or that what yours reach is not predictable."""
    known = next((each for each in similar.expected if each.option == option), None)
    if known is None:
        return "what it will reach is not predictable from what was measured, on fewer than 4 sets like yours"
    right, loss = known.accuracy, known.log_loss
    losses = "" if loss is None else f", with log loss {loss.lowest:.2f} to {loss.highest:.2f}"
    chance = f"the commonest class alone is on {known.commonest.lowest:.2f} to {known.commonest.highest:.2f}"
    return f"{right.lowest:.2f} to {right.highest:.2f} right on {right.sets} public sets like yours ({chance}){losses}"


def _warnings(option: str, similar: Similar) -> tuple[str, ...]:
    """Say what is expected to be worth little: by what was measured, or because nothing so small was."""
    said = []
    known = [(place.public, each) for place in similar.places if (each := place.estimates.get(option)) is not None]
    little = [
        public for public, each in known if each.log_loss is not None and each.log_loss >= public.entropy - _CLOSE_LOSS
    ]
    if len(little) > _HALF * len(known):
        said.append(
            f"on {len(little)} of {len(known)} public sets like yours its probabilities told no more than the shares "
            "of the classes do: raise the budget, or train on more records"
        )
    if similar.nearest_signal / similar.signal > FAR:
        said.append(
            f"the signal is {similar.nearest_signal / similar.signal:.0f} times less than on any set that was "
            f"measured: expect answers {NO_BETTER}, unless a simulation on public rows shows more"
        )
    return tuple(said)


def largest_price_words(whole: int) -> str:
    """Say that a release takes less than the whole budget."""
    return f"a release may cost at most {to_rho(LARGEST_PRICE):g} rho, so it takes that of the {to_rho(whole):.4g}"


def _few_answers() -> str:
    words = f"fewer than {LEAST_MEASURED} answers were not measured"
    alike = next((each for each in planned_options().values() if each.as_one_answer), None)
    if alike is None:
        return words
    return (
        f"{words}, but one answer with noise of its own has the law of one from {alike.title}, and each of more has "
        "more noise"
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
