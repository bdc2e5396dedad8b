"""Public data sets by name: four of Lu et al.'s eleven, baskets of the shape of Purchase-100, and digits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpserve.training.inputs.digits import load_digits
from research.data import adult, cifar, location, mnist, retail
from research.data.labelled import LabelledSet

READERS: dict[str, Callable[[Path], LabelledSet]] = {
    "adult": adult.read,
    "mnist": mnist.read,
    "location": location.read,
    "cifar-10": cifar.read_10,
    "retail-100": retail.read,
}


def digits() -> LabelledSet:
    """Return scikit-learn's digits, which come with it."""
    X, y = load_digits().scaled()
    return LabelledSet("digits", X.astype(np.float32), y, 10, "scikit-learn's digits")


def random() -> LabelledSet:
    """Return random pixels and labels in CIFAR-10's shape (Nasr et al. 2023, Table 1), 8,700 records of its 60,000."""
    rng = np.random.default_rng(10)
    X = rng.random((8_700, 3_072), dtype=np.float32)
    return LabelledSet("random", X, rng.integers(10, size=len(X)), 10, "random pixels and labels, of seed 10")


def read(name: str, directory: Path | None) -> LabelledSet:
    """Read a data set from a directory; the digits and random data need none.

    Raises ValueError for an unknown name, or where no directory is named, and DataError for its files.
    """
    if name == "digits":
        return digits()
    if name == "random":
        return random()
    if name not in READERS:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(READERS)}")
    if directory is None:
        raise ValueError("name the directory of the data set's files with --data-dir or DPSERVE_DATA_DIR")
    return READERS[name](directory)
