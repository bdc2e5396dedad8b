"""The weights of a model's branches and of the class shares, paid for once, from what usually is best.

With z_k the logits of the branches, in their usual scales (`steps.usual_scale`), the answer is

    softmax(theta_1 z_1 + ... + theta_K z_K + gamma l),    l = ln of the noisy shares of the classes,

so that the constant predictor (0, ..., 0, 1), each branch alone, and the branches as they are (1, ..., 1, 0) are all
among the answers. A branch that learned nothing but noise is switched off, as far as records say so.

What is released is what `dpserve.training.pay_once.calibration` releases, of more numbers: first the noisy counts of
the classes, then in each of ROUNDS rounds noisy sums of the gradient of the cross-entropy in (theta, gamma) and of its
second derivatives. The sensitivity is as there: a record adds COUNTS_PART to one count, and to a round a vector of
length at most ROUND_PART, a function of the record and of what was released before, in whole steps of 2^-28
(`record_terms`), and COUNTS_PART^2 + ROUNDS ROUND_PART^2 <= 1. Of a privacy unit the parts are weighed as there.

What is made of it is post-processing. Branches come in their usual scales, so that theta is usually near 1. That is
taken for a prior, N(1, SPREAD^2) for each theta and N(SHARES_MEAN, SHARES_SPREAD^2) for gamma, and each round for an
observation, with noise of known size, of a function that is nearly quadratic: with the means t of where rounds looked,
g of the gradients and H of the second derivatives, H theta is H t - g but for noise of variance s^2 on each number.
The next round looks at the theta that is likeliest then (Gaussian linear regression), and the last one is the result.
Where noise drowns what records say, that is near the usual scale, and where there are many records, the prior counts
for nothing. On 40 tables at epsilon 1, of the head alone, log loss was .009 above that of the two best numbers in the
mean and .003 in the median, and .021 in the mean by `calibration`, which takes no scale for usual; of a head and a
network, on the 19 tables with REACH_OF_CLASS or more, .004 above the three best.
"""

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.losses import Cost
from dpserve.mechanisms import elementary
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.inputs.sums import Rows, Shard, Sums, check_count
from dpserve.training.kinds.dpsgd.steps import Training
from dpserve.training.pay_once.calibration import GRID, released_shares, share_of, summed, terms_of
from dpserve.training.pay_once.chain import ModelStep, PublicNumbers
from dpserve.training.pay_once.releases import Release

if TYPE_CHECKING:
    from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate
    from dpserve.training.pay_once.certificate import ReleaseCertificate

ROUNDS = 4
ROUND_PART = math.floor(math.sqrt(0.6 / ROUNDS) * GRID) / GRID

SPREAD, SHARES_MEAN, SHARES_SPREAD = 0.5, 0.2, 0.4
"""Found with the usual scales; spreads of .3 to .7 did nearly as well."""

_LARGEST, _LARGEST_OF_SHARES = 64.0, 2.0


def law(mu: float, classes: int, branches: int) -> GaussianVector:
    """Return how all parts of a mixture are released together. Raises ValueError where they cannot be."""
    return GaussianVector(mu, classes + ROUNDS * _numbers(branches + 1), 1.0)


def _numbers(weights: int) -> int:
    """Return how many numbers a round has: the gradient, and the second derivatives on and above the diagonal."""
    return weights + weights * (weights + 1) // 2


class Mix(ModelStep[Training]):
    """The mixture of a model's branches: the module has the proof."""

    name = "calibration"

    def share(self, price: int, numbers: PublicNumbers) -> int:  # noqa: ARG002 - of every model alike
        """Return its share of the price, as for `calibration`."""
        return share_of(price)

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost of all parts. Raises ValueError for a mu that no mixture can have."""
        branches = cast("DpSgdCertificate", certificate).branches
        return law(mu, len(certificate.classes), len(branches)).cost

    def run(self, state: Training, release: Release, randomness: Randomness) -> Training:
        """Return the state with weights in each branch's last layer, and the offsets in the first branch's.

        Raises TrainingError for too many records.
        """
        certificate = state.model.certificate
        classes, branches = len(certificate.classes), len(certificate.branches)
        scales, offsets = mixed(state.mapped, state.parts, classes, branches, release.mu, randomness)
        for place, (branch, scale) in enumerate(zip(certificate.branches, scales, strict=True)):
            parameters = state.model.parameters[place].copy()
            weights, biases = branch.network.layers(parameters)[-1]
            weights *= scale
            biases *= scale
            if not place:
                biases += offsets
            state = state.with_parameters(place, parameters)
        return state


MIXTURE = Mix()


def mixed(
    records: Sums, parts: Rows, classes: int, branches: int, mu: float, randomness: Randomness
) -> tuple[Floats, Floats]:
    """Release a mixture of mu, by `law`: each branch's scale, (K,), and offsets of the classes, (C,).

    parts: the branches' logits beside each other, (m, K C), each row a function of a record and of released numbers,
    bit for bit. Raises TrainingError for too many records.
    """
    check_count(sum(records.lengths))
    vector = law(mu, classes, branches)
    shares, bound = released_shares(records, vector, classes, randomness)
    mean = np.append(np.ones(branches), SHARES_MEAN)
    precision = np.append(np.full(branches, SPREAD), SHARES_SPREAD) ** -2.0
    degrees = np.append(np.ones(branches + 1), np.full(_numbers(branches + 1) - branches - 1, 2))
    weights, places, sums = mean, [], []
    for _ in range(ROUNDS):
        places.append(weights)
        term = functools.partial(round_term, rows=parts, weights=weights, shares=shares, bound=bound)
        released = vector.release_part(records.total(term) / GRID, randomness)
        sums.append(released / ROUND_PART * bound**degrees)
        weights = _likeliest((mean, precision), places, sums, vector.standard_deviation / ROUND_PART * bound, bound)
    return weights[:-1], weights[-1] * shares


def round_term(shard: Shard, _: None, *, rows: Rows, weights: Floats, shares: Floats, bound: float) -> Integers:
    """Return what a shard adds to a round, in steps."""
    return summed(
        shard,
        rows,
        _numbers(len(weights)),
        lambda logits, y: record_terms(np.hsplit(logits, len(weights) - 1), y, weights, shares, bound),
    )


def record_terms(parts: Sequence[Floats], y: Integers, weights: Floats, shares: Floats, bound: float) -> Integers:
    """Return what each record adds to a round, (n, numbers), in steps of 2^-28: at most ROUND_PART long.

    They are those of `calibration.terms_of`, of the logits (n, C) of each branch and of l = `shares`, p being the
    softmax of their weighed sum.
    """
    with np.errstate(all="ignore"):
        each = [*parts, np.broadcast_to(shares, parts[0].shape)]
        p = elementary.softmax(functools.reduce(np.add, [w * a for w, a in zip(weights, each, strict=True)]))
        return terms_of(each, p, y, bound, ROUND_PART)


def _likeliest(
    prior: tuple[Floats, Floats], places: Sequence[Floats], sums: Sequence[Floats], noise: float, bound: float
) -> Floats:
    """Return the likeliest weights, (K + 1,), given the rounds so far.

    prior: the mean and the precision of each. places: where rounds looked. sums: what they had, (numbers,), in nats.
    noise: the standard deviation of the noise on each number of a gradient, bound times which is that of a second
    derivative.

    Second derivatives are raised by the standard deviation of their mean: one that noise makes too small leads too far.
    A round that looked at a distance r from the last one is off by about half the second derivative times r^2, and
    counts the less for it.
    """
    mean, precision = prior
    weights = len(mean)
    second = np.zeros((weights, weights))
    second[np.triu_indices(weights)] = np.mean(sums, axis=0)[weights:]
    values, vectors = np.linalg.eigh(second, UPLO="U")
    values = np.maximum(values, 0.0) + noise * bound / math.sqrt(len(sums))
    second = (vectors * values) @ vectors.T
    apart = np.square(np.subtract(places, places[-1])).sum(axis=1)
    counts = 1 / (noise**2 + np.square(0.5 * values[-1] * apart))
    place, gradient = (np.average(each, axis=0, weights=counts) for each in (places, np.array(sums)[:, :weights]))
    left = np.diag(precision) + counts.sum() * second @ second
    right = precision * mean + counts.sum() * second @ (second @ place - gradient)
    least = np.append(np.zeros(weights - 1), -_LARGEST_OF_SHARES)
    most = np.append(np.full(weights - 1, _LARGEST), _LARGEST_OF_SHARES)
    likeliest: Floats = np.clip(np.linalg.solve(left, right), least, most)
    return likeliest
