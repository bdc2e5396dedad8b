"""The eleven data sets of the published experiments by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from training.data import adult, cifar, location, mnist, purchase, texas
from training.data.labelled import LabelledSet

READERS: dict[str, Callable[[Path], LabelledSet]] = {
    "adult": adult.read,
    "mnist": mnist.read,
    "location": location.read,
    **{f"purchase-{classes}": partial(purchase.read, classes=classes) for classes in purchase.CLASS_COUNTS},
    "cifar-10": cifar.read_10,
    "cifar-100": cifar.read_100,
    "texas-100": texas.read,
}


def read(name: str, directory: Path) -> LabelledSet:
    """Read a data set from a directory. Raises ValueError for an unknown name and DataError for its files."""
    if name not in READERS:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(READERS)}")
    return READERS[name](directory)
