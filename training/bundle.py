"""A bundle: a certified head in a folder, its certificate sealed into its weights (`training.sealing`).

Loading verifies: the certificate's numbers are derived again, both files are compared with each other, and the public
random tensors are drawn again from their seed.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.certificate import Certificate
from training.errors import BundleError
from training.sealing import Tensors, kind_of, load_sealed, save_sealed
from training.sensitivity import LARGEST_WEIGHT_NORM, weight_norm

Floats = NDArray[np.float64]

_FEATURE_MAP_PREFIX = "feature_map."
_SQUARES_UNDERFLOW = 2.0**-500
"""Longer than any row whose squares all underflow."""


@dataclass(frozen=True, eq=False)
class CertifiedHead:
    """A linear head on a public feature map. weights: (C, D); tensors: the feature map's public ones."""

    certificate: Certificate
    weights: Floats
    tensors: dict[str, Floats]

    def features(self, X: Floats) -> Floats:
        """phi of each row: (n, D)."""
        return self.certificate.feature_map(X, self.tensors)

    def logits(self, phi: Floats) -> Floats:
        """The logits (n, C) of mapped rows: exact, so never shown."""
        logits: Floats = phi @ self.weights.T
        return logits

    def logit_sensitivity(self, phi: Floats) -> Floats:
        """How far one record can move each row's computed logits in L2: (n,). Public, given the row."""
        norms: Floats = np.sqrt(np.einsum("ij,ij->i", phi, phi)) * (1 + 2.0**-30) + _SQUARES_UNDERFLOW
        return self.certificate.logit_sensitivity_per_norm * norms


def save_bundle(folder: Path, head: CertifiedHead) -> Certificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    tensors: Tensors = {_FEATURE_MAP_PREFIX + name: tensor for name, tensor in head.tensors.items()}
    return save_sealed(folder, {"weights": head.weights} | tensors, head.certificate)


def load_bundle(folder: Path) -> CertifiedHead:
    """Read and verify a bundle. Raises BundleError saying what is missing, damaged or different."""
    if (kind := kind_of(folder)) not in ("head", "published"):
        raise BundleError(
            f"{folder} holds a model of the kind {kind!r}, and this takes a head whose answers are paid for one by one"
        )
    return _checked_head(*load_sealed(folder, Certificate))


def _checked_head(certificate: Certificate, tensors: Tensors) -> CertifiedHead:
    feature_map = certificate.feature_map
    public = {_FEATURE_MAP_PREFIX + name: tensor for name, tensor in feature_map.public_tensors().items()}
    expected = {"weights": (len(certificate.classes), feature_map.dimension)} | {
        name: tensor.shape for name, tensor in public.items()
    }
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        raise BundleError(f"the model's tensors are {found}, and the certificate describes {expected}")
    checked: dict[str, Floats] = {}
    for name, tensor in tensors.items():
        if tensor.dtype != np.float64 or not np.isfinite(tensor.astype(np.float64)).all():
            raise BundleError(f"the tensor {name} must hold finite float64 numbers")
        checked[name] = tensor.astype(np.float64)
        if name in public and not np.array_equal(checked[name], public[name]):
            raise BundleError(f"the tensor {name} is not the one that the public seed draws")
    if weight_norm(checked["weights"]) > LARGEST_WEIGHT_NORM:
        raise BundleError(f"the weights' norm is above {LARGEST_WEIGHT_NORM:g}, which training never exceeds")
    weights = checked.pop("weights")
    return CertifiedHead(
        certificate, weights, {name.removeprefix(_FEATURE_MAP_PREFIX): tensor for name, tensor in checked.items()}
    )
