"""A bundle of a published network: a folder with `model.safetensors` and a `certificate.json` that says unproven.

Serving it needs no PyTorch: the forward pass is NumPy's, in float64.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from training.errors import BundleError
from training.published.certificate import UnprovenCertificate
from training.sealing import CERTIFICATE_FILE, Tensors, load_sealed, save_sealed

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
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    tensors: Tensors = {
        f"{what}.{index}": tensor
        for index, layer in enumerate(network.layers)
        for what, tensor in zip(("weights", "biases"), layer, strict=True)
    }
    return save_sealed(folder, tensors, network.certificate)


def load_published(folder: Path) -> PublishedNetwork:
    """Read and check a bundle. Raises BundleError saying what is missing, damaged or different."""
    certificate, tensors = load_sealed(folder, UnprovenCertificate)
    return PublishedNetwork(certificate, _layers(certificate, tensors))


def _layers(certificate: UnprovenCertificate, tensors: Tensors) -> tuple[NumpyLayer, ...]:
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
