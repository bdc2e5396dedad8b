"""How an attacker builds shadow models of a target: from the public part of its certificate, and nothing else.

Shadow models are of the target's kind and answer through its mechanism at its price, so that what is learnt from them
is what the target's noise leaves to be learnt.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from accounting.losses import Cost
from audit.endpoint import served_mechanism
from audit.membership import signals
from audit.membership.shadow_models import HeadRecipe, NetworkRecipe, ShadowRecipe
from mechanisms.elementary import softmax
from mechanisms.gaussian import Gaussian
from mechanisms.mechanism import Mechanism
from mechanisms.seeded import SeededRandomness
from training.feature_maps import AnyFeatureMap
from training.published.bounds import Recipe, Topology, claimed_sensitivities

Floats = NDArray[np.float64]

_DEFAULT_STRENGTH = 1.0
_FEATURE_MAPS: TypeAdapter[AnyFeatureMap] = TypeAdapter(AnyFeatureMap)
_LARGEST_BLOCK = 200_000
_MOST_EPOCHS = 200
_WITHOUT_NOISE = "shadow models answer without the target's noise, which an attack that they train does not expect"


@dataclass(frozen=True, eq=False)
class Mimicry:
    """What shadow models of one target are: their recipe, their inputs, and the noise of their answers."""

    model: Mapping[str, Any]
    recipe: ShadowRecipe
    mechanism: Mechanism | None
    sensitivity_per_norm: float | None
    neuron_sensitivity: float | None
    departures: tuple[str, ...] = ()
    """In what shadow models knowingly differ from the target."""

    def inputs(self, X: Floats) -> NDArray[np.float32]:
        """The inputs (n, d') of the shadow models for rows (n, d)."""
        if isinstance(self.recipe, HeadRecipe):
            feature_map = _FEATURE_MAPS.validate_python(self.model["feature_map"])
            return feature_map(X, feature_map.public_tensors()).astype(np.float32)
        lower, upper = (np.asarray(self.model["feature_map"][end]) for end in ("lower", "upper"))
        scaled: NDArray[np.float32] = ((np.clip(X, lower, upper) - lower) / (upper - lower)).astype(np.float32)
        return scaled

    def answers(self, logits: Floats, inputs: NDArray[np.float32], seed: int, copies: int = 1) -> Floats:
        """What shadow models with these logits (k, n, C) answer to rows with these inputs: (k, n, C).

        copies: the answer is an average over so many, as `signals.averaged` makes it. For Gaussian noise that is one
        answer with less noise; for every other law so many are drawn.
        """
        k, n, classes = logits.shape
        flat = np.ascontiguousarray(logits.reshape(k * n, classes))
        if self.mechanism is None:
            return softmax(flat).reshape(k, n, classes)
        sensitivity = np.tile(self._sensitivity(inputs), k)
        randomness = SeededRandomness(seed, ("shadow answers",))
        if isinstance(self.mechanism, Gaussian):
            return self._released(flat, sensitivity / np.sqrt(copies), randomness).reshape(k, n, classes)
        total = signals.log_of(self._released(flat, sensitivity, randomness))
        for _ in range(copies - 1):
            total += signals.log_of(self._released(flat, sensitivity, randomness))
        return signals.from_mean_log(total / copies).reshape(k, n, classes)

    def _released(self, logits: Floats, sensitivity: Floats, randomness: SeededRandomness) -> Floats:
        assert self.mechanism is not None
        parts = [
            self.mechanism.release(
                logits[start : start + _LARGEST_BLOCK], sensitivity[start : start + _LARGEST_BLOCK], randomness
            )
            for start in range(0, len(logits), _LARGEST_BLOCK)
        ]
        return np.concatenate(parts)

    def _sensitivity(self, inputs: NDArray[np.float32]) -> Floats:
        if self.sensitivity_per_norm is not None:
            norms: Floats = np.linalg.norm(inputs.astype(np.float64), axis=1)
            return self.sensitivity_per_norm * np.maximum(norms, 1e-12)
        assert self.neuron_sensitivity is not None
        return np.full(len(inputs), self.neuron_sensitivity)


def mimicry_of(model: Mapping[str, Any], records: int, *, epochs: int | None = None) -> Mimicry:
    """Return how to build shadow models with so many records each. model: as `GET /models/NAME` returns it.

    A network is mimicked by networks of its own topology and loss, anything else with public features by linear heads.
    A released model, whose answers carry no noise of their own, is mimicked without noise. epochs: of networks, if not
    the published ones.
    """
    if model.get("feature_map", {}).get("kind") == "encoder":
        raise ValueError(
            "the model stands on a deep network, whose weights the endpoint does not show: shadow models on other "
            "features would be no shadows of it"
        )
    classes = len(model["classes"])
    cost = Cost.parse(str(model["price_per_row"]["losses"])) if model.get("price_per_row") else Cost()
    if model.get("hidden") and "alpha" not in model:
        return Mimicry(model, _released_network(model, epochs), None, None, None, (_WITHOUT_NOISE,))
    mechanism = _served_mechanism(model) if cost.losses else None
    if "alpha" in model:
        recipe, neuron = _network(model, records, epochs)
        return Mimicry(model, recipe, mechanism, None, neuron, () if mechanism else (_WITHOUT_NOISE,))
    departures = []
    if "strong_convexity" not in model:
        departures.append(
            f"shadow models are linear heads, Lambda = {_DEFAULT_STRENGTH:g}, and the target is another kind of model"
        )
    head = HeadRecipe(classes, float(model.get("strong_convexity", _DEFAULT_STRENGTH)))
    per_norm = model.get("logit_sensitivity_per_norm")
    if per_norm is None or mechanism is None:
        return Mimicry(model, head, None, None, None, (*departures, _WITHOUT_NOISE))
    return Mimicry(model, head, mechanism, float(per_norm), None, tuple(departures))


def _served_mechanism(model: Mapping[str, Any]) -> Mechanism | None:
    with suppress(ValueError):
        return served_mechanism(model)
    return None


def _released_network(model: Mapping[str, Any], epochs: int | None) -> NetworkRecipe:
    """Networks of a released network's topology: without its noise, trained for as long."""
    topology = Topology(len(model["feature_names"]), tuple(model["hidden"]), len(model["classes"]))
    passes = round(float(model.get("steps", 0)) * float(model.get("sampling_rate", 0)))
    chosen = epochs or min(max(passes, 1), _MOST_EPOCHS)
    return NetworkRecipe(Recipe(topology, "cross-entropy", epochs=chosen, activation=model["activation"]))


def _network(model: Mapping[str, Any], records: int, epochs: int | None) -> tuple[NetworkRecipe, float]:
    topology = Topology(len(model["feature_names"]), tuple(model["hidden"]), len(model["classes"]))
    regulariser = float(model["l2_regulariser"])
    chosen = {} if epochs is None else {"epochs": epochs}
    recipe = Recipe(topology, model["objective"], l2_regulariser=regulariser, activation=model["activation"], **chosen)
    claimed = claimed_sensitivities(topology, records, l2_regulariser=regulariser)
    return NetworkRecipe(recipe, float(model["alpha"])), claimed.neuron
