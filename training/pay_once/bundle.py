"""The common parts of the bundles of pay-once models: canaries of the run, public tensors of the feature map."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from dpserve.accounting.arrays import Floats
from dpserve.training.bundles.sealing import Tensors, checked_tensors, save_sealed, with_public_tensors
from dpserve.training.pay_once.canaries import CanaryRun, tensor_shapes
from dpserve.training.pay_once.certificate import ReleaseCertificate

Certificate = TypeVar("Certificate", bound=ReleaseCertificate)


def save_model(
    folder: Path,
    certificate: Certificate,
    own: Mapping[str, Floats],
    public: Mapping[str, Floats],
    run: CanaryRun | None,
) -> Certificate:
    """Write a bundle into a new folder; return its certificate with the digest. Raises BundleError.

    own, public: the tensors of the model and of its feature map, by name. run: its canaries, if there were any.
    """
    tensors = {**own, **({} if run is None else run.tensors())}
    return save_sealed(folder, with_public_tensors(tensors, public), certificate)


def tensors_of(
    certificate: ReleaseCertificate, tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the tensors of a bundle's model and canaries, and the public ones of its feature map, by name.

    shapes: of the model's own. Raises BundleError for others.
    """
    public = certificate.feature_map.public_tensors()
    of_canaries = tensor_shapes(certificate.canaries, certificate.canary_parts())
    return checked_tensors(tensors, {**shapes, **of_canaries}, public), public
