"""Location: Bangkok check-ins, 446 binary features, 30 classes (Shokri et al. 2017).

Distributed as the CSV file `bangkok` in `dataset_location.tgz`: a quoted label in 1..30, then 0 or 1 for each feature.
"""

from pathlib import Path

import numpy as np

from dpserve.training.errors import DataError
from research.data.binary_csv import read_labelled
from research.data.labelled import LabelledSet, first_existing, missing, read_npz, unpack_bits

FEATURES, CLASSES = 446, 30
_CSV = ("bangkok", "location/bangkok", "dataset_location/bangkok")
_NPZ = "location30.npz"


def read(directory: Path) -> LabelledSet:
    """Read the publisher's file, or `location30.npz`. Raises DataError naming what is missing or wrong."""
    csv = first_existing(directory, *_CSV)
    if csv is not None:
        X, y = read_labelled(csv, FEATURES, CLASSES)
        return LabelledSet("location", X, y, CLASSES, str(csv))
    npz = first_existing(directory, _NPZ)
    if npz is None:
        raise missing("location", directory, *_CSV, _NPZ)
    arrays = read_npz(npz, "X_packed", "n_features", "y")
    if arrays["n_features"].size != 1 or int(arrays["n_features"].reshape(-1)[0]) != FEATURES:
        raise DataError(f"{npz}: Location has {FEATURES} features, not {arrays['n_features']}")
    X = unpack_bits(npz, arrays["X_packed"], FEATURES)
    return LabelledSet("location", X, arrays["y"].astype(np.int64), CLASSES, str(npz))
