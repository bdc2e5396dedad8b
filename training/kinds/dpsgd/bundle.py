"""The bundle of a model trained by DP-SGD: saved, and read and verified."""

from pathlib import Path

import numpy as np

from dpserve.training.bundles.sealing import (
    layer_shapes,
    layer_tensors,
    layers_in,
    load_sealed,
)
from dpserve.training.errors import BundleError
from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate
from dpserve.training.kinds.dpsgd.model import DpSgdModel
from dpserve.training.kinds.dpsgd.steps import CENTRE
from dpserve.training.pay_once.bundle import save_model, tensors_of

_CENTRE = "centre"


def save_dpsgd(folder: Path, model: DpSgdModel) -> DpSgdCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = layer_tensors(model.certificate.network.layers(model.parameters)) | {_CENTRE: model.centre}
    return save_model(folder, model.certificate, own, model.tensors, model.canaries)


def load_dpsgd(
    folder: Path, device: str | None = None, certificate_type: type[DpSgdCertificate] = DpSgdCertificate
) -> DpSgdModel:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, certificate_type, device)
    network = certificate.network
    shapes = layer_shapes(network.widths) | {_CENTRE: (certificate.feature_map.dimension,)}
    released, public = tensors_of(certificate, tensors, shapes)
    parameters = np.empty(network.size)
    for views, layer in zip(network.layers(parameters), layers_in(released, network.widths), strict=True):
        for view, numbers in zip(views, layer, strict=True):
            view[:] = numbers
    if certificate.release_of(CENTRE) is None and released[_CENTRE].any():
        raise BundleError(f"{folder} has a centre, and its certificate has no release of one")
    run = certificate.checked_canaries(released)
    return DpSgdModel(certificate, parameters, released[_CENTRE], public, canaries=run)
