"""A bundle: a certified head in a folder, its certificate sealed into its weights (`dpserve.training.bundles.sealing`).

Loading verifies: the certificate's numbers are derived again, both files are compared with each other, and the public
random tensors are drawn again from their seed.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.randomness import NoiseKey
from dpserve.training.bundles.certificate import Certificate
from dpserve.training.bundles.sealing import (
    Tensors,
    checked_tensors,
    kind_of,
    load_sealed,
    noise_key_of,
    save_sealed,
    with_noise_key,
    with_public_tensors,
)
from dpserve.training.devices import NUMPY, Arithmetic, Matrix, matrices
from dpserve.training.errors import BundleError
from dpserve.training.exact.quantised import LARGEST_WEIGHT_NORM, is_quantised, norms, products, summands
from dpserve.training.features.maps import Encoder
from dpserve.training.fitting.sensitivity import weight_norm


@dataclass(frozen=True, eq=False)
class CertifiedHead:
    """A linear head on a public feature map.

    weights: (C, D), multiples of the certificate's step; tensors: the feature map's public ones; noise_key: what
    the noise of its answers follows from; arithmetic: what computes its products.
    """

    certificate: Certificate
    weights: Floats
    tensors: dict[str, Floats]
    noise_key: NoiseKey
    arithmetic: Arithmetic = NUMPY

    @property
    def on_encoder(self) -> bool:
        """Whether features come from an encoder, and take their time."""
        return isinstance(self.certificate.feature_map, Encoder)

    def features(self, X: Floats) -> Floats:
        """phi of each row, (n, D): the questions. Public."""
        return self.certificate.feature_map(X, self._public)

    def logits(self, phi: Floats) -> Floats:
        """The logits (n, C) of questions, never shown: the same bits whenever and wherever they are computed."""
        return products(phi, self._summands)

    def logit_sensitivity(self, phi: Floats) -> Floats:
        """Sensitivity in L2 of each row's computed logits: (n,). Public, given the row."""
        moved: Floats = self.certificate.logit_sensitivity_per_norm * norms(phi)
        return moved

    @functools.cached_property
    def _summands(self) -> Matrix:
        return self.arithmetic.matrix(np.asfortranarray(summands(self.weights)))

    @functools.cached_property
    def _public(self) -> dict[str, Matrix]:
        return matrices(self.arithmetic, self.tensors)


def save_bundle(folder: Path, head: CertifiedHead) -> Certificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    tensors = with_public_tensors({"weights": head.weights}, head.tensors) | with_noise_key(head.noise_key)
    return save_sealed(folder, tensors, head.certificate)


def load_bundle(folder: Path, device: str | None = None) -> CertifiedHead:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    if (kind := kind_of(folder)) not in ("head", "published"):
        raise BundleError(
            f"{folder} holds a model of the kind {kind!r}, and this takes a head whose answers are paid for one by one"
        )
    return _checked_head(*load_sealed(folder, Certificate, device))


def _checked_head(certificate: Certificate, tensors: Tensors) -> CertifiedHead:
    noise_key = noise_key_of(tensors)
    public = certificate.feature_map.public_tensors()
    shape = (len(certificate.classes), certificate.feature_map.dimension)
    weights = checked_tensors(tensors, {"weights": shape}, public)["weights"]
    if weight_norm(weights) > LARGEST_WEIGHT_NORM:
        raise BundleError(f"the weights' norm is above {LARGEST_WEIGHT_NORM:g}, which training never exceeds")
    if not is_quantised(weights):
        raise BundleError(f"the weights are no multiples of {certificate.weight_step:g}, as certified ones are")
    return CertifiedHead(certificate, weights, public, noise_key)
