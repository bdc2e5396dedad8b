"""Supermarket baskets: 600 commonest items, 100 very uneven classes found by k-means (FIMI retail, Brijs et al. 1999).

A stand-in of the shape of Purchase-100, in `retail100_proxy.npz`; it is not Purchase-100 and no result on it is one.
"""

from pathlib import Path

import numpy as np

from dpserve.training.errors import DataError
from research.data.labelled import LabelledSet, first_existing, missing, read_npz, unpack_bits

FEATURES, CLASSES = 600, 100
_NPZ = "retail100_proxy.npz"


def read(directory: Path) -> LabelledSet:
    """Read `retail100_proxy.npz`. Raises DataError naming what is missing or wrong."""
    npz = first_existing(directory, _NPZ)
    if npz is None:
        raise missing("retail-100", directory, _NPZ)
    arrays = read_npz(npz, "X_packed", "n_features", "y")
    if arrays["n_features"].size != 1 or int(arrays["n_features"].reshape(-1)[0]) != FEATURES:
        raise DataError(f"{npz}: the baskets have {FEATURES} items, not {arrays['n_features']}")
    baskets = unpack_bits(npz, arrays["X_packed"], FEATURES)
    # Whoever is shown the source is told what it is not.
    return LabelledSet("retail", baskets, arrays["y"].astype(np.int64), CLASSES, f"{npz} (not Purchase-100)")
