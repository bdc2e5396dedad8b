"""Which option an owner should take, with the training options for it, by a simulation on given rows; and tiers.

A simulation runs the options themselves. On rows that are public it costs nothing; on private records it tells about
them, and no guarantee covers what it tells.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import fmean, stdev
from typing import Any

import numpy as np

from accounting import picorho, sampling_error
from accounting.picorho import PICORHO_PER_RHO, to_rho
from mechanisms.gaussian_vector import GaussianVector, mu_for
from mechanisms.seeded import derived_seed
from training.errors import TrainingError
from training.planning import rules
from training.planning.cases import MOST_ASKED, Case, Floats, Heads, Labels, Quality, weights_move
from training.planning.options import OPTIONS, Option, Trial
from training.planning.rules import Features
from training.releases.weights import tier_steps

LARGEST_PRICE = picorho.budget(sampling_error.LARGEST_RELEASE_RHO)
"""What a release may cost at most, in picorho. A larger budget buys no better one."""

MOST_ROWS = 20_000
"""A simulation takes no more rows: the figures would change by less than their spread."""

SEEDS = 3
"""Of a simulation."""

_LEAST_ROWS = 50
_HELD_OUT = 5
_CLOSE = 0.005
_CLOSE_LOSS = 0.01
_WIDE = 0.9

NO_BETTER = "no better than always naming the commonest class"


@dataclass(frozen=True)
class Estimate:
    """What is expected of an option, over so many seeds.

    mean, spread: mean and standard deviation of the accuracy, None where it cannot be; log_loss, calibration_error,
    interval: see `training.planning.cases.Quality`, None where they are not known.
    """

    option: str
    mean: float | None
    spread: float | None = None
    seeds: int | None = None
    log_loss: float | None = None
    calibration_error: float | None = None
    interval: float | None = None

    @classmethod
    def over(cls, option: str, found: Sequence[Quality], seeds: int) -> "Estimate":
        """Return the mean of what so many seeds reached, or that it cannot be."""
        if len(found) < seeds:
            return cls(option, None)
        accuracies = [each.accuracy for each in found]
        return cls(
            option,
            fmean(accuracies),
            stdev(accuracies) if seeds > 1 else None,
            seeds,
            mean_of([each.log_loss for each in found]),
            mean_of([each.calibration_error for each in found]),
            mean_of([each.interval for each in found]),
        )


def mean_of(figures: Sequence[float | None]) -> float | None:
    """Return the mean, or None where one is not known."""
    known = [each for each in figures if each is not None]
    return fmean(known) if known and len(known) == len(figures) else None


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
    def chosen(self) -> Option:
        """How it is made."""
        return OPTIONS[self.option]

    def training_options(self, n: int, whole: int, queries: int | None) -> dict[str, Any]:
        """Return `dpserve train`'s options for it. n: declared; whole: the budget in picorho; queries: None, no end.

        No release takes more than LARGEST_RELEASE_RHO of the budget. Raises ValueError for noise on each answer
        without a number of queries, or for more of them than the budget pays for.
        """
        made = dict(self.chosen.settings)
        if self.chosen.pays == "each answer":
            if queries is None:
                raise ValueError("no budget pays for unlimited answers one by one")
            _check_answers(whole, queries)
            if self.chosen.release is None:
                made["lam"] = rules.strong_convexity(mu_for(whole // queries))
            return made
        whole = min(whole, LARGEST_PRICE)
        made["price"] = f"rho:{whole / PICORHO_PER_RHO!r}"
        if self.chosen.release == "weights":
            made["lam"] = rules.strong_convexity(mu_for(whole))
        if self.chosen.release in ("class-sums", "dpsgd"):
            made["records_declared"] = n
        return made


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
    option = next((name for name, each in OPTIONS.items() if (each.release, each.features) == (release, features)), "")
    if not option:
        kinds = sorted({str(each.release) for each in OPTIONS.values() if each.release and each.features == features})
        raise ValueError(f"on {features} features there are rules for {', '.join(kinds)}, and none for {release!r}")
    if OPTIONS[option].pays == "each answer" and queries is None:
        raise ValueError(f"{release} pay for each answer: say for how many, with --queries")
    paid = "for each answer" if OPTIONS[option].pays == "each answer" else "once, for any number of queries"
    return Recommendation(
        option, f"{OPTIONS[option].title}, as you asked, set by rules from public numbers; paid {paid}"
    )


def of_images() -> Recommendation:
    """Return what was measured best on images: DP-SGD on histograms of their gradients."""
    return Recommendation(
        "dpsgd",
        "DP-SGD, linear head, on histograms of the images' gradients: 0.969 on MNIST, 10,000 records, and 0.981 on "
        "60,000, at epsilon = 1, the best that was measured there; paid for once, for any number of queries",
    )


def by_simulation(
    X: Floats,
    y: Labels,
    *,
    classes: int,
    n: int | None,
    whole: int,
    queries: int | None,
    seeds: int = SEEDS,
    options: tuple[str, ...] = tuple(OPTIONS),
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> Recommendation:
    """Train every option on four fifths of the rows, ask about the others, and return the one that did best.

    X: (m, d) scaled into [0, 1] by declared bounds. n: how many records there will be, if not as many as rows: the
    noise is then that of n records, as a budget of mu n / m on m gives it. That understates what more records teach.
    queries: None for unlimited answers. Raises TrainingError for too few rows.
    """
    if len(y) < _LEAST_ROWS:
        raise TrainingError(f"a simulation needs at least {_LEAST_ROWS} rows, and there are {len(y)}")
    check_declared(len(y) if n is None else n, classes)
    figures: dict[str, list[Quality]] = {name: [] for name in options}
    constants: list[Quality] = []
    for seed in range(seeds):
        case = case_of(X, y, classes, seed)
        heads = Heads(case)
        constants.append(case.constant)
        scaled = budget_for(whole, n, len(case.y))
        for done, name in enumerate(options):
            progress(OPTIONS[name].title, (seed + done / len(options)) / seeds)
            trial = Trial(heads, scaled, "simulation", () if queries is None else (queries,))
            figure = _quality(name, trial)
            if figure is not None:
                figures[name].append(figure)
    estimates = tuple(Estimate.over(name, found, seeds) for name, found in figures.items())
    constant = Quality(fmean(each.accuracy for each in constants), mean_of([each.log_loss for each in constants]))
    return _best(estimates, queries, constant)


def _quality(name: str, trial: Trial) -> Quality | None:
    if OPTIONS[name].pays == "each answer" and not trial.queries:
        return None
    try:
        (found,) = OPTIONS[name].qualities(trial).values()
    except (ValueError, TrainingError):
        # What this budget cannot buy on these rows: too little for a release, or no noise on the grid.
        return None
    return found


def _best(estimates: tuple[Estimate, ...], queries: int | None, constant: Quality) -> Recommendation:
    """Return the simplest of those whose log loss is the least among the ones of nearly the highest accuracy."""
    known = [(estimate.option, estimate.mean) for estimate in estimates if estimate.mean is not None]
    if not known:
        raise TrainingError("this budget pays for none of the mechanisms; raise it")
    highest = max(mean for _, mean in known)
    right = [each for each in estimates if each.mean is not None and each.mean >= highest - _CLOSE]
    least = min(_loss(each) for each in right)
    chosen = next(each for each in right if _loss(each) <= least + _CLOSE_LOSS)
    option, mean = chosen.option, chosen.mean
    asked = "unlimited answers" if queries is None else f"{queries:,} queries"
    others = [(name, other) for name, other in known if OPTIONS[name].release != OPTIONS[option].release]
    beside = ""
    if others:
        second, accuracy = max(others, key=lambda pair: pair[1])
        beside = f", beside {accuracy:.3f} from {OPTIONS[second].title}"
    once = "; it is paid for once, however many are asked" if OPTIONS[option].pays == "once" else ""
    loss = "" if chosen.log_loss is None else f", with log loss {chosen.log_loss:.3f}"
    reason = f"{OPTIONS[option].title}: {mean:.3f} is expected for {asked}{loss}{beside}{once}"
    return Recommendation(option, reason, estimates, warnings_of(chosen, constant))


def _loss(estimate: Estimate) -> float:
    return math.inf if estimate.log_loss is None else estimate.log_loss


def case_of(X: Floats, y: Labels, classes: int, seed: int) -> Case:
    """Return what a simulation trains on and asks about: four fifths of the rows, and the others."""
    order = np.random.default_rng(derived_seed(seed, "simulation")).permutation(len(y))[:MOST_ROWS]
    held_out = min(max(len(order) // _HELD_OUT, 1), MOST_ASKED)
    asked, kept = order[:held_out], order[held_out:]
    return Case("simulation", seed, X[kept], y[kept], X[asked], y[asked], classes, f"simulation-{seed}")


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


@dataclass(frozen=True)
class PlannedTier:
    """A tier. whole: what holding it costs, beyond: beyond the tier before it, both in picorho."""

    name: str
    whole: int
    beyond: int
    accuracy: float | None = None
    spread: float | None = None


def planned_tiers(prices: Mapping[str, int], budget: int) -> tuple[PlannedTier, ...]:
    """Return the tiers of these prices, the coarsest first, in picorho. budget: of the lineage.

    A lineage pays for the finest tier that anyone holds, whoever else holds which (`training.releases.weights`): so
    each must fit the budget, and their sum need not. Raises TrainingError for one that does not, and for tiers that
    cannot be trained.
    """
    steps = tier_steps(prices)
    tiers, before = [], 0
    for name, whole in prices.items():
        if whole > budget:
            raise TrainingError(
                f"the tier {name!r} costs rho = {to_rho(whole):.6g}, and the whole budget is {to_rho(budget):.6g}: "
                "nobody could ever hold it. Leave it out, or raise the budget"
            )
        try:
            sampling_error.check_release_rho(to_rho(steps[name]))
        except ValueError as error:
            raise TrainingError(f"the step to the tier {name!r}: {error}") from error
        tiers.append(PlannedTier(name, whole, whole - before))
        before = whole
    return tuple(tiers)


def simulated_tiers(
    tiers: tuple[PlannedTier, ...], X: Floats, y: Labels, *, classes: int, n: int | None, features: Features, seeds: int
) -> tuple[PlannedTier, ...]:
    """Return the tiers with the accuracy that each has on rows held out. X, y, n: as for `by_simulation`.

    A tier has the noise of one release of its whole price, whatever tiers there are besides; one head serves them all,
    with the Lambda that suits the finest.
    """
    found: dict[str, list[float]] = {tier.name: [] for tier in tiers}
    for seed in range(seeds):
        case = case_of(X, y, classes, seed)
        heads = Heads(case)
        budgets = {tier.name: budget_for(tier.whole, n, len(case.y)) for tier in tiers}
        lam = rules.strong_convexity(mu_for(max(budgets.values())))
        weights = heads.weights(features, lam)
        for name, whole in budgets.items():
            law = GaussianVector(mu_for(whole), weights.size, weights_move(lam, weights))
            noisy = law.release(weights, Trial(heads, whole, "tiers").randomness(features, name))
            found[name].append(case.accuracy(heads.asked(features) @ noisy.T))
    return tuple(
        replace(tier, accuracy=fmean(found[tier.name]), spread=stdev(found[tier.name]) if seeds > 1 else None)
        for tier in tiers
    )


def training_options(tiers: tuple[PlannedTier, ...]) -> dict[str, object]:
    """Return `dpserve train`'s options for released weights in these tiers."""
    return {
        "lam": rules.strong_convexity(mu_for(tiers[-1].whole)),
        "tier": [f"{tier.name}=rho:{to_rho(tier.whole)!r}" for tier in tiers],
    }
