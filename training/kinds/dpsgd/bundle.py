"""The bundle of a model trained by DP-SGD: saved, and read and verified."""

from pathlib import Path

from dpserve.training.bundles.sealing import load_sealed
from dpserve.training.errors import BundleError
from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate
from dpserve.training.kinds.dpsgd.model import DpSgdModel
from dpserve.training.kinds.dpsgd.steps import CENTRE, NETWORK_STEPS, NOISY_STEPS
from dpserve.training.pay_once.bundle import save_model, tensors_of

_CENTRE = "centre"


def save_dpsgd(folder: Path, model: DpSgdModel) -> DpSgdCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = dict(zip(_names(model.certificate), model.parameters, strict=True)) | {_CENTRE: model.centre}
    return save_model(folder, model.certificate, own, model.tensors, model.canaries)


def load_dpsgd(
    folder: Path, device: str | None = None, certificate_type: type[DpSgdCertificate] = DpSgdCertificate
) -> DpSgdModel:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, certificate_type, device)
    names = _names(certificate)
    sizes = {name: (each.network.size,) for name, each in zip(names, certificate.branches, strict=True)}
    released, public = tensors_of(certificate, tensors, sizes | {_CENTRE: (certificate.feature_map.dimension,)})
    if certificate.release_of(CENTRE) is None and released[_CENTRE].any():
        raise BundleError(f"{folder} has a centre, and its certificate has no release of one")
    run, parameters = certificate.checked_canaries(released), tuple(released[name] for name in names)
    return DpSgdModel(certificate, parameters, released[_CENTRE], public, canaries=run)


def _names(certificate: DpSgdCertificate) -> list[str]:
    """Return the name of each branch's parameters."""
    return [step.name for step in (NOISY_STEPS, NETWORK_STEPS)][: len(certificate.branches)]
