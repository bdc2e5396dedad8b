"""Tiers of released weights: what several precisions cost, and what each is worth on given rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from accounting import sampling_error
from accounting.picorho import to_rho
from mechanisms.gaussian_vector import GaussianVector, mu_for
from training.errors import TrainingError
from training.features import rules
from training.features.rules import Features
from training.inputs.records import Records
from training.kinds.cases import Estimate, Heads, weights_move
from training.kinds.planned import PlannedOption, Trial
from training.planning.measured import Expected
from training.planning.options import kind_of_option, planned_options
from training.planning.recommendation import SEEDS, budget_for, case_of


def tiered_option(estimates: Sequence[Estimate | Expected] = ()) -> PlannedOption:
    """Return the option that has tiers; of several the one of the highest accuracy, or the first."""
    accuracy = {each.option: each.mean or 0.0 for each in estimates if isinstance(each, Estimate)}
    return max(
        (each for each in planned_options().values() if each.tiered), key=lambda one: accuracy.get(one.name, 0.0)
    )


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

    A lineage pays for the finest tier that anyone holds, whoever else holds which (`training.kinds.weights.model`): so
    each must fit the budget, and their sum need not. Raises TrainingError for one that does not, and for tiers that
    cannot be trained.
    """
    steps = kind_of_option(tiered_option()).tier_steps(prices)
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
    tiers: tuple[PlannedTier, ...], records: Records, n: int | None, features: Features
) -> tuple[PlannedTier, ...]:
    """Return the tiers with the accuracy that each has on rows held out. records, n: as for `by_simulation`.

    A tier has the noise of one release of its whole price, whatever tiers there are besides; one head serves them all,
    with the Lambda that suits the finest.
    """
    qualities: dict[str, list[float]] = {tier.name: [] for tier in tiers}
    for seed in range(SEEDS):
        case = case_of(records, seed, n=n)
        heads = Heads(case)
        chosen = heads.feature_map(features)
        budgets = {tier.name: budget_for(tier.whole, n, len(case.y)) for tier in tiers}
        lam = rules.strong_convexity(mu_for(max(budgets.values())))
        weights = heads.weights(chosen, lam)
        for name, whole in budgets.items():
            law = GaussianVector(mu_for(whole), weights.size, weights_move(lam, weights))
            noisy = law.release(weights, Trial(heads, whole, "tiers").randomness(features, name))
            qualities[name].append(case.accuracy(heads.asked(chosen) @ noisy.T))
    return tuple(
        replace(tier, accuracy=fmean(qualities[tier.name]), spread=stdev(qualities[tier.name])) for tier in tiers
    )


def tier_options(tiers: tuple[PlannedTier, ...]) -> dict[str, object]:
    """Return `dpserve train`'s options for released weights in these tiers."""
    return {
        "lam": rules.strong_convexity(mu_for(tiers[-1].whole)),
        "tier": {tier.name: tier.whole for tier in tiers},
    }
