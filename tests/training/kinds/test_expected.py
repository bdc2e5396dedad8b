"""The seconds that a training is expected to take: of each of its phases, and finding them changes nothing."""

import math

import numpy as np
import pytest

from dpserve.training.features.maps import Bins, Identity, Quantiles
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.kind import Job
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import kind_named, train_and_save
from dpserve.training.watchers import TRAINING, Unwatched
from tests.seeded import Seeded

ENDS = {"lower": (0.0,) * 3, "upper": (1.0,) * 3, "bias": 0.0}
SUMS = ["centre", "sums", "calibration"]
CASES = {
    "class sums": ("class-sums", {}, Bins(**ENDS), SUMS),
    "weights": ("weights", {}, Identity(**ENDS, clip_norm=1.0), [TRAINING]),
    "DP-SGD": ("dpsgd", {"steps": 12}, Identity(**ENDS, clip_norm=1.0), ["centre", "steps", "calibration"]),
    "DP-SGD, network": (
        "dpsgd",
        {"steps": 12, "hidden": 5},
        Quantiles(**ENDS),
        ["centre", "steps", "network", "calibration"],
    ),
    "a head": ("head", {}, Identity(**ENDS, clip_norm=1.0), [TRAINING]),
    "convexified": ("head", {"objective": "convexified", "alpha": 0.1, "least_records": 300}, Bins(**ENDS), [TRAINING]),
}


class Told(Unwatched):
    """Keeps what is expected, and which phases there were."""

    def __init__(self):
        self.expected, self.phases = {}, {}

    def expect(self, seconds):
        self.expected = seconds()

    def report(self, phase, done):
        self.phases[phase] = done


def trained(case, folder, watcher, files):
    kind, options, feature_map, _ = CASES[case]
    X = np.random.default_rng(0).uniform(size=(500, 3))
    declared = Declaration(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3, ("n", "y"))
    records = Records(X, (X[:, 0] > 0.5).astype(np.int64), declared, (), files=files)
    paid = {} if kind == "head" else {"price": 10**12, "n": 500, "feature_share": 0.05, "held": 50}
    job = Job(records, "m", "l", feature_map, folder / "out", folder, watcher, randomness=Seeded(0), **paid)
    train_and_save(kind_named(kind).options(**options), job)
    model = load_model(folder / "out")
    return model.parameters[0] if kind == "dpsgd" else model.weights


@pytest.mark.parametrize(("case", "files"), [*((case, None) for case in CASES), ("DP-SGD, network", (200, 300))])
def test_each_phase_is_expected_and_that_changes_nothing(case, files, tmp_path):
    """Shards of several files are summed on several threads."""
    watcher = Told()
    watched, alone = (
        trained(case, tmp_path / name, each, files) for name, each in (("w", watcher), ("a", Unwatched()))
    )
    assert set(watcher.phases) <= set(watcher.expected)
    assert [phase for phase in watcher.phases if phase in CASES[case][3]] == CASES[case][3]
    assert all(0 < seconds < math.inf for seconds in watcher.expected.values())
    np.testing.assert_array_equal(watched, alone)
    assert not list((tmp_path / "w" / "drafts").iterdir())
