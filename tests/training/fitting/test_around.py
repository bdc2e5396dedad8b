"""Compact rows around a mean give what dense ones give, and a record moves their sums no further than is proved."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.training.exact.products import matrix_on_grid
from dpserve.training.features.maps import Bins, Quantiles
from dpserve.training.features.quantiles import QuantileRelease
from dpserve.training.features.rows import MappedRows
from dpserve.training.fitting.around import CLOSEST, SparseCentred, around, on_steps
from dpserve.training.fitting.dense_around import DenseCentred
from dpserve.training.fitting.network import SUM_ERROR, Network
from dpserve.training.fitting.unit_rows import Directions, rows_of
from dpserve.training.inputs.records import Declaration, Records, Units
from dpserve.training.inputs.sums import Rows, of_rows
from dpserve.training.kinds.class_sums.sums import centre_of, sparse_sums_of, sums_of
from dpserve.training.kinds.dpsgd.centre import sum_of_rows
from dpserve.training.kinds.dpsgd.choices import Choices, NetworkChoices
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, directions_of, train_dpsgd
from tests.seeded import Seeded

FEATURES, CLASSES = 5, 3
ENDS = {"lower": (0.0,) * FEATURES, "upper": (1.0,) * FEATURES, "bias": 0.25}
CUTS = QuantileRelease(mu=0.1, cuts=((5, 9, 4000), (8000,), tuple(range(500, 16000, 500)), (1, 2, 3), (7, 16000)))
MAPS = (Bins(**ENDS, crosses=((0, 1),), cross_buckets=60), Quantiles(**ENDS, released=CUTS))
each_map = pytest.mark.parametrize("MAP", MAPS, ids=lambda feature_map: feature_map.kind)
"""Maps with compact rows: without their zeros, and by codes of cuts, of which numbers have unlike counts."""
WHOLE = 10**12


def table(seed, count):
    generator = np.random.default_rng(seed)
    X = generator.uniform(size=(count, FEATURES)) ** generator.choice([0.2, 1.0, 5.0])
    return X, generator.integers(CLASSES, size=count), generator


def some_mean(MAP, generator, X):
    """A mean of the rows, of one row, or of noise."""
    phi = MAP(X, {})
    noise = generator.standard_normal(MAP.dimension)
    return on_steps([phi.mean(axis=0), phi[0], noise / np.linalg.norm(noise)][generator.integers(3)])


@each_map
@settings(max_examples=60, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_rows_around_a_mean_are_the_dense_ones(MAP, seed):
    X, _, generator = table(seed, 9)
    mean = some_mean(MAP, generator, X)
    rows = SparseCentred.at(MAP.compact(X), mean, 4.0)
    apart = MAP(X, {}) - mean
    distances = np.linalg.norm(apart, axis=1)
    dense = 4.0 * apart / np.maximum(distances, CLOSEST)[:, None]
    matrix = matrix_on_grid(generator.standard_normal((MAP.dimension, CLASSES)))
    factors = generator.standard_normal((9, CLASSES))
    np.testing.assert_allclose(rows.product(matrix), dense @ matrix, atol=1e-12)
    np.testing.assert_allclose(rows.summed(factors), dense.T @ factors, atol=1e-12)
    assert (np.linalg.norm(dense, axis=1) <= np.sqrt(rows.squared_lengths) * (1 + 2.0**-50)).all()
    far = distances > 1.5 * CLOSEST
    drawn = DenseCentred.at(directions_of(X, MAP), mean, 4.0)
    np.testing.assert_allclose(dense[far], (drawn.apart * drawn.scales[:, None])[far], atol=1e-5)


@each_map
@settings(max_examples=60, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_sparse_row_has_the_same_bits_alone_and_among_others(MAP, seed):
    X, y, generator = table(seed, 40)
    mean, network = some_mean(MAP, generator, X), Network((MAP.dimension, 7, CLASSES))
    parameters = network.initial(seed) + generator.standard_normal(network.size) * 0.1
    together = SparseCentred.at(MAP.compact(X), mean, 4.0)
    wanted = network.gradient_factors(parameters, together, y)
    for place in (0, 17, 39):
        one = slice(place, place + 1)
        alone = SparseCentred.at(MAP.compact(X[one]), mean, 4.0)
        np.testing.assert_array_equal(alone.scales, together.scales[one])
        found = network.gradient_factors(parameters, alone, y[one])
        for (_, d), (_, among) in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(d, among[one])
        np.testing.assert_array_equal(found[1][0], wanted[1][0][one])


@each_map
@pytest.mark.parametrize("hidden", [(), (6,)])
def test_the_clipped_sum_is_the_dense_one(MAP, hidden):
    X, y, generator = table(3, 3000)
    network = Network((MAP.dimension, *hidden, CLASSES))
    parameters = network.initial(1) + generator.standard_normal(network.size) * 0.3
    mean = on_steps(MAP(X, {}).mean(axis=0))
    for clip_norm in (1e-3, 1.0, 100.0):
        sparse = network.clipped_sum(parameters, SparseCentred.at(MAP.compact(X), mean, 4.0), y, clip_norm)
        dense = network.clipped_sum(parameters, DenseCentred.at(directions_of(X, MAP), mean, 4.0), y, clip_norm)
        assert np.linalg.norm(sparse - dense) <= 1e-4 * np.linalg.norm(dense)


@each_map
@settings(max_examples=150, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1e-6, 1.0, 1e4, 1e200]))
def test_no_record_moves_the_clipped_sum_further_than_the_norm(MAP, seed, size):
    """Also next to the mean, where directions are short, and for weights that have lost all bounds."""
    X, y, generator = table(seed, int(generator_count(seed)))
    network = Network((MAP.dimension, CLASSES))
    parameters = generator.standard_normal(network.size) * size
    mean = some_mean(MAP, generator, X)
    with np.errstate(all="ignore"):
        whole, less, own = (
            network.clipped_sum(parameters, SparseCentred.at(MAP.compact(X[part]), mean, 4.0), y[part], 0.5)
            for part in (slice(None), slice(1, None), slice(0, 1))
        )
    assert np.linalg.norm(own) <= 0.5 * (1 + 2.0**-30)
    assert np.linalg.norm(whole - less) <= 0.5 * (1 + SUM_ERROR)
    assert np.linalg.norm(whole - less - own) <= 0.5 * 2.0**-40


def generator_count(seed):
    return np.random.default_rng(seed + 1).integers(1, 60)


@each_map
def test_the_sums_of_the_centre_are_the_dense_ones_to_the_bit(MAP):
    """Rounding towards zero of the same numbers: phi's, and not those of its direction."""
    X, y, generator = table(5, 1500)
    for weights in (None, generator.uniform(size=1500)):
        records, phi = of_rows(X, y, weights), Rows(MappedRows(MAP))
        np.testing.assert_array_equal(sum_of_rows(records, rows_of(MAP)), sum_of_rows(records, phi))
        np.testing.assert_array_equal(centre_of(records, rows_of(MAP)), centre_of(records, phi))


@each_map
def test_class_sums_of_sparse_rows_are_the_dense_ones(MAP):
    X, y, _ = table(6, 3000)
    records = of_rows(X, y)
    mean = on_steps(MAP(X, {}).mean(axis=0))
    dense = sums_of(records, Rows(Directions(MappedRows(MAP))), CLASSES, mean)
    sparse = sparse_sums_of(records, rows_of(MAP), CLASSES, mean)
    assert np.linalg.norm(sparse - dense) <= 2.0**-11 * np.linalg.norm(dense)


@each_map
@settings(max_examples=150, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6), alike=st.booleans())
def test_no_unit_moves_the_class_sums_further_than_one(MAP, seed, alike):
    X, y, generator = table(seed, 30)
    of = generator.integers(0, 6, 30)
    mine = of == of[0]
    if alike:
        X[mine], y[mine] = X[0], 0
    mean = some_mean(MAP, generator, X[~mine]) if (~mine).any() else np.zeros(MAP.dimension)
    parts = []
    for kept in (np.ones(30, dtype=bool), ~mine):
        names = np.unique(of[kept], return_inverse=True)[1].astype(np.int64)
        weights = Units("person", names).weights() if kept.any() else None
        records = of_rows(X[kept], y[kept], weights, names if kept.any() else None)
        parts.append(sparse_sums_of(records, rows_of(MAP), CLASSES, mean) if kept.any() else 0.0)
    moved = np.linalg.norm(parts[0] - parts[1])
    assert moved <= 1
    if alike and np.linalg.norm(MAP(X[:1], {})[0] - mean) > CLOSEST:
        assert moved > 1 - 2.0**-11


@each_map
def test_the_view_of_rows_leaves_what_was_made_of_them(MAP):
    X, y, _ = table(7, 20)
    records, rows = of_rows(X, y), rows_of(MAP)
    mean = on_steps(MAP(X, {}).mean(axis=0))
    ((first, _, _),) = records.shards[0].blocks(around(rows, mean))
    ((plain, _, _),) = records.shards[0].blocks(rows)
    assert isinstance(first, SparseCentred)
    assert plain is not first
    dense = plain.toarray() if MAP is MAPS[0] else plain.dense()
    assert (dense == MAP(X, {})).all()
    assert len(records.shards[0].made) == 1
    assert first.rows.shape == plain.shape


def records_of(MAP, seed, count):
    X, _, generator = table(seed, count)
    y = np.minimum((X[:, 0] * X[:, 1] * 3 + generator.uniform(size=count) / 4).astype(np.int64), CLASSES - 1)
    names = tuple(f"x{place}" for place in range(FEATURES))
    return Records(X, y, Declaration(names, MAP.lower, MAP.upper, ("a", "b", "c")), ())


@each_map
@pytest.mark.parametrize("beside", [None, NetworkChoices(5, 0.2, 0.5)])
def test_a_model_trained_on_sparse_rows_is_the_one_trained_on_dense_ones(MAP, beside):
    """The same noise, drawn from the same words: what is left is rounding."""
    records = records_of(MAP, 1, 800)
    choices = Choices(records_declared=800, sampling_rate=0.5, steps=15, learning_rate=0.5, beside=beside)
    declared = MAP.declared
    recipe = DpSgdRecipe("m", declared, choices, WHOLE)
    sparse = train_dpsgd(records, recipe, "l", Seeded(0))
    dense = train_dpsgd(records, recipe, "l", Seeded(0), directions=directions_of(records.X, declared))
    np.testing.assert_allclose(sparse.values(records.X), dense.values(records.X), atol=2e-3)


@pytest.mark.parametrize("beside", [None, NetworkChoices(5, 0.2, 0.5)])
def test_a_models_logits_of_rows_by_codes_have_the_bits_that_a_service_gives(beside):
    cuts = MAPS[1].declared
    records = records_of(cuts, 2, 300)
    choices = Choices(records_declared=300, sampling_rate=0.5, steps=4, learning_rate=0.5, beside=beside)
    model = train_dpsgd(records, DpSgdRecipe("m", cuts, choices, WHOLE), "l", Seeded(0))
    np.testing.assert_array_equal(model.logits_of(cuts.compact(records.X)), model.logits(records.X))


def test_a_device_gives_rows_by_codes_the_same_bits(torch_arithmetic):
    cuts = MAPS[1].declared
    records = records_of(cuts, 2, 300)
    choices = Choices(records_declared=300, sampling_rate=0.5, steps=4, learning_rate=0.5)
    model = train_dpsgd(records, DpSgdRecipe("m", cuts, choices, WHOLE), "l", Seeded(0))
    there = replace(model, arithmetic=torch_arithmetic)
    np.testing.assert_array_equal(there.logits_of(cuts.compact(records.X)), model.logits(records.X))
