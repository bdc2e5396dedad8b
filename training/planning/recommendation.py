"""Which option an owner should take, with the training options for it: by a simulation, or by what was measured.

A simulation runs the options themselves on given rows. On rows that are public it costs nothing; on private records it
tells about them, and no guarantee covers what it tells. Without rows the public set most like the records decides.
Either way the best option is the simplest of those whose log loss is the least among the ones of nearly the highest
accuracy.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import fmean
from typing import Any

import numpy as np

from accounting import picorho, sampling_error
from accounting.messages import OptionName
from accounting.picorho import PICORHO_PER_RHO, to_rho
from mechanisms.gaussian_vector import LARGEST_PRICE, LEAST_PRICE, mu_for
from mechanisms.seeded import derived_seed
from training.errors import TrainingError
from training.features import rules
from training.features.hog import Shape
from training.features.maps import FeatureMap
from training.features.rules import Features, Modality
from training.inputs.records import Records
from training.kinds.cases import MOST_ASKED, Case, Estimate, Heads, Quality, mean_of, numbers_declared
from training.kinds.planned import Plan, PlannedOption, Trial
from training.planning.answers import NO_BETTER
from training.planning.measured import FAR, LEAST_MEASURED, Nearest, nearest
from training.planning.options import kind_of_option, option_named, planned_options

MOST_ROWS = 20_000
"""A simulation takes no more rows: the figures would change by less than their spread."""

SEEDS = 3
"""Number of seeds of a simulation."""

_LEAST_ROWS = 50
_HELD_OUT = 5
_CLOSE = 0.005
_CLOSE_LOSS = 0.01
_WIDE = 0.9

OF_TEXTS = (
    "of texts, as hashed words, only 20 newsgroups were measured: at epsilon = 1 DP-SGD had 0.412 right and class sums "
    "0.270"
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
    """An option, why in one sentence, what every option was expected to reach, and what the owner is warned of."""

    option: str
    reason: str
    estimates: tuple[Estimate, ...] = ()
    warnings: tuple[str, ...] = ()

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


def of_kind(release: str, features: Features, queries: int | None) -> Recommendation:
    """Return a kind of release that the owner chose, whose options then follow from public numbers as a choice's do.

    Raises ValueError for a kind that there is no rule for on these features, and for one that pays for each answer
    without a number of them.
    """
    option = next(
        (name for name, each in planned_options().items() if (each.release, each.features) == (release, features)), ""
    )
    if not option:
        kinds = sorted(
            {str(each.release) for each in planned_options().values() if each.release and each.features == features}
        )
        raise ValueError(f"on {features} features there are rules for {', '.join(kinds)}, and none for {release!r}")
    if option_named(option).pays == "each answer" and queries is None:
        raise ValueError(f"{release} pay for each answer: say for how many, with " + OptionName("queries"))
    paid = "for each answer" if option_named(option).pays == "each answer" else "once, for any number of queries"
    return Recommendation(
        option, f"{option_named(option).title}, as you asked, set by rules from public numbers; paid {paid}"
    )


def by_simulation(
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
    is that of n records, as a budget of mu n / m on m gives it, which understates what more records teach. queries:
    None for unlimited answers. image_shape: of rows that are images. Raises TrainingError for too few rows.
    """
    if len(records) < _LEAST_ROWS:
        raise TrainingError(f"a simulation needs at least {_LEAST_ROWS} rows, and there are {len(records)}")
    check_declared(len(records) if n is None else n, len(records.declaration.classes))
    options = tuple(planned_options()) if options is None else options
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
    estimates = tuple(Estimate.over(name, found, seeds) for name, found in figures.items())
    constant = Quality(fmean(each.accuracy for each in constants), mean_of([each.log_loss for each in constants]))
    return _expected(estimates, queries, constant)


def _distinct(options: tuple[str, ...], heads: Heads) -> Iterator[str]:
    """Leave out options that would be the same as one before: images and narrow tables have one map for all."""
    seen: list[tuple[str | None, object, FeatureMap]] = []
    for name in options:
        option = option_named(name)
        made = (
            option.release,
            option.settings,
            heads.feature_map(option.features, head=kind_of_option(option).centred_images),
        )
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


def best(estimates: tuple[Estimate, ...]) -> Estimate | None:
    """Return the simplest of those whose log loss is the least among the ones of nearly the highest accuracy."""
    highest = max((each.mean for each in estimates if each.mean is not None), default=None)
    if highest is None:
        return None
    right = [each for each in estimates if each.mean is not None and each.mean >= highest - _CLOSE]
    least = min(_loss(each) for each in right)
    return next(each for each in right if _loss(each) <= least + _CLOSE_LOSS)


def _loss(estimate: Estimate) -> float:
    return math.inf if estimate.log_loss is None else estimate.log_loss


def _expected(estimates: tuple[Estimate, ...], queries: int | None, constant: Quality) -> Recommendation:
    chosen = best(estimates)
    if chosen is None:
        raise TrainingError("this budget pays for none of the mechanisms; raise it")
    option = option_named(chosen.option)
    asked = "unlimited answers" if queries is None else f"{queries:,} queries"
    others = [(each.mean, each) for each in estimates if option_named(each.option).release != option.release]
    known = [(mean, each) for mean, each in others if mean is not None]
    beside = ""
    if known:
        accuracy, second = max(known, key=lambda pair: pair[0])
        beside = f", beside {accuracy:.3f} from {option_named(second.option).title}"
    once = "; it is paid for once, however many are asked" if option.pays == "once" else ""
    loss = "" if chosen.log_loss is None else f", with log loss {chosen.log_loss:.3f}"
    lack = kind_of_option(option).lacks.get("intervals", NO_INTERVALS)
    unknown = f"; {lack}" if chosen.interval is None else ""
    reason = f"{option.title}: {chosen.mean:.3f} is expected for {asked}{loss}{beside}{once}{unknown}"
    return Recommendation(chosen.option, reason, estimates, warnings_of(chosen, constant))


def case_of(records: Records, seed: int, image_shape: Shape | None = None, n: int | None = None) -> Case:
    """Return what a simulation trains on and asks about: four fifths of the rows, at most n, and the others."""
    X, y, declared = records.X, records.y, records.declaration
    order = np.random.default_rng(derived_seed(seed, "simulation")).permutation(len(y))[:MOST_ROWS]
    held_out = min(max(len(order) // _HELD_OUT, 1), MOST_ASKED)
    asked, kept = order[:held_out], order[held_out:][:n]
    name, classes = f"simulation-{seed}", len(declared.classes)
    return Case("simulation", seed, X[kept], y[kept], X[asked], y[asked], classes, name, declared, image_shape)


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
    n: int, classes: int, whole: int, queries: int | None = None, modality: Modality | None = None
) -> tuple[Recommendation, Nearest]:
    """Return what did best on the public set and epsilon most like the records, and that place.

    n, classes: declared, public numbers. whole: the budget in picorho. queries: None for no end. It plays no part in
    the choice: on every set and at every budget the best release that is paid for once did better than noise on each
    of ten answers. modality: of the rows. An option that cannot be had for these numbers gives way to the next,
    and the reason says why.

    mu n / C says by how many standard deviations of the noise the records of a class stand out when they agree.

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
    spent = min(whole, LARGEST_PRICE)
    similar = nearest(n, classes, spent, queries, modality)
    # Where the schema allows features of its own, random ones add nothing that was measured.
    suitable = (
        each for each in similar.estimates if modality is None or option_named(each.option).features == "identity"
    )
    chosen = best(tuple(each for each in suitable if option_named(each.option).pays == "once"))
    fallbacks = sorted((each.fallback, name) for name, each in planned_options().items() if each.fallback is not None)
    others = [name for _, name in fallbacks]
    preferred = others[0] if chosen is None or modality == "text" else chosen.option
    refused: list[str] = []
    for option in (preferred, *others):
        why_not = refusal(option, n, classes, whole)
        if why_not is None:
            found = _explained(option, similar, n, classes, whole, queries, preferred, tuple(refused))
            return (replace(found, reason=f"{found.reason}; {OF_TEXTS}") if modality == "text" else found), similar
        refused.append(why_not)
    raise ValueError(f"no release can be had: {'; '.join(dict.fromkeys(refused))}")


def _explained(
    option: str,
    similar: Nearest,
    n: int,
    classes: int,
    whole: int,
    queries: int | None,
    preferred: str,
    refused: tuple[str, ...],
) -> Recommendation:
    spent = min(whole, LARGEST_PRICE)
    signal = mu_for(spent) * n / classes
    parts = [
        f"{option_named(option).title}: {_what_it_reached(option, similar)}, and you have {n:,} records in {classes} "
        f"classes (mu n / C = {signal:.3g})"
    ]
    if refused:
        parts.append(f"{option_named(preferred).title} would come first, but {refused[0]}")
    if whole > spent:
        parts.append(largest_price_words(whole))
    if queries is not None and queries < LEAST_MEASURED:
        parts.append(_few_answers(similar))
    parts.append("paid for once, for any number of queries")
    if (lack := kind_of_option(option_named(option)).lacks.get("intervals")) is not None:
        parts.append(lack)
    return Recommendation(option, "; ".join(parts), similar.estimates, _warnings(option, signal, similar))


def _warnings(option: str, signal: float, similar: Nearest) -> tuple[str, ...]:
    """Say what is expected to be worth little: by what was measured, or because nothing so small was."""
    known = next((each for each in similar.estimates if each.option == option), None)
    said = warnings_of(known, similar.constant) if known else ()
    if similar.signal / signal > FAR:
        said = (
            *said,
            f"mu n / C is {similar.signal / signal:.0f} times less than on any set that was measured: expect answers "
            f"{NO_BETTER}, unless a simulation on public rows shows more",
        )
    return said


def largest_price_words(whole: int) -> str:
    """Say that a release takes less than the whole budget."""
    return f"a release may cost at most {to_rho(LARGEST_PRICE):g} rho, so it takes that of the {to_rho(whole):.4g}"


def _what_it_reached(option: str, similar: Nearest) -> str:
    known = {each.option: each for each in similar.estimates if each.mean is not None}
    if option not in known:
        return f"it was not measured on {similar.place}"
    best = max(known.values(), key=lambda each: each.mean or 0.0)
    own = f"{known[option].mean:.3f} on {similar.place}"
    if best.option == option:
        return f"{own}, the best that was measured there"
    return f"{own}, beside {best.mean:.3f} from {option_named(best.option).title}, the best that was measured there"


def _few_answers(similar: Nearest) -> str:
    words = f"fewer than {LEAST_MEASURED} answers were not measured"
    alike = next((each for each in planned_options().values() if each.as_one_answer), None)
    if alike is None:
        return words
    mean = next((each.mean for each in similar.estimates if each.option == alike.name), None)
    there = "" if mean is None else f", {mean:.3f} there"
    return (
        f"{words}, but one answer with noise of its own has the law of one from {alike.title}{there}, and each of more "
        "has more noise"
    )


def refusal(option: str, n: int, classes: int, whole: int, features: int = 1) -> str | None:
    """Return why an option that is paid for once cannot be had, or None if it can.

    n, classes: declared. whole: in picorho, of which no more than LARGEST_PRICE is spent. features: how many columns;
    the fewest where it is not known.
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
    kind_of_option(chosen).check_planned(chosen, n, whole, declaration, feature_map)
