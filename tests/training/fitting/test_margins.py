"""No head trained has larger margins than its public numbers allow, and some come close."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.features.maps import Identity
from training.fitting.sensitivity import largest_margin, usual_margin
from training.inputs.records import Declaration, Records
from training.kinds.head.recipe import DEFAULT_TOLERANCE, Recipe
from training.kinds.head.train import train_head


def logits_of_head(X, y, classes, lam):
    d = X.shape[1]
    declaration = Declaration(
        tuple(f"x{i}" for i in range(d)), (-1.0,) * d, (1.0,) * d, tuple(str(c) for c in range(classes))
    )
    feature_map = Identity(lower=declaration.lower, upper=declaration.upper, clip_norm=1.0, bias=0.0)
    head = train_head(Records(X, y, declaration, ()), Recipe("m", feature_map, lam), "lineage")
    return head.logits(head.features(X))


def margin_of_head(X, y, classes, lam):
    logits = logits_of_head(X, y, classes, lam)
    return float(np.max(logits.max(axis=1) - logits.min(axis=1)))


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 40),
    classes=st.integers(2, 5),
    lam=st.floats(0.05, 100),
    same=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_no_margin_exceeds_the_bound(n, classes, lam, same, seed):
    rng = np.random.default_rng(seed)
    X = np.tile(np.eye(1, 3), (n, 1)) if same else rng.uniform(-1, 1, size=(n, 3))
    y = np.zeros(n, np.int64) if same else rng.integers(classes, size=n)

    assert margin_of_head(X, y, classes, lam) <= largest_margin(n, lam, DEFAULT_TOLERANCE, 1.0, classes)


def test_strong_regularisation_comes_within_a_factor_of_the_bound():
    """One record, two classes: Lambda W = (e_y - p) phi^T with p near 1/2, so the margin is near 1/Lambda."""
    reached = margin_of_head(np.eye(1, 3), np.zeros(1, np.int64), 2, 100.0)

    assert reached == pytest.approx(largest_margin(1, 100.0, DEFAULT_TOLERANCE, 1.0, 2) / 2, rel=0.02)


@pytest.mark.parametrize(
    "numbers", [(0, 1.0, 1e-9, 1.0, 2), (1, 0.0, 1e-9, 1.0, 2), (1, 1.0, 1e-9, -1.0, 2), (1, 1.0, 1e-9, 1.0, 1)]
)
def test_invalid_arguments_are_refused(numbers):
    with pytest.raises(ValueError, match="must be"):
        largest_margin(*numbers)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 10**6), classes=st.integers(2, 100), lam=st.floats(0.01, 1e4))
def test_a_usual_margin_is_below_the_largest(n, classes, lam):
    assert 0 < usual_margin(n, lam, 1.0, classes) <= largest_margin(n, lam, DEFAULT_TOLERANCE, 1.0, classes)
    assert usual_margin(n, lam, 1.0, classes) <= usual_margin(None, lam, 1.0, classes)


def test_a_usual_margin_is_what_a_head_has_on_classes_whose_means_are_half_a_radius_apart():
    generator = np.random.default_rng(0)
    y = np.arange(400) % 2
    # Between bounds of -1 and 1, half of a distance of 1 is left when rows are scaled.
    X = 0.02 * generator.random((400, 3)) + np.array([[-1, 0.5, -1], [-1, -0.5, -1]])[y]
    leads = np.diff(logits_of_head(X, y, 2, 1000.0))[:, 0]
    found = abs(leads[y == 1].mean() - leads[y == 0].mean()) / 2  # from where neither class leads
    assert usual_margin(400, 1000.0, 1.0, 2) == pytest.approx(0.025)
    assert 0.7 * 0.025 < found < 1.5 * 0.025
