"""A labelled data set as the published experiments use it, and the errors of files that hold something else.

These readers serve reproductions on public benchmark sets, scaled by public, documented ranges. Private records are
read by the readers that take their owner's declaration instead.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Labels
from dpserve.training.errors import DataError

Features = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """N records of a public benchmark. X: (N, d) float32 in [0, 1]; y: (N,) int64 in 0..classes-1.

    source: which file it came from, and whatever a result must say about it.
    """

    name: str
    X: Features
    y: Labels
    classes: int
    source: str

    def __post_init__(self) -> None:
        """Refuse parts that do not fit; every reader ends here, so every set was checked."""
        if self.X.ndim != 2 or self.y.shape != (len(self.X),):
            raise DataError(f"{self.source}: {self.X.shape} features do not fit {self.y.shape} labels")
        if len(self.X) == 0:
            raise DataError(f"{self.source}: there are no records")
        outside = (self.y < 0) | (self.y >= self.classes)
        if outside.any():
            row = int(outside.argmax())
            raise DataError(f"{self.source}, record {row + 1}: label {self.y[row]} is not in 0..{self.classes - 1}")
        if not (np.isfinite(self.X).all() and self.X.min() >= 0 and self.X.max() <= 1):
            raise DataError(f"{self.source}: features must lie in [0, 1] once scaled")


def missing(name: str, directory: Path, *files: str) -> DataError:
    """The error for a set that is not there, naming what would be read and where it goes."""
    wanted = " or ".join(str(directory / file) for file in files)
    return DataError(f"the data set {name!r} is missing: put {wanted} in place")


def first_existing(directory: Path, *files: str) -> Path | None:
    """The first of the named files that exists in the directory."""
    return next((directory / file for file in files if (directory / file).exists()), None)


def read_npz(path: Path, *keys: str) -> dict[str, NDArray[np.generic]]:
    """The named arrays of an .npz file, without pickles. Raises DataError naming the file and what it lacks."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            lacking = [key for key in keys if key not in archive.files]
            arrays = {} if lacking else {key: archive[key] for key in keys}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: no readable .npz file, truncated perhaps ({error})") from None
    if lacking:
        raise DataError(f"{path}: there is no array {lacking[0]!r} in it")
    return arrays


def unpack_bits(path: Path, packed: NDArray[np.generic], features: int) -> Features:
    """0/1 features from rows packed with `numpy.packbits(axis=1)`."""
    if packed.ndim != 2 or packed.dtype != np.uint8 or packed.shape[1] != -(-features // 8):
        raise DataError(
            f"{path}: packed rows of {features} features need {-(-features // 8)} bytes, not {packed.shape}"
        )
    return np.unpackbits(packed.view(np.uint8), axis=1)[:, :features].astype(np.float32)
