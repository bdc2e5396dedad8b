"""scikit-learn's `digits`: 1,797 real handwritten digits of 8 x 8 pixels, shipped with the package."""

from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.training.inputs.records import Declaration, Records, check_records

HELD_OUT = 360
"""Number of digits kept out of training, to be asked about and scored."""


@dataclass(frozen=True, eq=False)
class Digits:
    """The records to train on, and digits that were held out: rows (m, 64) with their class indices (m,)."""

    train: Records
    held_out_rows: Floats
    held_out_labels: np.ndarray[tuple[int], np.dtype[np.int64]]

    def scaled(self) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Return all of them, those held out last: rows (1797, 64) in [0, 1] and class indices (1797,)."""
        X = np.concatenate([self.train.X, self.held_out_rows]) / 16
        return X, np.concatenate([self.train.y, self.held_out_labels])


def load_digits() -> Digits:
    """Split the digits, always alike. Pixels lie in 0..16 and classes are 0..9, as the set's makers declare."""
    # scikit-learn costs most of a second to import, which nothing else here needs to pay.
    from sklearn.datasets import load_digits as load

    bunch = load()
    X = np.asarray(bunch.data, dtype=np.float64)
    y = np.asarray(bunch.target, dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    held_out, kept = order[:HELD_OUT], order[HELD_OUT:]
    declaration = Declaration(
        tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)),
        (0.0,) * 64,
        (16.0,) * 64,
        tuple(str(digit) for digit in range(10)),
    )
    source = [row.tobytes() + bytes([label]) for row, label in zip(X, y, strict=True)]
    records = check_records(X[kept], y[kept], declaration, source=source)
    return Digits(records, X[held_out], y[held_out])
