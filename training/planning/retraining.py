"""Retrainings over a sliding window of blocks: what each may cost, and what accuracy that gives.

Records come by block, as a month's, and each block has a budget of its own. A model that is trained again on the last
k blocks has every block in k models.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np

from dpserve.accounting.disclosure import Declared, Disclosed
from dpserve.mechanisms.gaussian_vector import LARGEST_PRICE, LEAST_PRICE
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.features.hog import Shape
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.cases import Heads
from dpserve.training.kinds.planned import UNLIMITED, Trial
from dpserve.training.planning import recommendation
from dpserve.training.planning.options import option_named
from dpserve.training.planning.ranking import HELD_OUT
from dpserve.training.planning.recommendation import SEEDS, budget_for, case_of

PERIODS = {"year": 1, "quarter": 4, "month": 12, "week": 52}
"""The number of blocks of a period in a year."""

MOST_RETRAININGS = 1000


def retrainings_of(words: str) -> int:
    """Return the number of retrainings that a person writes: a number, or a period for as many as a year has.

    Raises WrongOption for other words.
    """
    if words in PERIODS:
        return PERIODS[words]
    try:
        count = int(words)
    except ValueError:
        count = 0
    if not 1 <= count <= MOST_RETRAININGS:
        reason = f"is {', '.join(PERIODS)}, or a number from 1 to {MOST_RETRAININGS}, not {words!r}"
        raise WrongOption("retrain", reason, value=words)
    return count


def share_of(budget: int, window: int) -> int:
    """Return what each retraining may cost, in picorho, so that no block pays more than its budget.

    Proof. A retraining trains on a window of k blocks that follow one another, and each begins one block after the one
    before: a block is in at most k of them. Costs add up in rho, adaptively (Bun and Steinke 2016, Lemma 7), whatever
    was learnt from other blocks in between (Feldman and Zrnic 2021). So k times floor(budget / k) is at most the
    budget; of Gaussian costs rho = mu^2/2, and each has a k-th of mu^2. Raises WrongOption where that buys no release.
    """
    share = min(budget // window, LARGEST_PRICE)
    if share < LEAST_PRICE:
        reason = f"shares a block's budget among {window} models, and no release is so cheap"
        raise WrongOption("window", reason, value=window, remedy="take a smaller one, or a larger budget")
    return share


@dataclass(frozen=True)
class Retraining(Disclosed):
    """One retraining. first, last: its blocks, counted from 1. records: about how many they have.

    accuracy: as simulated, or None; spread: its standard deviation over seeds.
    """

    number: Declared[int]
    first: Declared[int]
    last: Declared[int]
    records: Declared[int]
    accuracy: Declared[float | None] = None
    spread: Declared[float | None] = None


@dataclass(frozen=True)
class Schedule(Disclosed):
    """Retrainings, each at a price in picorho, by one option of the planner."""

    option: Declared[str]
    price: Declared[int]
    window: Declared[int]
    retrainings: Declared[tuple[Retraining, ...]]


def windows(count: int, window: int, records: int) -> Iterator[Retraining]:
    """Give the retrainings: each one on the last blocks that there are, as many as the window has at most.

    records: of all blocks, as many in each.
    """
    for number in range(1, count + 1):
        first = max(1, number - window + 1)
        yield Retraining(number, first, number, records * (number - first + 1) // count)


def schedule_by_rule(
    n: int, classes: int, count: int, window: int, budget: int, declared: Declaration | None = None
) -> Schedule:
    """Return the schedule, with the option that the rule has for the last retraining.

    n: records of all blocks. budget: of a block, in picorho. declared: of their columns, where they are known. Raises
    WrongOption, ValueError.
    """
    price = share_of(budget, window)
    found = tuple(windows(count, window, n))
    records = max(found[-1].records, 1)
    return Schedule(recommendation.recommend(classes, declared, n=records, whole=price).option, price, window, found)


def schedule_by_simulation(
    rows: Records,
    *,
    n: int | None,
    count: int,
    window: int,
    budget: int,
    image_shape: Shape | None = None,
    seeds: int = SEEDS,
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> Schedule:
    """Train every retraining on parts of four fifths of the rows, and ask about the others.

    The rows are cut into as many blocks of equal size by a fixed draw. n: how many records all blocks will have, if not
    as many as rows: of more the noise is that of n records. The option is the one that the rule has for the last
    retraining. Raises WrongOption, TrainingError for too few rows.
    """
    price = share_of(budget, window)
    planned = list(windows(count, window, len(rows) * (HELD_OUT - 1) // HELD_OUT if n is None else n))
    classes, records = len(rows.declaration.classes), max(planned[-1].records, 1)
    chosen = recommendation.recommend(classes, rows.declaration, n=records, whole=price, image_shape=image_shape).option
    option = option_named(chosen)
    accuracies: list[list[float]] = [[] for _ in planned]
    for seed in range(seeds):
        case = case_of(rows, seed, image_shape, n)
        if len(case.y) < count:
            raise TrainingError(f"{len(case.y)} rows train, which is fewer than the {count} blocks")
        order = np.random.default_rng(derived_seed(seed, "blocks")).permutation(len(case.y))
        parts = np.array_split(order, count)
        scaled = budget_for(price, n, len(case.y))
        for place, retraining in enumerate(planned):
            progress(f"retraining {retraining.number}", (seed + place / count) / seeds)
            inside = np.sort(np.concatenate(parts[retraining.first - 1 : retraining.last]))
            part = replace(case, X=case.X[inside], y=case.y[inside])
            found = option.qualities(Trial(Heads(part), scaled, f"retraining-{retraining.number}", ()))
            quality = found[UNLIMITED]
            assert quality is not None
            accuracies[place].append(quality.accuracy)
    retrainings = tuple(
        replace(retraining, accuracy=fmean(found), spread=stdev(found) if seeds > 1 else None)
        for retraining, found in zip(planned, accuracies, strict=True)
    )
    return Schedule(chosen, price, window, retrainings)
