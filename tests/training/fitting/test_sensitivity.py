"""The bounds of the certified head, attacked with re-solved neighbouring data sets."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.training.exact.quantised import LARGEST_WEIGHT_NORM, norms, products, quantised, summands, weight_step
from dpserve.training.features.maps import Fourier, Identity
from dpserve.training.features.whole_steps import STEP
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.sensitivity import (
    logit_sensitivity_per_norm,
    projected,
    quantised_weight_sensitivity,
    weight_norm,
    weight_sensitivity,
)
from dpserve.training.fitting.solver import minimise
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

TOLERANCE = 1e-6


def solve(phi, y, classes, strong_convexity):
    return minimise(RegularisedCrossEntropy.from_rows(phi, y, classes, strong_convexity), TOLERANCE)


def unit_rows(generator, n, dimension, spread):
    """Rows in the unit ball; a small spread makes them nearly parallel, which makes single records weigh most."""
    rows = np.ones(dimension) + spread * generator.standard_normal((n, dimension))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) * generator.uniform(0.5, 1.0, (n, 1))


@settings(max_examples=250, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 40),
    dimension=st.integers(1, 8),
    classes=st.integers(2, 6),
    strong_convexity=st.sampled_from([1e-3, 1e-2, 0.1, 1.0, 10.0, 1000.0]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    labels=st.sampled_from(["random", "one class", "linear"]),
    record=st.sampled_from(["random", "outlier", "mislabelled"]),
)
def test_no_neighbour_violates_the_bound(seed, n, dimension, classes, strong_convexity, spread, labels, record):
    generator = np.random.default_rng(seed)
    phi = unit_rows(generator, n, dimension, spread)
    y = {
        "random": generator.integers(classes, size=n),
        "one class": np.zeros(n, dtype=np.int64),
        "linear": np.argmax(phi @ generator.standard_normal((dimension, classes)), axis=1),
    }[labels]
    W = quantised(solve(phi, y, classes, strong_convexity))
    added = unit_rows(generator, 1, dimension, spread)
    if record == "outlier":
        added = -added
    if record != "random":
        added = added / np.linalg.norm(added)
    label = int(np.argmin(W @ added[0])) if record == "mislabelled" else int(generator.integers(classes))
    V = quantised(solve(np.vstack([phi, added]), np.append(y, label), classes, strong_convexity))

    bound = quantised_weight_sensitivity(weight_sensitivity(strong_convexity, TOLERANCE, 1.0), classes, dimension)
    assert np.linalg.norm(W - V) <= bound
    queries = np.trunc(unit_rows(generator, 20, dimension, spread) / STEP) * STEP
    moved = np.linalg.norm(products(queries, summands(W)) - products(queries, summands(V)), axis=1)
    assert (moved <= logit_sensitivity_per_norm(bound) * norms(queries)).all()


def feature_map_of(kind, clip_norm, bias, seed):
    shared = {"lower": (0.0, -1.0, 5.0), "upper": (1.0, 1.0, 1e6), "clip_norm": clip_norm, "bias": bias}
    if kind == "identity":
        return Identity(**shared)
    return Fourier(**shared, random_features=16, bandwidth=0.3, seed=seed)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 30),
    kind=st.sampled_from(["identity", "fourier"]),
    clip_norm=st.sampled_from([2.0**-20, 1e-3, 0.5, 1.0, 2.0**20]),
    bias=st.sampled_from([0.0, 0.3, 0.999]),
    strong_convexity=st.sampled_from([1e-2, 1.0, 100.0, 1e10]),
    extreme=st.sampled_from(["inside", "corner", "tiny"]),
)
def test_no_certified_head_violates_its_own_figures(seed, n, kind, clip_norm, bias, strong_convexity, extreme):
    """The whole way from records to computed logits, on neighbours, for every map and far-off parameters."""
    generator = np.random.default_rng(seed)
    feature_map = feature_map_of(kind, clip_norm, bias, seed % 1000)
    declaration = Declaration(("a", "b", "c"), feature_map.lower, feature_map.upper, ("no", "yes"))
    lower, upper = np.array(feature_map.lower), np.array(feature_map.upper)
    X = generator.uniform(lower, upper, (n + 1, 3))
    X[-1] = {"inside": X[-1], "corner": upper, "tiny": np.nextafter(lower, upper)}[extreme]
    y = generator.integers(2, size=n + 1)
    recipe = Recipe("small", feature_map, strong_convexity, 1e-6)
    fewer, more = (train_head(Records(X[:k], y[:k], declaration, ()), recipe, "lineage") for k in (n, n + 1))
    phi = more.features(np.vstack([X, [lower, upper], np.nextafter([lower], upper)]))
    moved = np.linalg.norm(fewer.logits(phi) - more.logits(phi), axis=1)
    assert (moved <= more.logit_sensitivity(phi)).all()
    assert np.linalg.norm(fewer.weights - more.weights) <= more.certificate.weight_sensitivity


@pytest.mark.parametrize("norm", [0.5, 0.999999, 1.0, 1.5, 1e6])
def test_projection_ends_inside_the_ball_and_where_it_should(norm):
    weights = np.random.default_rng(2).standard_normal((1, 1000))
    scaled = weights / np.linalg.norm(weights) * (norm * LARGEST_WEIGHT_NORM)
    drawn = projected(scaled)
    assert weight_norm(drawn) <= LARGEST_WEIGHT_NORM
    exact = math.sqrt(sum(Fraction(value) ** 2 for value in scaled[0]))
    factor = min(1.0, LARGEST_WEIGHT_NORM * (1 - 2.0**-30) / exact)
    assert np.linalg.norm(drawn - scaled * factor) <= 4 * 2.0**-53 * LARGEST_WEIGHT_NORM


def test_the_bound_is_nearly_reached():
    """A bound that nothing comes near could hide a mistake: one record that all others contradict comes near."""
    phi = np.tile([1.0, 0.0], (400, 1))
    y = np.zeros(400, dtype=np.int64)
    strong_convexity = 50.0
    W = solve(phi, y, 2, strong_convexity)
    V = solve(np.vstack([phi, [0.6, -0.8]]), np.append(y, 1), 2, strong_convexity)
    assert np.linalg.norm(W - V) > 0.55 * weight_sensitivity(strong_convexity, TOLERANCE, 1.0)


def test_the_figure_of_the_proof():
    assert weight_sensitivity(2.0, 1e-5, 1.0) == pytest.approx((math.sqrt(2) + 2e-5) / 2, rel=1e-9)
    assert Fraction(weight_sensitivity(2.0, 1e-5, 1.0)) > (Fraction(2) ** Fraction(1, 2) + 2e-5) / 2


@pytest.mark.parametrize("nonsense", [0.0, -1.0, 1e-13, 1e13, math.inf, math.nan])
def test_invalid_arguments_are_refused(nonsense):
    with pytest.raises(ValueError, match="Lambda must lie between"):
        weight_sensitivity(nonsense, 1e-5, 1.0)
    with pytest.raises(ValueError, match="tolerance must lie between"):
        weight_sensitivity(1.0, nonsense, 1.0)


def test_what_rounding_adds_is_as_the_proof_says():
    exact = weight_sensitivity(2.0, 1e-5, 1.0)
    assert quantised_weight_sensitivity(exact, 3, 17) - exact == pytest.approx(math.sqrt(51) * weight_step(17), rel=0.1)
    per_norm = logit_sensitivity_per_norm(exact)
    assert Fraction(per_norm) > Fraction(exact) + 2 * Fraction(2) ** -53 * Fraction(LARGEST_WEIGHT_NORM)
