"""The types of arrays, of any shape: each has one name, here, for every package."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Words = NDArray[np.uint64]
"""64 bits each, as of randomness or of a digest."""

Labels = NDArray[np.int64]
"""The index of a class for each row."""
