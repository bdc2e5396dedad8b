"""A model trained by DP-SGD as a service sees it, and its bundle. Serving it needs NumPy alone."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from training.errors import BundleError
from training.releases.dpsgd.centre import features_of, inputs_around
from training.releases.dpsgd.certificate import DpSgdCertificate
from training.releases.dpsgd.network import Floats
from training.releases.model import each_row_alone, softmax
from training.sealing import Tensors, load_sealed, save_sealed

_FEATURE_MAP_PREFIX = "feature_map."
_CENTRE = "centre"


@dataclass(frozen=True, eq=False)
class DpSgdModel:
    """A network on a public feature map. parameters: (size,), as `Network` lays them out.

    centre: (dimension,), what inputs are taken around, released before training; zeros where nothing was.
    tensors: the feature map's public ones.
    """

    certificate: DpSgdCertificate
    parameters: Floats
    centre: Floats
    tensors: dict[str, Floats]

    def probabilities(self, X: Floats) -> Floats:
        """See `training.releases.model.ReleasedModel`."""
        return each_row_alone(self._answer, X)

    def logits(self, X: Floats) -> Floats:
        """Return the logits (n, C) of rows (n, d). Their last bits may depend on the rows beside them."""
        certificate = self.certificate
        phi = features_of(certificate.feature_map, X, self.tensors)
        inputs = inputs_around(self.centre, phi, certificate.input_norm)
        return certificate.network.logits(self.parameters, inputs)

    def _answer(self, X: Floats) -> Floats:
        return softmax(self.logits(X))


def save_dpsgd(folder: Path, model: DpSgdModel) -> DpSgdCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    tensors: Tensors = {_FEATURE_MAP_PREFIX + name: tensor for name, tensor in model.tensors.items()}
    tensors[_CENTRE] = model.centre
    for index, layer in enumerate(model.certificate.network.layers(model.parameters)):
        tensors |= dict(zip((f"weights.{index}", f"biases.{index}"), layer, strict=True))
    return save_sealed(folder, tensors, model.certificate)


def load_dpsgd(folder: Path) -> DpSgdModel:
    """Read and verify a bundle. Raises BundleError saying what is missing, damaged or different."""
    certificate, tensors = load_sealed(folder, DpSgdCertificate)
    network = certificate.network
    public = certificate.feature_map.public_tensors()
    expected = {_FEATURE_MAP_PREFIX + name: tensor.shape for name, tensor in public.items()}
    expected[_CENTRE] = (certificate.feature_map.dimension,)
    for index, (width, following) in enumerate(pairwise(network.widths)):
        expected |= {f"weights.{index}": (width, following), f"biases.{index}": (following,)}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        raise BundleError(f"the model's tensors are {found}, and the certificate describes {expected}")
    for name, drawn in public.items():
        if not np.array_equal(tensors[_FEATURE_MAP_PREFIX + name], drawn):
            raise BundleError(f"the tensor {name} is not the one that the public seed draws")
    parameters = np.empty(network.size)
    for index, layer in enumerate(network.layers(parameters)):
        for name, view in zip((f"weights.{index}", f"biases.{index}"), layer, strict=True):
            view[:] = _finite(tensors, name)
    return DpSgdModel(certificate, parameters, _finite(tensors, _CENTRE), public)


def _finite(tensors: Tensors, name: str) -> Floats:
    tensor = tensors[name].astype(np.float64)
    if tensors[name].dtype != np.float64 or not np.isfinite(tensor).all():
        raise BundleError(f"the tensor {name} must hold finite float64 numbers")
    return tensor
