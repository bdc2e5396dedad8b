"""The certificate of released weights."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from dpserve.accounting.disclosure import Declared
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.training.bundles.certificate import SUM_OF_LOSSES, Convexified, HeadObjective, check_convexified, derive
from dpserve.training.exact.quantised import weight_step
from dpserve.training.fields import Several
from dpserve.training.fitting.sensitivity import LARGEST_PARAMETER, SMALLEST_PARAMETER
from dpserve.training.kinds.weights.steps import WEIGHTS
from dpserve.training.pay_once.calibration import CALIBRATION
from dpserve.training.pay_once.canaries import CanaryPart, labels_of, moved_alike
from dpserve.training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate
from dpserve.training.pay_once.chain import Step
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.pay_once.prediction_sets import COUNTS


class WeightsCertificate(ReleaseCertificate):
    """The certificate of released weights of a certified head (`dpserve.training.bundles.certificate.Certificate`)."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = (
        *COMMON_ASSUMPTIONS,
        "The noise was drawn once, at training, and the exact weights were not kept.",
    )

    STEPS: ClassVar[tuple[Step, ...]] = (CUTS, WEIGHTS, CALIBRATION, COUNTS)

    release: Declared[Literal["weights"]] = "weights"
    assumptions: Declared[Several[str]] = ASSUMPTIONS
    objective: Declared[HeadObjective] = SUM_OF_LOSSES
    convexified: Declared[Convexified | None] = Field(default=None, exclude_if=lambda convexified: convexified is None)
    """The price of the convexified objective, where the head was trained on that."""
    strong_convexity: Declared[float] = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """Lambda."""
    tolerance: Declared[float] = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """tau: training returned weights with a gradient norm of at most this."""
    weight_sensitivity: Declared[float]
    """Delta_W: neighbouring data sets' weights differ by at most this in Frobenius norm."""
    noise: Declared[float]
    """The standard deviation of the noise on every weight."""

    @model_validator(mode="after")
    def _objective_is_told_of(self) -> Self:
        check_convexified(self)
        return self

    @property
    def size(self) -> int:
        """Number of weights, at most."""
        return len(self.classes) * self.feature_map.declared.dimension

    def vector(self, mu: float | None = None) -> GaussianVector:
        """Return the law of the noise on the weights. Raises ValueError where it cannot be drawn.

        mu: of the release, None for the certificate's own.
        """
        return GaussianVector(self.mu_of(WEIGHTS) if mu is None else mu, self.size, self.weight_sensitivity)

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
        return (CanaryPart(WEIGHTS.name, vector.mu, moved, vector.standard_deviation, vector.step, slack=off),)

    def derived(self) -> Mapping[str, object]:
        """Return the cost, the sensitivity (`dpserve.training.bundles.certificate.derive`) and the noise."""
        shape = len(self.classes), self.feature_map.declared.dimension
        convexity = None if self.convexified is None else self.convexified.convexity
        figures = derive(self.strong_convexity, self.tolerance, *shape, convexity)
        sensitivity = figures["weight_sensitivity"]
        objective: dict[str, object] = {name: figures[name] for name in ("objective", "convexified") if name in figures}
        noise = GaussianVector(self.mu_of(WEIGHTS), self.size, sensitivity).standard_deviation
        return {**super().derived(), **objective, "weight_sensitivity": sensitivity, "noise": noise}


def alone(strong_convexity: float, classes: int) -> float:
    """Return t = (1 - p)/Lambda, p = e^t/(e^t + (C - 1) e^(-t/(C - 1))): `WeightsCertificate.canary_parts`."""
    low, high = 0.0, 1 / strong_convexity
    for _ in range(100):
        t = (low + high) / 2
        others = math.exp(-t * classes / (classes - 1)) * (classes - 1)
        low, high = (t, high) if others / (1 + others) > strong_convexity * t else (low, t)
    return low
