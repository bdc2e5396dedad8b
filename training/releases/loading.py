"""Loading a release that is paid for once. Each kind's module is imported when a bundle of it is loaded."""

from importlib import import_module
from pathlib import Path
from typing import cast

from training.errors import BundleError
from training.releases.model import ReleasedModel
from training.sealing import kind_of

RELEASES = {
    "class-sums": "training.releases.class_sums:load_class_sums",
    "dpsgd": "training.releases.dpsgd.model:load_dpsgd",
    "objective": "training.releases.objective:load_perturbed",
    "weights": "training.releases.weights:load_weights",
}
"""For each kind, as its certificate's `release` says, the function that reads and verifies a folder of it."""


def load_kind(kind: str, folder: Path) -> ReleasedModel:
    """Read and verify a bundle that is known to be of this kind. Raises BundleError."""
    if kind not in RELEASES:
        raise BundleError(f"{folder} holds a pay-once model of the kind {kind!r}, which this version does not know")
    module, function = RELEASES[kind].split(":")
    return cast(ReleasedModel, getattr(import_module(module), function)(folder))


def load_release(folder: Path) -> ReleasedModel:
    """Read and verify a release. Raises BundleError saying what is missing, damaged or different."""
    kind = kind_of(folder)
    if kind in ("head", "published"):
        raise BundleError(f"{folder} holds no pay-once model")
    return load_kind(kind, folder)
