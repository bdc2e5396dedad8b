"""A model trained by DP-SGD as a service sees it, and its bundle. Serving it needs NumPy alone."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from training.errors import BundleError
from training.releases.dpsgd.certificate import DpSgdCertificate
from training.releases.dpsgd.network import Floats
from training.releases.model import each_row_alone, softmax
from training.sealing import Tensors, load_sealed, save_sealed

_FEATURE_MAP_PREFIX = "feature_map."


@dataclass(frozen=True, eq=False)
class DpSgdModel:
    """A network on a public feature map. parameters: (size,), as `Network` lays them out."""

    certificate: DpSgdCertificate
    parameters: Floats
    tensors: dict[str, Floats]
    """The feature map's public ones."""

    def probabilities(self, X: Floats) -> Floats:
        """See `training.releases.model.ReleasedModel`."""
        return each_row_alone(self._answer, X)

    def _answer(self, X: Floats) -> Floats:
        return softmax(
            self.certificate.network.logits(self.parameters, network_inputs(self.certificate, X, self.tensors))
        )


def network_inputs(certificate: DpSgdCertificate, X: Floats, tensors: dict[str, Floats]) -> Floats:
    """Return what the first layer sees of rows (n, d): phi(x) scaled to `input_norm`, (n, dimension).

    Every record then weighs alike in the first layer's gradient. A row without features stays without.
    """
    phi = certificate.feature_map(X, tensors)
    norms = np.sqrt(np.einsum("ij,ij->i", phi, phi))
    scales = np.divide(certificate.input_norm, norms, out=np.zeros_like(norms), where=norms > 0)
    phi *= scales[:, None]
    return phi


def save_dpsgd(folder: Path, model: DpSgdModel) -> DpSgdCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    tensors: Tensors = {_FEATURE_MAP_PREFIX + name: tensor for name, tensor in model.tensors.items()}
    for index, layer in enumerate(model.certificate.network.layers(model.parameters)):
        tensors |= dict(zip((f"weights.{index}", f"biases.{index}"), layer, strict=True))
    return save_sealed(folder, tensors, model.certificate)


def load_dpsgd(folder: Path) -> DpSgdModel:
    """Read and verify a bundle. Raises BundleError saying what is missing, damaged or different."""
    certificate, tensors = load_sealed(folder, DpSgdCertificate)
    network = certificate.network
    public = certificate.feature_map.public_tensors()
    expected = {_FEATURE_MAP_PREFIX + name: tensor.shape for name, tensor in public.items()}
    for index, (width, following) in enumerate(pairwise(network.widths)):
        expected |= {f"weights.{index}": (width, following), f"biases.{index}": (following,)}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        raise BundleError(f"the model's tensors are {found}, and the certificate describes {expected}")
    for name, tensor in public.items():
        if not np.array_equal(tensors[_FEATURE_MAP_PREFIX + name], tensor):
            raise BundleError(f"the tensor {name} is not the one that the public seed draws")
    parameters = np.empty(network.size)
    for index, layer in enumerate(network.layers(parameters)):
        for name, view in zip((f"weights.{index}", f"biases.{index}"), layer, strict=True):
            found_tensor = tensors[name]
            if found_tensor.dtype != np.float64 or not np.isfinite(found_tensor.astype(np.float64)).all():
                raise BundleError(f"the tensor {name} must hold finite float64 numbers")
            view[:] = found_tensor.astype(np.float64)
    return DpSgdModel(certificate, parameters, public)
