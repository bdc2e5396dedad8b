"""The bundle of a model trained by DP-SGD: saved, and read and verified."""

from pathlib import Path

import numpy as np

from dpserve.training.bundles.sealing import (
    checked_tensors,
    layer_shapes,
    layer_tensors,
    layers_in,
    load_sealed,
    save_sealed,
    with_public_tensors,
)
from dpserve.training.errors import BundleError
from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate
from dpserve.training.kinds.dpsgd.model import DpSgdModel
from dpserve.training.kinds.dpsgd.steps import CENTRE
from dpserve.training.pay_once.canaries import tensor_shapes

_CENTRE = "centre"


def save_dpsgd(folder: Path, model: DpSgdModel) -> DpSgdCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = layer_tensors(model.certificate.network.layers(model.parameters)) | {_CENTRE: model.centre}
    if model.canaries is not None:
        own |= model.canaries.tensors()
    return save_sealed(folder, with_public_tensors(own, model.tensors), model.certificate)


def load_dpsgd(
    folder: Path, device: str | None = None, certificate_type: type[DpSgdCertificate] = DpSgdCertificate
) -> DpSgdModel:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, certificate_type, device)
    network, public = certificate.network, certificate.feature_map.public_tensors()
    shapes = layer_shapes(network.widths) | {_CENTRE: (certificate.feature_map.dimension,)}
    shapes |= tensor_shapes(certificate.canaries, certificate.canary_parts())
    released = checked_tensors(tensors, shapes, public)
    parameters = np.empty(network.size)
    for views, layer in zip(network.layers(parameters), layers_in(released, network.widths), strict=True):
        for view, numbers in zip(views, layer, strict=True):
            view[:] = numbers
    if certificate.release_of(CENTRE) is None and released[_CENTRE].any():
        raise BundleError(f"{folder} has a centre, and its certificate has no release of one")
    run = certificate.checked_canaries(released)
    return DpSgdModel(certificate, parameters, released[_CENTRE], public, canaries=run)
