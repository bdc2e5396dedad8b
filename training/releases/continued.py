"""Class sums continued by gradient steps: full-batch gradient descent under noise, from the sums' directions.

The directions of the classes say where the records of a class are, and not which records they get wrong. So a share of
the price buys STEPS noisy sums of gradients of the cross-entropy. Descent starts from START times the directions and
takes steps so small that all their noise together moves a logit by LOGIT_NOISE: the weights are

    W_0 = START directions,    W_t = W_(t-1) - rate (noisy sum at W_(t-1)).

The rule's numbers were found on parts of the training records of Location and of supermarket baskets that were held
back, at epsilon 1 and 4.
"""

import functools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from mechanisms.gaussian_vector import LARGEST_SIZE, LEAST_PRICE, GaussianVector, mu_for
from mechanisms.randomness import Randomness
from training.releases.dpsgd.network import Network, check_shards
from training.sums import Rows, Shard, Sums

Floats = NDArray[np.float64]

SHARE = Fraction(1, 8)
"""The share that steps are paid from of what calibration leaves of mu^2."""

STEPS = 20
START = 32.0
CLIP_NORM = 0.3
"""No record's gradient is longer."""
LOGIT_NOISE = 0.4
"""The standard deviation that the noise of all steps together gives each weight, and a logit of a row of length 1."""


LEAST_SIGNAL = 5000.0
"""Steps are taken from so many records times mu on: below, they were worth no more than the sums that they cost."""


def divided(whole: int, classes: int, dimension: int, records_declared: int | None) -> tuple[int, int]:
    """Return what the steps and the class sums may cost of a price, all in picorho.

    The steps get SHARE, and nothing where records_declared, a public number, is None or too few, where their share is
    less than a release may cost, or where their sums are too many numbers.
    """
    part = math.floor(whole * SHARE)
    if part < LEAST_PRICE or STEPS * classes * dimension > LARGEST_SIZE:
        return 0, whole
    if records_declared is None or records_declared * mu_for(whole) < LEAST_SIGNAL:
        return 0, whole
    return part, whole - part


def law(mu: float, classes: int, dimension: int) -> GaussianVector:
    """Return how the sums of gradients of all steps are released together. Raises ValueError where they cannot be.

    Proof. Neighbours have one record more or fewer. Given what was released before, the weights W of a step are public,
    and so is the mean that rows are taken around: a record's row v, at most 1 long, is a function of that record. In a
    `Network` of one layer with weights W and biases of 0 its gradient is (v, 1) (p - e_y)^T, and `Network.clipped_sum`
    at the norm sqrt(2) CLIP_NORM scales it by s <= sqrt(2) CLIP_NORM / (sqrt(|v|^2 + 1) |p - e_y|). The biases' part is
    thrown away, and the weights' part has the norm s |v| |p - e_y| <= sqrt(2) CLIP_NORM |v| / sqrt(|v|^2 + 1) <=
    CLIP_NORM for |v| <= 1. So a record moves the sum of a step by at most CLIP_NORM, but for rounding, `movement`. All
    STEPS sums are parts of one Gaussian vector, each moved by at most that whatever the parts before were, and the
    squares add up to STEPS times its square (`GaussianVector.release_part`): mu-GDP. Rates and W are post-processing.
    Given the sums this composes adaptively with them and adds its mu^2 (Dong, Roth and Su 2022, Corollary 3.3).
    """
    sensitivity = math.sqrt(STEPS) * movement(dimension) * (1 + 2.0**-50)
    return GaussianVector(mu, STEPS * classes * dimension, sensitivity)


def movement(dimension: int) -> float:
    """Return how far one record of at most unit length moves the computed sum of a step, at most.

    CLIP_NORM as `law` proves, and rounding. `exact.on_grid` moves each of D coordinates by at most g/2, g = 2^(e + h -
    26), with 2^h < 2 sqrt(D) and, for rows at most 1 long, 2^e <= 2: |v| grows by at most sqrt(D) g/2 < D 2^-25, and
    |v| / sqrt(|v|^2 + 1) by less of itself. The sum's rounding moves neighbours apart by at most SUM_ERROR = 2^-16
    times sqrt(2) CLIP_NORM (`Network.clipped_sum`). Of a privacy unit each record's part has its weight, and these
    add up to at most 1: all of its records together move the sum no further.
    """
    return CLIP_NORM * (1 + dimension * 2.0**-25 + 2.0**-15)


def rate(noise: float) -> float:
    """Return the learning rate at which noise of this deviation in every step adds up to LOGIT_NOISE."""
    return LOGIT_NOISE / (noise * math.sqrt(STEPS))


def descended(
    directions: Floats,
    records: Sums,
    rows: Rows,
    mu: float,
    randomness: Randomness,
) -> Floats:
    """Return the weights (C, D) that STEPS noisy steps of mu together lead to from the directions (C, D).

    rows: makes v (n, D), at most 1 long, each a function of its record and of what was released. Raises TrainingError
    for records in too many files.
    """
    check_shards(records)
    classes, dimension = directions.shape
    network, vector = Network((dimension, classes)), law(mu, classes, dimension)
    parameters = np.zeros(network.size)
    ((weights, _),) = network.layers(parameters)
    weights[:] = START * directions.T
    step = rate(vector.standard_deviation)
    for _ in range(STEPS):
        total = records.total(functools.partial(_gradients, network=network, parameters=parameters, rows=rows))
        ((of_weights, _),) = network.layers(total)
        weights -= step * vector.release_part(of_weights, randomness)
    return weights.T.copy()


def _gradients(shard: Shard, _: None, *, network: Network, parameters: Floats, rows: Rows) -> Floats:
    """Return a shard's sum of clipped gradients, (size,)."""
    total = np.zeros_like(parameters)
    for v, y, weights in shard.blocks(rows):
        total += network.clipped_sum(parameters, v, y, math.sqrt(2) * CLIP_NORM, weights)
    return total
