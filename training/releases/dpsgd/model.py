"""A model trained by DP-SGD as a service sees it, and its bundle. Serving it needs NumPy alone."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.objective import softmax
from training.releases.dpsgd.centre import features_of, inputs_around
from training.releases.dpsgd.certificate import DpSgdCertificate
from training.releases.dpsgd.network import Floats
from training.releases.model import each_row_alone
from training.sealing import (
    checked_tensors,
    layer_shapes,
    layer_tensors,
    layers_in,
    load_sealed,
    save_sealed,
    with_public_tensors,
)

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
    own = layer_tensors(model.certificate.network.layers(model.parameters)) | {_CENTRE: model.centre}
    return save_sealed(folder, with_public_tensors(own, model.tensors), model.certificate)


def load_dpsgd(folder: Path) -> DpSgdModel:
    """Read and verify a bundle. Raises BundleError saying what is missing, damaged or different."""
    certificate, tensors = load_sealed(folder, DpSgdCertificate)
    network, public = certificate.network, certificate.feature_map.public_tensors()
    shapes = layer_shapes(network.widths) | {_CENTRE: (certificate.feature_map.dimension,)}
    released = checked_tensors(tensors, shapes, public)
    parameters = np.empty(network.size)
    for views, layer in zip(network.layers(parameters), layers_in(released, network.widths), strict=True):
        for view, numbers in zip(views, layer, strict=True):
            view[:] = numbers
    return DpSgdModel(certificate, parameters, released[_CENTRE], public)
