"""Class sums continued by gradient steps: full-batch gradient descent under noise, from the sums' directions.

The directions of the classes say where the records of a class are, and not which records they get wrong. So a share of
the price buys STEPS noisy sums of gradients of the cross-entropy, in a model that has a constant BIAS beside a row v:
its logits are W v + BIAS o, and descent starts from W = START sqrt(C) directions and o = 0. A step subtracts the noisy
sum times its rate (`rates`): so little that all noise together moves a logit by LOGIT_NOISE, and that the loss, whose
curvature grows with the number of records, does not swing from side to side (Adult without that limit lost 0.08 of its
accuracy at epsilon 8).

The rule's numbers were found at epsilon 0.5 to 8 on parts of the training records of Location, retail baskets, Adult
with and without bins, MNIST with and without histograms of gradients, and digits, that were held back; `rates` again on
diamonds, magic, satimage, letter, texture and Adult with cuts, at epsilon 1 to 8.
"""

import functools
import math
from fractions import Fraction

import numpy as np

from dpserve.accounting.arrays import Floats, Integers
from dpserve.mechanisms.gaussian_vector import LARGEST_SIZE, LEAST_PRICE, GaussianVector, mu_for
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.fitting.network import Network, check_shards
from dpserve.training.inputs.sums import Rows, Shard, Sums
from dpserve.training.pay_once.canaries import CanaryPart, moved_alike

SHARE = Fraction(1, 6)
"""The share that steps are paid from of what calibration leaves of mu^2."""

STEPS = 20
START = 4.0
BIAS = 0.25
"""A record's constant coordinate, beside a row of length 1. A power of two, so that multiplying by it rounds nothing.
Without one, steps undo the sums where one class is much larger."""
CLIP_NORM = 0.3
"""No record's gradient in W is longer."""
LOGIT_NOISE = 0.4
"""The standard deviation that the noise of all steps together gives each weight, and a logit of a row of length 1."""
LARGEST_RATE = 96.0
"""No learning rate is above this for one record in a class, and the limit falls to 0 over the steps: the curvature
grows as the records of a class do. With a limit that stays, steps swing where rows have much in common: diamonds with
cuts had log loss 0.84 at epsilon 1 and 0.91 at 4, now 0.83 and 0.82."""

_CANARY_ERROR = 1e-6
"""More than a canary's clipped gradient is off by, relatively: its factors are on grids."""

LEAST_SIGNAL, LEAST_OF_CLASS, LEAST_OF_WEIGHT = 600.0, 40.0, Fraction(1, 3)
"""Steps are taken from so many records times mu on, in all and for each class, and from so many records for each
weight of a coordinate that counts. Below, they were worth no more than the sums that they cost: Location, with 0.26
records for each weight, lost up to 0.02 by them at every epsilon. Cuts of one number that lie near each other count
together (`FeatureMap.degrees`): texture with cuts, of as many records for each weight, had log loss 0.85 at epsilon 4
without steps and has 0.44 with them."""


def share_of(price: int, classes: int, dimension: int, records_declared: int | None, degrees: int | None = None) -> int:
    """Return what the steps may cost of a price, both in picorho.

    degrees: of the feature map, where they are fewer than its coordinates. The steps get SHARE, and nothing where
    records_declared, a public number, is None or too few, where their share is less than a release may cost, or where
    their sums are too many numbers.
    """
    part = math.floor(price * SHARE)
    if part < LEAST_PRICE or STEPS * classes * (dimension + 1) > LARGEST_SIZE or records_declared is None:
        return 0
    if records_declared * mu_for(price) < max(LEAST_SIGNAL, LEAST_OF_CLASS * classes):
        return 0
    return 0 if records_declared < LEAST_OF_WEIGHT * classes * (degrees or dimension) else part


def law(mu: float, classes: int, dimension: int) -> GaussianVector:
    """Return how the sums of gradients of all steps are released together. Raises ValueError where they cannot be.

    Proof. Neighbours have one record more or fewer. Given what was released before, the weights of a step are public,
    and so is the mean that rows are taken around: a record's row v, at most 1 long, is a function of that record. In a
    `Network` of one layer its gradient is (v, 1) (p - e_y)^T, and `Network.clipped_sum` at the norm sqrt(2) CLIP_NORM
    scales it by s <= sqrt(2) CLIP_NORM / (sqrt(|v|^2 + 1) |p - e_y|). The biases' part is multiplied by BIAS < 1, so
    what a record adds has the norm s |p - e_y| sqrt(|v|^2 + BIAS^2) <= sqrt(2) CLIP_NORM sqrt((|v|^2 + BIAS^2) / (|v|^2
    + 1)). That grows with |v| and is CLIP_NORM sqrt(1 + BIAS^2) for |v| = 1. So a record moves the sum of a step by at
    most that, but for rounding, `movement`. All STEPS sums are parts of one Gaussian vector, each moved by at most
    that whatever the parts before were, and the squares add up to STEPS times its square
    (`GaussianVector.release_part`): mu-GDP. Rates and weights are post-processing. Given the sums this composes
    adaptively with them and adds its mu^2 (Dong, Roth and Su 2022, Corollary 3.3).
    """
    sensitivity = math.sqrt(STEPS) * movement(dimension) * (1 + 2.0**-50)
    return GaussianVector(mu, STEPS * classes * (dimension + 1), sensitivity)


def movement(dimension: int) -> float:
    """Return how far one record of at most unit length moves the computed sum of a step, at most.

    CLIP_NORM sqrt(1 + BIAS^2) as `law` proves, and rounding. `exact.on_grid` moves each of D coordinates by at most
    g/2, g = 2^(e + h - 26), with 2^h < 2 sqrt(D) and, for rows at most 1 long, 2^e <= 2: |v| grows by at most sqrt(D)
    g/2 < D 2^-25, and the bound, which grows no faster than |v|, by no more of itself. The sum's rounding moves
    neighbours apart by at most SUM_ERROR = 2^-13 times sqrt(2) CLIP_NORM (`Network.clipped_sum`). Of a privacy unit
    each record's part has its weight, and these add up to at most 1: all of its records together move the sum no
    further.
    """
    return CLIP_NORM * math.sqrt(1 + BIAS**2) * (1 + dimension * 2.0**-25 + 2.0**-12)


def rates(noise: float, classes: int, records_declared: int) -> Floats:
    """Return the learning rate of each step, (STEPS,).

    At a rate that noise of this deviation in every step makes add up to LOGIT_NOISE, and at most LARGEST_RATE for one
    record in a class times the share of the steps that are left.
    """
    left: Floats = 1 - np.arange(STEPS) / STEPS
    limited: Floats = np.minimum(
        LOGIT_NOISE / (noise * math.sqrt(STEPS)), left * LARGEST_RATE * classes / records_declared
    )
    return limited


def canary_part(mu: float, dimension: int, classes: int, labels: Integers) -> CanaryPart:
    """Return the law of what all steps together release of canaries of these classes (N,), each in a column of its own.

    A canary's v is the unit vector of its column, whose weights stay at 0: what is released there is not followed. So
    its probabilities are 1/C, its gradient in them is (1/C - e_y) times what clips it, s = min(1, CLIP_NORM/sqrt(1 -
    1/C)) (`law`), and the same in every step.
    """
    vector, length = law(mu, classes, dimension), math.sqrt(1 - 1 / classes)
    scale = STEPS * min(1.0, CLIP_NORM / length)
    direction = np.full(classes, scale / classes)
    direction[0] -= scale
    root = math.sqrt(STEPS)
    moved = moved_alike(direction, labels)
    slack, deviation = _CANARY_ERROR * float(np.linalg.norm(moved)), root * vector.standard_deviation
    return CanaryPart("steps", mu, moved, deviation, vector.step, slack=slack, draws=STEPS)


def canary_gradient(records: Sums, rows: Rows, number: int, classes: int) -> Floats:
    """Return what the included ones of so many canaries add to a step in their own columns' weights, (number, C)."""
    network = Network((number, classes))
    parameters = np.zeros(network.size)
    total = records.total(functools.partial(gradient_sum, network=network, parameters=parameters, rows=rows))
    ((of_weights, _),) = network.layers(total)
    return of_weights


def descended(
    begun: Floats,
    records: Sums,
    rows: Rows,
    mu: float,
    records_declared: int,
    randomness: Randomness,
    canaries: Floats | None = None,
) -> tuple[Floats, Floats, Floats | None]:
    """Return the weights (C, D) and the constants (C,) of the logits that steps of mu lead to.

    With them what all steps together released of canaries, of the shape of `canaries`: their own gradient in a step.

    begun: the weights that the first step is taken from, released numbers. rows: makes v (n, D), at most 1 long, each a
    function of its record and of what was released. Raises TrainingError for records in too many files.
    """
    check_shards(records)
    classes, dimension = begun.shape
    network, vector = Network((dimension, classes)), law(mu, classes, dimension)
    parameters = np.zeros(network.size)
    ((weights, constants),) = network.layers(parameters)
    weights[:] = begun.T
    unmoved = np.empty(0) if canaries is None else canaries.ravel()
    beside = np.zeros_like(unmoved)
    for step in rates(vector.standard_deviation, classes, records_declared).tolist():
        total = records.total(functools.partial(gradient_sum, network=network, parameters=parameters, rows=rows))
        network.layers(total)[0][1][:] *= BIAS
        released, more = vector.release_beside(total, unmoved, randomness)
        beside += more
        ((of_weights, of_constants),) = network.layers(released)
        weights -= step * of_weights
        constants -= step * BIAS * of_constants
    return weights.T.copy(), constants.copy(), None if canaries is None else beside.reshape(canaries.shape)


def gradient_sum(shard: Shard, _: None, *, network: Network, parameters: Floats, rows: Rows) -> Floats:
    """Return a shard's sum of clipped gradients, (size,)."""
    total = np.zeros_like(parameters)
    for v, y, weights in shard.blocks(rows):
        total += network.clipped_sum(parameters, v, y, math.sqrt(2) * CLIP_NORM, weights)
    return total
