"""That a row's direction is a function of the row alone, bit for bit, and that a record moves the centre's sum by 1."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpserve.training.features.maps import Fourier
from dpserve.training.fitting.unit_rows import unit
from dpserve.training.inputs.sums import ROWS, of_rows
from dpserve.training.kinds.dpsgd.centre import centre_release, sum_of_rows


def total(rows):
    return sum_of_rows(of_rows(rows, np.zeros(len(rows), dtype=np.int64)), ROWS)


def test_a_rows_direction_does_not_depend_on_the_rows_beside_it():
    shared = {"lower": (0.0,) * 30, "upper": (1.0,) * 30, "clip_norm": math.sqrt(30) / 2, "bias": 0.0}
    waves = Fourier(**shared, random_features=4, bandwidth=0.5, seed=0)
    tensors = waves.public_tensors()
    rows, fillers = np.random.RandomState(3).rand(40, 30), np.random.RandomState(4).rand(7, 30)
    for row in rows:
        alone = unit(waves(row[None], tensors))
        for beside in range(1, 8):
            X = np.vstack([fillers[:beside], row])
            phi = waves(X, tensors)
            assert np.array_equal(unit(phi)[-1:], alone)
            assert np.array_equal(total(unit(phi)) - total(unit(phi[:-1])), total(alone))


def test_a_row_whose_squares_underflow_has_no_direction():
    """Its length as computed is far too small: drawn to length 1 by that, it would be 16 long."""
    row = np.full(601, 1.5e-162)
    row[0] = 2.0e-162
    rows = unit(np.vstack([np.random.RandomState(0).rand(5, 601), row]))
    assert (np.linalg.norm(rows, axis=1) <= 1).all()
    assert not rows[-1].any()
    assert np.linalg.norm(total(rows) - total(rows[:5])) <= centre_release(0.1, 601).sensitivity == 1


@given(
    seed=st.integers(0, 10**6),
    dimension=st.integers(1, 50),
    exponent=st.sampled_from([-1074, -540, -530, -300, -20, 0, 20, 500]),
    spread=st.sampled_from([0, 3, 200]),
)
def test_a_record_moves_the_sum_by_one_term_no_longer_than_1(seed, dimension, exponent, spread):
    """Also rows that were not drawn to length 1: what is longer counts as nothing."""
    generator = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        rows = np.ldexp(
            generator.normal(size=(4, dimension)), exponent + generator.integers(-spread, spread + 1, dimension)
        )
        for made in (rows, unit(rows)):
            moved = total(made) - total(made[1:])
            assert np.array_equal(moved, total(made[:1]))
            assert sum(int(term * 2**28) ** 2 for term in moved) <= 2**56
