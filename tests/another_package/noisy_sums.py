"""Noisy sums of each class's features: a kind of model that uses features, and all of it is this file."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dpserve.accounting.disclosure import Declared
from dpserve.mechanisms.answer_noise import UnknownNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for
from dpserve.training.bundles.sealing import checked_tensors, load_sealed, save_sealed, with_public_tensors
from dpserve.training.fields import Several
from dpserve.training.kinds.kind import PayOnceKind
from dpserve.training.options import Options, option
from dpserve.training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate, check_on_grid
from dpserve.training.pay_once.chain import Step
from dpserve.training.pay_once.classifier import ReleasedClassifier
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.pay_once.model import rounded
from dpserve.training.pay_once.prediction_sets import COUNTS

NO_INTERVALS = "nobody worked out how far noise moves an answer"


class Sums(Options):
    """The options of noisy sums."""

    sharpness: float = option(10.0, "The longest row of weights: larger ones make answers surer.", gt=0, le=1000)


class FeatureSums(Step):
    """The sums of the features of each class's records, (C, D), with Gaussian noise.

    The proof. phi(x) is at most 1 long, and a record adds it to the row of its class alone: one record more or fewer
    moves the sums by at most 1 in L2. phi has whole multiples of 2^-24, so that sums of fewer than 2^29 records, which
    training checks, are exact in float64, in any order.
    """

    name = "feature sums"
    is_needed = True

    def cost(self, mu, certificate):
        """Return the cost. Raises ValueError for a mu that no sums can have."""
        return certificate.law_of(mu).cost


FEATURE_SUMS = FeatureSums()


class SumsCertificate(ReleaseCertificate):
    """The certificate of noisy sums."""

    STEPS = (CUTS, FEATURE_SUMS, COUNTS)

    release: Declared[Literal["sums"]] = "sums"
    assumptions: Declared[Several[str]] = COMMON_ASSUMPTIONS
    sharpness: Declared[float] = Field(gt=0, le=1000)

    @property
    def law(self):
        """The noise on the sums."""
        return self.law_of(self.mu_of(FEATURE_SUMS))

    def law_of(self, mu):
        """Return the noise of a release of mu."""
        return GaussianVector(mu, len(self.classes) * self.feature_map.dimension, 1.0)


@dataclass(frozen=True, eq=False)
class NoisySums:
    """Noisy sums (C, D)."""

    certificate: SumsCertificate
    sums: Any
    tensors: dict

    @cached_property
    def weights(self):
        """The sums as weights (C, D), whose products with phi round nothing."""
        longest = np.sqrt((self.sums * self.sums).sum(axis=1).max())
        return rounded(self.sums * (self.certificate.sharpness / max(longest, 1.0)))

    def values(self, X):
        """Return the probabilities."""
        phi = self.certificate.feature_map(X, self.tensors)
        return softmax(phi @ self.weights.T)

    def answers(self, X):
        """Return the probabilities, of whose noise nothing is said."""
        return self.values(X), UnknownNoise(NO_INTERVALS)


class SumsKind(PayOnceKind):
    """Noisy sums of features."""

    name = "sums"
    sentence = "noisy sums of each class's features"
    options = Sums
    certificate_type = SumsCertificate
    limitations = PayOnceKind.limitations | {
        "intervals": NO_INTERVALS,
        "units": "counts a record once, and sums of shares of records would be rounded",
    }

    def train(self, job, options):
        """Add up, add noise, and save."""
        records, map_ = job.records, job.feature_map
        if len(records) >= 2**29:
            raise ValueError("there are too many records to add up exactly")
        tensors = map_.public_tensors()
        phi = map_(records.X, tensors)
        sums = np.stack([phi[records.y == label].sum(axis=0) for label in range(len(records.declaration.classes))])
        law = GaussianVector(mu_for(job.model_price), sums.size, 1.0)
        bought = (*job.before, FEATURE_SUMS.bought(law.cost))
        certificate = SumsCertificate.fresh(
            job.name, records.declaration, map_, job.lineage, releases=bought, sharpness=options.sharpness
        )
        released = law.release(sums.reshape(-1), job.randomness).reshape(sums.shape)
        return save_sealed(job.out, with_public_tensors({"sums": released}, tensors), certificate)

    def load(self, folder, device):
        """Read and verify."""
        certificate, tensors = load_sealed(folder, SumsCertificate, device)
        public = certificate.feature_map.public_tensors()
        shape = (len(certificate.classes), certificate.feature_map.dimension)
        sums = checked_tensors(tensors, {"sums": shape}, public)["sums"]
        check_on_grid("sums", sums, certificate.law.step)
        return NoisySums(certificate, sums, public)

    def classifier(self, model):
        """Return what the model computes: one layer without biases."""
        layer = model.weights.T, np.zeros(len(model.certificate.classes))
        return ReleasedClassifier(model.certificate, model.tensors, ((layer,),))


KIND = SumsKind()
