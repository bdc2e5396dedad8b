"""The bundle of released weights: saved, and read and verified."""

from pathlib import Path

from dpserve.training.bundles.sealing import checked_tensors, load_sealed, save_sealed, with_public_tensors
from dpserve.training.kinds.weights.certificate import WeightsCertificate
from dpserve.training.kinds.weights.model import ReleasedWeights
from dpserve.training.pay_once.calibration import calibration_in
from dpserve.training.pay_once.canaries import tensor_shapes
from dpserve.training.pay_once.certificate import check_on_grid


def save_weights(folder: Path, model: ReleasedWeights) -> WeightsCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = {"released": model.released, "calibration": model.calibration.numbers}
    if model.canaries is not None:
        own |= model.canaries.tensors()
    return save_sealed(folder, with_public_tensors(own, model.tensors), model.certificate)


def load_weights(
    folder: Path, device: str | None = None, certificate_type: type[WeightsCertificate] = WeightsCertificate
) -> ReleasedWeights:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, certificate_type, device)
    public = certificate.feature_map.public_tensors()
    shape = (len(certificate.classes), certificate.feature_map.dimension)
    shapes: dict[str, tuple[int, ...]] = {"released": shape, "calibration": (shape[0] + 1,)}
    shapes |= tensor_shapes(certificate.canaries, certificate.canary_parts())
    own = checked_tensors(tensors, shapes, public)
    check_on_grid("released", own["released"], certificate.vector().step)
    calibrated = calibration_in(own["calibration"], certificate)
    run = certificate.checked_canaries(own)
    return ReleasedWeights(certificate, own["released"], public, calibrated, canaries=run)
