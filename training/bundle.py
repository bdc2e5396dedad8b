"""A bundle: a folder with `model.safetensors` and `certificate.json`. No pickle anywhere.

Loading verifies: the certificate's numbers are derived again, the model file's digest is compared, the certificate
is compared with the copy of it inside the model file, and the public random tensors are drawn again from their seed.
So neither file can be changed, or exchanged for another bundle's, without the other. Someone who may write both can
forge a bundle whole: that is whoever runs the service.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from training.certificate import Certificate
from training.errors import BundleError
from training.sensitivity import LARGEST_WEIGHT_NORM, weight_norm

Floats = NDArray[np.float64]

MODEL_FILE = "model.safetensors"
CERTIFICATE_FILE = "certificate.json"
_FEATURE_MAP_PREFIX = "feature_map."
_SEALED = "certificate"
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
    """Write the bundle into a new folder that its owner alone can read; return the certificate with the digest.

    The folder appears whole or not at all. Raises BundleError if it exists already.
    """
    if folder.exists():
        raise BundleError(f"{folder} exists already; a bundle is never overwritten, so name a new one with --out")
    tensors = {"weights": head.weights} | {_FEATURE_MAP_PREFIX + name: tensor for name, tensor in head.tensors.items()}
    model = save(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()},
        metadata={_SEALED: head.certificate.sealed()},
    )
    certificate = head.certificate.model_copy(update={"weights_sha256": hashlib.sha256(model).hexdigest()})
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True, mode=0o700)
        for name, content in ((MODEL_FILE, model), (CERTIFICATE_FILE, certificate.model_dump_json(indent=2).encode())):
            (draft / name).touch(mode=0o600)
            (draft / name).write_bytes(content)
        draft.rename(folder)
    except OSError as error:
        raise BundleError(f"cannot write the bundle {folder}: {error.strerror}") from error
    return certificate


def load_bundle(folder: Path) -> CertifiedHead:
    """Read and verify a bundle. Raises BundleError saying what is missing, damaged or different."""
    try:
        text = (folder / CERTIFICATE_FILE).read_text(encoding="utf-8")
        model = (folder / MODEL_FILE).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder} is not a bundle: cannot read {error.filename}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BundleError(f"{folder / CERTIFICATE_FILE} is not text") from error
    try:
        certificate = Certificate.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BundleError(f"{folder / CERTIFICATE_FILE} is not a certificate: {where}: {first['msg']}") from error
    certificate.verify()
    digest = hashlib.sha256(model).hexdigest()
    if digest != certificate.weights_sha256:
        raise BundleError(
            f"{folder / MODEL_FILE} was changed after it was certified: its SHA-256 is {digest[:12]}..., "
            f"and the certificate says {certificate.weights_sha256[:12]}..."
        )
    try:
        tensors = load(model)
        with safe_open(folder / MODEL_FILE, framework="numpy") as opened:
            sealed = (opened.metadata() or {}).get(_SEALED)
    except SafetensorError as error:
        raise BundleError(f"{folder / MODEL_FILE} is damaged: {error}") from error
    if sealed != certificate.sealed():
        raise BundleError(f"{folder / CERTIFICATE_FILE} is not the certificate that these weights were given")
    return _checked_head(certificate, tensors)


def _checked_head(certificate: Certificate, tensors: dict[str, NDArray[np.generic]]) -> CertifiedHead:
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
