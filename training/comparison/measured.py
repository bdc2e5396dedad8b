"""What was measured on public sets, for an owner without rows: the figures of docs/mechanisms.csv, packaged."""

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from accounting.budgets import Budget
from mechanisms.gaussian_vector import mu_for
from training.comparison.cases import BENCHMARKS
from training.comparison.experiment import Cell, at
from training.comparison.options import DELTA, OPTIONS, QUERIES, UNLIMITED
from training.comparison.recommendation import CANDIDATES, Estimate
from training.comparison.tables import read_csv

MEASURED = Path(__file__).with_name("measured.csv")
"""The same bytes as docs/mechanisms.csv."""


@dataclass(frozen=True)
class Nearest:
    """A public set at an epsilon, its mu n / C, and what was measured there for a number of queries, or without end."""

    dataset: str
    epsilon: float
    signal: float
    queries: int | None
    estimates: tuple[Estimate, ...]

    @property
    def words(self) -> str:
        """Where the estimates come from."""
        title, asked = BENCHMARKS[self.dataset].title, "any number of" if self.queries is None else f"{self.queries:,}"
        return f"{title}, at epsilon = {self.epsilon:g} (mu n / C = {self.signal:.3g}), {asked} queries"


def nearest(n: int, classes: int, whole: int, queries: int | None) -> Nearest:
    """Return the public set and epsilon most like `n` records in so many classes at a budget of `whole` picorho.

    Most alike are numbers of classes and mu n / C, both in ratios. queries: the nearest number that was measured, in
    ratios too. An option that was not measured there has no estimate; one that ends before has the mean None.
    """
    wanted = mu_for(whole) * n / classes

    def distance(place: tuple[str, float]) -> float:
        benchmark = BENCHMARKS[place[0]]
        return abs(math.log(benchmark.classes / classes)) + abs(math.log(_signal(*place) / wanted))

    cells = _cells()
    dataset, epsilon = min({(cell.dataset, cell.epsilon): None for cell in cells}, key=distance)
    count = None if queries is None else min(QUERIES, key=lambda known: abs(math.log(known / queries)))
    found = ((name, _found(cells, dataset, name, epsilon, count)) for name in CANDIDATES)
    estimates = tuple(Estimate(name, cell.mean, cell.spread) for name, cell in found if cell is not None)
    return Nearest(dataset, epsilon, _signal(dataset, epsilon), count, estimates)


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
