"""Calibrated probabilities: a scale for a released model's logits, and how much the class shares count, paid for once.

Noise makes a model surer than it is right, by how much nobody can say without records: on pure noise the best scale is
0, on supermarket baskets it is 50. A small share of the budget buys two numbers. With z the logits, the answer is

    softmax(beta z + gamma l),    l = ln of the noisy shares of the classes,

so that the constant predictor (0, 1), the uniform one (0, 0) and the model as it is (1, 0) are all among the answers.
A negative gamma takes back what a model that was held small leans towards the common classes.

What is released, by one Gaussian vector on the records (`law`): first the noisy counts of the classes; then, in each of
ROUNDS rounds, noisy sums of the gradient and the curvature of the cross-entropy, which say where the next round looks:
from (0, 1) in (beta, gamma) at first, and in (ln beta, gamma) from there. The mean of where the last rounds end is
taken.

The sensitivity. A record adds to the counts COUNTS_PART in one coordinate, and to a round a vector of length at most
ROUND_PART, whatever the rounds before have given (`record_terms`): a function of this record and of what was released
before, in whole steps of 2^-28, so that sums of at most MOST_RECORDS terms are exact and every other record's term has
the same bits. COUNTS_PART^2 + ROUNDS ROUND_PART^2 <= 1: one record more or less moves all parts together by at most 1,
and `GaussianVector.release_part` says why parts that are chosen by the ones before cost no more than one vector.
Of a privacy unit each record's parts are multiplied by its weight and rounded towards zero, and weights add up to at
most 1 (`dpserve.training.inputs.records.Units`): all records of a unit together move all parts by at most 1, too. The
model's weights were released before; that release and this one compose adaptively, and add the squares of their mus
(Dong, Roth and Su 2022, Corollary 3.3).

The records that the model was trained on are used again. What its release has learnt of one record alone is small as
its mu is, so that its logits there are nearly those of a new row; only at large budgets and few records for each class
is the scale a little high (docs/mechanisms.md).

A gradient counts up to a bound of each number, in nats: a record that the model is sure of and wrong about weighs no
more. That biases beta upwards where a model is often sure and wrong, and lets the noise be small. The bound follows
from the noisy counts (`counted`), which are released by then: parts of one Gaussian vector may be chosen by the ones
before.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.losses import Cost
from dpserve.mechanisms import elementary
from dpserve.mechanisms.gaussian_vector import LARGEST_PRICE, LEAST_PRICE, GaussianVector
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.errors import BundleError
from dpserve.training.inputs.sums import Rows, Shard, Sums, check_count
from dpserve.training.pay_once.chain import ModelStep, PublicNumbers
from dpserve.training.pay_once.releases import Release

if TYPE_CHECKING:
    from dpserve.training.pay_once.certificate import ReleaseCertificate

SHARE = Fraction(3, 100)
"""The share of a model's price that buys its calibration, or the least that a release may cost if that is more."""

MOST_SHARE = Fraction(1, 5)
"""Where the least release would take more than this share, the model is not calibrated."""

ROUNDS = 6
_AVERAGED = 3
GRID = 2**28
_NUMBERS = 5

COUNTS_PART = math.floor(math.sqrt(0.4) * GRID) / GRID
ROUND_PART = math.floor(math.sqrt(0.6 / ROUNDS) * GRID) / GRID

_LARGEST_LOGIT = 2.0**20
_LEAST_FIRST, _LARGEST_FIRST = 2.0**-3, 2.0**6
"""Bounds of the scale after the first round."""
_MOST_OF_SHARES = 2.0
"""|gamma| is at most this."""
_BEYOND, _CLEAR = 1.5, 24.0
_CAUTION = 2.0
"""Number of standard deviations of a gradient's noise by which curvature is raised: little evidence moves little."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """A calibration of a model's logits (n, C) before the softmax: scale times them, plus offsets (C,)."""

    scale: float
    offsets: Floats

    @classmethod
    def none(cls, classes: int) -> Self:
        """Leave logits as they are."""
        return cls(1.0, np.zeros(classes))

    @classmethod
    def read(cls, numbers: Floats) -> Self:
        """Return what `numbers` wrote."""
        return cls(float(numbers[0]), numbers[1:])

    @property
    def numbers(self) -> Floats:
        """The scale and the offsets, (1 + C,), for a bundle."""
        return np.concatenate([[self.scale], self.offsets])

    def __call__(self, logits: Floats) -> Floats:
        """Return the calibrated logits, (n, C)."""
        calibrated: Floats = self.scale * logits + self.offsets
        return calibrated


def share_of(price: int) -> int:
    """Return what calibration may cost of a price, both in picorho.

    That is SHARE, or what the least release costs if that is more, and nothing where that is above MOST_SHARE.
    """
    part = min(max(math.floor(price * SHARE), LEAST_PRICE), LARGEST_PRICE)
    return 0 if part > price * MOST_SHARE else part


def law(mu: float, classes: int) -> GaussianVector:
    """Return how all parts of a calibration are released together. Raises ValueError where they cannot be."""
    return GaussianVector(mu, classes + ROUNDS * _NUMBERS, 1.0)


class Calibrated(Protocol):
    """The state of a training whose model was released, and may be calibrated."""

    @property
    def sums(self) -> Sums:
        """The records."""
        ...

    @property
    def classes(self) -> int:
        """The number of classes."""
        ...

    @property
    def logits(self) -> Rows:
        """The model's logits (m, C), as sums see them: see `calibrated`."""
        ...

    def with_calibration(self, calibration: Calibration) -> Self:
        """Return the state with this calibration."""
        ...


class Calibrate(ModelStep[Calibrated]):
    """The calibration of a model that was released: the module has the proof."""

    name = "calibration"

    def share(self, price: int, numbers: PublicNumbers) -> int:  # noqa: ARG002 - of every model alike
        """Return `share_of` the price."""
        return share_of(price)

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost of all parts. Raises ValueError for a mu that no calibration can have."""
        return law(mu, len(certificate.classes)).cost

    def run(self, state: Calibrated, release: Release, randomness: Randomness) -> Calibrated:
        """Return the state with a calibration."""
        return state.with_calibration(calibrated(state.sums, state.logits, state.classes, release.mu, randomness))


CALIBRATION = Calibrate()


def calibration_in(numbers: Floats, certificate: "ReleaseCertificate") -> Calibration:
    """Return the calibration that a bundle holds. Raises BundleError for one that no release paid for."""
    calibration = Calibration.read(numbers)
    none = Calibration.none(len(certificate.classes))
    if certificate.release_of(CALIBRATION) is None and not np.array_equal(calibration.numbers, none.numbers):
        raise BundleError("the model is calibrated, and its certificate has no release of a calibration")
    return calibration


def calibrated(records: Sums, logits: Rows, classes: int, mu: float, randomness: Randomness) -> Calibration:
    """Release a calibration of mu for a model that was released, on the records that it was trained on.

    logits: the model's (m, C), each row a function of a record and of released numbers, bit for bit.
    Raises TrainingError for too many records.
    """
    check_count(sum(records.lengths))
    vector = law(mu, classes)
    shares, bound = released_shares(records, vector, classes, randomness)
    noise = vector.standard_deviation
    log_scale, weight = -math.inf, 1.0
    ends = []
    for place in range(ROUNDS):
        term = functools.partial(
            round_term, rows=logits, scale=math.exp(log_scale), weight=weight, shares=shares, bound=bound
        )
        total = records.total(term)
        noisy = vector.release_part(total / GRID, randomness) / ROUND_PART
        step, downhill = _steps(noisy, noise / ROUND_PART, bound, weight)
        if place == 0:
            # From the classes' shares alone, where no record is sure, Newton's step in the scale itself comes close.
            step /= max(1.0, abs(float(step[1])))
            log_scale = math.log(min(max(step[0], _LEAST_FIRST), _LARGEST_FIRST))
        else:
            step = downhill / max(1.0, float(np.abs(downhill).max()))
            log_scale += step[0]
        weight = min(max(weight + step[1], -_MOST_OF_SHARES), _MOST_OF_SHARES)
        ends.append((log_scale, weight))
    log_scale, weight = np.mean(ends[-_AVERAGED:], axis=0)
    return Calibration(math.exp(log_scale), weight * shares)


def released_shares(
    records: Sums, vector: GaussianVector, classes: int, randomness: Randomness
) -> tuple[Floats, float]:
    """Release the counts of the classes, a vector's first part: return `log_shares` (C,), and `counted`."""
    counts = records.total(functools.partial(counts_term, classes=classes)) / GRID
    noise = vector.standard_deviation / COUNTS_PART
    noisy_counts = vector.release_part(counts, randomness) / COUNTS_PART
    shares = log_shares(noisy_counts, noise)
    return shares, counted(noisy_counts, noise, shares)


def counts_term(shard: Shard, _: None, *, classes: int) -> Integers:
    """Return what a shard adds to the counts, (C,), in steps."""
    total = np.zeros(classes, dtype=np.int64)
    for _X, y, weights in shard.blocks():
        parts = np.full(len(y), COUNTS_PART * GRID) if weights is None else np.trunc(COUNTS_PART * GRID * weights)
        # At most 2^10 numbers of at most 2^28: exact in doubles.
        total += np.bincount(y, parts, classes).astype(np.int64)
    return total


def round_term(
    shard: Shard, _: None, *, rows: Rows, scale: float, weight: float, shares: Floats, bound: float
) -> Integers:
    """Return what a shard adds to a round, (5,), in steps."""
    return summed(shard, rows, _NUMBERS, lambda logits, y: record_terms(logits, y, scale, weight, shares, bound))


def summed(shard: Shard, rows: Rows, numbers: int, terms: Callable[[Floats, Integers], Integers]) -> Integers:
    """Return the sum of a shard's terms, (numbers,). terms: of logits (m, .) and y (m,), in steps."""
    total = np.zeros(numbers, dtype=np.int64)
    for logits, y, weights in shard.blocks(rows):
        each = terms(np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT), y)
        if weights is not None:
            each = np.trunc(each * weights[:, None]).astype(np.int64)
        total += each.sum(axis=0)
    return total


def log_shares(counts: Floats, noise: float) -> Floats:
    """Return ln of the classes' shares, (C,), of mean 0, from counts with noise of this standard deviation.

    Counts are shrunk towards their mean by how much of their variance is noise (Efron and Morris 1973), and none stays
    below a twentieth of the mean, or below 1.
    """
    mean = max(float(counts.sum()) / len(counts), 1.0)
    signal = max(float(np.square(counts - mean).mean()) - noise * noise, 0.0)
    shrunk = mean + (counts - mean) * (signal / (signal + noise * noise))
    logarithms = np.log(np.maximum(shrunk, max(1.0, mean / 20)))
    shares: Floats = logarithms - logarithms.mean()
    return shares


def counted(counts: Floats, noise: float, shares: Floats) -> float:
    """Return b, up to how many nats a number of a record's gradient counts, from released numbers alone.

    2 + ln C: two beyond what a guess loses. A record of a rare class loses more by the classes' shares alone, and most
    of what it says is then cut off: beta ran to three times what it should be where one class in ten had 10 % of the
    records, and the more so, the less noise there was. So b is at least _BEYOND and what a record of any class loses
    by the shares, as far as that class stands out of the noise: in proportion to the square of its count, up to _CLEAR
    standard deviations. Below, a wider bound would add more noise than it takes bias; a declared class that nobody has
    changes nothing for the others. Found on parts of the training records of 18 tables and MNIST that were held back,
    at epsilon 1, 4 and 8.
    """
    guess = 2 + math.log(len(counts))
    lost = np.log(np.exp(shares).sum()) - shares
    clear = np.minimum(np.maximum(counts / noise, 0.0) / _CLEAR, 1.0) ** 2
    return guess + float((np.maximum(lost + _BEYOND - guess, 0.0) * clear).max())


def record_terms(logits: Floats, y: Integers, scale: float, weight: float, shares: Floats, bound: float) -> Integers:
    """Return what each record adds to a round, (n, 5), in steps of 2^-28: at most ROUND_PART long.

    With p = softmax(scale logits + weight l), a = scale logits, or logits for a scale of 0, l = `shares` and b =
    `bound`: the means under p of (a - a_y)/b and (l - l_y)/b, which are the gradient, and the variances and the
    covariance of a and l under p over b^2, as `terms_of` has them.
    """
    with np.errstate(all="ignore"):
        p = elementary.softmax(logits * scale + weight * shares)
        return terms_of([logits * (scale or 1.0), np.broadcast_to(shares, logits.shape)], p, y, bound, ROUND_PART)


def terms_of(each: Sequence[Floats], p: Floats, y: Integers, bound: float, part: float) -> Integers:
    """Return records' terms of a round, (n, k + k (k + 1)/2), in steps of 2^-28: at most `part` long.

    each: k arrays a_j (n, C). p: (n, C), probabilities. With b = `bound`: the means under p of (a_j - a_j,y)/b, and the
    covariances of a_i and a_j under p over b^2, i <= j. Each number is clipped to [-1, 1] and the vector to a length of
    1, which stands for `part`, whatever b > 0 is.

    A record's numbers are made of operations that IEEE 754 rounds in one way, `elementary.exp` and sums from left to
    right, so that they do not depend on the records beside it. The computed length is within 2^-48 of itself; the
    vector is scaled 2^-20 shorter than it may be, and rounded towards zero, which makes none longer. A value that is
    not a number counts as 0.
    """
    own = np.arange(len(y))
    with np.errstate(all="ignore"):
        means = [elementary.row_sums(p * a) for a in each]
        around = [a - mean[:, None] for a, mean in zip(each, means, strict=True)]
        numbers = np.column_stack(
            [(mean - a[own, y]) / bound for a, mean in zip(each, means, strict=True)]
            + [
                elementary.row_sums(p * around[i] * around[j]) / bound**2
                for i, j in zip(*np.triu_indices(len(each)), strict=True)
            ]
        )
        numbers[np.isnan(numbers)] = 0.0
        np.clip(numbers, -1, 1, out=numbers)
        lengths = np.sqrt(elementary.row_sums(numbers * numbers))
    numbers *= (part * (1 - 2.0**-20) * GRID / np.maximum(lengths, 1.0))[:, None]
    steps: Integers = np.trunc(numbers, out=numbers).astype(np.int64)
    return steps


def _steps(sums: Floats, noise: float, bound: float, weight: float) -> tuple[Floats, Floats]:
    """Return Newton's step and a downhill one, (2,), from noisy sums of records' terms, (5,): each at most 1 long.

    The downhill step is Newton's where each number goes against its own part of the gradient. Where it does not, scale
    and weight would run away from each other, because curvatures are of clipped terms: on flights of an airport they
    did, to a log loss of 3.6 where 0.51 was to be had. There each number goes down its own part, over a curvature that
    is at least the matrix [[a, b], [b, c]]: the diagonal one of a + |b| and c + |b| (Gershgorin).

    noise: the standard deviation of the sums' noise; bound: `counted`. A weight other than 0 costs as much as half its
    square in nats.
    """
    gradient = sums[:2] * bound + np.array([0.0, weight])
    along, both, across = sums[2:] * bound**2
    least = _CAUTION * noise * bound
    values, vectors = np.linalg.eigh(np.array([[along, both], [both, across]]))
    newton: Floats = -vectors @ ((vectors.T @ gradient) / (np.maximum(values, 0.0) + least))
    if (newton * gradient <= 0).all():
        return newton, newton
    return newton, -gradient / (np.maximum([along, across], 0.0) + abs(both) + least)
