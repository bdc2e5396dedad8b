"""Measurements on public sets, for an owner without rows: a summary of research/comparison/measured.csv."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from accounting.budgets import Budget
from mechanisms.gaussian_vector import mu_for
from training.features.rules import Modality
from training.kinds.cases import Estimate, Quality
from training.kinds.planned import QUERIES, UNLIMITED
from training.planning.options import DELTA, planned_options

MEASURED = Path(__file__).with_name("measured.csv")
"""Written by `python -m research.comparison --summary`: a line for each set, epsilon, option and number of queries."""

MANY_CLASSES = 20
"""Least number of classes at which each has few records, and class sums did best on both sets of plain numbers."""

LEAST_MEASURED = min(QUERIES)
"""Answers."""

FAR = 10.0
"""A set whose numbers are so many times another's is not much like it."""


@dataclass(frozen=True)
class PublicSet:
    """A public set in one size.

    n: records trained on. commonest, entropy: accuracy and log loss of answering each held-out row with the shares of
    the classes among the records. modality: of rows whose schema was used; None for numbers as they are.
    """

    title: str
    n: int
    classes: int
    commonest: float
    entropy: float
    modality: Modality | None = None


SETS = {
    "location": PublicSet("Location, 3,500 records, 30 classes", 3500, 30, 0.0589, 3.3741),
    "mnist-10k": PublicSet("MNIST, 10,000 records, 10 classes", 10_000, 10, 0.1135, 2.3012),
    "mnist-60k": PublicSet("MNIST, 60,000 records, 10 classes", 60_000, 10, 0.1135, 2.3010),
    "mnist-10k-hog": PublicSet("MNIST, 10,000 images, 10 classes", 10_000, 10, 0.1135, 2.3012, "images"),
    "mnist-60k-hog": PublicSet("MNIST, 60,000 images, 10 classes", 60_000, 10, 0.1135, 2.3010, "images"),
    "adult": PublicSet("Adult, 30,000 records, 2 classes", 30_000, 2, 0.7643, 0.5462),
    "adult-bins": PublicSet("Adult with its schema, 30,000 records, 2 classes", 30_000, 2, 0.7643, 0.5462, "table"),
    "retail": PublicSet("retail baskets, 35,000 records, 100 uneven classes", 35_000, 100, 0.0680, 4.2077),
}
"""The sets that were measured."""


@dataclass(frozen=True)
class Nearest:
    """A public set at an epsilon, its mu n / C, and what was measured there for a number of queries, or without end.

    apart: how many times its classes or its mu n / C are yours, or yours are its, whichever is more.
    """

    dataset: str
    epsilon: float
    signal: float
    queries: int | None
    estimates: tuple[Estimate, ...]
    apart: float

    @property
    def constant(self) -> Quality:
        """Return the quality of the shares of its classes as answers."""
        return Quality(SETS[self.dataset].commonest, SETS[self.dataset].entropy)

    @property
    def place(self) -> str:
        """The set and the epsilon."""
        return f"{SETS[self.dataset].title}, at epsilon = {self.epsilon:g}"

    @property
    def words(self) -> str:
        """Where the estimates come from."""
        asked = "any number of" if self.queries is None else f"{self.queries:,}"
        return f"{self.place} (mu n / C = {self.signal:.3g}), {asked} queries"


def nearest(n: int, classes: int, whole: int, queries: int | None, modality: Modality | None = None) -> Nearest:
    """Return the public set and epsilon most like `n` records in so many classes at a budget of `whole` picorho.

    Only sets of the same modality count, and of these, but for images, those of the same group: two classes, some, or
    many. Where the group has no set of it, tables count for texts, and then sets without a schema. Most alike are
    numbers of classes and mu n / C, both in ratios. queries: the nearest number that was measured, in ratios too. An
    option that was not measured there has no estimate; one that ends before has the mean None.
    """
    wanted, measured = mu_for(whole) * n / classes, _measured()

    def ratios(place: tuple[str, float]) -> tuple[float, float]:
        return abs(math.log(SETS[place[0]].classes / classes)), abs(math.log(_signal(*place) / wanted))

    def alike(place: tuple[str, float], modality: Modality | None) -> bool:
        public = SETS[place[0]]
        return public.modality == modality and (modality == "images" or _group(public.classes) == _group(classes))

    tried: tuple[Modality | None, ...] = (modality, "table", None) if modality == "text" else (modality, None)
    places = next(found for each in tried if (found := [place for place in measured if alike(place, each)]))
    dataset, epsilon = min(places, key=lambda place: sum(ratios(place)))
    count = None if queries is None else min(QUERIES, key=lambda known: abs(math.log(known / queries)))
    estimates = tuple(_estimates(measured[dataset, epsilon], count))
    apart = math.exp(max(ratios((dataset, epsilon))))
    return Nearest(dataset, epsilon, _signal(dataset, epsilon), count, estimates, apart)


def _group(classes: int) -> str:
    if classes == 2:
        return "two"
    return "many" if classes >= MANY_CLASSES else "some"


Cells = dict[tuple[str, str], Estimate]
"""Estimates by option and number of queries, or `UNLIMITED`, which holds for every number."""


def _estimates(cells: Cells, count: int | None) -> Iterator[Estimate]:
    for name, option in planned_options().items():
        if count is None and option.pays == "each answer":
            yield Estimate(name, None)
        elif (name, str(count)) in cells:
            yield cells[name, str(count)]
        elif (name, UNLIMITED) in cells:
            yield cells[name, UNLIMITED]


@lru_cache(maxsize=1)
def _measured() -> dict[tuple[str, float], Cells]:
    found: dict[tuple[str, float], Cells] = {}
    with MEASURED.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cells = found.setdefault((row["dataset"], float(row["epsilon"])), {})
            mean, spread, loss, error = (
                float(row[name]) if row[name] else None for name in ("mean", "spread", "log_loss", "calibration_error")
            )
            cells[row["option"], row["queries"]] = Estimate(row["option"], mean, spread, int(row["seeds"]), loss, error)
    return found


def _signal(dataset: str, epsilon: float) -> float:
    public = SETS[dataset]
    mu = mu_for(Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit)
    return mu * public.n / public.classes
