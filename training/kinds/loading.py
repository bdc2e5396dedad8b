"""Loading a bundle of any kind: certified heads, published networks, teachers, and what is paid for once."""

from importlib import import_module
from pathlib import Path
from typing import cast

from training.bundles.sealing import kind_of
from training.errors import BundleError, TrainingError
from training.kinds.head.bundle import CertifiedHead
from training.kinds.published.bundle import PublishedNetwork
from training.kinds.teachers.bundle import Teachers
from training.pay_once.model import ReleasedModel

_LOADERS = {
    "class-sums": "training.kinds.class_sums.model:load_class_sums",
    "dpsgd": "training.kinds.dpsgd.model:load_dpsgd",
    "head": "training.kinds.head.bundle:load_bundle",
    "objective": "training.kinds.objective.model:load_perturbed",
    "published": "training.kinds.published.bundle:load_published",
    "teachers": "training.kinds.teachers.bundle:load_teachers",
    "weights": "training.kinds.weights.model:load_weights",
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
