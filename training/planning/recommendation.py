"""Which option an owner should take, with the training options for it, by a simulation on given rows; and tiers.

A simulation runs the options themselves. On rows that are public it costs nothing; on private records it tells about
them, and no guarantee covers what it tells.
"""

from collections.abc import Callable, Mapping
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
from training.planning.cases import MOST_ASKED, Case, Floats, Heads, Labels, weights_move
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


@dataclass(frozen=True)
class Estimate:
    """The expected accuracy of an option: mean and standard deviation over so many seeds; None where it cannot be."""

    option: str
    mean: float | None
    spread: float | None = None
    seeds: int | None = None


@dataclass(frozen=True)
class Recommendation:
    """An option, why in one sentence, and what every option was expected to reach."""

    option: str
    reason: str
    estimates: tuple[Estimate, ...] = ()

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
        if self.chosen.release == "dpsgd":
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
    figures: dict[str, list[float]] = {name: [] for name in options}
    for seed in range(seeds):
        case = case_of(X, y, classes, seed)
        heads = Heads(case)
        scaled = budget_for(whole, n, len(case.y))
        for done, name in enumerate(options):
            progress(OPTIONS[name].title, (seed + done / len(options)) / seeds)
            trial = Trial(heads, scaled, "simulation", () if queries is None else (queries,))
            figure = _accuracy(name, trial)
            if figure is not None:
                figures[name].append(figure)
    estimates = tuple(
        Estimate(name, fmean(found), stdev(found) if len(found) > 1 else None, seeds)
        if len(found) == seeds
        else Estimate(name, None)
        for name, found in figures.items()
    )
    return _best(estimates, queries)


def _accuracy(name: str, trial: Trial) -> float | None:
    if OPTIONS[name].pays == "each answer" and not trial.queries:
        return None
    try:
        (found,) = OPTIONS[name].accuracies(trial).values()
    except (ValueError, TrainingError):
        # What this budget cannot buy on these rows: too little for a release, or no noise on the grid.
        return None
    return found


def _best(estimates: tuple[Estimate, ...], queries: int | None) -> Recommendation:
    known = [(estimate.option, estimate.mean) for estimate in estimates if estimate.mean is not None]
    if not known:
        raise TrainingError("this budget pays for none of the mechanisms; raise it")
    highest = max(mean for _, mean in known)
    option, mean = next((name, mean) for name, mean in known if mean >= highest - _CLOSE)
    asked = "unlimited answers" if queries is None else f"{queries:,} queries"
    others = [(name, other) for name, other in known if OPTIONS[name].release != OPTIONS[option].release]
    beside = ""
    if others:
        second, accuracy = max(others, key=lambda pair: pair[1])
        beside = f", beside {accuracy:.3f} from {OPTIONS[second].title}"
    once = "; it is paid for once, however many are asked" if OPTIONS[option].pays == "once" else ""
    return Recommendation(
        option, f"{OPTIONS[option].title}: {mean:.3f} is expected for {asked}{beside}{once}", estimates
    )


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
