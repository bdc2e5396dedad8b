"""Teachers as a service sees them, with the methods of a certified head, and their bundle. Serving needs no PyTorch."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats, Integers
from mechanisms.randomness import NoiseKey
from training.bundles.sealing import (
    checked_tensors,
    layer_shapes,
    layer_tensors,
    layers_in,
    load_sealed,
    noise_key_of,
    save_sealed,
    with_noise_key,
    with_public_tensors,
)
from training.devices import NUMPY, Arithmetic, Matrix, matrices
from training.errors import BundleError
from training.exact.network import Layers, PlacedLayers, are_exact, logits, placed, rounded, shares
from training.kinds.teachers.certificate import Rule, TeachersCertificate

_TAUGHT = "taught"

GRID = 2**30
"""An answer is a vector of integers of sum at most GRID, which stands for 1."""


@dataclass(frozen=True, eq=False)
class Teachers:
    """m networks and which of them have records.

    layers: as `training.exact.network.exact_layers` returns them; taught: (m,); tensors: the feature map's public ones;
    noise_key: what the noise of their answers follows from; arithmetic: what computes their products.
    """

    certificate: TeachersCertificate
    layers: Layers
    taught: NDArray[np.bool_]
    tensors: dict[str, Floats]
    noise_key: NoiseKey
    arithmetic: Arithmetic = NUMPY

    def features(self, X: Floats) -> Floats:
        """phi of each row, (n, D): the questions. Public."""
        return self.certificate.feature_map(X, self._public)

    def logits(self, phi: Floats) -> Floats:
        """The mean of the teachers' answers times the temperature, (n, C), never shown: the same bits everywhere.

        Answers are whole numbers, whose sum, below 2^45, is exact.
        """
        total: Integers = np.zeros((len(phi), len(self.certificate.classes)), dtype=np.int64)
        for teacher in range(self.certificate.teachers):
            total += self.answers(teacher, phi)
        mean: Floats = total.astype(np.float64) * (self.certificate.temperature / (self.certificate.teachers * GRID))
        return mean

    def answers(self, teacher: int, phi: Floats) -> Integers:
        """One teacher's answer to each row, in units of 1 / GRID: (n, C). Private."""
        classes = len(self.certificate.classes)
        if not self.taught[teacher]:
            return np.full((len(phi), classes), GRID // classes, dtype=np.int64)
        probabilities = shares(logits(self._placed[teacher], rounded(phi), self.certificate.activation))
        return grid_answers(probabilities, self.certificate.rule)

    def logit_sensitivity(self, phi: Floats) -> Floats:
        """Sensitivity in L2 of each row's logits: (n,). The same for every row."""
        return np.full(len(phi), self.certificate.logit_sensitivity)

    @functools.cached_property
    def _placed(self) -> tuple[PlacedLayers, ...]:
        """Each teacher's layers; none of those that have no records."""
        return tuple(
            placed(tuple((weights[each], biases[each]) for weights, biases in self.layers), self.arithmetic)
            if taught
            else ()
            for each, taught in enumerate(self.taught)
        )

    @functools.cached_property
    def _public(self) -> dict[str, Matrix]:
        return matrices(self.arithmetic, self.tensors)


def grid_answers(probabilities: Floats, rule: Rule) -> Integers:
    """Return probabilities (n, C) as a teacher's answers: non-negative integers of sum at most GRID in every row.

    A row that is not finite answers like one without records, and a sum that rounding took above GRID is nothing.
    """
    n, classes = probabilities.shape
    finite = np.isfinite(probabilities).all(axis=1)
    answers: Integers = np.full((n, classes), GRID // classes, dtype=np.int64)
    if rule == "votes":
        answers[finite] = 0
        answers[finite, probabilities[finite].argmax(axis=1)] = GRID
        return answers
    answers[finite] = np.trunc(np.clip(probabilities[finite], 0, 1) * (GRID * (1 - 2.0**-30))).astype(np.int64)
    answers[answers.sum(axis=1) > GRID] = 0
    return answers


def save_teachers(folder: Path, model: Teachers) -> TeachersCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    tensors = with_public_tensors(layer_tensors(model.layers), model.tensors) | with_noise_key(model.noise_key)
    return save_sealed(folder, tensors | {_TAUGHT: model.taught.astype(np.uint8)}, model.certificate)


def load_teachers(folder: Path, device: str | None = None) -> Teachers:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, TeachersCertificate, device)
    noise_key, public = noise_key_of(tensors), certificate.feature_map.public_tensors()
    taught = tensors.pop(_TAUGHT, np.empty(0))
    if taught.shape != (certificate.teachers,) or taught.dtype != np.uint8:
        raise BundleError(f"the bundle does not say which of {certificate.teachers} teachers have records")
    widths = certificate.widths
    layers = layers_in(checked_tensors(tensors, layer_shapes(widths, certificate.teachers), public), widths)
    if not are_exact(layers, certificate.activation):
        raise BundleError("the teachers' weights are not in the steps, or beyond the bounds, in which sums are exact")
    return Teachers(certificate, layers, taught.astype(np.bool_), public, noise_key)
