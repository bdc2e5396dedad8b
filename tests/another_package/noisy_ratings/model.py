"""The model: a sum of ratings with Gaussian noise, over a declared number of records."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dpserve.accounting.disclosure import Declared
from dpserve.mechanisms.answer_noise import NumberNoise
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for
from dpserve.training.bundles.sealing import checked_tensors, load_sealed, save_sealed, with_public_tensors
from dpserve.training.errors import TrainingError
from dpserve.training.fields import Several
from dpserve.training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate, check_on_grid
from dpserve.training.pay_once.chain import Step
from dpserve.training.pay_once.cuts import CUTS


class Total(Step):
    """The sum of the ratings, with Gaussian noise: one record changes it by at most the largest rating."""

    name = "total"
    is_needed = True

    def cost(self, mu, certificate):
        """Return the cost. Raises ValueError for a mu that no total can have."""
        return certificate.law_of(mu).cost


TOTAL = Total()


class RatingsCertificate(ReleaseCertificate):
    """The certificate of a noisy mean."""

    STEPS = (CUTS, TOTAL)

    release: Declared[Literal["ratings"]] = "ratings"
    assumptions: Declared[Several[str]] = COMMON_ASSUMPTIONS
    records_declared: Declared[int] = Field(ge=1)

    @property
    def law(self):
        """The noise on the sum."""
        return self.law_of(self.mu_of(TOTAL))

    def law_of(self, mu):
        """Return the noise of a release of mu."""
        return GaussianVector(mu, 1, max(abs(float(each)) for each in self.classes))


@dataclass(frozen=True, eq=False)
class Ratings:
    """A noisy sum (1,)."""

    certificate: RatingsCertificate
    total: Any
    tensors: dict

    def values(self, X):
        """Return the mean for every row (n, 1)."""
        return np.tile(self.total / self.certificate.records_declared, (len(X), 1))

    def answers(self, X):
        """Return the mean for every row (n, 1), and its noise."""
        deviation = self.certificate.law.standard_deviation / self.certificate.records_declared
        return self.values(X), NumberNoise(np.full(len(X), deviation))


def train_ratings(records, name, feature_map, price, n, lineage, randomness, before=()):
    """Add up the records' ratings, with noise."""
    try:
        ratings = np.array([float(each) for each in records.declaration.classes])
    except ValueError as error:
        raise TrainingError("ratings are classes whose names are numbers") from error
    law = GaussianVector(mu_for(price), 1, float(np.abs(ratings).max()))
    total = np.array([np.bincount(records.y, records.weights, minlength=len(ratings)) @ ratings])
    certificate = RatingsCertificate.fresh(
        name, records.declaration, feature_map, lineage, releases=(*before, TOTAL.bought(law.cost)), records_declared=n
    )
    return Ratings(certificate, law.release(total, randomness), feature_map.public_tensors())


def save_ratings(folder, model):
    """Write the bundle."""
    return save_sealed(folder, with_public_tensors({"total": model.total}, model.tensors), model.certificate)


def load_ratings(folder, device):
    """Read and verify the bundle."""
    certificate, tensors = load_sealed(folder, RatingsCertificate, device)
    public = certificate.feature_map.public_tensors()
    total = checked_tensors(tensors, {"total": (1,)}, public)["total"]
    check_on_grid("total", total, certificate.law.step)
    return Ratings(certificate, total, public)
