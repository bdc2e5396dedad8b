"""The seconds that a training is expected to take: of each of its phases, and finding them changes nothing."""

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dpserve.training.features.maps import Bins, Identity, Quantiles
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds import expected
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


class Clock(threading.local):
    """Seconds of each thread, which pass where a test says so."""

    seconds = 0.0

    def pass_on(self, seconds):
        self.seconds += seconds


@pytest.mark.parametrize("files", [(6400,), (3200, 3200), (1600,) * 4, (6398, 1, 1)])
def test_what_is_expected_follows_from_what_a_few_records_took(files, tmp_path, monkeypatch):
    """A record takes a second of its sum, and all else seven: of two processors each sums half of the records."""
    clock, trained = Clock(), []

    def now():
        return clock.seconds

    class Kind:
        def shortened(self, job, options, share):
            trained.append(share)
            return options, {"sums": (10.0, 100.0)}

        def train(self, few, options):
            few.progress.report("sums", 0.0)
            clock.pass_on(7)
            total = few.records.sums.total(lambda shard, _: clock.pass_on(len(shard)) or np.array([len(shard)]))
            assert total[0] == len(few.records)
            trained.append((len(few.records), len(few.records.sums.lengths)))

    monkeypatch.setattr(expected, "time", SimpleNamespace(thread_time=now, perf_counter=now))
    monkeypatch.setattr(expected.os, "cpu_count", lambda: 2)
    declared = Declaration(("a",), (0.0,), (1.0,), ("n", "y"))
    records = Records(np.zeros((6400, 1)), np.zeros(6400, dtype=np.int64), declared, (), files=files)
    job = Job(records, "m", "l", None, tmp_path / "out", tmp_path, Unwatched(), price=1, n=6400)
    found = expected.expected_seconds(Kind(), None, job)
    assert found["sums"] == 100 * 7 + 10 * 6400 / min(len(files), 2)
    share, *sizes = trained
    assert sizes == [(share * 6400, min(len(files), 2))] * 2
    assert share == 1 / 64
