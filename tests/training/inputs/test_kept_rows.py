"""Rows that sums keep are made once, in memory or in a file, and are as if they were made anew."""

import errno

import numpy as np
import pytest
import scipy.sparse

from dpserve.training.inputs import sums
from dpserve.training.inputs.sums import BLOCK, Rows, of_rows

COUNT = 2 * BLOCK + 10


class Doubled:
    """Twice the rows, and how many were made."""

    def __init__(self):
        self.made = 0

    def __call__(self, X):
        self.made += len(X)
        return 2 * X


def records(seed=0):
    X = np.random.default_rng(seed).uniform(size=(COUNT, 3))
    return of_rows(X, np.zeros(COUNT, dtype=np.int64)), X


def total(of, rows):
    return of.total(lambda shard, _: sum(np.asarray(block.sum(axis=0)) for block, _y, _w in shard.blocks(rows)))


@pytest.fixture(params=["memory", "file"])
def place(request, monkeypatch):
    if request.param == "file":
        monkeypatch.setattr(sums, "KEPT", 0)
    return request.param


def test_rows_and_what_is_made_of_them_are_made_once(place):
    of, X = records()
    first, second = Doubled(), Doubled()
    rows = Rows(first)
    others = Rows(second, source=rows)
    for _ in range(3):
        np.testing.assert_allclose(total(of, rows), 2 * X.sum(axis=0))
        np.testing.assert_allclose(total(of, others), 4 * X.sum(axis=0))
    assert first.made == second.made == COUNT + 1  # one row says how much room they take
    (shard,) = of.shards
    assert all(isinstance(whole, np.memmap) == (place == "file") for whole in shard.made.values())


@pytest.mark.usefixtures("place")
def test_other_rows_take_the_place_of_the_last():
    of, _ = records()
    total(of, Rows(Doubled()))
    last = Rows(Doubled())
    total(of, last)
    assert of.shards[0].made.keys() == {last.key}


def test_rows_without_room_are_made_for_each_sum(monkeypatch):
    """Those without their zeros, and dense ones where the disk is full."""

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(sums, "KEPT", 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    for make in (lambda X: 2 * X, lambda X: scipy.sparse.csr_array(2 * X)):
        of, X = records()
        rows = Rows(make)
        for _ in range(2):
            np.testing.assert_allclose(total(of, rows), 2 * X.sum(axis=0))
        np.testing.assert_allclose(total(of, Rows(lambda made: made + made, source=rows)), 4 * X.sum(axis=0))
        assert not of.shards[0].made
