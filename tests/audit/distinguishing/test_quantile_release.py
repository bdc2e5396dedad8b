"""An audit of the noisy quantiles' release: the counts of neighbouring records, told apart as well as they can be.

The auditor knows both data sets, and scores a release by its product with their difference, the log-likelihood ratio of
Gaussian noise up to constants. Only the counts that differ are drawn (`GaussianVector.release_part`): the others have
the same law with and without the record. The seeds are fixed; a right release convicts with at most 1e-9.
"""

import math

import numpy as np
import pytest

from dpserve.audit.distinguishing.mechanism import CONVICTION_CONFIDENCE, claimed_tradeoff, contradicts
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.features.maps import Quantiles
from dpserve.training.features.quantiles import LEVELS, levels_of, vector_for
from dpserve.training.fitting.histograms import counts_of
from dpserve.training.inputs.records import Declaration, Records, Units

NUMBERS, TRIALS, DELTA = 4, 5000, 1e-5
BOUNDS = {"lower": (0.0,) * NUMBERS, "upper": (1.0,) * NUMBERS}
MAP = Quantiles(**BOUNDS, bias=0.0)
X = np.vstack([np.random.default_rng(0).uniform(size=(50, NUMBERS)), np.full((5, NUMBERS), 0.37)])
OWNERS = np.append(np.arange(50), [50] * 5)


def levels(rows, units=None):
    """Return all counts of the first so many rows."""
    declaration = Declaration(("a", "b", "c", "d"), *BOUNDS.values(), ("no", "yes"))
    owners = None if units is None else Units("who", units[:rows])
    records = Records(X[:rows], np.zeros(rows, dtype=np.int64), declaration, (), owners)
    return levels_of(counts_of(records.sums, MAP)).ravel()


def is_convicted(with_it, without, claimed, drawn_with):
    """Whether releases by one mechanism refute the cost of another."""
    moved = np.flatnonzero(with_it != without)
    difference = with_it[moved] - without[moved]
    words = SeededRandomness(0, ("quantiles", f"{drawn_with.mu:g}"))
    of_with, of_without = (
        np.array([drawn_with.release_part(counts[moved], words) @ difference for _ in range(TRIALS)])
        for counts in (with_it, without)
    )
    middle = (with_it[moved] + without[moved]) @ difference / 2
    claim = claimed_tradeoff(claimed.cost, DELTA)
    return contradicts(claim, of_with - middle, of_without - middle, CONVICTION_CONFIDENCE)


@pytest.mark.parametrize("mu", [0.2, 2.0])
def test_a_record_is_told_apart_no_better_than_claimed(mu):
    vector = vector_for(mu, NUMBERS)
    assert not is_convicted(levels(51), levels(50), vector, vector)


@pytest.mark.parametrize("mu", [0.2, 2.0])
def test_a_unit_of_five_records_is_told_apart_no_better_than_claimed(mu):
    vector = vector_for(mu, NUMBERS)
    assert not is_convicted(levels(55, OWNERS), levels(50, OWNERS), vector, vector)


def test_a_tenth_of_the_noise_is_convicted():
    assert is_convicted(levels(51), levels(50), vector_for(0.2, NUMBERS), vector_for(2.0, NUMBERS))


def test_the_sensitivity_of_one_number_alone_is_convicted():
    vector = vector_for(1.0, NUMBERS)
    for_one = GaussianVector(1.0, vector.size, math.sqrt(LEVELS))
    assert is_convicted(levels(51), levels(50), vector, for_one)


def test_a_unit_whose_records_count_fully_is_convicted():
    vector = vector_for(1.0, NUMBERS)
    assert is_convicted(levels(55), levels(50), vector, vector)
