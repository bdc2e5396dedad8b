"""A published network in a bundle: its answers, and a certificate of what is claimed, that it is unproven, and why.

The certificate has the shape of a certified head's where a service reads it. Serving needs no PyTorch: the forward pass
is NumPy's, in steps in which it gives the same bits everywhere.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Declared, DisclosedModel, Private
from dpserve.accounting.messages import Message
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.randomness import NoiseKey
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.bundles.sealing import (
    UNPROVEN_KIND,
    checked_tensors,
    layer_shapes,
    layer_tensors,
    layers_in,
    load_sealed,
    noise_key_of,
    save_sealed,
    with_noise_key,
)
from dpserve.training.devices import NUMPY, Arithmetic
from dpserve.training.errors import BundleError, TrainingError
from dpserve.training.exact.network import Activation, Layers, PlacedLayers, are_exact, logits, placed, rounded
from dpserve.training.fields import Several
from dpserve.training.kinds.published.bounds import Objective, Topology, claimed_sensitivities

OBJECTIONS = (
    "With three or more classes the answer shows the differences of all logits but one exactly, so that neighbouring "
    "models' answers lie on different sets and no finite epsilon holds, whatever the noise.",
    "The claimed sensitivities are no worst-case bounds: they spread an L2 bound evenly over the weights, keep the "
    "hidden layer fixed, and are those of the exact minimiser of a mean of convex losses, which no trained network is.",
    "The claimed sensitivities depend on the number of records, which is private, and so does the scale of the noise.",
    "The epsilon that is charged for an answer is the claimed one. It bounds nothing that was proved.",
)


class NoCertificate(TrainingError):
    """The objection to a request that needs a proof: this network has none."""


class ScaledInputs(DisclosedModel):
    """The map from a row to the network's input: clipped to the declared bounds and scaled to [0, 1]."""

    model_config = ConfigDict(extra="forbid")

    kind: Declared[Literal["scaled"]] = "scaled"
    lower: Declared[Several[float]]
    upper: Declared[Several[float]]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if len(self.lower) != len(self.upper) or not self.lower:
            raise ValueError("there must be one lower and one upper bound for each feature")
        for low, high in zip(self.lower, self.upper, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"bounds must be finite and in order, not {low:g}:{high:g}")
        return self


class UnprovenCertificate(ModelCertificate):
    """The published method's claims for one trained network."""

    SENSITIVITY_IS_PRIVATE: ClassVar[bool] = True

    status: Declared[Literal["unproven"]] = "unproven"
    objective: Declared[Objective]
    alpha: Declared[float] = Field(gt=0, allow_inf_nan=False)
    """The risk factor; cross-entropy does not use it."""
    feature_map: Declared[ScaledInputs]
    hidden: Declared[Several[int]] = Field(min_length=1)
    activation: Declared[Activation]
    records: Private[int] = Field(ge=1)
    """n."""
    l2_regulariser: Declared[float] = Field(gt=0, allow_inf_nan=False)
    """In Keras' convention: times ||W||^2, without a half."""
    claimed_lipschitz: Private[float]
    claimed_weight_sensitivity: Private[float]
    """Theorem 4: of all weights in L2."""
    claimed_neuron_sensitivity: Private[float]
    """Corollary 1: Delta z, which the noise is scaled to."""
    objections: Declared[Several[str]] = OBJECTIONS

    @property
    def kind_name(self) -> str:
        """The kind, which no field names."""
        return UNPROVEN_KIND

    @property
    def topology(self) -> Topology:
        """The network's widths."""
        return Topology(len(self.feature_names), self.hidden, len(self.classes))

    def derived(self) -> dict[str, float]:
        """Return the claimed numbers, derived again: none of them is a bound."""
        return claims(self.topology, self.records, self.l2_regulariser)

    def differences(self) -> list[str]:
        """Return what differs, missing objections among it."""
        missing = [] if self.objections == OBJECTIONS else ["the objections to the claim are not all there"]
        return super().differences() + missing

    def check_mechanism(self, mechanism: Mechanism, *, accept_unproven: bool) -> None:
        """Refuse to serve this network with a proven mechanism, or without the owner's acceptance in so many words.

        Raises NoCertificate saying what is missing and what would be needed.
        """
        if mechanism.status == "proven":
            raise NoCertificate(
                Message(
                    "the mechanism {!r} needs a certificate: a proven bound on how far one record can move "
                    "the logits. There is none for this network: it is no minimiser of a strongly convex "
                    "objective. Train a certified head on the same records with 'dpserve train', or serve "
                    "this network as the paper does with {mechanism:published} {accept_unproven}",
                    mechanism.name,
                )
            )
        if not accept_unproven:
            raise NoCertificate(
                Message(
                    "the mechanism {!r} is unproven: {} Say {accept_unproven} to serve it all the same",
                    mechanism.name,
                    OBJECTIONS[0],
                )
            )


def claims(topology: Topology, records: int, l2_regulariser: float) -> dict[str, float]:
    """The certificate's claimed numbers by name."""
    claimed = claimed_sensitivities(topology, records, l2_regulariser=l2_regulariser)
    return {
        "claimed_lipschitz": claimed.lipschitz,
        "claimed_weight_sensitivity": claimed.weights_l2,
        "claimed_neuron_sensitivity": claimed.neuron,
    }


@dataclass(frozen=True, eq=False)
class PublishedNetwork:
    """A trained network as a service sees it: the same methods as a certified head, and nothing proved.

    layers: as `dpserve.training.exact.network.exact_layers` returns them; noise_key: what the noise of its answers
    follows from; arithmetic: what computes its products.
    """

    certificate: UnprovenCertificate
    layers: Layers
    noise_key: NoiseKey
    arithmetic: Arithmetic = NUMPY

    def features(self, X: Floats) -> Floats:
        """The questions: rows clipped to the declared bounds, scaled to [0, 1] and rounded to steps, (n, d). Public."""
        inputs = self.certificate.feature_map
        lower, upper = np.asarray(inputs.lower), np.asarray(inputs.upper)
        return rounded((np.clip(X, lower, upper) - lower) / (upper - lower))

    def logits(self, phi: Floats) -> Floats:
        """The logits (n, C) of questions, never shown: the same bits whenever and wherever they are computed."""
        return logits(self._placed, phi, self.certificate.activation)

    def logit_sensitivity(self, phi: Floats) -> Floats:
        """The claimed Delta z of one output neuron, the same for every row: (n,). No bound on anything."""
        return np.full(len(phi), self.certificate.claimed_neuron_sensitivity)

    @functools.cached_property
    def _placed(self) -> PlacedLayers:
        return placed(self.layers, self.arithmetic)


def save_published(folder: Path, network: PublishedNetwork) -> UnprovenCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    tensors = layer_tensors(network.layers) | with_noise_key(network.noise_key)
    return save_sealed(folder, tensors, network.certificate)


def load_published(folder: Path, device: str | None = None) -> PublishedNetwork:
    """Read and check a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, UnprovenCertificate, device)
    noise_key, widths = noise_key_of(tensors), certificate.topology.widths
    layers = layers_in(checked_tensors(tensors, layer_shapes(widths)), widths)
    if not are_exact(layers):
        raise BundleError("the weights are not in the steps, or beyond the bounds, in which sums are exact")
    return PublishedNetwork(certificate, layers, noise_key)
