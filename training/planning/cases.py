"""A case: records to train on and rows held out. Its heads are trained once, for noise is cheap beside training."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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

    def weights(self, features: Features, strong_convexity: float) -> Floats:
        """The exact weights (C, D) at Lambda. Raises NotConverged."""
        key = (features, strong_convexity)
        if key not in self._weights:
            chosen = self.feature_map(features)
            tensors = chosen.public_tensors()
            if features not in self._records:
                # Only one map's are kept: those of many records fill the memory.
                self._records.clear()
                self._directions.clear()
                self._records[features] = chosen(self.case.X, tensors)
            objective = RegularisedCrossEntropy(
                self._records[features], self.case.y, self.case.classes, strong_convexity
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
