"""Supermarket baskets: 600 commonest items, bought or not, in 100 uneven classes by k-means. It is not Purchase-100.

It has Purchase-100's shape and stands in for it where Purchase-100 is missing; no result on it is a result on
Purchase-100. From the retail data of the Frequent Itemset Mining Implementations repository (Brijs et al. 1999).
"""

from pathlib import Path

import numpy as np

from training.data.labelled import LabelledSet, missing, read_npz, unpack_bits

CLASSES = 100
_NPZ = "retail100_proxy.npz"


def read(directory: Path) -> LabelledSet:
    """Read `retail100_proxy.npz`. Raises DataError for what is missing or wrong."""
    path = directory / _NPZ
    if not path.exists():
        raise missing("retail-100", directory, _NPZ)
    arrays = read_npz(path, "X_packed", "n_features", "y")
    X = unpack_bits(path, arrays["X_packed"], int(arrays["n_features"]))
    return LabelledSet("retail-100", X, arrays["y"].astype(np.int64), CLASSES, f"{path}, which is not Purchase-100")
