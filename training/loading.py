"""Loading a bundle of any kind: certified heads, published networks, teachers, and what is paid for once."""

from importlib import import_module
from pathlib import Path
from typing import cast

from training.bundle import CertifiedHead
from training.errors import BundleError, TrainingError
from training.published.bundle import PublishedNetwork
from training.releases.model import ReleasedModel
from training.sealing import kind_of
from training.teachers.bundle import Teachers

_LOADERS = {
    "class-sums": "training.releases.class_sums:load_class_sums",
    "dpsgd": "training.releases.dpsgd.model:load_dpsgd",
    "head": "training.bundle:load_bundle",
    "objective": "training.releases.objective:load_perturbed",
    "published": "training.published.bundle:load_published",
    "teachers": "training.teachers.bundle:load_teachers",
    "weights": "training.releases.weights:load_weights",
}
"""For each kind, as `sealing.kind_of` says it, the function that reads and verifies a folder of it."""

AnyModel = CertifiedHead | PublishedNetwork | Teachers | ReleasedModel


def load_model(folder: Path, device: str | None = None) -> AnyModel:
    """Read and verify a bundle of any kind. Raises BundleError saying what is missing, damaged or different.

    device: where an encoder computes, as for `load_sealed`. Raises TrainingError if the model has none.
    """
    kind = kind_of(folder)
    if kind not in _LOADERS:
        raise BundleError(f"{folder} holds a pay-once model of the kind {kind!r}, which this version does not know")
    module, function = _LOADERS[kind].split(":")
    load = getattr(import_module(module), function)
    try:
        return cast(AnyModel, load(folder, device))
    except TrainingError:
        raise
    except Exception as error:
        # Numbers that no training writes can fail anywhere: an overflow, a recursion, more memory than there is.
        raise BundleError(f"{folder} is damaged: loading it ends in {type(error).__name__}") from error
