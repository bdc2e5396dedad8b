"""The data sets of the comparison, and the records that each seed trains on and asks about."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mechanisms.seeded import derived_seed
from training.data import adult, location, mnist, retail
from training.data.digits import load_digits
from training.data.labelled import LabelledSet
from training.data.records import Declaration, Records
from training.errors import DataError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

MOST_ASKED = 10_000
"""Rows that are held out and asked about: an accuracy on them is within 0.01 of that on all."""

_MNIST_TRAINING = 60_000
_ADULT_TRAINING = 32_561

_HELD_OUT_SEED = 0
"""Of the split of a set without a test part of its own: the one within whose records the rules were found."""


@dataclass(frozen=True)
class Benchmark:
    """A public set in one size. n: records trained on; asked: from which row on held-out rows come, if fixed."""

    title: str
    read: Callable[[Path], LabelledSet]
    n: int
    classes: int
    asked: int | None = None


def _digits(_: Path) -> LabelledSet:
    digits = load_digits()
    X = np.vstack([digits.train.X, digits.held_out_rows]) / 16
    y = np.concatenate([digits.train.y, digits.held_out_labels])
    return LabelledSet("digits", X.astype(np.float32), y, 10, "the digits of scikit-learn")


BENCHMARKS: dict[str, Benchmark] = {
    "location": Benchmark("Location, 3,500 records, 30 classes", location.read, 3500, 30),
    "mnist-10k": Benchmark("MNIST, 10,000 records, 10 classes", mnist.read, 10_000, 10, _MNIST_TRAINING),
    "mnist-60k": Benchmark("MNIST, 60,000 records, 10 classes", mnist.read, 60_000, 10, _MNIST_TRAINING),
    "adult": Benchmark(
        "Adult, 30,000 records, 2 classes", lambda folder: adult.one_hot(adult.read(folder)), 30_000, 2, _ADULT_TRAINING
    ),
    "retail": Benchmark("retail baskets, 35,000 records, 100 uneven classes", retail.read, 35_000, 100),
    "digits": Benchmark("digits, 1,437 records, 10 classes", _digits, 1437, 10),
}
"""The digits are for tests and for trying it out: they come with scikit-learn."""


@dataclass(frozen=True, eq=False)
class Case:
    """Records to train on, and rows that were held out. X, asked: (n, d) within 0 and 1.

    name, seed: what noise follows from. split: equal for equal records and rows.
    """

    name: str
    seed: int
    X: Floats
    y: Labels
    asked: Floats
    answers: Labels
    classes: int
    split: str = ""

    @cached_property
    def records(self) -> Records:
        """The records as an owner would declare them."""
        d = self.X.shape[1]
        declaration = Declaration(
            tuple(f"x{index}" for index in range(d)),
            (0.0,) * d,
            (1.0,) * d,
            tuple(str(label) for label in range(self.classes)),
        )
        return Records(self.X, self.y, declaration, (self.split.encode(),))

    def accuracy(self, answers: Floats) -> float:
        """The share of the rows asked whose likeliest class is the true one. answers: (m, C)."""
        return float((answers.argmax(axis=1) == self.answers).mean())


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
        """Of the records themselves."""
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
        )
