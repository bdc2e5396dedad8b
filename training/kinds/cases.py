"""A case: records to train on and rows held out. Its heads are trained once, for noise is cheap beside training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev

import numpy as np

from dpserve.accounting.arrays import Floats, Labels, Singles
from dpserve.mechanisms.answer_noise import AnyNoise, Uncertainty
from dpserve.training.exact.quantised import norms, quantised
from dpserve.training.features import rules
from dpserve.training.features.feature_map import NORM_BOUND
from dpserve.training.features.hog import Shape
from dpserve.training.features.maps import FeatureMap
from dpserve.training.features.rules import FeatureRule
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.sensitivity import (
    logit_sensitivity_per_norm,
    quantised_weight_sensitivity,
    weight_sensitivity,
)
from dpserve.training.fitting.solver import minimise
from dpserve.training.inputs.records import Declaration, Records

MOST_ASKED = 10_000
"""Rows that are held out and asked about: an accuracy on them is within 0.01 of that on all."""

TOLERANCE = 1e-2
"""tau of every head here: it adds 1.4 % to the sensitivity, and is reached by any solver in use."""


SETS_COVERAGE = 900
"""The coverage in thousandths at which sizes of prediction sets are compared."""

_BINS = 15


@dataclass(frozen=True)
class Quality:
    """The quality of answers. log_loss: in nats; others: as `quality` says. None: not known.

    set_size: the mean size of prediction sets for SETS_COVERAGE, were records held back for them.
    """

    accuracy: float
    log_loss: float | None = None
    calibration_error: float | None = None
    interval: float | None = None
    undecided: float | None = None
    set_size: float | None = None


@dataclass(frozen=True)
class Estimate:
    """The expected quality of an option, over a number of seeds.

    mean, spread: mean and standard deviation of the accuracy, None where it cannot be; log_loss, calibration_error,
    interval, undecided, set_size: see `Quality`, None where they are not known.
    """

    option: str
    mean: float | None
    spread: float | None = None
    seeds: int | None = None
    log_loss: float | None = None
    calibration_error: float | None = None
    interval: float | None = None
    undecided: float | None = None
    set_size: float | None = None

    @classmethod
    def over(cls, option: str, qualities: Sequence[Quality], seeds: int) -> "Estimate":
        """Return the mean of what so many seeds reached, or that it cannot be."""
        if len(qualities) < seeds:
            return cls(option, None)
        accuracies = [quality.accuracy for quality in qualities]
        return cls(
            option,
            fmean(accuracies),
            stdev(accuracies) if seeds > 1 else None,
            seeds,
            mean_of([quality.log_loss for quality in qualities]),
            mean_of([quality.calibration_error for quality in qualities]),
            mean_of([quality.interval for quality in qualities]),
            mean_of([quality.undecided for quality in qualities]),
            mean_of([quality.set_size for quality in qualities]),
        )


def mean_of(figures: Sequence[float | None]) -> float | None:
    """Return the mean, or None where one is not known."""
    known = [figure for figure in figures if figure is not None]
    return fmean(known) if known and len(known) == len(figures) else None


def quality(probabilities: Floats, labels: Labels, noise: AnyNoise | None = None) -> Quality:
    """Return what answers (m, C) are worth on rows of these classes (m,).

    noise: what is known of it. Where that makes intervals, `interval` is the mean width of the one that is shown with
    the likeliest class's probability, and `undecided` the share of the answers whose likeliest class noise could have
    made so.

    The calibration error is the expected one (Guo et al. 2017): over 15 bins of equal width of the likeliest class's
    probability, the mean distance of accuracy and probability, each bin weighted by its rows.
    """
    likeliest, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    right = likeliest == labels
    bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    off = np.bincount(bins, right, minlength=_BINS) - np.bincount(bins, sure, minlength=_BINS)
    own = np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(np.float64).tiny)
    width = undecided = None
    uncertainty = None if noise is None else Uncertainty(noise, probabilities)
    if uncertainty is not None and (ends := uncertainty.intervals) is not None:
        lower, upper = ends
        width = float((upper - lower)[np.arange(len(labels)), likeliest].mean())
        if (each := uncertainty.undecided) is not None:
            undecided = float(each.mean())
    calibration_error = float(np.abs(off).sum() / len(labels))
    return Quality(float(right.mean()), float(-np.log(own).mean()), calibration_error, width, undecided)


def numbers_declared(columns: int, classes: int) -> Declaration:
    """Return the declaration of so many columns within 0 and 1, and of so many classes."""
    names = tuple(f"x{index}" for index in range(columns))
    return Declaration(names, (0.0,) * columns, (1.0,) * columns, tuple(str(label) for label in range(classes)))


@dataclass(frozen=True, eq=False)
class Case:
    """Records to train on, and rows that were held out. X, asked: (n, d), within what is declared.

    name, seed: what noise follows from. split: equal for equal records and rows. declared: None for columns within 0
    and 1 that are nothing but numbers. image_shape: of rows that are images.
    """

    name: str
    seed: int
    X: Floats
    y: Labels
    asked: Floats
    answers: Labels
    classes: int
    split: str = ""
    declared: Declaration | None = None
    image_shape: Shape | None = None

    @cached_property
    def records(self) -> Records:
        """The records as an owner would declare them."""
        declaration = self.declared or numbers_declared(self.X.shape[1], self.classes)
        return Records(self.X, self.y, declaration, (self.split.encode(),))

    def accuracy(self, answers: Floats) -> float:
        """The share of the rows asked whose likeliest class is the true one. answers: (m, C)."""
        return float((answers.argmax(axis=1) == self.answers).mean())

    def quality(self, probabilities: Floats, noise: AnyNoise | None = None) -> Quality:
        """Return the quality of answers (m, C) to the rows asked. noise: see `quality`."""
        return quality(probabilities, self.answers, noise)

    @cached_property
    def constant(self) -> Quality:
        """Return the quality of the answer that gives every row the shares of the classes among the records."""
        counts = np.bincount(self.y, minlength=self.classes) + 0.5
        return self.quality(np.tile(counts / counts.sum(), (len(self.answers), 1)))


@dataclass(frozen=True, eq=False)
class Heads:
    """Features and weights of a case, kept while it lasts."""

    case: Case
    _records: dict[FeatureMap, Floats] = field(default_factory=dict, repr=False)
    _asked: dict[FeatureMap, Floats] = field(default_factory=dict, repr=False)
    _weights: dict[tuple[FeatureMap, float], Floats] = field(default_factory=dict, repr=False)
    _directions: dict[FeatureMap, Singles] = field(default_factory=dict, repr=False)

    def asked(self, chosen: FeatureMap) -> Floats:
        """phi of the rows asked: (m, D)."""
        if chosen not in self._asked:
            self._asked[chosen] = chosen(self.case.asked, chosen.public_tensors())
        return self._asked[chosen]

    def directions(self, chosen: FeatureMap, directions_of: Callable[[Floats, FeatureMap], Singles]) -> Singles:
        """Return what a function makes of the records before it knows the budget, (n, D): always the same function."""
        if chosen not in self._directions:
            # Of one map at a time, as the records below.
            self._records.clear()
            self._directions.clear()
            self._directions[chosen] = directions_of(self.case.X, chosen)
        return self._directions[chosen]

    def records(self, chosen: FeatureMap) -> Floats:
        """phi of the records: (n, D)."""
        if chosen not in self._records:
            # Only one map's are kept: those of many records fill the memory.
            self._records.clear()
            self._directions.clear()
            self._records[chosen] = chosen(self.case.X, chosen.public_tensors())
        return self._records[chosen]

    def weights(self, chosen: FeatureMap, strong_convexity: float) -> Floats:
        """The exact weights (C, D) at Lambda. Raises NotConverged."""
        key = (chosen, strong_convexity)
        if key not in self._weights:
            objective = RegularisedCrossEntropy.from_rows(
                self.records(chosen), self.case.y, self.case.classes, strong_convexity
            )
            self._weights[key] = quantised(minimise(objective, TOLERANCE))
        return self._weights[key]

    def feature_map(self, features: FeatureRule, *, head: bool = False) -> FeatureMap:
        """The map, by the public rules."""
        return rules.feature_map(features, self.case.records.declaration, self.case.image_shape, head=head)


def weights_move(strong_convexity: float, weights: Floats) -> float:
    """Delta_W of these heads, whose weights are (C, D)."""
    exact = weight_sensitivity(strong_convexity, TOLERANCE, NORM_BOUND)
    return quantised_weight_sensitivity(exact, *weights.shape)


def logits_move(strong_convexity: float, weights: Floats, asked: Floats) -> Floats:
    """Return the sensitivity in L2 of the logits of each row asked: (m,). asked: phi (m, D)."""
    return logit_sensitivity_per_norm(weights_move(strong_convexity, weights)) * norms(asked)
