"""The seconds that a training is expected to take: of each step, and finding them changes nothing."""

import math

import numpy as np
import pytest

from dpserve.training.features.maps import Bins, Identity, Quantiles
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.dpsgd.choices import Choices
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.watchers import Unwatched
from tests.seeded import Seeded

ENDS = {"lower": (0.0,) * 3, "upper": (1.0,) * 3, "bias": 0.0}
MAPS = (Identity(**ENDS, clip_norm=1.0), Bins(**ENDS), Quantiles(**ENDS))


class Told(Unwatched):
    """Keeps what is expected."""

    def __init__(self):
        self.expected = {}

    def phases(self, expected):
        self.expected = expected()
        return super().phases(expected)


def records(count):
    X = np.random.default_rng(0).uniform(size=(count, 3))
    declared = Declaration(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3, ("n", "y"))
    return Records(X, (X[:, 0] > 0.5).astype(np.int64), declared, ())


def trained(feature_map, watcher):
    choices = Choices(records_declared=500, sampling_rate=0.5, steps=5, learning_rate=0.5)
    recipe = DpSgdRecipe("m", feature_map, choices, 10**12)
    return train_dpsgd(records(500), recipe, "l", Seeded(0), watcher)


@pytest.mark.parametrize("feature_map", MAPS, ids=lambda each: each.kind)
def test_what_is_expected_changes_nothing_of_a_training(feature_map):
    watcher = Told()
    watched, alone = trained(feature_map, watcher), trained(feature_map, None)
    np.testing.assert_array_equal(watched.parameters, alone.parameters)
    assert list(watcher.expected) == ["centre", "steps", "calibration"]
    assert all(0 <= seconds < math.inf for seconds in watcher.expected.values())
