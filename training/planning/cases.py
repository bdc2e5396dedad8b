"""A case: records to train on and rows held out. Its heads are trained once, for noise is cheap beside training."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mechanisms.answer_noise import AnswerNoise
from training.data.records import Declaration, Records
from training.feature_maps import NORM_BOUND, FeatureMap
from training.objective import RegularisedCrossEntropy
from training.planning import rules
from training.planning.rules import Features
from training.quantised import norms, quantised
from training.releases.dpsgd.train import directions_of
from training.sensitivity import logit_sensitivity_per_norm, quantised_weight_sensitivity, weight_sensitivity
from training.solver import minimise

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

MOST_ASKED = 10_000
"""Rows that are held out and asked about: an accuracy on them is within 0.01 of that on all."""

TOLERANCE = 1e-2
"""tau of every head here: it adds 1.4 % to the sensitivity, and is reached by any solver in use."""


_BINS = 15


@dataclass(frozen=True)
class Quality:
    """What answers are worth. log_loss: in nats; calibration_error, interval: as `quality` says. None: not known."""

    accuracy: float
    log_loss: float | None = None
    calibration_error: float | None = None
    interval: float | None = None


def quality(probabilities: Floats, labels: Labels, noise: Floats | None = None) -> Quality:
    """Return what answers (m, C) are worth on rows of these classes (m,).

    noise: the standard deviation of Gaussian noise on each row's logits, (m,), where it is known: then `interval` is
    the mean width of the interval that is shown with the likeliest class's probability.

    The calibration error is the expected one (Guo et al. 2017): over 15 bins of equal width of the likeliest class's
    probability, the mean distance of accuracy and probability, each bin weighted by its rows.
    """
    likeliest, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    right = likeliest == labels
    bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    off = np.bincount(bins, right, minlength=_BINS) - np.bincount(bins, sure, minlength=_BINS)
    own = np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(np.float64).tiny)
    width = None
    if noise is not None and (ends := AnswerNoise("gaussian", noise).intervals(probabilities)) is not None:
        lower, upper = ends
        width = float((upper - lower)[np.arange(len(labels)), likeliest].mean())
    return Quality(float(right.mean()), float(-np.log(own).mean()), float(np.abs(off).sum() / len(labels)), width)


@dataclass(frozen=True, eq=False)
class Case:
    """Records to train on, and rows that were held out. X, asked: (n, d) within 0 and 1.

    name, seed: what noise follows from. split: equal for equal records and rows.
    """

    name: str
    seed: int
    X: Floats
    y: Labels
    asked: Floats
    answers: Labels
    classes: int
    split: str = ""

    @cached_property
    def records(self) -> Records:
        """The records as an owner would declare them."""
        d = self.X.shape[1]
        declaration = Declaration(
            tuple(f"x{index}" for index in range(d)),
            (0.0,) * d,
            (1.0,) * d,
            tuple(str(label) for label in range(self.classes)),
        )
        return Records(self.X, self.y, declaration, (self.split.encode(),))

    def accuracy(self, answers: Floats) -> float:
        """The share of the rows asked whose likeliest class is the true one. answers: (m, C)."""
        return float((answers.argmax(axis=1) == self.answers).mean())

    def quality(self, probabilities: Floats, noise: Floats | None = None) -> Quality:
        """What answers (m, C) to the rows asked are worth. noise: see `quality`."""
        return quality(probabilities, self.answers, noise)

    @cached_property
    def constant(self) -> Quality:
        """What it is worth to answer every row with the shares of the classes among the records."""
        counts = np.bincount(self.y, minlength=self.classes) + 0.5
        return self.quality(np.tile(counts / counts.sum(), (len(self.answers), 1)))


@dataclass(frozen=True, eq=False)
class Heads:
    """Features and weights of a case, kept while it lasts."""

    case: Case
    _records: dict[Features, Floats] = field(default_factory=dict, repr=False)
    _asked: dict[Features, Floats] = field(default_factory=dict, repr=False)
    _weights: dict[tuple[Features, float], Floats] = field(default_factory=dict, repr=False)
    _directions: dict[Features, Floats] = field(default_factory=dict, repr=False)

    def of(self, case: Case) -> "Heads":
        """The same heads for another seed's noise on the same records."""
        if case.split != self.case.split:
            raise ValueError("heads are of one split of the records")
        return Heads(case, self._records, self._asked, self._weights, self._directions)

    def asked(self, features: Features) -> Floats:
        """phi of the rows asked: (m, D)."""
        if features not in self._asked:
            chosen = self.feature_map(features)
            self._asked[features] = chosen(self.case.asked, chosen.public_tensors())
        return self._asked[features]

    def directions(self, features: Features) -> Floats:
        """What DP-SGD makes of the records before it knows its budget: (n, D)."""
        if features not in self._directions:
            # Of one map at a time, as the records below.
            self._records.clear()
            self._directions.clear()
            self._directions[features] = directions_of(self.case.X, self.feature_map(features))
        return self._directions[features]

    def records(self, features: Features) -> Floats:
        """phi of the records: (n, D)."""
        if features not in self._records:
            # Only one map's are kept: those of many records fill the memory.
            self._records.clear()
            self._directions.clear()
            chosen = self.feature_map(features)
            self._records[features] = chosen(self.case.X, chosen.public_tensors())
        return self._records[features]

    def weights(self, features: Features, strong_convexity: float) -> Floats:
        """The exact weights (C, D) at Lambda. Raises NotConverged."""
        key = (features, strong_convexity)
        if key not in self._weights:
            objective = RegularisedCrossEntropy.of(
                self.records(features), self.case.y, self.case.classes, strong_convexity
            )
            self._weights[key] = quantised(minimise(objective, TOLERANCE))
        return self._weights[key]

    def feature_map(self, features: Features) -> FeatureMap:
        """The map, by the public rules."""
        return rules.feature_map(features, self.case.records.declaration)


def weights_move(strong_convexity: float, weights: Floats) -> float:
    """Delta_W of these heads, whose weights are (C, D)."""
    exact = weight_sensitivity(strong_convexity, TOLERANCE, NORM_BOUND)
    return quantised_weight_sensitivity(exact, *weights.shape)


def logits_move(strong_convexity: float, weights: Floats, asked: Floats) -> Floats:
    """How far the logits of each row asked move in L2: (m,). asked: phi (m, D)."""
    return logit_sensitivity_per_norm(weights_move(strong_convexity, weights)) * norms(asked)
