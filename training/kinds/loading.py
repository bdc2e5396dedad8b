"""Loading a bundle of any kind, by the kind that its certificate names."""

from pathlib import Path
from typing import Any

from training.bundles.sealing import kind_of
from training.errors import BundleError, TrainingError
from training.kinds.registry import all_kinds


def load_model(folder: Path, device: str | None = None) -> Any:
    """Read and verify a bundle of any kind; `training.kinds.registry.kind_of` says of which it is.

    device: where an encoder computes, as for `load_sealed`. Raises BundleError saying what is missing, damaged or
    different, and TrainingError if the model has no encoder.
    """
    name = kind_of(folder)
    if name not in all_kinds():
        raise BundleError(f"{folder} holds a model of the kind {name!r}, which this version does not know")
    try:
        return all_kinds()[name].load(folder, device)
    except TrainingError:
        raise
    except Exception as error:
        # Numbers that no training writes can fail anywhere: an overflow, a recursion, more memory than there is.
        raise BundleError(f"{folder} is damaged: loading it ends in {type(error).__name__}") from error
