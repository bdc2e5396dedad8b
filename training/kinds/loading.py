"""Loading a bundle of any kind, by the kind that its certificate names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.messages import Message
from dpserve.training.bundles.sealing import kind_of
from dpserve.training.devices import NUMPY, ROWS_TRIED, Arithmetic, arithmetic_on
from dpserve.training.errors import BundleError, TrainingError
from dpserve.training.features.maps import Encoder
from dpserve.training.kinds.registry import all_kinds, pay_once


def load_model(folder: Path, device: str | None = None) -> Any:
    """Read and verify a bundle of any kind; `dpserve.training.kinds.registry.kind_of` says of which it is.

    device: "cpu" (the default) or "cuda". An encoder computes there; of a model without one the exact products do
    (`dpserve.training.devices`). Raises BundleError saying what is missing, damaged or different, and TrainingError for
    a device that is not there, or gives other answers.
    """
    name = kind_of(folder)
    if name not in all_kinds():
        raise BundleError(
            f"{folder} holds a model of the kind {name!r}, which is not installed here; there are "
            f"{', '.join(all_kinds())}. Install the package that brings it, or a later dpserve"
        )
    try:
        model = all_kinds()[name].load(folder, device)
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


def computed_by(model: Any, arithmetic: Arithmetic) -> Any:
    """Return the model with products that this arithmetic computes, once its answers were found to be the model's own.

    Made-up rows within the declared bounds are answered by both, one and several at a time, without noise. Raises
    TrainingError where a bit differs, which `dpserve.training.devices` proves that none does.
    """
    if not hasattr(model, "arithmetic"):
        raise TrainingError(Message("models of this kind compute on the processor alone: leave {device} out"))
    moved = replace(model, arithmetic=arithmetic)
    feature_map = model.certificate.feature_map
    lower, upper = np.asarray(feature_map.lower), np.asarray(feature_map.upper)
    generator = np.random.RandomState(0)
    for count in ROWS_TRIED:
        X = generator.uniform(lower, upper, (count, len(lower)))
        if _computed(model, X) != _computed(moved, X):
            raise TrainingError(
                Message(
                    "the device gives other bits than the processor for the same rows, so that one question "
                    "would have several answers: leave {device} out"
                )
            )
    return moved


def _computed(model: Any, X: Floats) -> bytes:
    """Return every number that products of the model's own matrices enter, for rows (n, d)."""
    if (released := pay_once(model)) is not None:
        answers = released.values(X)
        return answers.tobytes()
    phi: Floats = model.features(X)
    logits: Floats = model.logits(phi)
    return phi.tobytes() + logits.tobytes()
