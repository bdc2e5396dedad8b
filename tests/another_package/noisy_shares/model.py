"""The model: counts of the classes with Gaussian noise, as shares."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dpserve.accounting.disclosure import Declared
from dpserve.mechanisms.answer_noise import UnknownNoise
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for
from dpserve.training.bundles.sealing import checked_tensors, load_sealed, save_sealed, with_public_tensors
from dpserve.training.fields import Several
from dpserve.training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate, check_on_grid
from dpserve.training.pay_once.chain import Step
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.pay_once.prediction_sets import COUNTS


class ClassCounts(Step):
    """The counts of the classes, with Gaussian noise: one record changes one count by 1."""

    name = "class counts"
    is_needed = True

    def cost(self, mu, certificate):
        """Return the cost. Raises ValueError for a mu that no counts can have."""
        return certificate.law_of(mu).cost


CLASS_COUNTS = ClassCounts()


class SharesCertificate(ReleaseCertificate):
    """The certificate of noisy shares."""

    STEPS = (CUTS, CLASS_COUNTS, COUNTS)

    release: Declared[Literal["shares"]] = "shares"
    assumptions: Declared[Several[str]] = COMMON_ASSUMPTIONS
    smoothing: Declared[float] = Field(ge=0, allow_inf_nan=False)

    @property
    def law(self):
        """The noise on the counts."""
        return self.law_of(self.mu_of(CLASS_COUNTS))

    def law_of(self, mu):
        """Return the noise of a release of mu."""
        return GaussianVector(mu, len(self.classes), 1.0)


@dataclass(frozen=True, eq=False)
class Shares:
    """Noisy counts (C,)."""

    certificate: SharesCertificate
    counts: Any
    tensors: dict

    @cached_property
    def shares(self):
        """The shares (C,), each above 0."""
        counts = np.maximum(self.counts, 0.5) + self.certificate.smoothing
        return counts / counts.sum()

    def values(self, X):
        """Return the shares for every row."""
        return np.tile(self.shares, (len(X), 1))

    def answers(self, X):
        """Return the shares, of whose noise nothing is said."""
        return self.values(X), UnknownNoise("nobody worked out how far noise moves a share")


def train_shares(records, name, feature_map, price, smoothing, lineage, randomness, before=()):
    """Count the records of each class, with noise."""
    law = GaussianVector(mu_for(price), len(records.declaration.classes), 1.0)
    counts = np.bincount(records.y, records.weights, minlength=len(records.declaration.classes)).astype(float)
    certificate = SharesCertificate.fresh(
        name,
        records.declaration,
        feature_map,
        lineage,
        releases=(*before, CLASS_COUNTS.bought(law.cost)),
        smoothing=smoothing,
    )
    return Shares(certificate, law.release(counts, randomness), feature_map.public_tensors())


def save_shares(folder, model):
    """Write the bundle."""
    return save_sealed(folder, with_public_tensors({"counts": model.counts}, model.tensors), model.certificate)


def load_shares(folder, device):
    """Read and verify the bundle."""
    certificate, tensors = load_sealed(folder, SharesCertificate, device)
    public = certificate.feature_map.public_tensors()
    counts = checked_tensors(tensors, {"counts": (len(certificate.classes),)}, public)["counts"]
    check_on_grid("counts", counts, certificate.law.step)
    return Shares(certificate, counts, public)
