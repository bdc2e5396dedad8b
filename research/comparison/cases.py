"""The data sets of the comparison, and the records that each seed trains on and asks about."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.errors import DataError
from dpserve.training.features.hog import Shape
from dpserve.training.inputs.columns import Columns, coordinates_of
from dpserve.training.inputs.records import Declaration
from dpserve.training.kinds.cases import MOST_ASKED, Case
from research.data import adult, benchmarks, cifar, location, mnist, newsgroups, retail, tables, unseen
from research.data.labelled import LabelledSet

_MNIST_TRAINING = 60_000
_ADULT_TRAINING = 32_561

_HELD_OUT_SEED = 0
"""Seed of the split of a set without a test part of its own: the one within whose records the rules were found."""


@dataclass(frozen=True)
class Benchmark:
    """A public set in one size. n: records trained on; asked: from which row on held-out rows come, if fixed.

    columns, image_shape: what a schema says of it, where features follow from that.
    """

    read: Callable[[Path], LabelledSet]
    n: int
    classes: int
    asked: int | None = None
    columns: Columns = ()
    image_shape: Shape | None = None

    def declared(self) -> Declaration | None:
        """Return what a schema of its columns declares; None where it has none."""
        names = tuple(str(label) for label in range(self.classes))
        return Declaration(*coordinates_of(self.columns), names, self.columns) if self.columns else None


def _adult(folder: Path) -> LabelledSet:
    return adult.one_hot(adult.read(folder))


def _fashion(folder: Path) -> LabelledSet:
    """Return Fashion-MNIST, whose files are named as MNIST's."""
    return mnist.read(folder / "fashion-mnist")


def _cifar(folder: Path) -> LabelledSet:
    """Return CIFAR-10 row by row, each pixel with its channels."""
    data = cifar.read_10(folder)
    return replace(data, X=data.X.reshape(-1, 3, 1024).transpose(0, 2, 1).reshape(len(data.y), -1))


_SMALL, _LARGE, _DIGIT = 10_000, 60_000, (28, 28, 1)
_MESSAGES = newsgroups.TRAINING

BENCHMARKS: dict[str, Benchmark] = {
    "location": Benchmark(location.read, 3_500, 30),
    "mnist-10k": Benchmark(mnist.read, _SMALL, 10, _MNIST_TRAINING),
    "mnist-60k": Benchmark(mnist.read, _LARGE, 10, _MNIST_TRAINING),
    "mnist-10k-hog": Benchmark(mnist.read, _SMALL, 10, _MNIST_TRAINING, image_shape=_DIGIT),
    "mnist-60k-hog": Benchmark(mnist.read, _LARGE, 10, _MNIST_TRAINING, image_shape=_DIGIT),
    "adult": Benchmark(_adult, 30_000, 2, _ADULT_TRAINING),
    "adult-bins": Benchmark(_adult, 30_000, 2, _ADULT_TRAINING, columns=adult.one_hot_columns()),
    "retail": Benchmark(retail.read, 35_000, 100),
    "cifar-10": Benchmark(_cifar, 50_000, 10, 50_000, image_shape=(32, 32, 3)),
    "fashion-mnist": Benchmark(_fashion, _LARGE, 10, _LARGE, image_shape=_DIGIT),
    "newsgroups": Benchmark(newsgroups.read, _MESSAGES, 20, _MESSAGES, columns=newsgroups.columns()),
    "newsgroups-presence": Benchmark(
        newsgroups.read_presence, _MESSAGES, 20, _MESSAGES, columns=newsgroups.presence_columns()
    ),
    "newsgroups-encoder": Benchmark(newsgroups.read_by_encoder, _MESSAGES, 20, _MESSAGES),
    "digits": Benchmark(lambda _: benchmarks.digits(), 1437, 10),
}
"""The digits are for tests and for trying it out: they come with scikit-learn."""

SUMMARISED = ("location", "mnist-10k", "mnist-60k", "mnist-10k-hog", "mnist-60k-hog", "adult", "adult-bins", "retail")
"""The sets of the summary."""

APART = tuple(tables.HELD_OUT)
"""Tables that no rule was found on."""

UNSEEN = tuple(unseen.TABLES)
"""Tables that nobody has looked at for any rule."""

_FEW = 4_000
TABLE_FEW = tuple(
    f"{name}-{_FEW}"
    for name in ("wdbc", "credit_data", "compas", "letter", "magic", "ccdefault", "adult-table", "diamonds", "flights")
)
"""Tables of which so many records are trained on at most: those that rivals are measured on, for Opacus' sake."""

NUMBERS = {
    "compas": (4_934, 2),
    "ccdefault": (24_000, 2),
    "churn": (5_635, 2),
    "lending": (7_886, 2),
    "attrition": (1_176, 2),
    "stackoverflow": (4_476, 2),
    "default": (8_000, 2),
    "ring": (5_920, 2),
    "pima": (615, 2),
    "german": (800, 2),
    "mushroom": (4_516, 2),
    "hpc": (3_465, 4),
    "marketing": (5_501, 9),
    "splice": (2_552, 3),
    "segment": (1_848, 7),
    "optdigits": (4_496, 10),
    "vowel": (792, 11),
    "soybean": (547, 19),
    "anes96": (756, 7),
    "maternal": (812, 3),
    "insurance": (1_071, 4),
    "kc1": (1_688, 2),
    "movies": (2_341, 12),
    "skillcraft": (2_716, 8),
    "hiva": (3_076, 2),
    "supermarket": (3_702, 2),
    "framingham": (3_760, 2),
    "fair": (5_093, 2),
    "dialysis": (5_444, 2),
    "hr": (6_278, 3),
    "puma32h": (6_554, 2),
    "compactiv": (6_554, 3),
    "apartments": (7_200, 6),
    "support2": (7_284, 8),
    "grid": (8_000, 2),
    "birdstrikes": (8_000, 7),
    "sylva": (10_469, 2),
    "noaa": (14_528, 2),
    "zipcodes": (33_460, 51),
    "elec": (36_250, 2),
    "casp": (36_584, 4),
    "hdfail": (41_938, 2),
    "sea": (80_000, 2),
    "squares": (80_000, 4),
    "covtype": (80_000, 7),
    "airline": (80_000, 2),
    **dict.fromkeys(TABLE_FEW, (_FEW, 2)),
    "wdbc-4000": (456, 2),
    "credit_data-4000": (3_564, 2),
}
"""Numbers of records that are trained on, and of classes, for who has only what was measured."""

WIDER = tuple(f"{name}-{times}x" for name in ("diamonds", "magic", "credit_data", "wdbc") for times in (10, 100))
"""Tables with every number's bounds so many times too wide."""

SETS = (*BENCHMARKS, *tables.TABLES, *UNSEEN, *TABLE_FEW, *WIDER)


def case_of(name: str, seed: int, folder: Path) -> Case:
    """Return the records that a seed trains on, and the rows that all seeds ask about.

    Raises ValueError for an unknown name and DataError for its files.
    """
    if name not in SETS:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(SETS)}")
    if name in BENCHMARKS:
        return Drawn.read(name, folder).case(seed)
    table, _, form = name.rpartition("-") if name in (*TABLE_FEW, *WIDER) else (name, "", "")
    times = float(form.removesuffix("x")) if name in WIDER else 1.0
    read = unseen.read if table in UNSEEN else tables.read
    records, X, y = read(table, folder).split(times)
    kept = np.arange(len(records))
    if name in TABLE_FEW:
        kept = np.sort(np.random.default_rng(seed).permutation(kept)[:_FEW])
    declared, asked = records.declaration, slice(0, MOST_ASKED)
    records_X, records_y = records.X[kept], records.y[kept]
    split = f"{name}-{seed if name in TABLE_FEW else ''}"
    return Case(name, seed, records_X, records_y, X[asked], y[asked], len(declared.classes), split, declared)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A set that was read once, and its cases by seed."""

    name: str
    benchmark: Benchmark
    data: LabelledSet

    @classmethod
    def read(cls, name: str, directory: Path) -> "Drawn":
        """Read a set. Raises ValueError for an unknown name and DataError for its files."""
        if name not in BENCHMARKS:
            raise ValueError(f"there is no data set {name!r}; there are {', '.join(BENCHMARKS)}")
        benchmark = BENCHMARKS[name]
        data = benchmark.read(directory)
        if len(data.y) <= benchmark.n:
            raise DataError(f"{data.source}: {benchmark.n} records and rows to ask about need more than {len(data.y)}")
        return cls(name, benchmark, data)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the records themselves."""
        digest = hashlib.sha256(self.data.X.tobytes())
        digest.update(self.data.y.tobytes())
        return digest.hexdigest()[:16]

    def case(self, seed: int) -> Case:
        """The records and rows of a seed. The rows asked are the same for every seed.

        They are the source's own test part; or, where it has none, what one fixed draw of the records left, and then
        every seed trains on the same records, and only its noise is its own.
        """
        n, start = self.benchmark.n, self.benchmark.asked
        drawn = _HELD_OUT_SEED if start is None else derived_seed(seed, "split", self.name)
        order = np.random.default_rng(drawn).permutation(start or len(self.data.y))
        rows = np.sort(order[:n])
        rest = (
            np.arange(start, len(self.data.y))[:MOST_ASKED] if start is not None else np.sort(order[n : n + MOST_ASKED])
        )
        digest = hashlib.sha256(rows.tobytes())
        digest.update(rest.tobytes())
        X = self.data.X.astype(np.float64)
        return Case(
            self.name,
            seed,
            X[rows],
            self.data.y[rows],
            X[rest],
            self.data.y[rest],
            self.data.classes,
            f"{self.fingerprint}-{digest.hexdigest()[:16]}",
            self.benchmark.declared(),
            self.benchmark.image_shape,
        )
