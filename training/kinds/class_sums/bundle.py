"""The bundle of class sums: saved, and read and verified."""

from pathlib import Path

from dpserve.training.bundles.sealing import load_sealed
from dpserve.training.kinds.class_sums.certificate import ClassSumsCertificate
from dpserve.training.kinds.class_sums.model import ReleasedClassSums
from dpserve.training.kinds.class_sums.steps import DESCENT
from dpserve.training.pay_once.bundle import save_model, tensors_of
from dpserve.training.pay_once.calibration import calibration_in
from dpserve.training.pay_once.certificate import check_on_grid


def save_class_sums(folder: Path, model: ReleasedClassSums) -> ClassSumsCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = {"centre": model.centre, "sums": model.sums, "calibration": model.calibration.numbers}
    if model.stepped is not None:
        own["stepped"] = model.stepped
    return save_model(folder, model.certificate, own, model.tensors, model.canaries)


def load_class_sums(
    folder: Path, device: str | None = None, certificate_type: type[ClassSumsCertificate] = ClassSumsCertificate
) -> ReleasedClassSums:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, certificate_type, device)
    dimension, classes = certificate.feature_map.dimension, len(certificate.classes)
    shapes: dict[str, tuple[int, ...]] = {
        "centre": (dimension + 1,),
        "sums": (classes, dimension),
        "calibration": (classes + 1,),
    }
    if certificate.release_of(DESCENT):
        shapes["stepped"] = (classes, dimension)
    released, public = tensors_of(certificate, tensors, shapes)
    for name, vector in certificate.mechanisms().items():
        check_on_grid(name, released[name], vector.step)
    return ReleasedClassSums(
        certificate,
        released["centre"],
        released["sums"],
        public,
        calibration_in(released["calibration"], certificate),
        released.get("stepped"),
        canaries=certificate.checked_canaries(released),
    )
