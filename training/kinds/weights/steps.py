"""The step of released weights: noise on the weights of a certified head."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from dpserve.accounting.losses import Cost
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.inputs.records import AnyRecords
from dpserve.training.inputs.sums import Rows, Sums
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.weights.model import ReleasedWeights
from dpserve.training.pay_once.calibration import Calibration
from dpserve.training.pay_once.canaries import CanaryRun, Coins
from dpserve.training.pay_once.chain import ModelStep
from dpserve.training.pay_once.releases import Release

if TYPE_CHECKING:
    from dpserve.training.kinds.weights.certificate import WeightsCertificate
    from dpserve.training.pay_once.certificate import ReleaseCertificate


@dataclass(frozen=True)
class Training:
    """A release of a head's weights on its way. records: those that the head was trained on, where it is calibrated."""

    head: CertifiedHead
    model: ReleasedWeights
    records: AnyRecords | None = None
    coins: Coins | None = None

    @property
    def sums(self) -> Sums:
        """The records."""
        assert self.records is not None
        return self.records.sums

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.head.certificate.classes)

    @property
    def logits(self) -> Rows:
        """The model's logits (m, C) of rows (m, d), before calibration."""
        return Rows(self.model.logits)

    def with_calibration(self, calibration: Calibration) -> Self:
        """Return it with a calibration."""
        return replace(self, model=replace(self.model, calibration=calibration))


class NoisyWeights(ModelStep[Training]):
    """W + N(0, sigma^2 I): the noise of `dpserve.mechanisms.gaussian_vector`, for the sensitivity of the head's weights
    (`dpserve.training.bundles.certificate.derive`): mu-GDP.

    The head's exact weights should then be forgotten: only the release was paid for.
    """

    name = "weights"
    is_needed = True

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost. Raises ValueError for a mu for which no noise can be drawn."""
        return cast("WeightsCertificate", certificate).vector(mu).cost

    def run(self, state: Training, release: Release, randomness: Randomness) -> Training:
        """Return the state with noisy weights."""
        certificate = state.model.certificate
        beside = np.empty((state.classes, 0))
        if state.coins is not None:
            # Who loads a model needs no solver.
            from dpserve.training.kinds.weights.canaries import canary_weights

            beside = canary_weights(state.coins, certificate.strong_convexity, state.classes, certificate.tolerance)
        vector = certificate.vector(release.mu)
        released, of_canaries = vector.release_beside(state.head.weights, beside, randomness)
        run = None if state.coins is None else CanaryRun(state.coins, {self.name: of_canaries.T})
        return replace(state, model=replace(state.model, released=released, canaries=run))


WEIGHTS = NoisyWeights()
