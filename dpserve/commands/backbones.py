"""`dpserve train --backbone`: a head on the features of a frozen public network."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

from dpserve.commands.training_progress import steps_with_progress
from training.extras import extra
from training.feature_maps import Backbone, default_clip_norm

Singles = NDArray[np.float32]

_ROWS_IN_A_PART = 256


@dataclass(frozen=True)
class PublicNetwork:
    """A network that the owner named, and the file with its weights. device: "cpu" or "cuda"."""

    architecture: str
    weights: Path
    device: str

    def feature_map(self, parameters: Mapping[str, object], features: int) -> tuple[Backbone, bytes]:
        """Return the feature map, computing rows apart from each other, and the content of the weights' file.

        parameters: those that every map has; a `clip_norm` of None becomes half the norm of the all-ones features.
        Raises TrainingError for weights that do not fit, OSError if there are none. The map shows how far it is.
        """
        content = self.weights.read_bytes()
        with extra("torch", "a backbone"):
            from training.backbones.extractor import Extractor, load_network
        extractor = Extractor(load_network(self.architecture, content, features), self.device)
        own = {
            "architecture": self.architecture,
            "width": extractor.width,
            "weights_sha256": hashlib.sha256(content).hexdigest(),
        }
        if parameters["clip_norm"] is None:
            own["clip_norm"] = default_clip_norm(extractor.width)

        def extract(rows: Singles) -> Singles:
            # Rows are computed apart from each other, so that nothing changes where they come in parts.
            parts = []
            with steps_with_progress(len(rows), "features") as done:
                for start in range(0, len(rows), _ROWS_IN_A_PART):
                    parts.append(extractor.apart(rows[start : start + _ROWS_IN_A_PART]))
                    done(min(start + _ROWS_IN_A_PART, len(rows)))
            return np.concatenate(parts)

        return Backbone.model_validate({**parameters, **own}).computed_by(extract), content


def public_network(architecture: str | None, weights: Path | None, device: str | None) -> PublicNetwork | None:
    """Return the network that the options name, or None if they name none. Raises BadParameter for half a name."""
    if architecture is not None and weights is not None:
        return PublicNetwork(architecture, weights, device or "cpu")
    if architecture is not None:
        raise typer.BadParameter("is needed: the network's public weights", param_hint="--backbone-weights")
    if weights is not None or device is not None:
        raise typer.BadParameter("goes with --backbone", param_hint="--backbone-weights" if weights else "--device")
    return None
