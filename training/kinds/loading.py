"""Loading a bundle of any kind: certified heads, published networks, teachers, and what is paid for once."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from training.bundles.sealing import kind_of
from training.devices import NUMPY, ROWS_TRIED, Arithmetic, arithmetic_on
from training.errors import BundleError, TrainingError
from training.features.maps import Encoder
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

    device: "cpu" (the default) or "cuda". An encoder computes there; of a model without one the exact products do
    (`training.devices`). Raises TrainingError for one that is not there, or that gives other answers.
    """
    kind = kind_of(folder)
    if kind not in _LOADERS:
        raise BundleError(f"{folder} holds a pay-once model of the kind {kind!r}, which this version does not know")
    module, function = _LOADERS[kind].split(":")
    load = getattr(import_module(module), function)
    try:
        model = cast(AnyModel, load(folder, device))
    except TrainingError:
        raise
    except Exception as error:
        # Numbers that no training writes can fail anywhere: an overflow, a recursion, more memory than there is.
        raise BundleError(f"{folder} is damaged: loading it ends in {type(error).__name__}") from error
    if isinstance(model.certificate.feature_map, Encoder):
        # What it takes to multiply by a head is little beside the encoder, which needs no PyTorch.
        return model
    arithmetic = arithmetic_on(device)
    return model if arithmetic is NUMPY else computed_by(model, arithmetic)


def computed_by(model: AnyModel, arithmetic: Arithmetic) -> AnyModel:
    """Return the model with products that this arithmetic computes, once its answers were found to be the model's own.

    Made-up rows within the declared bounds are answered by both, one and several at a time, without noise. Raises
    TrainingError where a bit differs, which `training.devices` proves that none does.
    """
    moved = replace(cast(Any, model), arithmetic=arithmetic)
    feature_map = model.certificate.feature_map
    lower, upper = np.asarray(feature_map.lower), np.asarray(feature_map.upper)
    generator = np.random.RandomState(0)
    for count in ROWS_TRIED:
        X = generator.uniform(lower, upper, (count, len(lower)))
        if _computed(model, X) != _computed(moved, X):
            raise TrainingError(
                "the device gives other bits than the processor for the same rows, so that one question would have "
                "several answers: leave --device out"
            )
    return cast(AnyModel, moved)


def _computed(model: AnyModel, X: np.ndarray) -> bytes:
    """Return every number that products of the model's own matrices enter, for rows (n, d)."""
    if isinstance(model, ReleasedModel):
        return model.probabilities(X).tobytes()
    phi = model.features(X)
    return phi.tobytes() + model.logits(phi).tobytes()
