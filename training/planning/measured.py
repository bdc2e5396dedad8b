"""Measurements on public sets, for an owner without rows: which sets are like the records, and what was reached there.

What a kind of model reaches depends on the records far more than on public numbers. So no figure of one set is quoted
as what another will reach: there is a range over similar sets, or nothing.
"""

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev

from accounting.budgets import Budget
from mechanisms.gaussian_vector import mu_for
from training.features.rules import Modality
from training.kinds.cases import Estimate
from training.kinds.planned import QUERIES, UNLIMITED
from training.planning.options import DELTA, default_option, planned_options

MEASURED = Path(__file__).with_name("measured.csv")
"""Written by `python -m research.planning summary`: a line for each set, epsilon, option and number of queries."""
SETS_FILE = Path(__file__).with_name("sets.csv")
"""The sets, a line for each, by the same command."""

MANY_CLASSES = 20
"""Least number of classes at which each has few records."""

LEAST_MEASURED = min(QUERIES)
"""Answers."""

FAR = 10.0
"""Sets whose mu n / C is so many times the records', or a part of it so small, are not like them."""

LEAST_SETS = 4
"""Number of similar sets below which no range is quoted, and none speaks against the default."""

HELD = (24, 34)
"""Figures on tables that the planner does not know which lay in the range that was quoted, of how many: as
`python -m research.planning regret` finds."""

CLEARLY = 0.01
"""Log loss by which another option must have been better than the default on similar sets, in the mean."""


@dataclass(frozen=True)
class PublicSet:
    """A public set in one size.

    n: records trained on. commonest, entropy: accuracy and log loss of answering each held-out row with the shares of
    the classes among the records. modality: of rows whose schema was used; None for numbers as they are. table: what it
    is all or a part of; sets of one table count once.
    """

    title: str
    n: int
    classes: int
    commonest: float
    entropy: float
    modality: Modality | None = None
    table: str = ""


def read_sets(path: Path) -> dict[str, PublicSet]:
    """Read the sets of a file, by name."""
    with path.open(newline="", encoding="utf-8") as file:
        return {
            row["dataset"]: PublicSet(
                row["title"],
                int(row["n"]),
                int(row["classes"]),
                float(row["commonest"]),
                float(row["entropy"]),
                row["modality"] or None,  # type: ignore[arg-type]
                row["table"],
            )
            for row in csv.DictReader(file)
        }


SETS = read_sets(SETS_FILE)
"""The sets that were measured."""


@dataclass(frozen=True)
class Place:
    """A public set at an epsilon, its mu n / C, and what each option reached there, by name."""

    dataset: str
    epsilon: float
    signal: float
    estimates: Mapping[str, Estimate]

    @property
    def public(self) -> PublicSet:
        """The set."""
        return SETS[self.dataset]


@dataclass(frozen=True)
class Range:
    """The least and the largest figure on some sets, and how many they are."""

    lowest: float
    highest: float
    sets: int


@dataclass(frozen=True)
class Expected:
    """An option's figures on similar sets. None: not known.

    commonest: what the commonest class alone is right on there. undecided: share of undecided answers, the mean.
    set_size: of prediction sets for 0.9. has_intervals: whether answers would have them for the numbers that are
    planned for, which measured sets may differ in.
    """

    option: str
    accuracy: Range
    commonest: Range
    log_loss: Range | None = None
    undecided: float | None = None
    set_size: Range | None = None
    has_intervals: bool = True


@dataclass(frozen=True)
class Similar:
    """The public sets like some records, of each table one, at an epsilon. signal: the records' mu n / C."""

    signal: float
    places: tuple[Place, ...]
    nearest_signal: float
    """The mu n / C of the nearest of all sets of the group."""

    @property
    def predictable(self) -> bool:
        """Whether there are sets enough for a range."""
        return len(self.places) >= LEAST_SETS

    @property
    def expected(self) -> tuple[Expected, ...]:
        """Figures of each option that was measured on LEAST_SETS of the sets."""
        found = []
        for name in planned_options():
            known = [estimate for place in self.places if (estimate := place.estimates.get(name)) is not None]
            shares = [place.public.commonest for place in self.places if name in place.estimates]
            right = [each.mean for each in known if each.mean is not None]
            losses = [each.log_loss for each in known if each.log_loss is not None]
            undecided = [each.undecided for each in known if each.undecided is not None]
            if len(right) < LEAST_SETS:
                continue
            loss = Range(min(losses), max(losses), len(losses)) if len(losses) == len(right) else None
            share = fmean(undecided) if undecided else None
            sizes = [each.set_size for each in known if each.set_size is not None]
            size = Range(min(sizes), max(sizes), len(sizes)) if len(sizes) == len(right) else None
            commonest = Range(min(shares), max(shares), len(shares))
            found.append(Expected(name, Range(min(right), max(right), len(right)), commonest, loss, share, size))
        return tuple(found)

    @property
    def words(self) -> str:
        """The sets, by name, with what makes them alike; that there are none, of texts and of signals far from all."""
        if not self.places:
            return "no public set"
        names = ", ".join(f"{place.dataset} at {place.epsilon:g}" for place in self.places)
        counted = "1 public set" if len(self.places) == 1 else f"{len(self.places)} public sets"
        return f"{counted} whose signal, mu n / C, is within {FAR:g} times yours: {names}"

    def best(self, suitable: Callable[[str], bool], default: str) -> str:
        """Return the default, or the option whose log loss lay the lowest below the default's on the sets.

        It must be lower by CLEARLY, and by two standard errors, in the mean of the sets on which both were measured, of
        which there must be LEAST_SETS. suitable: says of an option's name whether it may be taken.
        """
        means = {}
        for name in planned_options():
            apart = [
                mine.log_loss - other.log_loss
                for place in self.places
                if (mine := place.estimates.get(name)) is not None and mine.log_loss is not None
                if (other := place.estimates.get(default)) is not None and other.log_loss is not None
            ]
            if name == default or not suitable(name) or len(apart) < LEAST_SETS:
                continue
            error = 2 * stdev(apart) / math.sqrt(len(apart))
            if (mean := fmean(apart)) < -max(CLEARLY, error):
                means[name] = mean
        return min(means, key=lambda name: means[name]) if means else default


def similar_sets(
    n: int, classes: int, whole: int, queries: int | None = None, modality: Modality | None = None
) -> Similar:
    """Return the public sets like `n` records in so many classes at a budget of `whole` picorho.

    Only sets of the same modality count on which its default option was measured, none for texts, and of these only
    those of the same group: two classes, some, or many; images are one group. Of each table the set and the epsilon
    count whose mu n / C is nearest, in a ratio, to the records', and only if it is within FAR times. queries: the
    nearest number that was measured; None: without end.
    """
    wanted, count = mu_for(whole) * n / classes, _nearest_count(queries)
    group, default = _group(classes), default_option(modality)
    alike: dict[str, Place] = {}
    signals = []
    for (dataset, epsilon), cells in measured_cells().items():
        public, signal = SETS[dataset], signal_of(dataset, epsilon)
        if public.modality != modality or (default, UNLIMITED) not in cells:
            continue
        if modality != "images" and _group(public.classes) != group:
            continue
        signals.append(signal)
        known = alike.get(public.table)
        nearer = known is None or _apart(signal, wanted) < _apart(known.signal, wanted)
        if nearer and _apart(signal, wanted) <= math.log(FAR):
            alike[public.table] = Place(dataset, epsilon, signal, _of_count(cells, count))
    return Similar(wanted, tuple(alike.values()), min(signals, key=lambda each: _apart(each, wanted), default=wanted))


def _apart(signal: float, wanted: float) -> float:
    return abs(math.log(signal / wanted))


def _nearest_count(queries: int | None) -> int | None:
    return None if queries is None else min(QUERIES, key=lambda known: abs(math.log(known / queries)))


def _group(classes: int) -> str:
    if classes == 2:
        return "two"
    return "many" if classes >= MANY_CLASSES else "some"


Cells = dict[tuple[str, str], Estimate]
"""Estimates by option and number of queries, or `UNLIMITED`, which holds for every number."""


def _of_count(cells: Cells, count: int | None) -> dict[str, Estimate]:
    found = {name: cells[name, queries] for name, queries in cells if queries == UNLIMITED}
    if count is not None:
        found |= {name: cells[name, queries] for name, queries in cells if queries == str(count)}
    return found


@lru_cache(maxsize=1)
def measured_cells() -> dict[tuple[str, float], Cells]:
    """Return what was measured, by set and epsilon."""
    found: dict[tuple[str, float], Cells] = {}
    with MEASURED.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cells = found.setdefault((row["dataset"], float(row["epsilon"])), {})
            mean, spread, loss, error, undecided, size = (
                float(row[name]) if row[name] else None
                for name in ("mean", "spread", "log_loss", "calibration_error", "undecided", "set_size")
            )
            cells[row["option"], row["queries"]] = Estimate(
                row["option"], mean, spread, int(row["seeds"]), loss, error, None, undecided, size
            )
    return found


def signal_of(dataset: str, epsilon: float) -> float:
    """Return mu n / C of a set at an epsilon."""
    public = SETS[dataset]
    mu = mu_for(Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit)
    return mu * public.n / public.classes
