"""Texas-100: hospital stays, 6,169 binary features, 100 procedures (Shokri et al. 2017).

Distributed as two text files in `dataset_texas.tgz`: `texas/100/feats`, a line of 0s and 1s for each record, and
`texas/100/labels`, a label in 1..100 for each.
"""

from pathlib import Path

from research.data.binary_csv import read_features, read_labels
from research.data.labelled import LabelledSet, missing
from training.errors import DataError

FEATURES, CLASSES = 6169, 100
_FEATURES_FILE, _LABELS_FILE = "texas/100/feats", "texas/100/labels"


def read(directory: Path) -> LabelledSet:
    """Read both files. Raises DataError naming what is missing or wrong."""
    feats, labels = directory / _FEATURES_FILE, directory / _LABELS_FILE
    for path in (feats, labels):
        if not path.exists():
            raise missing("texas-100", directory, str(path.relative_to(directory)))
    y = read_labels(labels, CLASSES)
    X = read_features(feats, FEATURES)
    if len(X) != len(y):
        raise DataError(f"{feats} holds {len(X)} records and {labels} {len(y)} labels; one of them is truncated")
    return LabelledSet("texas-100", X, y, CLASSES, str(feats.parent))
