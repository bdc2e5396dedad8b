"""Private choice of Lambda: candidates tried on the private records themselves, for a price.

A keyed hash of each record says whether it validates, one in `ONE_IN`, or trains. For every candidate Lambda a head is
trained on the others, and its clipped log losses on the validating records are summed. The sums are released once, with
Gaussian noise (`mechanisms.gaussian_vector`), and the candidate of the least is taken: post-processing. So "chosen by
results on the private records" has a price, which goes to the lineage with all others.

Sums and not means: how many records validate is private. `most`, a public number, is how many of them count, in the
order of their hashes, and what sums are divided by.

Pay-once models are chosen among by `training.choosing`.

Not offered: a random number of trainings of pay-once models, of which the best is kept (Liu and Talwar 2019; Papernot
and Steinke 2022). With runs of rho-zCDP, Theorem 2 of the latter bounds its Renyi divergence by some f(alpha) = rho
alpha + c + ln E[K]/(alpha - 1), without bound as alpha goes to 1. As divergences grow with alpha, it is at most the
least f at any larger order, and so zCDP of that least value, which is more than 2 sqrt(rho ln E[K]) + c. k runs one by
one cost k rho, which is less up to k = 46 for rho = 0.0359 (docs/releases.md has figures). Through (epsilon, delta) it
costs epsilon tanh(epsilon/2), as every epsilon-DP release does at most, which is cheaper from k = 71 on for rho =
0.001. With pure losses its price is two or three times the dearest run. How long training takes would tell K. Nor
the exponential mechanism, although its proof is the same: accounts of Gaussian charges do not pay for it, and for few
candidates its noise is no smaller: at equal rho 0.9 against 1.2 standard deviations for three.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats
from accounting.losses import Cost
from mechanisms.gaussian_vector import GaussianVector, mu_for
from mechanisms.randomness import Randomness
from training.bundles.certificate import LambdaChoice, derive
from training.errors import TrainingError
from training.exact.quantised import products, quantised, summands
from training.features.maps import FeatureMap
from training.fitting.objective import RegularisedCrossEntropy
from training.fitting.sensitivity import logit_sensitivity_per_norm, quantised_weight_sensitivity, weight_sensitivity
from training.fitting.solver import minimise
from training.inputs.records import Records
from training.inputs.validating import ONE_IN, keyed
from training.kinds.head.recipe import Recipe

MOST_RECORDS = 2**20
_GRID = 2**30


@dataclass(frozen=True)
class Choice:
    """Public choices of a choice. lams: the candidates; most: how many validating records count at most; mu: its price.

    Raises ValueError for fewer than two candidates, and for numbers that have no release.
    """

    lams: tuple[float, ...]
    most: int
    mu: float
    tolerance: float
    classes: int
    dimension: int

    def __post_init__(self) -> None:
        """Refuse what cannot be released."""
        if len(set(self.lams)) < max(2, len(self.lams)):
            raise ValueError("a choice has at least two candidates, each once")
        if not 1 <= self.most <= MOST_RECORDS:
            raise ValueError(f"between 1 and {MOST_RECORDS} records may validate, not {self.most}")
        _ = self.vector

    @property
    def largest_loss(self) -> float:
        """A log loss counts as at most so many nats: two more than guessing has."""
        return 2 + math.log(self.classes)

    @property
    def sensitivity(self) -> float:
        """Sensitivity in L2 of the sums of all candidates.

        Proof. What a record does follows from its own hash. Let the neighbour's record train. The validating records,
        and which of them count, are the same. Candidate j's weights move by at most Delta_j in Frobenius norm
        (`sensitivity.weight_sensitivity`) and a row's logits by at most s_j in L2 (`logit_sensitivity_per_norm`, the
        features' norm being at most 1). The gradient of the cross-entropy in the logits, p - e_y, is at most sqrt(2)
        long and clipping is 1-Lipschitz: each of at most `most` losses moves by sqrt(2) s_j, and the sum by most
        sqrt(2) s_j. Let it validate instead. The records that train are the same. If it counts, or did, at most one
        other record takes its place among those that count, so that each sum moves by the difference of two losses, or
        by one, in [0, largest_loss]: by at most largest_loss. Of the other losses, which are the same numbers, nothing
        is assumed of their bits, nor of the heads': an array of another length may be computed otherwise. Both heads
        are within tau / Lambda of one minimiser: a row's logits differ by at most t_j, the sensitivity to a record of
        length 0, and the losses that stay add at most most sqrt(2) t_j to the sum. One of the two happens: the
        sensitivity is the larger. Rounding: a loss is computed to within 2^-32 and rounded down to a multiple of 2^-30;
        their sums are exact, so that each of at most `most` losses adds less than 2^-28, in either case.
        """
        size = self.classes, self.dimension
        trains, validates = 0.0, 0.0
        for lam in self.lams:
            moved = derive(lam, self.tolerance, *size)["logit_sensitivity_per_norm"]
            stays = logit_sensitivity_per_norm(
                quantised_weight_sensitivity(weight_sensitivity(lam, self.tolerance, 0.0), *size)
            )
            trains += (self.most * (math.sqrt(2) * moved + 2.0**-28)) ** 2
            validates += (self.largest_loss + self.most * (math.sqrt(2) * stays + 2.0**-28)) ** 2
        return math.sqrt(max(trains, validates)) * (1 + 2.0**-40)

    @property
    def vector(self) -> GaussianVector:
        """The mechanism that releases the sums."""
        return GaussianVector(self.mu, len(self.lams), self.sensitivity)

    @property
    def cost(self) -> Cost:
        """mu-GDP, once, whatever is trained with the Lambda that was chosen."""
        return self.vector.cost

    @property
    def noise(self) -> float:
        """The standard deviation of the noise on a candidate's mean loss, in nats, where `most` records validate."""
        return self.vector.standard_deviation / self.most


def choice_for(lams: Sequence[float], records_declared: int, whole: int, recipe: Recipe, classes: int) -> Choice:
    """Return the choice for about so many records, a public number, and at most `whole` picorho. Raises ValueError."""
    most = max(1, records_declared // ONE_IN)
    return Choice(tuple(lams), most, mu_for(whole), recipe.tolerance, classes, recipe.feature_map.dimension)


def parted(records: Records, key: bytes, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that train and those that validate and count: see `keyed`."""
    training: list[int] = []
    validating: list[tuple[bytes, int]] = []
    for index, digest in enumerate(keyed(records, key)):
        if int.from_bytes(digest[:8], "little") % ONE_IN:
            training.append(index)
        else:
            validating.append((digest[8:], index))
    counted = [index for _, index in sorted(validating)[:most]]
    return np.array(training, dtype=np.int64), np.array(counted, dtype=np.int64)


def choose(
    records: Records,
    feature_map: FeatureMap,
    choice: Choice,
    key: bytes,
    randomness: Randomness,
    *,
    pay: Callable[[Cost], None],
    progress: Callable[[int], None] = lambda _: None,
) -> LambdaChoice:
    """Return the candidates' noisy sums of losses over `most`, in nats, of which the least decides.

    pay: charges the lineage, durably, or raises; it is called before noise is drawn. progress is told how many
    candidates are trained. Raises NotConverged, and TrainingError for records that have units.
    """
    if records.units is not None:
        raise TrainingError("a private choice is proved for one record more or fewer, and not for units of several")
    tensors = feature_map.public_tensors()
    phi = feature_map(records.X, tensors)
    training, counted = parted(records, key, choice.most)
    sums = []
    for done, lam in enumerate(choice.lams):
        objective = RegularisedCrossEntropy.from_rows(phi[training], records.y[training], choice.classes, lam)
        weights = quantised(minimise(objective, choice.tolerance))
        sums.append(loss_sum(products(phi[counted], summands(weights)), records.y[counted], choice.largest_loss))
        progress(done + 1)
    pay(choice.cost)
    noisy = choice.vector.release(np.array(sums), randomness) / choice.most
    return LambdaChoice(lams=choice.lams, most=choice.most, mu=choice.mu, losses=tuple(noisy.tolist()))


def loss_sum(logits: Floats, y: NDArray[np.int64], largest: float) -> float:
    """Return the sum of the log losses of logits (n, C), each clipped to [0, largest], in whole steps of 2^-30."""
    highest = logits.max(axis=1, initial=-np.inf)
    shifted = logits - highest[:, None]
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    steps = np.floor(np.clip(losses, 0.0, largest) * _GRID).astype(np.int64)
    return float(steps.sum()) / _GRID
