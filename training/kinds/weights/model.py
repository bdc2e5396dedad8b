"""Released weights as a service sees them: W + N(0, sigma^2 I), drawn once; every answer is computed from them."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.training.devices import NUMPY, Arithmetic, Matrix, matrices, product
from dpserve.training.exact.quantised import norms
from dpserve.training.pay_once.calibration import Calibration
from dpserve.training.pay_once.canaries import CanaryRun
from dpserve.training.pay_once.model import rounded

if TYPE_CHECKING:
    from dpserve.training.kinds.weights.certificate import WeightsCertificate


@dataclass(frozen=True, eq=False)
class ReleasedWeights:
    """A linear head on a public feature map, with noisy weights, (C, D)."""

    certificate: "WeightsCertificate"
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

    def values(self, X: Floats) -> Floats:
        """See `dpserve.training.pay_once.model.ReleasedModel`."""
        return softmax(self.calibration(self.logits(X)))

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
