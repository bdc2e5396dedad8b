"""The data sets of the comparison, and the records that each seed trains on and asks about."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.seeded import derived_seed
from research.data import adult, benchmarks, location, mnist, retail
from research.data.labelled import LabelledSet
from training.errors import DataError
from training.features.hog import Shape
from training.inputs.columns import Columns, coordinates_of
from training.inputs.records import Declaration
from training.kinds.cases import MOST_ASKED, Case
from training.planning.measured import SETS

_MNIST_TRAINING = 60_000
_ADULT_TRAINING = 32_561

_HELD_OUT_SEED = 0
"""Seed of the split of a set without a test part of its own: the one within whose records the rules were found."""


@dataclass(frozen=True)
class Benchmark:
    """A public set in one size. n: records trained on; asked: from which row on held-out rows come, if fixed.

    columns, image_shape: what a schema says of it, where features follow from that.
    """

    title: str
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


def _measured(name: str, read: Callable[[Path], LabelledSet], asked: int | None = None, **more: Any) -> Benchmark:
    public = SETS[name]
    return Benchmark(public.title, read, public.n, public.classes, asked, **more)


def _adult(folder: Path) -> LabelledSet:
    return adult.one_hot(adult.read(folder))


BENCHMARKS: dict[str, Benchmark] = {
    "location": _measured("location", location.read),
    "mnist-10k": _measured("mnist-10k", mnist.read, _MNIST_TRAINING),
    "mnist-60k": _measured("mnist-60k", mnist.read, _MNIST_TRAINING),
    "mnist-10k-hog": _measured("mnist-10k-hog", mnist.read, _MNIST_TRAINING, image_shape=(28, 28, 1)),
    "mnist-60k-hog": _measured("mnist-60k-hog", mnist.read, _MNIST_TRAINING, image_shape=(28, 28, 1)),
    "adult": _measured("adult", _adult, _ADULT_TRAINING),
    "adult-bins": _measured("adult-bins", _adult, _ADULT_TRAINING, columns=adult.one_hot_columns()),
    "retail": _measured("retail", retail.read),
    "digits": Benchmark("digits, 1,437 records, 10 classes", lambda _: benchmarks.digits(), 1437, 10),
}
"""The digits are for tests and for trying it out: they come with scikit-learn."""


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
