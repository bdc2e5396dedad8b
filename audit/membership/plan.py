"""The plan of an attack, before a single row is asked: the candidates that a budget affords, and what they can show."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats, Integers, Mask
from dpserve.accounting.picorho import PICORHO_PER_RHO
from dpserve.audit.estimators import SELECTION_SHARE, Errors, epsilon_delta_of_errors
from dpserve.audit.membership.candidates import Labelled, repeated

NEARNESS = 1e-4
"""The most that a near-copy moves each value, as a share of the feature's range.

Far enough to be another question, which pays like any other: features have steps of 2^-24, and cosines of 2^-16 turns.
Near enough to be asked about the same: noise is many times what so little moves the logits by.
"""

BOUNDS = 3
"""Number of lower bounds that may convict (`dpserve.audit.membership.verdict`)."""
NOISE_SHARE = 1e-8
"""The share of the doubt with which the test of noise may convict a sound service; the bounds share the rest."""


class TooFewSamples(ValueError):
    """Even an attack that is always right could show nothing. `needed`, `offered` and `affordable` are of each kind."""

    def __init__(self, needed: int, confidence: float, offered: int, affordable: int, *, distinct: bool) -> None:
        """Say how many are needed. distinct: whether no row of the records is repeated."""
        self.needed, self.offered, self.affordable = needed, offered, affordable
        whose = "there are" if distinct else "without repeated rows there are"
        why = f"{whose} {offered} of each" if offered <= affordable else f"the budget pays for {affordable} of each"
        super().__init__(
            f"too few samples: at {confidence:.0%} confidence even an attack that is always right shows nothing with "
            f"fewer than {needed} members and {needed} non-members, and {why}" + ("" if distinct else _ALIKE)
        )


@dataclass(frozen=True, eq=False)
class QueryPlan:
    """Which candidates are asked about, and what that allows.

    members, others: rows of the candidates, equally many units, these in a random order, one after the other.
    of_each: how many units. offered: of how many, `repeated` rows left out. copies: rows sent for each row and key.
    keys: how many keys ask. left: rows that the poorest key can still pay for; None where answers cost nothing.
    shared: rows that the lineage can still pay for, for all keys together; None where the keys cannot see that.
    """

    members: Integers
    others: Integers
    of_each: int
    offered: tuple[int, int]
    copies: int
    keys: int
    left: int | None
    confidence: float
    shared: int | None = None

    @property
    def queries(self) -> int:
        """Rows that every key is asked for."""
        return (len(self.members) + len(self.others)) * self.copies

    @property
    def half_width(self) -> float:
        """About how far TPR - FPR may be off at the confidence, for an attack that is hardly better than guessing."""
        return half_width(self.of_each, self.confidence)

    @property
    def largest_epsilon(self) -> float:
        """The lower bound of epsilon that an attack would reach that is always right."""
        return largest_epsilon(self.of_each, self.confidence)

    def sentences(self) -> tuple[str, ...]:
        """Return the plan in words."""
        lineage = ""
        if self.keys > 1 and self.left is not None:
            lineage = (
                "; what the lineage has left for all keys together does not show, and may end it earlier"
                if self.shared is None
                else f"; the lineage pays for {self.shared} rows of all keys together"
            )
        rows = self.queries // self.copies
        paid = "answers cost nothing more" if self.left is None else f"the budget pays for {self.left} rows"
        return (
            f"{paid}{' of each key' if self.keys > 1 else ''}; asking about {self.of_each} of {self.offered[0]} "
            f"members and {self.of_each} of {self.offered[1]} non-members"
            + (f", who have {rows} rows" if rows > 2 * self.of_each else "")
            + (f", {self.copies} rows each" if self.copies > 1 else "")
            + (f", through {self.keys} keys" if self.keys > 1 else "")
            + lineage,
            f"at {self.confidence:.0%} confidence TPR - FPR will be known to about +-{self.half_width:.3f}, and no "
            f"lower bound of epsilon can exceed {self.largest_epsilon:.2f}",
        )


_ALIKE = (
    ". Rows are alike to the model where its features are, as numbers in the same bin: their one answer does not say "
    "which of them it was trained on. Give more candidates, or such that differ more"
)


def make_plan(
    members: Labelled,
    others: Labelled,
    budgets: Sequence[Mapping[str, Any]],
    *,
    copies: int,
    confidence: float,
    seed: int,
    most: int | None = None,
    rows_of_each: int | None = None,
    answered: Sequence[int] = (),
    settled: int | None = None,
    reserved: int = 0,
) -> QueryPlan:
    """Return the plan that fits the poorest key, and the lineage that all keys share as far as they can see it.

    most: at most so many candidates of each kind. rows_of_each: at most so many rows of a unit, drawn at random.
    Which units the budget pays for follows from their order and their numbers of rows, and not from which are
    members: of the units in the plan all halves are as likely to be the members as before. answered: for each key,
    rows that it has its answer to already. settled: how many of each kind an interrupted attack set out to ask about;
    it goes on with those. reserved: rows that the first key must be left for the test of noise.

    Raises ValueError where even an attack that is always right could show nothing at this confidence.
    """
    if not 0.5 <= confidence < 1:
        raise ValueError(f"the confidence must lie from 0.5 to below 1, not be {confidence}")
    already = answered or [0] * len(budgets)
    left_of_keys = [rows_of_its_own(budget) for budget in budgets]
    totals = [rows + before for rows, before in zip(left_of_keys, already, strict=True) if rows is not None]
    left = min(totals) if totals else None
    shared = _left_of_the_lineage(budgets)
    shared = None if shared is None else shared + sum(already)
    if left is not None and shared is not None:
        left = min(left, shared)
    # `left` is the poorest key's: where that is another than the first, a few candidates fewer are asked about.
    per_key = None if left is None else left - reserved
    per_key = per_key if per_key is None or shared is None else min(per_key, (shared - reserved) // len(budgets))
    alone = ~repeated(members), ~repeated(others)
    generator = np.random.default_rng(seed)
    (some, ends), (rest, other_ends) = (
        _in_order(records, askable, generator, rows_of_each)
        for records, askable in zip((members, others), alone, strict=True)
    )
    of_both = len(ends), len(other_ends)
    offered = min(*of_both, most if most is not None else members.count)
    costs = copies * (ends[:offered] + other_ends[:offered])
    affordable = offered if per_key is None else int(np.searchsorted(costs, per_key, side="right"))
    size = min(offered, affordable) if settled is None else min(offered, settled)
    if size < 1 or largest_epsilon(size, confidence) <= 0:
        distinct = all(askable.all() for askable in alone)
        raise TooFewSamples(fewest(confidence), confidence, offered, affordable, distinct=distinct)
    rows = some[: ends[size - 1]], rest[: other_ends[size - 1]]
    return QueryPlan(*rows, size, of_both, copies, len(budgets), left, confidence, shared)


def _in_order(
    records: Labelled, alone: Mask, generator: np.random.Generator, most: int | None
) -> tuple[Integers, Integers]:
    """Return the rows to ask about, at most so many of a unit, the units in a random order, and where each unit's end.

    The second are numbers of rows (u,): how many the units up to it have together.
    """
    place = np.argsort(generator.permutation(records.count))
    rows = np.flatnonzero(alone) if most is None else generator.permutation(np.flatnonzero(alone))
    rows = rows[np.argsort(place[records.of[rows]], kind="stable")]
    first = np.flatnonzero(np.diff(records.of[rows], prepend=-1))
    counts = np.diff(first, append=len(rows))
    if most is not None:
        rows = rows[np.arange(len(rows)) - np.repeat(first, counts) < most]
        counts = np.minimum(counts, most)
    return rows, np.cumsum(counts)


def rows_of_keys(rows: Floats, copies: int, model: Mapping[str, Any], seed: int, names: Sequence[str]) -> Floats:
    """Return what each key asks about the rows (n, d): (keys, n * copies, d), `copies` rows for each.

    The first key asks about the rows themselves and copies - 1 next to each, the others about rows next to them alone:
    two keys that asked one question would get one answer. names: `Endpoint.name` of each key, from which its
    near-copies follow, so that nobody else asks these questions and the lineage cannot have paid for them before.
    """
    first = near_copies(rows, copies, model, seed)
    others = [
        np.delete(near_copies(rows, copies + 1, model, seed, name), np.s_[:: copies + 1], axis=0) for name in names[1:]
    ]
    return np.stack([first, *others])


def near_copies(rows: Floats, copies: int, model: Mapping[str, Any], seed: int, name: str = "") -> Floats:
    """Return each row (n, d) followed by copies - 1 rows next to it, within the model's bounds: (n * copies, d)."""
    lower, upper = (np.asarray(model["feature_map"][end]) for end in ("lower", "upper"))
    many = np.repeat(rows, copies, axis=0)
    if copies > 1:
        inwards = np.where(many > (lower + upper) / 2, -1.0, 1.0)
        moved = np.random.default_rng([seed, *name.encode()]).random(many.shape) * NEARNESS * (upper - lower)
        moved[::copies] = 0.0
        many = np.clip(many + inwards * moved, lower, upper)
    return many


def rows_of_its_own(budget: Mapping[str, Any]) -> int | None:
    """Return how many rows a key's own account still pays for; None where answers cost nothing."""
    if budget["queries_left"] is None:
        return None
    price = budget.get("price")
    if not price or not price[currency := budget["currency"]]:
        return int(budget["queries_left"])
    return int(round(budget["remaining"][currency] * PICORHO_PER_RHO) // round(price[currency] * PICORHO_PER_RHO))


def _left_of_the_lineage(budgets: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many rows the lineage still pays for, of all keys together, where a key's account shows it.

    `queries_left` is what the key's own account and the lineage's both pay for. Below what its own pays for it is what
    the lineage pays for. None where every key's own account ends first: then the lineage has that or more.
    """
    accounts = ((rows_of_its_own(budget), budget["queries_left"]) for budget in budgets)
    return min((int(left) for of_key, left in accounts if of_key is not None and left < of_key), default=None)


def half_width(of_each: int, confidence: float) -> float:
    """The half-width of a normal interval for the difference of two rates near 1/2, on what thresholds do not use."""
    counted = max(1, of_each - round(SELECTION_SHARE * of_each))
    return min(1.0, NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(0.5 / counted))


def largest_epsilon(of_each: int, confidence: float) -> float:
    """The lower bound of epsilon, at delta 0, of an attack without errors."""
    chosen = round(SELECTION_SHARE * of_each)
    counted = of_each - chosen
    if chosen < 1 or counted < 1:
        return 0.0
    return epsilon_delta_of_errors(Errors(0, counted, 0, counted), confidence_of_bound(confidence), 0.0)


def confidence_of_bound(confidence: float) -> float:
    """Return the confidence of each lower bound, so that all of them and the test of noise hold with `confidence`."""
    return 1 - (1 - confidence) * (1 - NOISE_SHARE) / BOUNDS


def fewest(confidence: float) -> int:
    """The least number of candidates of each kind with which anything can be shown."""
    of_each = 2
    while largest_epsilon(of_each, confidence) <= 0:
        of_each += 1
    return of_each
