"""Loading a bundle of any kind: certified heads, published networks, teachers, and what is paid for once."""

from importlib import import_module
from pathlib import Path
from typing import cast

from training.bundle import CertifiedHead, load_bundle
from training.errors import BundleError, TrainingError
from training.published.bundle import PublishedNetwork, load_published
from training.releases.model import ReleasedModel
from training.sealing import kind_of
from training.teachers.bundle import Teachers, load_teachers

_LOADERS = {
    "class-sums": "training.releases.class_sums:load_class_sums",
    "dpsgd": "training.releases.dpsgd.model:load_dpsgd",
    "objective": "training.releases.objective:load_perturbed",
    "weights": "training.releases.weights:load_weights",
}
"""For each kind, as its certificate's `release` says, the function that reads and verifies a folder of it."""

AnyModel = CertifiedHead | PublishedNetwork | Teachers | ReleasedModel


def load_model(folder: Path, device: str | None = None) -> AnyModel:
    """Read and verify a bundle of any kind. Raises BundleError saying what is missing, damaged or different.

    device: where an encoder computes, as for `load_bundle`. Raises TrainingError if the model has none.
    """
    kind = kind_of(folder)
    if device is not None and kind != "head":
        raise TrainingError(f"{folder} has no encoder to compute on a device: leave --device out")
    match kind:
        case "head":
            return load_bundle(folder, device)
        case "published":
            return load_published(folder)
        case "teachers":
            return load_teachers(folder)
        case kind if kind in _LOADERS:
            module, function = _LOADERS[kind].split(":")
            return cast(ReleasedModel, getattr(import_module(module), function)(folder))
    raise BundleError(f"{folder} holds a pay-once model of the kind {kind!r}, which this version does not know")
