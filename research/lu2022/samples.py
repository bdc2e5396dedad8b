"""A data set and the rows of every repeat, drawn as Section 5.3 says."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.kinds.published.bounds import Topology
from research.data.benchmarks import read
from research.data.labelled import LabelledSet
from research.data.sampling import two_disjoint_sets
from research.lu2022 import printed
from research.lu2022.results import Plan


@dataclass(frozen=True, eq=False)
class Samples:
    """A data set and its repeats. train, test: (repeats, n) rows; fingerprint: of the records themselves."""

    data: LabelledSet
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    fingerprint: str

    @property
    def topology(self) -> Topology:
        """Table IV's network for this set."""
        return Topology(self.data.X.shape[1], printed.HIDDEN, self.data.classes)


def draw_samples(plan: Plan, data_directory: Path) -> Samples:
    """Read the set and draw every repeat's two disjoint sets."""
    data = read(plan.dataset, data_directory)
    pairs = [
        two_disjoint_sets(len(data.y), plan.records, derived_seed(plan.seed, "sample", str(repeat)))
        for repeat in range(plan.repeats)
    ]
    digest = hashlib.sha256(data.X.tobytes())
    digest.update(data.y.tobytes())
    train, test = (np.stack(rows) for rows in zip(*pairs, strict=True))
    return Samples(data, train, test, digest.hexdigest()[:16])
