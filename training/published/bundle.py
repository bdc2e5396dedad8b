"""A bundle of a published network: a folder with `model.safetensors` and a `certificate.json` that says unproven.

Serving it needs no PyTorch: the forward pass is NumPy's, in float64.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy.special import expit

from training.bundle import CERTIFICATE_FILE, MODEL_FILE
from training.errors import BundleError
from training.published.certificate import UnprovenCertificate

Floats = NDArray[np.float64]
NumpyLayer = tuple[Floats, Floats]
"""Weights (in, out) and biases (out,)."""


@dataclass(frozen=True, eq=False)
class PublishedNetwork:
    """A trained network as a service sees it: the same methods as a certified head, and nothing proved."""

    certificate: UnprovenCertificate
    layers: tuple[NumpyLayer, ...]

    def features(self, X: Floats) -> Floats:
        """The last hidden layer of each row: (n, width). Rows are clipped to the declared bounds first."""
        inputs = self.certificate.feature_map
        lower, upper = np.asarray(inputs.lower), np.asarray(inputs.upper)
        hidden: Floats = (np.clip(X, lower, upper) - lower) / (upper - lower)
        apply = np.tanh if self.certificate.activation == "tanh" else expit
        for weights, biases in self.layers[:-1]:
            hidden = apply(hidden @ weights + biases)
        return hidden

    def logits(self, phi: Floats) -> Floats:
        """The logits (n, C) of last hidden layers: exact, so never shown."""
        weights, biases = self.layers[-1]
        z: Floats = phi @ weights + biases
        return z

    def logit_sensitivity(self, phi: Floats) -> Floats:
        """The claimed Delta z of one output neuron, the same for every row: (n,). No bound on anything."""
        return np.full(len(phi), self.certificate.claimed_neuron_sensitivity)


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published network, by its certificate's status. False for anything unreadable."""
    try:
        content = json.loads((folder / CERTIFICATE_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("status") == "unproven"


def save_published(folder: Path, network: PublishedNetwork) -> UnprovenCertificate:
    """Write the bundle into a new folder that its owner alone can read; return the certificate with the digest.

    The folder appears whole or not at all. Raises BundleError if it exists already.
    """
    if folder.exists():
        raise BundleError(f"{folder} exists already; a bundle is never overwritten, so name a new one with --out")
    tensors = {
        f"{what}.{index}": np.ascontiguousarray(tensor)
        for index, layer in enumerate(network.layers)
        for what, tensor in zip(("weights", "biases"), layer, strict=True)
    }
    model = save(tensors)
    certificate = network.certificate.model_copy(update={"weights_sha256": hashlib.sha256(model).hexdigest()})
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


def load_published(folder: Path) -> PublishedNetwork:
    """Read and check a bundle. Raises BundleError saying what is missing, damaged or different."""
    try:
        text, model = (folder / CERTIFICATE_FILE).read_text("utf-8"), (folder / MODEL_FILE).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder} is not a bundle: cannot read {error.filename}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BundleError(f"{folder / CERTIFICATE_FILE} is not text") from error
    try:
        certificate = UnprovenCertificate.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BundleError(
            f"{folder / CERTIFICATE_FILE} is not the certificate of a published network: {where}: {first['msg']}"
        ) from error
    certificate.verify()
    if hashlib.sha256(model).hexdigest() != certificate.weights_sha256:
        raise BundleError(f"{folder / MODEL_FILE} was changed after the certificate was written")
    try:
        tensors = load(model)
    except SafetensorError as error:
        raise BundleError(f"{folder / MODEL_FILE} is damaged: {error}") from error
    return PublishedNetwork(certificate, _layers(certificate, tensors))


def _layers(certificate: UnprovenCertificate, tensors: dict[str, NDArray[np.generic]]) -> tuple[NumpyLayer, ...]:
    widths = certificate.topology.widths
    expected: dict[str, tuple[int, ...]] = {}
    for index, (width, following) in enumerate(pairwise(widths)):
        expected |= {f"weights.{index}": (width, following), f"biases.{index}": (following,)}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        raise BundleError(f"the model's tensors are {found}, and the certificate describes {expected}")
    checked = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    for name, tensor in checked.items():
        if tensors[name].dtype != np.float64 or not np.isfinite(tensor).all():
            raise BundleError(f"the tensor {name} must hold finite float64 numbers")
    return tuple((checked[f"weights.{index}"], checked[f"biases.{index}"]) for index in range(len(widths) - 1))
