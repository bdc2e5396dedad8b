import numpy as np
import pytest

from dpserve.training.errors import NotConverged
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.sensitivity import LARGEST_WEIGHT_NORM
from dpserve.training.fitting.solver import gradient_bound, minimise


@pytest.mark.parametrize("strong_convexity", [1e-3, 1.0, 1e4])
def test_it_reaches_the_tolerance(records, strong_convexity):
    objective = RegularisedCrossEntropy.from_rows(records.X / 2, records.y, 3, strong_convexity)
    W = minimise(objective, 1e-8)
    assert gradient_bound(objective, W) <= 1e-8


def test_it_fails_rather_than_claim_too_much(records):
    objective = RegularisedCrossEntropy.from_rows(records.X / 2, records.y, 3, 1.0)
    with pytest.raises(NotConverged, match="Start again with a `tolerance`"):
        minimise(objective, 1e-18)


def test_weights_stay_in_the_public_ball():
    objective = RegularisedCrossEntropy.from_rows(np.eye(2), np.array([0, 1]), 2, 1e-12)
    W = minimise(objective, 1e-5)
    assert np.linalg.norm(W) <= LARGEST_WEIGHT_NORM * (1 + 1e-15)


def test_no_gradient_is_computed_twice(records):
    """The check at the end computes the gradient afresh; nothing before it looks at one point twice."""
    looked_at = []

    class Recording(RegularisedCrossEntropy):
        def value_and_gradient(self, W):
            looked_at.append(W.tobytes())
            return super().value_and_gradient(W)

    minimise(Recording.from_rows(records.X / 2, records.y, 3, 1.0), 1e-3)
    assert looked_at
    assert len(looked_at) <= len(set(looked_at)) + 1
