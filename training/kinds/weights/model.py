"""Released weights: W + N(0, sigma^2 I), drawn once at training and kept; every answer is computed from them.

The noise is `dpserve.mechanisms.gaussian_vector`'s, for the sensitivity of the head's weights: weights_mu-GDP. A
calibration (`dpserve.training.pay_once.calibration`) is computed from the noisy weights and the records, and
calibration_mu-GDP given
these: together they cost the root of the sum of both squares, by adaptive composition (Dong, Roth and Su 2022,
Corollary 3.3).
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian_vector import LARGEST_SIZE, GaussianVector, mu_for
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.bundles.certificate import SUM_OF_LOSSES, Convexified, HeadObjective, check_convexified, derive
from dpserve.training.bundles.sealing import checked_tensors, load_sealed, save_sealed, with_public_tensors
from dpserve.training.devices import NUMPY, Arithmetic, Matrix, matrices, product
from dpserve.training.errors import TrainingError
from dpserve.training.exact.quantised import norms, weight_step
from dpserve.training.fields import Several
from dpserve.training.fitting.sensitivity import LARGEST_PARAMETER, SMALLEST_PARAMETER
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.pay_once import calibration
from dpserve.training.pay_once.calibration import Calibration
from dpserve.training.pay_once.canaries import (
    CanaryPart,
    CanaryRun,
    Coins,
    labels_of,
    moved_alike,
    tensor_shapes,
)
from dpserve.training.pay_once.certificate import (
    COMMON_ASSUMPTIONS,
    ReleaseCertificate,
    check_on_grid,
)
from dpserve.training.pay_once.model import rounded

_PART = "weights"
"""The step that canaries go through."""


class WeightsCertificate(ReleaseCertificate):
    """The certificate of released weights of a certified head (`dpserve.training.bundles.certificate.Certificate`)."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = (
        *COMMON_ASSUMPTIONS,
        "The noise was drawn once, at training, and the exact weights were not kept.",
    )

    release: Literal["weights"] = "weights"
    assumptions: Several[str] = ASSUMPTIONS
    objective: HeadObjective = SUM_OF_LOSSES
    convexified: Convexified | None = Field(default=None, exclude_if=lambda convexified: convexified is None)
    """The price of the convexified objective, where the head was trained on that."""
    strong_convexity: float = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """Lambda."""
    tolerance: float = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """tau: training returned weights with a gradient norm of at most this."""
    weight_sensitivity: float
    """Delta_W: neighbouring data sets' weights differ by at most this in Frobenius norm."""
    weights_mu: float = Field(gt=0, allow_inf_nan=False)
    """The cost of the noisy weights: mu-GDP."""
    noise: float
    """The standard deviation of the noise on every weight."""
    calibration_mu: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The cost of the calibration, given the weights: mu-GDP; 0 where there is none."""

    @model_validator(mode="after")
    def _objective_is_told_of(self) -> Self:
        check_convexified(self)
        return self

    @property
    def size(self) -> int:
        """Number of weights."""
        return len(self.classes) * self.feature_map.dimension

    def derived_cost(self) -> Cost:
        """Return the composition of weights and calibration: see the module."""
        return Cost((GaussianLoss(self.weights_mu), *calibration.losses(self.calibration_mu)))

    def vector(self) -> GaussianVector:
        """The law of the noise on the weights. Raises ValueError where it cannot be drawn."""
        return GaussianVector(self.weights_mu, self.size, self.weight_sensitivity)

    def canary_parts(self) -> tuple[CanaryPart, ...]:
        """Return the weights, as they were drawn.

        A canary's features are the unit vector of a column of its own, where no record has anything: the objective is
        a sum of one in the records' columns and one for each canary in its column w,

            CE(w, y) + (Lambda/2) |w|^2,   so that   Lambda w = e_y - softmax(w):

        w_y = t and every other number is -t/(C - 1), with Lambda t = 1 - p_y. That is t < (1 - 1/C)/Lambda, and |w| =
        t sqrt(C/(C - 1)) < sqrt(1 - 1/C)/Lambda, while the claim is for sqrt(2)/Lambda: that is reached by a record of
        which the others are sure that it has another class, and a canary has its column for itself. So canaries show
        at most sqrt((1 - 1/C)/2) of the mu that is claimed, half of it for two classes.
        """
        if self.canaries is None:
            return ()
        if self.convexified is not None:
            raise ValueError("canaries go with the plain sum of losses")
        classes, number = len(self.classes), self.canaries.number
        weight = alone(self.strong_convexity, classes)
        direction = np.full(classes, -weight / (classes - 1))
        direction[0] = weight
        moved = moved_alike(direction, labels_of(number, classes))
        # The solver's error over all columns, and half a step of the grid that weights are rounded to.
        off = self.tolerance / self.strong_convexity
        off += weight_step(number) * math.sqrt(moved.size)
        vector = self.vector()
        return (CanaryPart(_PART, self.weights_mu, moved, vector.standard_deviation, vector.step, slack=off),)

    def derived(self) -> Mapping[str, object]:
        """Return the cost, the sensitivity (`dpserve.training.bundles.certificate.derive`) and the noise."""
        shape = len(self.classes), self.feature_map.dimension
        convexity = None if self.convexified is None else self.convexified.convexity
        figures = derive(self.strong_convexity, self.tolerance, *shape, convexity)
        sensitivity = figures["weight_sensitivity"]
        objective: dict[str, object] = {name: figures[name] for name in ("objective", "convexified") if name in figures}
        noise = GaussianVector(self.weights_mu, self.size, sensitivity).standard_deviation
        return {**super().derived(), **objective, "weight_sensitivity": sensitivity, "noise": noise}


def alone(strong_convexity: float, classes: int) -> float:
    """Return t = (1 - p)/Lambda, p = e^t/(e^t + (C - 1) e^(-t/(C - 1))): `WeightsCertificate.canary_parts`."""
    low, high = 0.0, 1 / strong_convexity
    for _ in range(100):
        t = (low + high) / 2
        others = math.exp(-t * classes / (classes - 1)) * (classes - 1)
        low, high = (t, high) if others / (1 + others) > strong_convexity * t else (low, t)
    return low


@dataclass(frozen=True, eq=False)
class ReleasedWeights:
    """A linear head on a public feature map, with noisy weights, (C, D)."""

    certificate: WeightsCertificate
    released: Floats
    tensors: dict[str, Floats]
    calibration: Calibration
    arithmetic: Arithmetic = NUMPY
    """The library that computes its products."""
    canaries: CanaryRun | None = None
    """Released of canaries in the same run."""

    @functools.cached_property
    def weights(self) -> Floats:
        """The noisy weights, `rounded` for exact products: (C, D)."""
        return rounded(self.released)

    def probabilities(self, X: Floats) -> Floats:
        """See `dpserve.training.pay_once.model.ReleasedModel`."""
        return self.answers(X)[0]

    def answers(self, X: Floats) -> tuple[Floats, AnswerNoise]:
        """See `dpserve.training.pay_once.model.ReleasedModel`."""
        phi = self.certificate.feature_map(X, self._public)
        return softmax(self.calibration(product(phi, self._placed.T))), AnswerNoise(GAUSSIAN, self._noise(phi))

    def logits(self, X: Floats) -> Floats:
        """Return the logits (n, C) of rows (n, d), before calibration."""
        return product(self.certificate.feature_map(X, self._public), self._placed.T)

    @functools.cached_property
    def _placed(self) -> Matrix:
        return self.arithmetic.matrix(np.asfortranarray(self.weights))

    @functools.cached_property
    def _public(self) -> dict[str, Matrix]:
        return matrices(self.arithmetic, self.tensors)

    def _noise(self, phi: Floats) -> Floats:
        """Return the standard deviation of the noise on each logit, (n,).

        Logit c is b <T_c, phi(x)> plus a public number, T the noisy weights, b the calibration's scale, and its noise
        b <N_c, phi(x)> with N_c ~ N(0, V I): Gaussian of variance b^2 V ||phi(x)||^2, and independent of the other
        classes'. One draw of it serves all answers. b and the public number were computed after N was drawn, from all
        records: they are taken as if they did not depend on N. With two classes that changes nothing: how far
        <N, phi(x)> lies from 0, in its own standard deviations, is the same for every b.
        """
        spread: Floats = self.calibration.scale * self.certificate.noise * norms(phi)
        return spread


def release_weights(
    head: CertifiedHead,
    price: int,
    lineage: str,
    randomness: Randomness,
    records: Records | None = None,
    canaries: int | None = None,
) -> ReleasedWeights:
    """Draw the released weights of a certified head, at a price in picorho.

    records: those that the head was trained on, to calibrate on; None to leave probabilities as they come, surer than
    they are right. canaries: how many there are. The head's exact weights should then be forgotten: only the release
    was paid for. Raises TrainingError for a price out of range, and where canaries refute the certificate.
    """
    trained = head.certificate
    if records is not None and records.unit != trained.unit:
        raise TrainingError("the head was trained with other privacy units than those of these records")
    part, rest = calibration.divided(price) if records is not None else (0, price)
    calibration_mu = calibration.mu_of(part)
    size = head.weights.size
    if size > LARGEST_SIZE:
        raise TrainingError(f"there are {size} weights, and a release has at most {LARGEST_SIZE}; use fewer features")
    try:
        vector = GaussianVector(mu_for(rest), size, trained.weight_sensitivity)
    except ValueError as error:
        raise TrainingError(f"this price is not possible with {size} weights: {error}") from error
    coins = None if canaries is None else Coins.drawn(canaries, randomness)
    certificate = WeightsCertificate.fresh(
        trained.name,
        trained,
        trained.feature_map,
        lineage,
        unit=trained.unit,
        cost=str(Cost((GaussianLoss(vector.mu), *calibration.losses(calibration_mu)))),
        objective=trained.objective,
        convexified=trained.convexified,
        strong_convexity=trained.strong_convexity,
        tolerance=trained.tolerance,
        weight_sensitivity=trained.weight_sensitivity,
        weights_mu=vector.mu,
        noise=vector.standard_deviation,
        calibration_mu=calibration_mu,
        canaries=None if coins is None else coins.certified(),
    )
    classes = len(trained.classes)
    beside = np.empty((classes, 0))
    if coins is not None:
        # Who loads a model needs no solver.
        from dpserve.training.kinds.weights.canaries import canary_weights

        beside = canary_weights(coins, trained.strong_convexity, classes, trained.tolerance)
    released, of_canaries = vector.release_beside(head.weights, beside, randomness)
    run = None
    if coins is not None:
        run = CanaryRun(coins, {_PART: of_canaries.T})
        certificate = certificate.with_canaries(run)
    model = ReleasedWeights(certificate, released, head.tensors, Calibration.none(classes), canaries=run)
    if records is None:
        return model
    made = calibration.calibrated(records.sums, model.logits, classes, calibration_mu, randomness)
    return replace(model, calibration=made)


def save_weights(folder: Path, model: ReleasedWeights) -> WeightsCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = {"released": model.released, "calibration": model.calibration.numbers}
    if model.canaries is not None:
        own |= model.canaries.tensors()
    return save_sealed(folder, with_public_tensors(own, model.tensors), model.certificate)


def load_weights(folder: Path, device: str | None = None) -> ReleasedWeights:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, WeightsCertificate, device)
    public = certificate.feature_map.public_tensors()
    shape = (len(certificate.classes), certificate.feature_map.dimension)
    shapes: dict[str, tuple[int, ...]] = {"released": shape, "calibration": (shape[0] + 1,)}
    shapes |= tensor_shapes(certificate.canaries, certificate.canary_parts())
    own = checked_tensors(tensors, shapes, public)
    check_on_grid("released", own["released"], certificate.vector().step)
    calibrated = Calibration.read(own["calibration"])
    run = certificate.checked_canaries(own)
    return ReleasedWeights(certificate, own["released"], public, calibrated, canaries=run)
