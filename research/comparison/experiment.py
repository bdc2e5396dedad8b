"""Running the comparison: one stored piece for each set, seed, option and epsilon, so that it resumes."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from accounting.budgets import Budget
from audit.pieces import ResultStore
from audit.progress import OnStage
from research.comparison.cases import Drawn
from research.comparison.options import OPTIONS
from training.kinds.cases import TOLERANCE, Heads, Quality
from training.kinds.planned import QUERIES, UNLIMITED, Qualities, Trial
from training.planning.options import DELTA

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS = 5


@dataclass(frozen=True)
class Comparison:
    """The extent of a comparison. options, datasets: names."""

    datasets: tuple[str, ...]
    options: tuple[str, ...] = tuple(OPTIONS)
    epsilons: tuple[float, ...] = EPSILONS
    seeds: int = SEEDS

    def __post_init__(self) -> None:
        """Refuse nonsense before hours are spent on it."""
        unknown = [name for name in self.options if name not in OPTIONS]
        if unknown:
            raise ValueError(f"there is no option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
        if self.seeds < 1:
            raise ValueError(f"there must be at least 1 seed, not {self.seeds}")


@dataclass(frozen=True)
class Cell:
    """The quality of one option on one set at one epsilon and number of queries: one figure for each seed.

    queries: a number, or `UNLIMITED`. A figure is None where the mechanism refuses.
    """

    dataset: str
    option: str
    epsilon: float
    queries: str
    figures: tuple[Quality | None, ...]

    @property
    def mean(self) -> float | None:
        """The accuracy, over the seeds; None where the mechanism refuses."""
        return _mean([figure.accuracy for figure in self.figures if figure is not None])

    @property
    def log_loss(self) -> float | None:
        """Over the seeds; None where it was not measured."""
        return _mean([figure.log_loss for figure in self.figures if figure is not None])

    @property
    def calibration_error(self) -> float | None:
        """Over the seeds; None where it was not measured."""
        return _mean([figure.calibration_error for figure in self.figures if figure is not None])

    @property
    def spread(self) -> float | None:
        """The standard deviation of the accuracy over the seeds; None for fewer than two."""
        known = [figure.accuracy for figure in self.figures if figure is not None]
        return stdev(known) if len(known) > 1 else None


def _mean(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return fmean(known) if known and len(known) == len(figures) else None


def run(
    comparison: Comparison, directory: Path, store: ResultStore, progress: OnStage = lambda _, __: None
) -> tuple[Cell, ...]:
    """Measure every cell that is not stored yet; return all of them. directory: of the data sets' files."""
    return _cells(_pieces(comparison, directory, store, progress, measure=True))


def stored_cells(comparison: Comparison, directory: Path, store: ResultStore) -> tuple[Cell, ...]:
    """Return the cells that were measured already, whatever their number of seeds."""
    return _cells(_pieces(comparison, directory, store, lambda _, __: None, measure=False))


Found = tuple[str, str, float, Qualities]


def _pieces(
    comparison: Comparison, directory: Path, store: ResultStore, progress: OnStage, *, measure: bool
) -> Iterator[Found]:
    total = len(comparison.datasets) * comparison.seeds * len(comparison.options) * len(comparison.epsilons)
    done = 0
    for name in comparison.datasets:
        drawn = Drawn.read(name, directory)
        heads: Heads | None = None
        for seed in range(comparison.seeds):
            case = drawn.case(seed)
            if heads is None or heads.case.split != case.split:
                heads = Heads(case)
            heads = heads.for_case(case)
            for option, epsilon in product(comparison.options, comparison.epsilons):
                progress(f"{name}, seed {seed}: {option} at epsilon {epsilon:g}", done / total)
                done += 1
                whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
                trial = Trial(heads, whole, repr(epsilon))
                piece = _piece(trial, option, epsilon)
                result = (
                    store.result(piece, lambda trial=trial, option=option: _measured(trial, option))  # type: ignore[misc]
                    if measure
                    else store.stored(piece)
                )
                if result is not None:
                    found = {
                        count: None if each is None else Quality(**each) for count, each in result["qualities"].items()
                    }
                    yield name, option, epsilon, found


def _piece(trial: Trial, option: str, epsilon: float) -> dict[str, Any]:
    return {
        "name": f"{trial.case.name}-{option}-{epsilon:g}-{trial.case.seed}",
        "split": trial.case.split,
        "seed": trial.case.seed,
        "option": option,
        "version": OPTIONS[option].version,
        "epsilon": epsilon,
        "delta": DELTA,
        "queries": list(QUERIES),
        "tolerance": TOLERANCE,
    }


def _measured(trial: Trial, option: str) -> dict[str, Any]:
    found = OPTIONS[option].qualities(trial)
    return {"qualities": {count: None if each is None else asdict(each) for count, each in found.items()}}


def _cells(found: Iterator[Found]) -> tuple[Cell, ...]:
    figures: dict[tuple[str, str, float, str], list[Quality | None]] = {}
    for dataset, option, epsilon, qualities in found:
        for queries, reached in qualities.items():
            figures.setdefault((dataset, option, epsilon, queries), []).append(reached)
    return tuple(Cell(*key, tuple(values)) for key, values in figures.items())


def at(cells: Sequence[Cell], dataset: str, option: str, epsilon: float, queries: str) -> Cell | None:
    """Return the cell that answers for a number of queries: a release paid for once answers for every number."""
    for wanted in (queries, UNLIMITED):
        for cell in cells:
            if (cell.dataset, cell.option, cell.epsilon, cell.queries) == (dataset, option, epsilon, wanted):
                return cell
    return None
