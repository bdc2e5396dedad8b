"""Dense rows around a mean are what they are said to be, and a record moves their sums no further than is proved."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.training.exact.products import matrix_on_grid
from dpserve.training.features.whole_steps import STEP
from dpserve.training.fitting.around import around, on_steps
from dpserve.training.fitting.dense_around import DenseCentred
from dpserve.training.fitting.network import SUM_ERROR, Network
from dpserve.training.fitting.unit_rows import Directions
from dpserve.training.inputs.sums import Rows, of_rows

WIDTH, CLASSES = 6, 3


def table(seed, count):
    """Directions, some of them next to each other, and a mean that is one of them, near one, or of all."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((count, WIDTH)) * generator.choice([1e-7, 1e-3, 1.0]) + 1
    rows[0] *= generator.choice([0.0, 1.0])
    directions = Directions(lambda X: X)(rows)
    mean = [directions[0], directions.mean(axis=0), directions[-1] + STEP * generator.integers(-2, 3, WIDTH)]
    mean = mean[generator.integers(3)].astype(np.float64)
    return directions, on_steps(mean / max(1, np.linalg.norm(mean))), generator.integers(CLASSES, size=count), generator


def test_directions_are_in_steps_and_no_longer_than_one():
    rows = np.random.default_rng(0).standard_normal((50, WIDTH)) * 2.0 ** np.arange(-25, 25)[:, None]
    directions = Directions(lambda X: X)(np.vstack([rows, np.eye(WIDTH), np.zeros((1, WIDTH))]))
    whole = directions.astype(np.float64) / STEP
    assert directions.dtype == np.float32
    assert (whole == np.rint(whole)).all()
    lengths = np.linalg.norm(whole * STEP, axis=1)
    assert (lengths <= 1).all()
    assert (lengths[:-1] > 1 - WIDTH * STEP).all()
    assert not directions[-1].any()


@settings(max_examples=60, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_rows_have_the_stated_length_around_the_mean(seed):
    directions, mean, _, generator = table(seed, 9)
    rows = DenseCentred.at(directions, mean, 4.0)
    apart = directions - mean
    distances = np.linalg.norm(apart, axis=1)
    drawn = 4.0 * apart / np.where(distances > 0, distances, 1)[:, None]
    matrix, factors = (
        matrix_on_grid(generator.standard_normal((WIDTH, CLASSES))),
        generator.standard_normal((9, CLASSES)),
    )
    np.testing.assert_allclose(rows.product(matrix), drawn @ matrix, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(rows.summed(factors), drawn.T @ factors, rtol=1e-12, atol=1e-12)
    assert (np.linalg.norm(drawn, axis=1) <= np.sqrt(rows.squared_lengths) * (1 + 2.0**-50)).all()


@settings(max_examples=60, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_row_has_the_same_bits_alone_and_among_others(seed):
    directions, mean, y, generator = table(seed, 40)
    network = Network((WIDTH, 7, CLASSES))
    parameters = network.initial(seed) + generator.standard_normal(network.size) * 0.1
    wanted = network.gradient_factors(parameters, DenseCentred.at(directions, mean, 4.0), y)
    for place in (0, 17, 39):
        one = slice(place, place + 1)
        found = network.gradient_factors(parameters, DenseCentred.at(directions[one], mean, 4.0), y[one])
        for (_, d), (_, among) in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(d, among[one])
        np.testing.assert_array_equal(found[0][0].scales, wanted[0][0].scales[one])


@settings(max_examples=150, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1e-6, 1.0, 1e4, 1e200]), hidden=st.sampled_from([(), (4,)]))
def test_no_record_moves_the_clipped_sum_further_than_the_norm(seed, size, hidden):
    """Also on the mean and a step from it, and for weights that have lost all bounds."""
    directions, mean, y, generator = table(seed, int(np.random.default_rng(seed).integers(1, 60)))
    network = Network((WIDTH, *hidden, CLASSES))
    parameters = generator.standard_normal(network.size) * size
    with np.errstate(all="ignore"):
        whole, less, own = (
            network.clipped_sum(parameters, DenseCentred.at(directions[part], mean, 4.0), y[part], 0.5)
            for part in (slice(None), slice(1, None), slice(0, 1))
        )
    assert np.linalg.norm(own) <= 0.5 * (1 + 2.0**-30)
    assert np.linalg.norm(whole - less) <= 0.5 * (1 + SUM_ERROR)
    assert np.linalg.norm(whole - less - own) <= 0.5 * 2.0**-40


def test_the_view_of_rows_leaves_what_was_made_of_them():
    X = np.random.default_rng(1).uniform(size=(20, WIDTH))
    records, rows = of_rows(X, np.zeros(20, dtype=np.int64)), Rows(Directions(lambda X: X))
    ((first, _, _),) = records.shards[0].blocks(around(rows, np.zeros(WIDTH), centred=DenseCentred))
    ((plain, _, _),) = records.shards[0].blocks(rows)
    np.testing.assert_array_equal(first.apart, plain)
    assert records.shards[0].made.keys() == {rows.key}
