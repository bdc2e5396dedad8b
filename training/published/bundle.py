"""A bundle of a published network: a folder with `model.safetensors` and a `certificate.json` that says unproven.

Serving it needs no PyTorch: the forward pass is NumPy's, in steps in which it gives the same bits everywhere.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mechanisms.randomness import NoiseKey
from training.errors import BundleError
from training.exact_network import Layers, are_exact, logits, rounded
from training.published.certificate import UnprovenCertificate
from training.sealing import (
    checked_tensors,
    layer_shapes,
    layer_tensors,
    layers_in,
    load_sealed,
    noise_key_of,
    save_sealed,
    with_noise_key,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PublishedNetwork:
    """A trained network as a service sees it: the same methods as a certified head, and nothing proved.

    layers: as `training.exact_network.exact_layers` returns them; noise_key: what the noise of its answers follows
    from.
    """

    certificate: UnprovenCertificate
    layers: Layers
    noise_key: NoiseKey

    def features(self, X: Floats) -> Floats:
        """The questions: rows clipped to the declared bounds, scaled to [0, 1] and rounded to steps, (n, d). Public."""
        inputs = self.certificate.feature_map
        lower, upper = np.asarray(inputs.lower), np.asarray(inputs.upper)
        return rounded((np.clip(X, lower, upper) - lower) / (upper - lower))

    def logits(self, phi: Floats) -> Floats:
        """The logits (n, C) of questions, never shown: the same bits whenever and wherever they are computed."""
        return logits(self.layers, phi, self.certificate.activation)

    def logit_sensitivity(self, phi: Floats) -> Floats:
        """The claimed Delta z of one output neuron, the same for every row: (n,). No bound on anything."""
        return np.full(len(phi), self.certificate.claimed_neuron_sensitivity)


def save_published(folder: Path, network: PublishedNetwork) -> UnprovenCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    tensors = layer_tensors(network.layers) | with_noise_key(network.noise_key)
    return save_sealed(folder, tensors, network.certificate)


def load_published(folder: Path) -> PublishedNetwork:
    """Read and check a bundle. Raises BundleError saying what is missing, damaged or different."""
    certificate, tensors = load_sealed(folder, UnprovenCertificate)
    noise_key, widths = noise_key_of(tensors), certificate.topology.widths
    layers = layers_in(checked_tensors(tensors, layer_shapes(widths)), widths)
    if not are_exact(layers, certificate.activation):
        raise BundleError("the weights are not in the steps, or beyond the bounds, in which sums are exact")
    return PublishedNetwork(certificate, layers, noise_key)
