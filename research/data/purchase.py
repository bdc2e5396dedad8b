"""Purchase-2, -10, -20, -50 and -100: shopping histories, 600 binary features (Shokri et al. 2017).

Purchase-100 is distributed as the CSV file `dataset_purchase`: a label in 1..100, then 600 times 0 or 1. The sets with
fewer classes are clusterings of the same records into K styles. `dataset_purchase_K` in the same form is read where it
is present; otherwise the records are clustered anew by k-means, and the source says so, because the cluster labels are
then not the publisher's.
"""

from pathlib import Path

import numpy as np

from accounting.arrays import Labels
from research.data.binary_csv import read_labelled
from research.data.labelled import Features, LabelledSet, first_existing, missing

FEATURES = 600
CLASS_COUNTS = (2, 10, 20, 50, 100)
_CLUSTERING_SEED = 2017


def read(directory: Path, classes: int) -> LabelledSet:
    """Read Purchase-`classes`. Raises DataError naming what is missing or wrong."""
    if classes not in CLASS_COUNTS:
        raise ValueError(f"Purchase has {CLASS_COUNTS} classes, not {classes}")
    name = f"purchase-{classes}"
    own = first_existing(directory, f"dataset_purchase_{classes}", f"purchase/dataset_purchase_{classes}")
    hundred = first_existing(directory, "dataset_purchase", "purchase/dataset_purchase")
    if own is not None:
        X, y = read_labelled(own, FEATURES, classes)
        return LabelledSet(name, X, y, classes, str(own))
    if hundred is None:
        raise missing(name, directory, "dataset_purchase", f"dataset_purchase_{classes}")
    X, y = read_labelled(hundred, FEATURES, 100)
    if classes == 100:
        return LabelledSet(name, X, y, classes, str(hundred))
    return LabelledSet(name, X, _cluster(X, classes), classes, f"{hundred}, clustered anew into {classes} by k-means")


def _cluster(X: Features, classes: int) -> Labels:
    from sklearn.cluster import MiniBatchKMeans

    clustering = MiniBatchKMeans(classes, random_state=_CLUSTERING_SEED, n_init=3, batch_size=4096)
    return np.asarray(clustering.fit_predict(X), dtype=np.int64)
