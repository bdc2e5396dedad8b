"""A grid of sets, sizes and budgets: whether log loss rises where the budget does.

Every seed has records and rows of its own, all from the training part of a set: a fifth of it, drawn by the seed, is
asked about. So a difference between two budgets, taken for each seed, varies as noise, records and rows do, and its
standard error over seeds covers all three. No row that figures are made on is looked at, and rules may be found here.
"""

import csv
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from accounting.budgets import Budget
from mechanisms.seeded import derived_seed
from research.data import mnist
from research.data.tables import TABLES, read
from training.features.hog import Shape
from training.features.rules import Modality
from training.kinds.cases import MOST_ASKED, Case, Heads
from training.kinds.planned import UNLIMITED, Trial
from training.planning.options import DELTA, option_named
from training.planning.recommendation import by_rule, numbers_to_cut

GRID = Path(__file__).with_name("grid.csv")
HEADER = ("set", "n", "taken", "option", "epsilon", "seed", "accuracy", "log_loss", "cpu_seconds")
_KEY = ("set", "n", "taken", "epsilon", "seed")

PLANNED, CLASS_SUMS = "planned", "class sums"
"""Names of what is trained: the planner's choice, or class sums with the features that it has for rows like these."""
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS = 3
MOST_RECORDS = 8_000
PARTS = (1, 4)
SETS = (
    "stackoverflow",
    "vehicle",
    "credit_data",
    "phoneme",
    "satimage",
    "magic",
    "adult-table",
)
"""The sets that are measured by default; `mnist-images` and every other table can be."""
_IMAGES = "mnist-images"
_MNIST_TRAINING = 60_000
_MNIST_SHAPE: Shape = (28, 28, 1)
_MNIST_ASKED = 5_000
_TOO_FAR = 2.0


@dataclass(frozen=True)
class Line:
    """A model of the grid. taken: `PLANNED` or `CLASS_SUMS`; option: the planner's name for it."""

    table: str
    n: int
    taken: str
    option: str
    epsilon: float
    seed: int
    accuracy: float
    log_loss: float


@dataclass(frozen=True)
class Step:
    """A step from one budget to the next. change: of log loss, the mean over seeds; error: its standard error."""

    table: str
    n: int
    taken: str
    lower: float
    higher: float
    seeds: int
    change: float
    error: float

    @property
    def rises(self) -> bool:
        """Whether log loss rises by more than two standard errors."""
        return self.change > _TOO_FAR * self.error


def read_grid(path: Path) -> tuple[Line, ...]:
    """Read what was measured."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            Line(
                row["set"],
                int(row["n"]),
                row["taken"],
                row["option"],
                float(row["epsilon"]),
                int(row["seed"]),
                float(row["accuracy"]),
                float(row["log_loss"]),
            )
            for row in csv.DictReader(file)
        )


def series_of(lines: Iterable[Line]) -> Mapping[tuple[str, int, str], Mapping[float, Mapping[int, Line]]]:
    """Return the lines by set, records and what was taken, then by epsilon, then by seed."""
    found: dict[tuple[str, int, str], dict[float, dict[int, Line]]] = {}
    for line in lines:
        found.setdefault((line.table, line.n, line.taken), {}).setdefault(line.epsilon, {})[line.seed] = line
    return {key: dict(sorted(each.items())) for key, each in found.items()}


def steps_of(lines: Iterable[Line]) -> Sequence[Step]:
    """Return every step between neighbouring budgets, over the seeds that both have."""
    found = []
    for (table, n, taken), by_epsilon in series_of(lines).items():
        for lower, higher in pairwise(by_epsilon):
            seeds = sorted(set(by_epsilon[lower]) & set(by_epsilon[higher]))
            changes = [by_epsilon[higher][seed].log_loss - by_epsilon[lower][seed].log_loss for seed in seeds]
            error = stdev(changes) / len(changes) ** 0.5
            found.append(Step(table, n, taken, lower, higher, len(seeds), fmean(changes), error))
    return found


def table_of(lines: Iterable[Line]) -> Sequence[str]:
    """Return a table of accuracy and log loss, the means over seeds, a column for each epsilon."""
    rows = [f"| set, records, taken | {' | '.join(f'{each:g}' for each in EPSILONS)} |", "|---" * 6 + "|"]
    for (table, n, taken), by_epsilon in series_of(lines).items():
        cells = []
        for epsilon in EPSILONS:
            known = list(by_epsilon.get(epsilon, {}).values())
            right = fmean(each.accuracy for each in known) if known else 0.0
            cells.append(f"{right:.3f}/{fmean(each.log_loss for each in known):.3f}" if known else "")
        rows.append(f"| {table}, {n:,}, {taken} | {' | '.join(cells)} |")
    return rows


def words_of(steps: Sequence[Step]) -> Sequence[str]:
    """Say at which steps log loss rises, and at how many of all."""
    rising = [each for each in steps if each.rises]
    said = [
        f"{each.table}, {each.n:,} records, {each.taken}: log loss rises by {each.change:.4f} from epsilon "
        f"{each.lower:g} to {each.higher:g}, with a standard error of {each.error:.4f} over {each.seeds} seeds."
        for each in rising
    ]
    return (*said, f"Log loss rises by more than two standard errors at {len(rising)} of {len(steps)} steps.")


@dataclass(frozen=True)
class Extent:
    """The cells to measure. sets, taken: names; seeds: which."""

    sets: tuple[str, ...] = SETS
    taken: tuple[str, ...] = (PLANNED, CLASS_SUMS)
    epsilons: tuple[float, ...] = EPSILONS
    seeds: tuple[int, ...] = tuple(range(SEEDS))
    parts: tuple[int, ...] = PARTS
    most_records: int = MOST_RECORDS


def measure(extent: Extent, folder: Path, out: Path) -> None:
    """Train what is not measured yet, and write a line for each model as soon as it is known. Raises DataError."""
    done = _done_already(out)
    for name in extent.sets:
        draw = _drawn(name, folder, extent.most_records)
        for part in extent.parts:
            for seed in extent.seeds:
                case = draw(seed, part)
                heads = Heads(case)
                for taken in extent.taken:
                    for epsilon in extent.epsilons:
                        key = (name, str(len(case.y)), taken, f"{epsilon:g}", str(seed))
                        if key not in done:
                            _write(out, (*key[:3], *_trained(heads, taken, epsilon, seed)))


def _done_already(path: Path) -> set[tuple[str, ...]]:
    if not path.exists():
        path.write_text(",".join(HEADER) + "\n", "utf-8")
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[name] for name in _KEY) for row in csv.DictReader(file)}


def _write(path: Path, line: Sequence[str]) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerow(line)


def _trained(heads: Heads, taken: str, epsilon: float, seed: int) -> Sequence[str]:
    case = heads.case
    modality: Modality = "images" if case.image_shape is not None else "table"
    whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
    if taken == PLANNED:
        numbers = 1 if case.declared is None else numbers_to_cut(case.declared)
        option = by_rule(len(case.y), case.classes, whole, None, modality, numbers)[0].option
    else:
        option = "class-sums" if modality == "images" else "class-sums-quantiles"
    started = time.process_time()
    quality = option_named(option).qualities(Trial(heads, whole, f"{epsilon:g}", ()))[UNLIMITED]
    assert quality is not None
    figures = (f"{quality.accuracy:.4f}", f"{quality.log_loss:.4f}", f"{time.process_time() - started:.1f}")
    return (option, f"{epsilon:g}", str(seed), *figures)


def _drawn(name: str, folder: Path, most: int) -> Callable[[int, int], Case]:
    """Return what makes a seed's case of a set, of one of so many parts of the most records that are used."""
    return _images(folder, most) if name == _IMAGES else _rows(name, folder, most)


def _rows(name: str, folder: Path, most: int) -> Callable[[int, int], Case]:
    table = read(name, folder)

    def case(seed: int, part: int) -> Case:
        records, X, y = table.split(seed, held_back=True)
        n = min(len(records), most) // part
        asked = slice(0, MOST_ASKED)
        split, declared = f"{name}-{seed}-{n}", records.declaration
        return Case(name, seed, records.X[:n], records.y[:n], X[asked], y[asked], len(table.classes), split, declared)

    return case


def _images(folder: Path, most: int) -> Callable[[int, int], Case]:
    images = mnist.read(folder)

    def case(seed: int, part: int) -> Case:
        order = np.random.default_rng(derived_seed(seed, "grid")).permutation(_MNIST_TRAINING)
        asked, kept = order[:_MNIST_ASKED], order[_MNIST_ASKED:][: most // part]
        X, y = images.X.astype(np.float64), images.y
        split = f"{_IMAGES}-{seed}-{len(kept)}"
        return Case(
            _IMAGES, seed, X[kept], y[kept], X[asked], y[asked], images.classes, split, image_shape=_MNIST_SHAPE
        )

    return case


ALL = (*TABLES, _IMAGES)
"""Sets that can be measured."""
