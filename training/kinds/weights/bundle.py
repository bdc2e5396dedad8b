"""The bundle of released weights: saved, and read and verified."""

from pathlib import Path

from dpserve.training.bundles.sealing import load_sealed
from dpserve.training.kinds.weights.certificate import WeightsCertificate
from dpserve.training.kinds.weights.model import ReleasedWeights
from dpserve.training.pay_once.bundle import save_model, tensors_of
from dpserve.training.pay_once.calibration import calibration_in
from dpserve.training.pay_once.certificate import check_on_grid


def save_weights(folder: Path, model: ReleasedWeights) -> WeightsCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = {"released": model.released, "calibration": model.calibration.numbers}
    return save_model(folder, model.certificate, own, model.tensors, model.canaries)


def load_weights(
    folder: Path, device: str | None = None, certificate_type: type[WeightsCertificate] = WeightsCertificate
) -> ReleasedWeights:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, certificate_type, device)
    shape = (len(certificate.classes), certificate.feature_map.dimension)
    shapes: dict[str, tuple[int, ...]] = {"released": shape, "calibration": (shape[0] + 1,)}
    own, public = tensors_of(certificate, tensors, shapes)
    check_on_grid("released", own["released"], certificate.vector().step)
    calibrated = calibration_in(own["calibration"], certificate)
    run = certificate.checked_canaries(own)
    return ReleasedWeights(certificate, own["released"], public, calibrated, canaries=run)
