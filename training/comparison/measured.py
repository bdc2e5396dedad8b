"""What was measured on public sets, for an owner without rows: the figures of docs/mechanisms.csv, packaged."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from accounting.budgets import Budget
from mechanisms.gaussian_vector import mu_for
from training.comparison.cases import BENCHMARKS
from training.comparison.experiment import Cell, at
from training.comparison.options import DELTA, OPTIONS, QUERIES, UNLIMITED
from training.comparison.recommendation import CANDIDATES, MANY_CLASSES, Estimate
from training.comparison.tables import read_csv

MEASURED = Path(__file__).with_name("measured.csv")
"""The same bytes as docs/mechanisms.csv."""

LEAST_MEASURED = min(QUERIES)
"""Answers."""

FAR = 10.0
"""A set whose numbers are so many times another's is not much like it."""


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
    def place(self) -> str:
        """The set and the epsilon."""
        return f"{BENCHMARKS[self.dataset].title}, at epsilon = {self.epsilon:g}"

    @property
    def words(self) -> str:
        """Where the estimates come from."""
        asked = "any number of" if self.queries is None else f"{self.queries:,}"
        return f"{self.place} (mu n / C = {self.signal:.3g}), {asked} queries"


def nearest(
    n: int,
    classes: int,
    whole: int,
    queries: int | None,
    alike: Callable[[int, float], bool] | None = None,
) -> Nearest:
    """Return the public set and epsilon most like `n` records in so many classes at a budget of `whole` picorho.

    Only sets of the same group count: two classes, some, or many. Of these, ones whose classes and mu n / C are
    `alike`, if there are any. Most alike are numbers of classes and mu n / C, both in ratios. queries: the nearest
    number that was measured, in ratios too. An option that was not measured there has no estimate; one that ends
    before has the mean None.
    """
    wanted = mu_for(whole) * n / classes

    def ratios(place: tuple[str, float]) -> tuple[float, float]:
        benchmark = BENCHMARKS[place[0]]
        return abs(math.log(benchmark.classes / classes)), abs(math.log(_signal(*place) / wanted))

    cells = _cells()
    measured = dict.fromkeys((cell.dataset, cell.epsilon) for cell in cells)
    places = [place for place in measured if _group(BENCHMARKS[place[0]].classes) == _group(classes)]
    suitable = [place for place in places if alike and alike(BENCHMARKS[place[0]].classes, _signal(*place))]
    dataset, epsilon = min(suitable or places, key=lambda place: sum(ratios(place)))
    count = None if queries is None else min(QUERIES, key=lambda known: abs(math.log(known / queries)))
    found = ((name, _found(cells, dataset, name, epsilon, count)) for name in CANDIDATES)
    estimates = tuple(
        Estimate(name, cell.mean, cell.spread, len(cell.figures)) for name, cell in found if cell is not None
    )
    apart = math.exp(max(ratios((dataset, epsilon))))
    return Nearest(dataset, epsilon, _signal(dataset, epsilon), count, estimates, apart)


def _group(classes: int) -> str:
    if classes == 2:
        return "two"
    return "many" if classes >= MANY_CLASSES else "some"


def _found(cells: tuple[Cell, ...], dataset: str, name: str, epsilon: float, count: int | None) -> Cell | None:
    if count is None and OPTIONS[name].pays == "each answer":
        return Cell(dataset, name, epsilon, UNLIMITED, (None,))
    return at(cells, dataset, name, epsilon, UNLIMITED if count is None else str(count))


@lru_cache(maxsize=1)
def _cells() -> tuple[Cell, ...]:
    return read_csv(MEASURED)


def _signal(dataset: str, epsilon: float) -> float:
    benchmark = BENCHMARKS[dataset]
    mu = mu_for(Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").picorho)
    return mu * benchmark.n / benchmark.classes
